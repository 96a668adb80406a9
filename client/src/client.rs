//! The client: what it offers, and where each request goes.

use crate::answer::{Answer, Committed, Page};
use crate::appender::Appender;
use crate::commit::Commit;
use crate::connection::{Connection, NodeInfo, Pending, answer};
use crate::error::ClientError;
use crate::options::{ClientOptions, ReaderOptions};
use crate::outcome::{Appended, AppendedBatch};
use crate::reader::Reader;
use crate::shards::Shards;
use log_format::ids::{DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Key, Op, Seq, ShardIndex, Timestamp};
use log_format::wire::reply::{self, ExtentInfo};
use log_format::wire::{Body, Refusal, request};
use std::sync::Arc;

/// A client of one node. Clones share its connections; when the last clone is dropped they are closed, and what is in flight
/// ends with [`ClientError::Disconnected`].
///
/// Requests that change nothing, or nothing more the second time, are repeated when their connection is lost. Appends, commits and
/// deletes never are.
#[derive(Clone, Debug)]
pub struct Client {
    shards: Arc<Shards>,
}

/// An extent to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewExtent {
    /// Its id.
    pub extent: ExtentId,
    /// Its group.
    pub group: GroupId,
    /// How it is read.
    pub kind: ExtentKind,
    /// The group's epoch.
    pub epoch: Epoch,
}

impl NewExtent {
    /// A sequence extent with a random id, a group of its own.
    pub fn new() -> Self {
        Self::with_id(ExtentId(uuid::Uuid::new_v4().as_u128()))
    }

    /// A sequence extent with this id, a group of its own.
    pub fn with_id(extent: ExtentId) -> Self {
        Self { extent, group: extent.into(), kind: ExtentKind::Sequence, epoch: Epoch(0) }
    }

    /// The same, in this group.
    #[must_use]
    pub fn in_group(self, group: GroupId) -> Self {
        Self { group, ..self }
    }
}

impl Default for NewExtent {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes the answer of one kind out of [`Answer`].
macro_rules! expect {
    ($self:ident, $answer:expr, $kind:ident) => {
        match $answer {
            Answer::$kind(answer) => Ok(answer),
            other => Err($self.shards.unexpected(&other)),
        }
    };
}

impl Client {
    /// Connects to a node, `HOST:PORT`. The connection's tasks run on the current tokio runtime.
    ///
    /// # Errors
    /// [`ClientError::Connect`] if the node can't be reached, [`ClientError::Refused`] if it does not want us.
    pub async fn connect(address: &str, options: ClientOptions) -> Result<Self, ClientError> {
        Ok(Self { shards: Arc::new(Shards::connect(address, options).await?) })
    }

    /// What the node said about itself on the first connection.
    pub fn node(&self) -> &NodeInfo {
        self.shards.node()
    }

    pub(crate) async fn connection_for(&self, extent: ExtentId) -> Result<Connection, ClientError> {
        self.shards.connection(self.shards.of_extent(extent).await?).await
    }

    /// Takes note that a shard refused to know the extent. Whether it is worth asking again, elsewhere.
    pub(crate) fn may_be_elsewhere(&self, extent: ExtentId, error: &ClientError) -> bool {
        match error {
            ClientError::Refused(Refusal::WrongShard { shard }) => {
                self.shards.remember(extent, *shard);
                true
            }
            ClientError::Refused(Refusal::NotFound) => self.shards.forget(extent),
            _ => false,
        }
    }

    async fn ask_about<B: Body>(&self, extent: ExtentId, body: &B) -> Result<Answer, ClientError> {
        let result = self.shards.ask(self.shards.of_extent(extent).await?, body).await;
        match result {
            Err(error) if self.may_be_elsewhere(extent, &error) => {
                self.shards.ask(self.shards.of_extent(extent).await?, body).await
            }
            result => result,
        }
    }

