//! The CPU time of a load thread, and where it runs.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;
use std::io;
use std::time::{Duration, Instant};

/// A thread's CPU time within the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ThreadCpu {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) elapsed: Duration,
}

/// A share of its core past which a thread, not the node, is taken for what bounds the rate.
const SATURATED: f64 = 0.95;

impl ThreadCpu {
    /// Starts measuring the calling thread.
    pub(crate) fn start() -> impl FnOnce() -> Self {
        let (before, started) = (used(), Instant::now());
        move || {
            let after = used();
            Self { user: after.0.saturating_sub(before.0), system: after.1.saturating_sub(before.1), elapsed: started.elapsed() }
        }
    }

    /// The share of a core that it used.
    pub(crate) fn cores(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { (self.user + self.system).as_secs_f64() / self.elapsed.as_secs_f64() }
    }

    pub(crate) fn is_saturated(&self) -> bool {
        self.cores() > SATURATED
    }
}

/// User and system time of the calling thread.
fn used() -> (Duration, Duration) {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("a thread may always ask for its own usage");
    let duration = |time: nix::sys::time::TimeVal| {
        Duration::new(u64::try_from(time.tv_sec()).unwrap_or(0), u32::try_from(time.tv_usec()).unwrap_or(0) * 1_000)
    };
    (duration(usage.user_time()), duration(usage.system_time()))
}

/// Pins the calling thread to a core.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_saturated_and_a_waiting_one_is_not() {
        let cpu = |user, elapsed| ThreadCpu {
            user: Duration::from_millis(user),
            system: Duration::from_millis(10),
            elapsed: Duration::from_millis(elapsed),
        };
        assert!(cpu(960, 1_000).is_saturated());
        assert!(!cpu(900, 1_000).is_saturated());
        assert_eq!(cpu(0, 0).cores(), 0.0);
    }

    #[test]
    fn the_time_of_this_thread_is_seen() {
        let total = || used().0 + used().1;
        let (measure, before) = (ThreadCpu::start(), total());
        let mut value = 1u64;
        while total() < before + Duration::from_millis(2) {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        let cpu = measure();
        assert!(cpu.user + cpu.system >= Duration::from_millis(2), "{cpu:?}");
        assert!(cpu.elapsed > Duration::ZERO);
    }
}
