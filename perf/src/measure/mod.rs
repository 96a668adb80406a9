//! What is measured, and when: the window, the latencies, the load's own CPU time.

mod cpu;
mod recorder;

pub(crate) use cpu::{ThreadCpu, pin};
pub(crate) use recorder::{Measured, Recorder};

use std::time::{Duration, Instant};

/// When a load runs, and when of it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// What ends from here on counts. Until then the load warms up.
    pub(crate) counts_from: Instant,
    /// No new work from here on, and what ends later does not count. `None`: until the work is done.
    pub(crate) stops: Option<Instant>,
}

impl Window {
    /// A window that starts now.
    pub(crate) fn starting_now(ramp: Duration, runtime: Option<Duration>) -> Self {
        let counts_from = Instant::now() + ramp;
        Self { counts_from, stops: runtime.map(|runtime| counts_from + runtime) }
    }

    /// Whether new work may start.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.stops.is_some_and(|stops| now >= stops)
    }

    /// Whether what ends now counts.
    pub(crate) fn counts(&self, now: Instant) -> bool {
        now >= self.counts_from && !self.is_over(now)
    }

    /// How long the measured part was, of a load whose work ended at `ended`.
    pub(crate) fn measured(&self, ended: Instant) -> Duration {
        self.stops.map_or(ended, |stops| stops.min(ended)).saturating_duration_since(self.counts_from)
    }
}
