//! What a load is put on. An engine prepares what the load needs, runs each thread's share of it, and looks at what became of it.
//!
//! Contract: [`Engine::load`] runs on a thread of its own, gets ready, waits at the [`Gate`] for the window, and stops by itself when
//! the window is over or its work done. Everything slow that is not the load belongs into `prepare`, or before the gate.

mod node;

pub(crate) use node::NodeEngine;

use crate::failure::Failure;
use crate::job::Job;
use crate::measure::{Recorder, ThreadCpu, Window};
use crate::pattern::Pattern;
use std::sync::{Arc, mpsc};

/// What every part of a job shares.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) job: Arc<Job>,
    pub(crate) pattern: Arc<Pattern>,
}

impl Plan {
    pub(crate) fn new(job: Job) -> Self {
        let pattern = Pattern::new(job.seed, job.record_bytes);
        Self { job: Arc::new(job), pattern: Arc::new(pattern) }
    }
}

/// An engine, ready for one job.
pub(crate) trait Engine: Sized + Sync {
    /// What a load thread remembers, to be looked at when the load is over.
    type Kept: Send;

    /// Makes what the load needs.
    fn prepare(plan: &Plan) -> Result<Self, Failure>;

    /// Runs the share of one of the job's threads.
    fn load(&self, thread: usize, gate: Gate) -> Result<Loaded<Self::Kept>, Failure>;

    /// Checks what was to be checked and removes what was made.
    fn finish(self, kept: Vec<Self::Kept>) -> Result<Option<Verification>, Failure>;

    /// What the load is put on, for people.
    fn target(&self) -> Vec<(&'static str, String)>;
}

/// What a load thread saw.
#[derive(Debug)]
pub(crate) struct Loaded<Kept> {
    pub(crate) recorder: Recorder,
    pub(crate) cpu: ThreadCpu,
    pub(crate) kept: Kept,
}

/// What reading back has shown. That something does not fit is counted, not refused: how much is wrong is worth knowing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verification {
    /// Records that are there with their bytes.
    pub(crate) good: u64,
    /// Records that were acked, or belong into a filled extent, and are not there.
    pub(crate) missing: u64,
    /// Records whose bytes are not those that were sent.
    pub(crate) wrong: u64,
    /// What was the first that did not fit.
    pub(crate) first_problem: Option<String>,
}

impl Verification {
    pub(crate) fn is_good(&self) -> bool {
        self.missing == 0 && self.wrong == 0
    }

    pub(crate) fn missing(&mut self, count: u64, what: impl FnOnce() -> String) {
        self.missing += count;
        self.first_problem.get_or_insert_with(what);
    }

    pub(crate) fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.wrong += 1;
        self.first_problem.get_or_insert_with(what);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.good += other.good;
        self.missing += other.missing;
        self.wrong += other.wrong;
        self.first_problem = self.first_problem.take().or(other.first_problem);
    }
}

/// Where a load thread waits until all of them are ready.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) ready: mpsc::Sender<()>,
    pub(crate) window: mpsc::Receiver<Window>,
}

impl Gate {
    /// Says that this thread is ready and waits for the others. Fails if one of them can't get ready.
    pub(crate) fn wait(self) -> Result<Window, Failure> {
        // If nobody listens any more the window will not come either.
        let _ = self.ready.send(());
        self.window.recv().map_err(|_| Failure::consequence("start the load", "another part of the job could not get ready"))
    }
}
