//! The requests of one connection: those that wait for the socket, and those that wait for an answer.
//!
//! Invariants: appends and commits (the *ordered* requests) leave the socket in the order of their ids, which count up by one;
//! an append joins a waiting request of its extent only if nothing but appends has been queued since; each request's
//! entry is taken out once, so it is answered once.

use crate::answer::{Answer, Committed};
use crate::error::ClientError;
use crate::outcome::{AppendFuture, AppendedBatch, BatchFuture, Outcome};
use log_format::ids::{Epoch, ExtentId, Seq};
use log_format::wire::reply::AppendAck;
use log_format::wire::{AppendTarget, Kind, RECORDS_MAX, RecordMeta, RequestId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Ids of requests that are not ordered: apart from the ordered ones, whose ids count from 1.
const UNORDERED_FIRST: u64 = 1 << 63;
/// Buffers kept for later requests.
const SPARE_BUFFERS_MAX: usize = 64;

pub(crate) type Sender<T> = oneshot::Sender<Result<T, ClientError>>;

/// Records of one Append request, collected while the socket is busy.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) request_id: RequestId,
    pub(super) target: AppendTarget,
    pub(super) buffers: Buffers,
    outcome: Arc<Outcome>,
}

#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) metas: Vec<RecordMeta>,
    pub(super) payload: Vec<u8>,
}

/// A request that waits for the socket.
#[derive(Debug)]
pub(super) enum Outgoing {
    Append(Batch),
    Encoded {
        request_id: RequestId,
        /// Header and body.
        head: Vec<u8>,
        payload: Vec<u8>,
    },
}

#[derive(Debug)]
enum Waiting {
    Append(Arc<Outcome>),
    Commit(Sender<Committed>),
}

#[derive(Debug)]
struct Ordered {
    waiting: Waiting,
    records: usize,
    bytes: usize,
}

/// Who waits for an answer that is not an ack.
#[derive(Debug)]
pub(super) struct Unordered {
    pub(super) kind: Kind,
    /// The extent that a Read reads, for the error if a record came damaged.
    pub(super) extent: Option<ExtentId>,
    pub(super) sender: Sender<Answer>,
}

#[derive(Debug)]
pub(super) struct Queue {
    outgoing: VecDeque<Outgoing>,
    /// How many have left `outgoing`: a request's place plus this is its number.
    taken: u64,
    /// Requests in `outgoing` that records may still join, by number.
    joinable: HashMap<ExtentId, u64>,
    joinable_last: Option<(ExtentId, u64)>,
    ordered: VecDeque<Option<Ordered>>,
    ordered_first: u64,
    /// The first ordered request that has not been handed to the socket.
    unsent_first: u64,
    unordered: HashMap<u64, Unordered>,
    unordered_next: u64,
    last_acked: u64,
    in_flight_records: usize,
    in_flight_bytes: usize,
    spare: Vec<Buffers>,
    pub(super) failure: Option<ClientError>,
    pub(super) is_writer_idle: bool,
}

