//! Counts and latencies of one load thread, and of all threads of a job together.

use super::Window;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Three digits: every value is kept to 0.1 %.
const DIGITS: u8 = 3;
/// Longer than any request may take: the client gives up before.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// Counts what ends within the window.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    window: Window,
    latency_ns: Histogram<u64>,
    records: u64,
    bytes: u64,
}

impl Recorder {
    pub(crate) fn new(window: Window) -> Self {
        Self { window, latency_ns: new_histogram(), records: 0, bytes: 0 }
    }

    /// A request of `records` records, `bytes` of payload, has ended. In an open loop `started` is when it should have started.
    pub(crate) fn record(&mut self, started: Instant, ended: Instant, records: u64, bytes: u64) {
        if self.window.counts(ended) {
            let nanoseconds = ended.saturating_duration_since(started).as_nanos();
            self.latency_ns.saturating_record(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            self.records += records;
            self.bytes += bytes;
        }
    }
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("the bounds are in order and the digits few")
}

/// What a job did within its window.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Of each request (of appends: of each record), from when it was given to the client until its answer was seen.
    pub(crate) latency_ns: Histogram<u64>,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
}

impl Measured {
    /// The sum over all threads.
    pub(crate) fn sum(recorders: &[Recorder], elapsed: Duration) -> Self {
        let mut sum = Self { latency_ns: new_histogram(), records: 0, bytes: 0, elapsed };
        for recorder in recorders {
            sum.latency_ns.add(&recorder.latency_ns).expect("all histograms have the same bounds");
            sum.records += recorder.records;
            sum.bytes += recorder.bytes;
        }
        sum
    }

    pub(crate) fn records_per_second(&self) -> f64 {
        self.records as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that this share of all requests, in percent, does not exceed; `None` if nothing was measured.
    pub(crate) fn percentile_ns(&self, percentile: f64) -> Option<u64> {
        (!self.latency_ns.is_empty()).then(|| self.latency_ns.value_at_percentile(percentile).min(self.latency_ns.max()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> Window {
        Window::starting_now(Duration::from_secs(1), Some(Duration::from_secs(2)))
    }

    /// So long after the start of a load with a second of warming up.
    fn at(window: &Window, milliseconds: u64) -> Instant {
        window.counts_from - Duration::from_secs(1) + Duration::from_millis(milliseconds)
    }

    #[test]
    fn only_what_ends_within_the_window_counts() {
        let window = window();
        let mut recorder = Recorder::new(window);
        for (ended, counts) in [(999, false), (1_000, true), (2_999, true), (3_000, false)] {
            let before = recorder.records;
            recorder.record(at(&window, ended - 5), at(&window, ended), 3, 30);
            assert_eq!(recorder.records - before, if counts { 3 } else { 0 }, "at {ended} ms");
        }
        let measured = Measured::sum(&[recorder], window.measured(at(&window, 5_000)));
        assert_eq!((measured.records, measured.bytes, measured.elapsed), (6, 60, Duration::from_secs(2)));
        assert_eq!(measured.records_per_second(), 3.0);
        assert_eq!(measured.latency_ns.len(), 2, "one latency a request, however many records it has");
    }

    #[test]
    fn work_that_is_done_early_ends_the_window() {
        let window = window();
        assert_eq!(window.measured(at(&window, 1_500)), Duration::from_millis(500));
        assert_eq!(window.measured(at(&window, 500)), Duration::ZERO);
    }

    #[test]
    fn threads_are_merged_as_if_one_had_seen_all() {
        let window = window();
        let mut parts = [Recorder::new(window), Recorder::new(window), Recorder::new(window)];
        let mut whole = Recorder::new(window);
        for index in 0..3_000u64 {
            let (ended, latency) = (at(&window, 1_500), Duration::from_nanos(1_000 + index * 977));
            parts[index as usize % 3].record(ended - latency, ended, 1, 10);
            whole.record(ended - latency, ended, 1, 10);
        }
        let sum = Measured::sum(&parts, Duration::from_secs(1));
        let whole = Measured::sum(&[whole], Duration::from_secs(1));
        assert_eq!((sum.records, sum.bytes), (3_000, 30_000));
        for percentile in [0.0, 50.0, 99.0, 99.9, 100.0] {
            assert_eq!(sum.percentile_ns(percentile), whole.percentile_ns(percentile));
        }
        let middle = sum.percentile_ns(50.0).unwrap() as f64;
        assert!((middle / 1_466_500.0 - 1.0).abs() < 0.002, "{middle}");
    }

    #[test]
    fn no_latency_is_no_percentile_and_absurd_ones_are_kept_at_the_bound() {
        assert_eq!(Measured::sum(&[], Duration::from_secs(1)).percentile_ns(99.0), None);
        let window = Window { stops: None, ..window() };
        let mut recorder = Recorder::new(window);
        recorder.record(window.counts_from, window.counts_from + Duration::from_secs(100_000), 1, 1);
        let measured = Measured::sum(&[recorder], Duration::from_secs(1));
        let most = measured.percentile_ns(100.0).unwrap();
        assert!((LATENCY_NS_MAX..LATENCY_NS_MAX / 100 * 101).contains(&most), "{most}");
    }
}
