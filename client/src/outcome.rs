//! What becomes of an Append: one place a request, shared by the futures of all its records.
//!
//! A record's future costs a reference count; a request's answer wakes exactly those that wait for it.

use crate::error::ClientError;
use log_format::ids::{Op, Seq};
use log_format::wire::reply::Durability;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

/// A record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its place in the extent.
    pub seq: Seq,
    /// The op of its request in the group.
    pub op: Op,
    /// How far it has come.
    pub durability: Durability,
}

/// The records of one request are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedBatch {
    /// The first record's seq; the others follow without gaps.
    pub first_seq: Seq,
    /// How many records.
    pub count: u32,
    /// The op of the request in the group.
    pub op: Op,
    /// How far they have come.
    pub durability: Durability,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    result: OnceLock<Result<AppendedBatch, ClientError>>,
    waiting: Mutex<Vec<Waker>>,
}

impl Outcome {
    pub(crate) fn complete(&self, result: Result<AppendedBatch, ClientError>) {
        self.result.set(result).expect("a request is answered once: its entry is taken out of the connection's list");
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("nothing panics under this lock"));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// `place`: where the caller's waker stands in the list, from an earlier poll.
    fn poll(&self, place: &mut Option<usize>, context: &Context<'_>) -> Poll<&Result<AppendedBatch, ClientError>> {
        if let Some(result) = self.result.get() {
            return Poll::Ready(result);
        }
        let mut waiting = self.waiting.lock().expect("nothing panics under this lock");
        // Set before the list was taken, and the list is taken under the lock: looking again under it misses nothing.
        if let Some(result) = self.result.get() {
            return Poll::Ready(result);
        }
        match place {
            Some(place) => waiting[*place].clone_from(context.waker()),
            None => {
                *place = Some(waiting.len());
                waiting.push(context.waker().clone());
            }
        }
        Poll::Pending
    }
}

/// Resolves when one appended record is durable, or is known not to be, or its connection is lost. May be dropped: the record is
/// appended all the same.
#[derive(Debug)]
#[must_use = "only the answer says that the record is durable"]
pub struct AppendFuture {
    outcome: Arc<Outcome>,
    index: u32,
    place: Option<usize>,
}

impl AppendFuture {
    pub(crate) fn new(outcome: Arc<Outcome>, index: u32) -> Self {
        Self { outcome, index, place: None }
    }

    /// The answer, if it is there.
    pub fn now(&self) -> Option<Result<Appended, ClientError>> {
        self.outcome.result.get().map(|result| self.pick(result))
    }

    fn pick(&self, result: &Result<AppendedBatch, ClientError>) -> Result<Appended, ClientError> {
        let batch = result.as_ref().map_err(ClientError::clone)?;
        Ok(Appended { seq: Seq(batch.first_seq.0 + u64::from(self.index)), op: batch.op, durability: batch.durability })
    }
}

impl Future for AppendFuture {
    type Output = Result<Appended, ClientError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Poll::Ready(result) = this.outcome.poll(&mut this.place, context) else { return Poll::Pending };
        Poll::Ready(this.pick(result))
    }
}

/// Like [`AppendFuture`], for all records of a request.
#[derive(Debug)]
#[must_use = "only the answer says that the records are durable"]
pub struct BatchFuture {
    outcome: Arc<Outcome>,
    place: Option<usize>,
}

impl BatchFuture {
    pub(crate) fn new(outcome: Arc<Outcome>) -> Self {
        Self { outcome, place: None }
    }
}

impl Future for BatchFuture {
    type Output = Result<AppendedBatch, ClientError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Poll::Ready(result) = this.outcome.poll(&mut this.place, context) else { return Poll::Pending };
        Poll::Ready(result.clone())
    }
}
