//! Appends in a closed loop: each connection keeps `depth` records in flight, a new one as soon as one is acked.

use super::verify::{Acked, Origins};
use super::{Connection, SharedRecorder, of_client};
use crate::engine::Plan;
use crate::failure::Failure;
use crate::job::Job;
use crate::measure::Window;
use crate::pattern::Origin;
use client::{AppendFuture, Appender};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Records that share one look at the clock: it costs about as much as making one.
const PER_LOOK: usize = 16;

/// How many records a thread's connections may still append, together.
#[derive(Clone, Debug)]
pub(super) struct Budget(Option<Arc<AtomicU64>>);

impl Budget {
    /// A thread's part of the job's size.
    pub(super) fn of_thread(job: &Job, thread: usize) -> Self {
        let (threads, thread) = (job.threads as u64, thread as u64);
        let share = |records: u64| records / threads + u64::from(thread < records % threads);
        Self(job.records().map(|records| Arc::new(AtomicU64::new(share(records)))))
    }

    /// Takes up to `count`.
    fn take(&self, count: usize) -> usize {
        let Some(left) = &self.0 else { return count };
        // Only this thread's tasks use it, one at a time.
        let before = left.load(Ordering::Relaxed);
        let taken = before.min(count as u64);
        left.store(before - taken, Ordering::Relaxed);
        taken as usize
    }
}

/// One connection's load.
pub(super) struct Writer {
    plan: Plan,
    slots: Vec<Slot>,
    turn: usize,
    in_flight: VecDeque<InFlight>,
}

/// One extent of a connection.
struct Slot {
    appender: Appender,
    origin: Origin,
    acked: Acked,
}

struct InFlight {
    ack: AppendFuture,
    started: Instant,
    slot: usize,
    origin: Origin,
}

impl Writer {
    pub(super) async fn new(plan: &Plan, connection: Connection) -> Result<Self, Failure> {
        let mut slots = Vec::new();
        for (place, extent) in connection.extents {
            let appender =
                connection.client.appender(extent).await.map_err(|error| of_client(format!("append to {extent}"), &error))?;
            // An extent may have several writers, and a connection several extents.
            let writer = ((connection.index as u64) << 32) | place as u64;
            slots.push(Slot { appender, origin: Origin { writer, number: 0 }, acked: Acked::new(place) });
        }
        let in_flight = VecDeque::with_capacity(plan.job.depth);
        Ok(Self { plan: plan.clone(), slots, turn: 0, in_flight })
    }

    /// Appends until the window is over or the budget used up, and waits for the last ack.
    pub(super) async fn run(mut self, window: Window, recorder: SharedRecorder, budget: Budget) -> Result<Vec<Acked>, Failure> {
        let mut may_start = true;
        loop {
            while may_start && self.in_flight.len() < self.plan.job.depth {
                let started = Instant::now();
                let room = (self.plan.job.depth - self.in_flight.len()).min(PER_LOOK);
                let count = if window.is_over(started) { 0 } else { budget.take(room) };
                may_start = count > 0;
                for _ in 0..count {
                    self.send(started).await?;
                }
            }
            if self.in_flight.is_empty() {
                return Ok(self.slots.into_iter().map(|slot| slot.acked).collect());
            }
            self.acks(&recorder).await?;
        }
    }

    async fn send(&mut self, started: Instant) -> Result<(), Failure> {
        let slot = &mut self.slots[self.turn];
        let record = self.plan.pattern.record(slot.origin);
        let sent = match slot.appender.try_send(record) {
            Ok(Some(ack)) => Ok(ack),
            // The window is full, or the connection lost: this waits, or connects anew.
            Ok(None) | Err(_) => slot.appender.send(record).await,
        };
        let ack = sent.map_err(|error| of_client(format!("append to {}", slot.appender.extent()), &error))?;
        self.in_flight.push_back(InFlight { ack, started, slot: self.turn, origin: slot.origin });
        slot.origin.number += 1;
        self.turn = (self.turn + 1) % self.slots.len();
        Ok(())
    }

    /// Waits for the oldest ack and takes those that came with it: acks of a connection come in order.
    async fn acks(&mut self, recorder: &SharedRecorder) -> Result<(), Failure> {
        let oldest = self.in_flight.front_mut().expect("somebody is waited for");
        let mut result = (&mut oldest.ack).await;
        let ended = Instant::now();
        let bytes = self.plan.job.record_bytes as u64;
        let mut recorder = recorder.lock().expect("nothing panics under this lock");
        loop {
            let InFlight { started, slot, origin, .. } = self.in_flight.pop_front().expect("its ack has just come");
            let slot = &mut self.slots[slot];
            let appended = result.map_err(|error| of_client(format!("append to {}", slot.appender.extent()), &error))?;
            recorder.record(started, ended, 1, bytes);
            if self.plan.job.verify {
                slot.acked.add(Origins { first_seq: appended.seq, first: origin, count: 1 });
            }
            match self.in_flight.front().and_then(|next| next.ack.now()) {
                Some(next) => result = next,
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_size_to_the_last_record() {
        let text = "[a]\nsize=1003\nbs=10\nnumjobs=4\nthreads=4\n";
        let job = crate::job::parse("a.ini", text, &[]).unwrap().remove(0);
        let budgets: Vec<Budget> = (0..4).map(|thread| Budget::of_thread(&job, thread)).collect();
        let mut taken = Vec::new();
        for budget in &budgets {
            assert_eq!(budget.take(16), 16);
            taken.push(16 + budget.clone().take(1_000));
            assert_eq!(budget.take(1), 0, "clones share what is left");
        }
        assert_eq!(taken, [26, 25, 25, 25]);
        assert_eq!(Budget(None).take(5), 5);
    }
}
