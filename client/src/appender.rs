//! Appends to one extent, many in flight.

use crate::client::Client;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::outcome::{AppendFuture, Appended, AppendedBatch, BatchFuture};
use log_format::ids::{Epoch, ExtentId, Seq};
use log_format::wire::AppendTarget;

/// Appends to one extent. [`Appender::send`] queues a record and gives a future for its ack; acks come in the order of the sends.
/// Records that wait for the socket are sent together.
///
/// After a lost connection the next send makes a new one; what was in flight has ended with
/// [`ClientError::Disconnected`] and is not sent again.
///
/// Clones append to the same extent through the same connection; there is no order between sends of different clones.
#[derive(Clone, Debug)]
pub struct Appender {
    client: Client,
    extent: ExtentId,
    epoch: Epoch,
    connection: Connection,
}

impl Appender {
    pub(crate) async fn new(client: Client, extent: ExtentId) -> Result<Self, ClientError> {
        let connection = client.connection_for(extent).await?;
        Ok(Self { client, extent, epoch: Epoch(0), connection })
    }

    /// Sends this epoch of the group instead of 0.
    #[must_use]
    pub fn with_epoch(mut self, epoch: Epoch) -> Self {
        self.epoch = epoch;
        self
    }

    /// The extent.
    pub fn extent(&self) -> ExtentId {
        self.extent
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        if self.connection.is_lost() {
            self.connection = self.client.connection_for(self.extent).await?;
        }
        Ok(())
    }

    /// Queues a record if the window has room now: `None` if not.
    ///
    /// # Errors
    /// The record is over the node's limit, or the connection is lost: then [`Appender::send`] makes a new one.
    pub fn try_send(&self, record: impl AsRef<[u8]>) -> Result<Option<AppendFuture>, ClientError> {
        self.connection.try_append(self.extent, self.epoch, record.as_ref())
    }

    /// Queues a record, once the window has room. The future that it gives resolves when the record is durable; the record is appended
    /// whether or not that future is polled.
    ///
    /// # Errors
    /// The record is over the node's limit, or no connection can be made. It was not sent.
    pub async fn send(&mut self, record: impl AsRef<[u8]>) -> Result<AppendFuture, ClientError> {
        self.connect().await?;
        self.connection.append(self.extent, self.epoch, record.as_ref()).await
    }

    /// Queues records as one atomic request, once the window has room. With `expected_seq` nothing is written unless the first
    /// record gets that seq.
    ///
    /// # Errors
    /// A record or all of them are over the node's limit, or no connection can be made. Nothing was sent.
    pub async fn send_batch<T: AsRef<[u8]>>(
        &mut self,
        records: &[T],
        expected_seq: Option<Seq>,
    ) -> Result<BatchFuture, ClientError> {
        self.connect().await?;
        let target = AppendTarget { extent: self.extent, epoch: self.epoch, expected_seq };
        self.connection.append_batch(target, records).await
    }

    /// Appends one record and waits until it is durable.
    ///
    /// # Errors
    /// What the node refuses; [`ClientError::Disconnected`] if it is not known whether the record was appended.
    pub async fn append(&mut self, record: impl AsRef<[u8]>) -> Result<Appended, ClientError> {
        let record = record.as_ref();
        let result = self.send(record).await?.await;
        if self.moves(&result).await? { self.send(record).await?.await } else { result }
    }

    /// Appends records as one atomic request and waits until they are durable.
    ///
    /// # Errors
    /// As [`Appender::append`]; [`SeqMismatch`](log_format::wire::Refusal::SeqMismatch) if another writer was there first.
    pub async fn append_batch<T: AsRef<[u8]>>(
        &mut self,
        records: &[T],
        expected_seq: Option<Seq>,
    ) -> Result<AppendedBatch, ClientError> {
        let result = self.send_batch(records, expected_seq).await?.await;
        if self.moves(&result).await? { self.send_batch(records, expected_seq).await?.await } else { result }
    }

    /// Whether the extent turned out to be on another shard, so that a refused append, of which nothing was done, is worth a second try.
    async fn moves<T>(&mut self, result: &Result<T, ClientError>) -> Result<bool, ClientError> {
        match result {
            Err(error) if self.client.may_be_elsewhere(self.extent, error) => {
                self.connection = self.client.connection_for(self.extent).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