    /// Makes an extent. That it exists already, with the same group and kind, is fine: the answer says so.
    ///
    /// # Errors
    /// [`Refusal::AlreadyExists`] with another group or kind, and what any request may fail with.
    pub async fn create_extent(&self, new: NewExtent) -> Result<reply::CreateExtent, ClientError> {
        let shard = self.shards.of_group(new.group);
        let body = request::CreateExtent { extent: new.extent, group: new.group, kind: new.kind, epoch: new.epoch };
        let created = expect!(self, self.shards.ask(shard, &body).await?, CreateExtent)?;
        self.shards.remember(created.extent, shard);
        Ok(created)
    }

    /// For many appends to one extent.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], and what any request may fail with.
    pub async fn appender(&self, extent: ExtentId) -> Result<Appender, ClientError> {
        Appender::new(self.clone(), extent).await
    }

    /// Appends one record and waits until it is durable. For many in flight use an [`Appender`].
    ///
    /// # Errors
    /// What the node refuses; [`ClientError::Disconnected`] if it is not known whether the record was appended.
    pub async fn append(&self, extent: ExtentId, record: impl AsRef<[u8]>) -> Result<Appended, ClientError> {
        self.appender(extent).await?.append(record).await
    }

    /// Appends records as one atomic request and waits until they are durable. With `expected_seq` nothing is written
    /// unless the first record gets that seq.
    ///
    /// # Errors
    /// As [`Client::append`]; [`Refusal::SeqMismatch`].
    pub async fn append_batch<T: AsRef<[u8]>>(
        &self,
        extent: ExtentId,
        records: &[T],
        expected_seq: Option<Seq>,
    ) -> Result<AppendedBatch, ClientError> {
        self.appender(extent).await?.append_batch(records, expected_seq).await
    }

    /// Does several changes on extents of one group: all or none.
    ///
    /// # Errors
    /// What the node refuses, with nothing done; [`ClientError::Disconnected`] if it is not known whether all or nothing was done.
    pub async fn commit(&self, commit: &Commit) -> Result<Committed, ClientError> {
        if let Some(problem) = commit.problem() {
            return Err(Refusal::BadRequest { why: problem.to_owned() }.into());
        }
        let connection = self.shards.connection(self.shards.of_group(commit.group)).await?;
        answer(connection.commit(commit.group, commit.epoch, &commit.operations(), &commit.payload).await?).await
    }

    pub(crate) fn start_read(connection: &Connection, read: &request::Read) -> Result<Pending<Answer>, ClientError> {
        connection.request(read, Some(read.extent))
    }

    pub(crate) async fn finish_read(&self, read: &request::Read, pending: &mut Pending<Answer>) -> Result<Page, ClientError> {
        let page = expect!(self, answer(pending).await?, Read)?;
        let is_contiguous = page.records.iter().zip(read.from_seq.0..).all(|(record, seq)| record.seq == Seq(seq));
        let next = read.from_seq.0.checked_add(page.records.len() as u64);
        if !is_contiguous || next != Some(page.next_seq.0) {
            return Err(self.shards.broken(format!("records of {} do not follow from {}", read.extent, read.from_seq)));
        }
        Ok(page)
    }

    /// Reads once, as the protocol has it. A [`Reader`] is handier.
    ///
    /// # Errors
    /// What the node refuses: [`Refusal::Trimmed`], [`Refusal::Corrupt`], …; [`ClientError::Damaged`].
    pub async fn read(&self, read: request::Read) -> Result<Page, ClientError> {
        let mut is_repeated = false;
        loop {
            let connection = self.connection_for(read.extent).await?;
            let result = match Self::start_read(&connection, &read) {
                Ok(mut pending) => self.finish_read(&read, &mut pending).await,
                Err(error) => Err(error),
            };
            match result {
                Err(error) if !is_repeated && self.may_read_again(read.extent, &error) => is_repeated = true,
                result => return result,
            }
        }
    }

