//! The answers of a connection on their way out.
//!
//! Answers to changes leave in the order of their requests, each behind its gate; the acks of appends that are ready together share
//! a frame. Answers to reads rest on committed records alone and leave as they are ready.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use log_format::ids::BlockNumber;
use log_format::wire::reply::AppendAck;
use log_format::wire::{ACKS_MAX, Encoder, Kind, Refusal, RequestId};
use node_io::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shard::Shard;

/// Bytes gathered for one socket write.
const WRITE_SIZE: usize = 256 << 10;

/// An answer that waits for its gate.
struct Gated {
    gate: BlockNumber,
    request: RequestId,
    kind: Kind,
    answer: Answer,
}

enum Answer {
    Ack(AppendAck),
    /// Encoded already.
    Frame(Vec<u8>),
}

/// An answer to a read, encoded; its bytes count against the connection's and the shard's budget until they are written.
struct ReadAnswer {
    head: Vec<u8>,
    payload: Vec<u8>,
    _permit: Option<AnswerPermit>,
}

/// Bytes for the answer to a read. A connection's own come first: one whose peer does not read takes no more of the shard's than those.
pub(crate) struct AnswerPermit {
    connection: OwnedSemaphorePermit,
    shard: OwnedSemaphorePermit,
}

impl AnswerPermit {
    /// Waits for so many bytes. None if the server has ended.
    pub(crate) async fn acquire(connection: &Arc<Semaphore>, shard: &Arc<Semaphore>, bytes: u32) -> Option<Self> {
        let connection = connection.clone().acquire_many_owned(bytes).await.ok()?;
        let shard = shard.clone().acquire_many_owned(bytes).await.ok()?;
        Some(Self { connection, shard })
    }

    /// Gives back what is over so many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for permit in [&mut self.connection, &mut self.shard] {
            let surplus = permit.num_permits().saturating_sub(bytes);
            drop(permit.split(surplus));
        }
    }
}

/// The queue of a connection's answers.
#[derive(Default)]
pub(crate) struct Replies {
    gated: RefCell<VecDeque<Gated>>,
    reads: RefCell<VecDeque<ReadAnswer>>,
    encoder: RefCell<Encoder>,
    acks: RefCell<Vec<AppendAck>>,
    /// Reads whose answers are still being made.
    pub(crate) reads_under_way: Cell<usize>,
}

impl Replies {
    /// Requests that are not answered yet.
    pub(crate) fn unanswered(&self) -> usize {
        self.gated.borrow().len() + self.reads.borrow().len() + self.reads_under_way.get()
    }

    pub(crate) fn push_ack(&self, gate: BlockNumber, ack: AppendAck) {
        self.gated.borrow_mut().push_back(Gated { gate, request: ack.request_id, kind: Kind::Append, answer: Answer::Ack(ack) });
    }

    /// Queues an answer that `encode` writes.
    pub(crate) fn push(
        &self,
        gate: BlockNumber,
        request: RequestId,
        kind: Kind,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) {
        let mut frame = Vec::new();
        encode(&mut self.encoder.borrow_mut(), &mut frame);
        self.gated.borrow_mut().push_back(Gated { gate, request, kind, answer: Answer::Frame(frame) });
    }

    /// Queues the answer to a read.
    pub(crate) fn push_read(
        &self,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>),
        payload: Vec<u8>,
        permit: Option<AnswerPermit>,
    ) {
        let mut head = Vec::new();
        encode(&mut self.encoder.borrow_mut(), &mut head);
        self.reads.borrow_mut().push_back(ReadAnswer { head, payload, _permit: permit });
    }

    /// Moves answers that may leave into `out`, until it is full enough for one socket write. Nothing is moved if nothing may.
    pub(crate) fn take<R: Runtime>(&self, shard: &Shard<R>, out: &mut Vec<u8>) {
        while out.len() < WRITE_SIZE {
            let Some(read) = self.reads.borrow_mut().pop_front() else { break };
            out.extend_from_slice(&read.head);
            out.extend_from_slice(&read.payload);
        }
        let mut gated = self.gated.borrow_mut();
        let mut acks = self.acks.borrow_mut();
        let mut encoder = self.encoder.borrow_mut();
        while out.len() < WRITE_SIZE
            && let Some(front) = gated.front()
            && let Some(decided) = shard.decided(front.gate)
        {
            let front = gated.pop_front().expect("there is a front");
            match (decided, front.answer) {
                (Ok(()), Answer::Ack(ack)) => {
                    acks.push(ack);
                    if acks.len() < ACKS_MAX.min(WRITE_SIZE / size_of::<AppendAck>()) {
                        continue;
                    }
                }
                (Ok(()), Answer::Frame(frame)) => {
                    flush_acks(&mut encoder, &mut acks, out);
                    out.extend_from_slice(&frame);
                }
                (Err(refusal), _) => {
                    flush_acks(&mut encoder, &mut acks, out);
                    encoder.refusal(front.request, front.kind, &refusal, out);
                }
            }
            flush_acks(&mut encoder, &mut acks, out);
        }
        flush_acks(&mut encoder, &mut acks, out);
    }

    /// The gate that the next answer waits for, if any does.
    pub(crate) fn next_gate(&self) -> Option<BlockNumber> {
        self.gated.borrow().front().map(|front| front.gate)
    }

    /// Queues a refusal.
    pub(crate) fn push_refusal<R: Runtime>(&self, shard: &Shard<R>, request: RequestId, kind: Kind, refusal: &Refusal) {
        let code = usize::from(refusal.code());
        if let Some(count) = shard.0.counters.borrow_mut().refusals.get_mut(code) {
            *count += 1;
        }
        // A refusal may rest on any change so far: it must not tell of one that a crash could still undo.
        self.push(shard.newest(), request, kind, |encoder, out| encoder.refusal(request, kind, refusal, out));
    }
}

fn flush_acks(encoder: &mut Encoder, acks: &mut Vec<AppendAck>, out: &mut Vec<u8>) {
    if !acks.is_empty() {
        encoder.append_reply(acks, out);
        acks.clear();
    }
}
