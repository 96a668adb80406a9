//! A connection's receive buffer: large reads from the socket, whole frames out of it, no copy in between.
//!
//! It starts small, so that idle connections cost little, and doubles as long as reads fill it. A frame that is larger than a
//! connection's own buffer may ever be takes its bytes from the shard's budget first, and waits for them if they are out.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use log_format::wire::{BODY_LENGTH_MAX, FRAME_HEADER_SIZE};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::options::ShardOptions;

/// The first size of a buffer.
const SMALL: usize = 16 << 10;
/// What a buffer grows to without asking.
const OWN_MAX: usize = 512 << 10;

/// The greatest frame that a shard takes, header and body and payload.
pub(crate) fn frame_limit(options: &ShardOptions) -> usize {
    FRAME_HEADER_SIZE + BODY_LENGTH_MAX as usize + options.op_size_max()
}

/// The buffer: bytes `start..end` are received and not yet consumed.
pub(crate) struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// What the buffer takes from the shard's budget beyond its own size.
    permit: Option<OwnedSemaphorePermit>,
    /// The shard's count of bytes in receive buffers.
    total: Counted,
}

/// A share of a count that is given back when it is dropped.
struct Counted {
    count: Rc<dyn Fn(i64)>,
    bytes: Cell<usize>,
}

impl Counted {
    fn set(&self, bytes: usize) {
        (self.count)(bytes as i64 - self.bytes.replace(bytes) as i64);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl ReceiveBuffer {
    /// A buffer that tells `count` by how many bytes it grows and shrinks.
    pub(crate) fn new(count: Rc<dyn Fn(i64)>) -> Self {
        let total = Counted { count, bytes: Cell::new(0) };
        total.set(SMALL);
        Self { bytes: vec![0; SMALL], start: 0, end: 0, permit: None, total }
    }

    /// What is received and not consumed.
    pub(crate) fn received(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Takes `count` bytes off the front.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Makes room for a frame of `frame` bytes at the front, or for more of what comes where its length isn't known yet (0).
    pub(crate) async fn make_room(&mut self, frame: usize, budget: &Arc<Semaphore>) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.permit.is_some() && frame <= OWN_MAX {
                self.resize(OWN_MAX);
                self.permit = None;
            }
        }
        if frame > OWN_MAX && frame > self.bytes.len() {
            // At most u32::MAX: frames are bounded far below.
            let wanted = (frame - OWN_MAX) as u32;
            self.permit = None;
            self.permit = budget.clone().acquire_many_owned(wanted).await.ok();
            self.compact();
            self.resize(frame);
        } else if self.end == self.bytes.len() || self.start + frame > self.bytes.len() {
            self.compact();
            let full = self.end == self.bytes.len();
            if full || frame > self.bytes.len() {
                self.resize((self.bytes.len() * 2).max(frame).min(OWN_MAX.max(frame)));
            }
        }
    }

    /// The free space behind what is received.
    pub(crate) fn free(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// `count` bytes were received into the free space.
    pub(crate) fn fill(&mut self, count: usize) {
        self.end += count;
        // A read that fills the buffer says that more is waiting: the next ones may be larger.
        if self.end == self.bytes.len() && self.start == 0 && self.bytes.len() < OWN_MAX {
            self.resize(self.bytes.len() * 2);
        }
    }

    fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    fn resize(&mut self, size: usize) {
        self.bytes.resize(size.max(self.end), 0);
        self.bytes.shrink_to_fit();
        self.total.set(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer() -> (ReceiveBuffer, Rc<Cell<i64>>) {
        let total = Rc::new(Cell::new(0));
        let counter = total.clone();
        (ReceiveBuffer::new(Rc::new(move |change| counter.set(counter.get() + change))), total)
    }

    fn receive(buffer: &mut ReceiveBuffer, bytes: &[u8]) {
        buffer.free()[..bytes.len()].copy_from_slice(bytes);
        buffer.fill(bytes.len());
    }

    fn ready(future: impl Future<Output = ()>) {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::pin!(future).poll(&mut context).is_ready(), "the budget is there");
    }

    #[test]
    fn what_is_received_stays_in_order_while_the_buffer_grows_and_shrinks() {
        let budget = Arc::new(Semaphore::new(10 << 20));
        let (mut buffer, total) = buffer();
        assert_eq!(total.get(), SMALL as i64);
        let stream: Vec<u8> = (0..3u32 << 20).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
        let (mut sent, mut taken) = (0, 0);
        for frame in [100, 20_000, 700_000, 5, 900_000, 30] {
            while buffer.received().len() < frame {
                ready(buffer.make_room(frame, &budget));
                let count = buffer.free().len().min(60_000).min(stream.len() - sent);
                receive(&mut buffer, &stream[sent..sent + count]);
                sent += count;
            }
            assert_eq!(buffer.received()[..frame], stream[taken..taken + frame]);
            buffer.consume(frame);
            taken += frame;
        }
        buffer.consume(buffer.received().len());
        ready(buffer.make_room(0, &budget));
        assert_eq!(budget.available_permits(), 10 << 20, "the budget is given back");
        assert!(total.get() <= OWN_MAX as i64);
        drop(buffer);
        assert_eq!(total.get(), 0);
    }

    #[test]
    fn a_large_frame_waits_for_the_budget() {
        let budget = Arc::new(Semaphore::new(1000));
        let (mut buffer, _) = buffer();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::pin!(buffer.make_room(OWN_MAX + 1001, &budget)).poll(&mut context).is_pending());
        ready(buffer.make_room(OWN_MAX + 1000, &budget));
        assert_eq!(budget.available_permits(), 0);
    }
}