    pub(crate) fn may_read_again(&self, extent: ExtentId, error: &ClientError) -> bool {
        matches!(error, ClientError::Disconnected { .. } | ClientError::Damaged { .. }) || self.may_be_elsewhere(extent, error)
    }

    /// Reads an extent in order, from this seq on.
    pub fn reader(&self, extent: ExtentId, from: Seq, options: ReaderOptions) -> Reader {
        Reader::new(self.clone(), extent, from, options)
    }

    /// Ends an extent: it takes no more records. An extent that is sealed already stays as it is.
    ///
    /// # Errors
    /// What the node refuses.
    pub async fn seal(&self, extent: ExtentId, epoch: Epoch) -> Result<reply::Seal, ClientError> {
        expect!(self, self.ask_about(extent, &request::Seal { extent, epoch }).await?, Seal)
    }

    /// Removes an extent with all its records. Not repeated by itself: the second time it would be [`Refusal::NotFound`].
    ///
    /// # Errors
    /// What the node refuses; [`ClientError::Disconnected`] if it is not known whether the extent is gone.
    pub async fn delete(&self, extent: ExtentId, epoch: Epoch) -> Result<Op, ClientError> {
        let connection = self.connection_for(extent).await?;
        let deleted = expect!(self, answer(connection.request(&request::Delete { extent, epoch }, None)?).await?, Delete)?;
        self.shards.forget(extent);
        Ok(deleted.op)
    }

    /// Declares everything up to and including `to` dead. Gives the last seq that is dead.
    ///
    /// # Errors
    /// What the node refuses.
    pub async fn trim(&self, extent: ExtentId, to: Seq, epoch: Epoch) -> Result<Seq, ClientError> {
        let body = request::Trim { extent, epoch, to: Key { deliver_at: DeliverAt(0), seq: to } };
        Ok(expect!(self, self.ask_about(extent, &body).await?, Trim)?.floor.seq)
    }

    /// What the node knows of an extent.
    ///
    /// # Errors
    /// What the node refuses.
    pub async fn describe(&self, extent: ExtentId) -> Result<ExtentInfo, ClientError> {
        Ok(expect!(self, self.ask_about(extent, &request::Describe { extent }).await?, Describe)?.extent)
    }

    /// The first record appended at or after a time: its seq and its time; the extent's next seq and 0 if there is none.
    ///
    /// # Errors
    /// What the node refuses.
    pub async fn seq_at_time(&self, extent: ExtentId, time: Timestamp) -> Result<reply::SeqAtTime, ClientError> {
        expect!(self, self.ask_about(extent, &request::SeqAtTime { extent, time }).await?, SeqAtTime)
    }

    /// All extents of the node, ordered by id.
    ///
    /// # Errors
    /// What the node refuses.
    pub async fn list(&self) -> Result<Vec<ExtentInfo>, ClientError> {
        let mut extents = Vec::new();
        for shard in self.shards.all() {
            extents.append(&mut self.list_shard(shard).await?);
        }
        extents.sort_unstable_by_key(|info| info.extent);
        Ok(extents)
    }

    /// The extents of one shard, ordered by id.
    ///
    /// # Errors
    /// What the node refuses.
    pub async fn list_shard(&self, shard: ShardIndex) -> Result<Vec<ExtentInfo>, ClientError> {
        let mut extents: Vec<ExtentInfo> = Vec::new();
        loop {
            let after = extents.last().map(|info| info.extent);
            let mut list = expect!(self, self.shards.ask(shard, &request::List { after, limit: 0 }).await?, List)?;
            let is_ordered =
                list.extents.iter().map(|info| Some(info.extent)).try_fold(after, |last, id| (id > last).then_some(id));
            if is_ordered.is_none() && !list.extents.is_empty() || list.more && list.extents.is_empty() {
                return Err(self.shards.broken("a list of extents that is out of order".to_owned()));
            }
            extents.append(&mut list.extents);
            if !list.more {
                return Ok(extents);
            }
        }
    }
}