/// An answer that fits no request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Mismatch {
    #[error("an answer to request {0}, which waits for none")]
    Unknown(RequestId),
    #[error("an ack of {acked} records for request {request}, which has {sent}")]
    Count { request: RequestId, acked: u32, sent: usize },
    #[error("an ack of request {0} out of order")]
    Order(RequestId),
    #[error("an answer of another kind than request {0}'s")]
    Kind(RequestId),
    #[error("an ack of request {0} whose seqs are impossible")]
    Seq(RequestId),
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            outgoing: VecDeque::new(),
            taken: 0,
            joinable: HashMap::new(),
            joinable_last: None,
            ordered: VecDeque::new(),
            ordered_first: 1,
            unsent_first: 1,
            unordered: HashMap::new(),
            unordered_next: UNORDERED_FIRST,
            last_acked: 0,
            in_flight_records: 0,
            in_flight_bytes: 0,
            spare: Vec::new(),
            failure: None,
            is_writer_idle: false,
        }
    }

    /// Whether `records` more of `bytes` fit the window. With nothing in flight anything does.
    pub(super) fn has_room(&self, records: usize, bytes: usize, window_records: usize, window_bytes: usize) -> bool {
        self.in_flight_records == 0
            || (self.in_flight_records + records <= window_records && self.in_flight_bytes + bytes <= window_bytes)
    }

    /// Whether anybody waits for an answer.
    pub(super) fn is_waiting(&self) -> bool {
        !self.ordered.is_empty() || !self.unordered.is_empty()
    }

    fn push_ordered(&mut self, waiting: Waiting, records: usize, bytes: usize) -> RequestId {
        let id = self.ordered_first + self.ordered.len() as u64;
        self.ordered.push_back(Some(Ordered { waiting, records, bytes }));
        RequestId(id)
    }

    fn push_outgoing(&mut self, outgoing: Outgoing) -> u64 {
        self.outgoing.push_back(outgoing);
        self.taken + self.outgoing.len() as u64 - 1
    }

    fn close_joinable(&mut self) {
        self.joinable.clear();
        self.joinable_last = None;
    }

    /// Adds one record to its extent's waiting request, or to a new one.
    pub(super) fn append(
        &mut self,
        extent: ExtentId,
        epoch: Epoch,
        meta: RecordMeta,
        bytes: &[u8],
        batch_bytes: usize,
    ) -> AppendFuture {
        self.in_flight_records += 1;
        self.in_flight_bytes += bytes.len();
        let number = match self.joinable_last {
            Some((last, number)) if last == extent => Some(number),
            _ => self.joinable.get(&extent).copied(),
        };
        if let Some(index) = number.and_then(|number| number.checked_sub(self.taken)) {
            let Some(Outgoing::Append(batch)) = self.outgoing.get_mut(index as usize) else {
                unreachable!("a joinable request waits for the socket and is an append");
            };
            let buffers = &mut batch.buffers;
            let fits = buffers.payload.len() + bytes.len() <= batch_bytes && buffers.metas.len() < RECORDS_MAX;
            if fits && batch.target.epoch == epoch {
                buffers.metas.push(meta);
                buffers.payload.extend_from_slice(bytes);
                let index = buffers.metas.len() as u32 - 1;
                self.joinable_last = number.map(|number| (extent, number));
                return AppendFuture::new(Arc::clone(&batch.outcome), index);
            }
        }
        let mut buffers = self.spare.pop().unwrap_or_default();
        buffers.metas.push(meta);
        buffers.payload.extend_from_slice(bytes);
        let (number, outcome) = self.push_batch(AppendTarget { extent, epoch, expected_seq: None }, buffers);
        self.joinable.insert(extent, number);
        self.joinable_last = Some((extent, number));
        AppendFuture::new(outcome, 0)
    }

    fn push_batch(&mut self, target: AppendTarget, buffers: Buffers) -> (u64, Arc<Outcome>) {
        let outcome = Arc::new(Outcome::default());
        let request_id = self.push_ordered(Waiting::Append(Arc::clone(&outcome)), 0, 0);
        let number = self.push_outgoing(Outgoing::Append(Batch { request_id, target, buffers, outcome: Arc::clone(&outcome) }));
        (number, outcome)
    }

    /// Adds a request of its own, which no record joins.
    pub(super) fn append_batch(&mut self, target: AppendTarget, metas: Vec<RecordMeta>, payload: Vec<u8>) -> BatchFuture {
        self.in_flight_records += metas.len();
        self.in_flight_bytes += payload.len();
        // Later records to the extent must not join a request before this one.
        self.joinable.remove(&target.extent);
        self.joinable_last = None;
        BatchFuture::new(self.push_batch(target, Buffers { metas, payload }).1)
    }

    /// Adds a Commit of `records` records; `encode` gives header and body for its request id.
    pub(super) fn commit(
        &mut self,
        records: usize,
        payload: Vec<u8>,
        sender: Sender<Committed>,
        encode: impl FnOnce(RequestId) -> Vec<u8>,
    ) {
        self.close_joinable();
        self.in_flight_records += records;
        self.in_flight_bytes += payload.len();
        let request_id = self.push_ordered(Waiting::Commit(sender), records, payload.len());
        self.push_outgoing(Outgoing::Encoded { request_id, head: encode(request_id), payload });
    }

    /// Adds any other request.
    pub(super) fn request(&mut self, unordered: Unordered, encode: impl FnOnce(RequestId) -> Vec<u8>) {
        self.close_joinable();
        let request_id = RequestId(self.unordered_next);
        self.unordered_next += 1;
        self.unordered.insert(request_id.0, unordered);
        self.push_outgoing(Outgoing::Encoded { request_id, head: encode(request_id), payload: Vec::new() });
    }

    /// Moves requests of about `bytes_max` to `taken`, for the socket.
    pub(super) fn take(&mut self, bytes_max: usize, taken: &mut Vec<Outgoing>) {
        let mut bytes = 0;
        while bytes < bytes_max {
            let Some(outgoing) = self.outgoing.pop_front() else { break };
            self.taken += 1;
            let request_id = match &outgoing {
                Outgoing::Append(batch) => batch.request_id,
                Outgoing::Encoded { request_id, .. } => *request_id,
            };
            if request_id.0 < UNORDERED_FIRST {
                self.unsent_first = request_id.0 + 1;
            }
            bytes += match &outgoing {
                Outgoing::Append(batch) => {
                    let place = (batch.request_id.0 - self.ordered_first) as usize;
                    let entry = self.ordered[place].as_mut().expect("a request that was not sent has not been answered");
                    (entry.records, entry.bytes) = (batch.buffers.metas.len(), batch.buffers.payload.len());
                    entry.bytes
                }
                Outgoing::Encoded { head, payload, .. } => head.len() + payload.len(),
            };
            taken.push(outgoing);
        }
        if self.outgoing.is_empty() {
            self.close_joinable();
        }
    }

    /// Takes back a request's buffers, for later ones.
    pub(super) fn recycle(&mut self, mut buffers: Buffers, capacity_max: usize) {
        if self.spare.len() < SPARE_BUFFERS_MAX && buffers.payload.capacity() <= capacity_max {
            buffers.metas.clear();
            buffers.payload.clear();
            self.spare.push(buffers);
        }
    }

    fn take_ordered(&mut self, request_id: RequestId) -> Option<Ordered> {
        let place = usize::try_from(request_id.0.checked_sub(self.ordered_first)?).ok()?;
        let entry = self.ordered.get_mut(place)?.take()?;
        while let Some(None) = self.ordered.front() {
            self.ordered.pop_front();
            self.ordered_first += 1;
        }
        self.in_flight_records -= entry.records;
        self.in_flight_bytes -= entry.bytes;
        Some(entry)
    }

    /// The entry of an ordered request that was sent and not answered.
    fn sent(&self, request_id: RequestId) -> Result<&Ordered, Mismatch> {
        let place = request_id.0.checked_sub(self.ordered_first).and_then(|place| usize::try_from(place).ok());
        let entry = place.and_then(|place| self.ordered.get(place)).and_then(Option::as_ref);
        entry.filter(|_| request_id.0 < self.unsent_first).ok_or(Mismatch::Unknown(request_id))
    }

    /// As [`Queue::sent`], where the answer must not be behind another one.
    fn sent_in_order(&self, request_id: RequestId) -> Result<&Ordered, Mismatch> {
        let entry = self.sent(request_id)?;
        if request_id.0 <= self.last_acked {
            return Err(Mismatch::Order(request_id));
        }
        Ok(entry)
    }

    /// Finds who waits for an ack.
    pub(super) fn acked(&mut self, ack: &AppendAck) -> Result<(Arc<Outcome>, AppendedBatch), Mismatch> {
        let id = ack.request_id;
        let entry = self.sent_in_order(id)?;
        let Waiting::Append(outcome) = &entry.waiting else { return Err(Mismatch::Kind(id)) };
        if ack.count as usize != entry.records {
            return Err(Mismatch::Count { request: id, acked: ack.count, sent: entry.records });
        }
        if ack.first_seq == Seq(0) || ack.first_seq.0.checked_add(u64::from(ack.count)).is_none() {
            return Err(Mismatch::Seq(id));
        }
        let outcome = Arc::clone(outcome);
        self.take_ordered(id);
        self.last_acked = id.0;
        let batch = AppendedBatch { first_seq: ack.first_seq, count: ack.count, op: ack.op, durability: ack.durability };
        Ok((outcome, batch))
    }

    /// Finds who waits for the answer to a commit.
    pub(super) fn committed(&mut self, request_id: RequestId) -> Result<Sender<Committed>, Mismatch> {
        if matches!(self.sent_in_order(request_id)?.waiting, Waiting::Append(_)) {
            return Err(Mismatch::Kind(request_id));
        }
        self.last_acked = request_id.0;
        match self.take_ordered(request_id).map(|entry| entry.waiting) {
            Some(Waiting::Commit(sender)) => Ok(sender),
            _ => unreachable!("the entry was just seen to be a commit's"),
        }
    }

    /// Finds who waits for any other answer.
    pub(super) fn answered(&mut self, request_id: RequestId, kind: Kind) -> Result<Unordered, Mismatch> {
        let entry = self.unordered.get(&request_id.0).ok_or(Mismatch::Unknown(request_id))?;
        if entry.kind != kind {
            return Err(Mismatch::Kind(request_id));
        }
        Ok(self.unordered.remove(&request_id.0).expect("the entry was just seen"))
    }

    /// Finds who waits for a request that was refused.
    pub(super) fn refused(&mut self, request_id: RequestId, error: ClientError) -> Result<Refused, Mismatch> {
        if request_id.0 >= UNORDERED_FIRST {
            let entry = self.unordered.remove(&request_id.0).ok_or(Mismatch::Unknown(request_id))?;
            return Ok(Refused(Kin::Unordered(entry.sender), error));
        }
        self.sent(request_id)?;
        let entry = self.take_ordered(request_id).expect("the entry was just seen");
        Ok(Refused(Kin::Ordered(entry.waiting), error))
    }

    /// Ends everything. The answer is to be given outside the lock.
    pub(super) fn fail(&mut self, error: &ClientError) -> Vec<Refused> {
        self.failure = Some(error.clone());
        self.outgoing.clear();
        self.close_joinable();
        let ordered = self.ordered.drain(..).flatten().map(|entry| Refused(Kin::Ordered(entry.waiting), error.clone()));
        let unordered = self.unordered.drain().map(|(_, entry)| Refused(Kin::Unordered(entry.sender), error.clone()));
        ordered.chain(unordered).collect()
    }
}

/// A request that failed, and the news for whoever waits for it.
#[derive(Debug)]
pub(super) struct Refused(Kin, ClientError);

#[derive(Debug)]
enum Kin {
    Ordered(Waiting),
    Unordered(Sender<Answer>),
}

impl Refused {
    /// Breaks the news. Whoever does not wait any more misses nothing.
    pub(super) fn tell(self) {
        match self.0 {
            Kin::Ordered(Waiting::Append(outcome)) => outcome.complete(Err(self.1)),
            Kin::Ordered(Waiting::Commit(sender)) => drop(sender.send(Err(self.1))),
            Kin::Unordered(sender) => drop(sender.send(Err(self.1))),
        }
    }
}
