//! Which record got which seq, and whether it is there with its bytes.

use super::of_client;
use crate::engine::{Plan, Verification};
use crate::failure::Failure;
use crate::pattern::Origin;
use client::{Client, ExtentId, ReaderOptions, Seq};

/// Consecutive seqs of an extent that hold consecutive records of one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origins {
    pub(super) first_seq: Seq,
    pub(super) first: Origin,
    pub(super) count: u64,
}

impl Origins {
    fn end(&self) -> u64 {
        self.first_seq.0 + self.count
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.end() == next.first_seq.0
            && self.first.writer == next.first.writer
            && self.first.number + self.count == next.first.number
    }

    fn origin(&self, seq: u64) -> Option<Origin> {
        let index = seq.checked_sub(self.first_seq.0).filter(|index| *index < self.count)?;
        Some(Origin { writer: self.first.writer, number: self.first.number + index })
    }
}

/// What was acked of one extent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acked {
    /// The extent's place in the job's list.
    pub(super) extent: usize,
    runs: Vec<Origins>,
}

impl Acked {
    pub(super) fn new(extent: usize) -> Self {
        Self { extent, runs: Vec::new() }
    }

    /// All of these records, in an extent with one writer.
    pub(super) fn all(extent: usize, writer: u64, count: u64) -> Self {
        let mut acked = Self::new(extent);
        acked.add(Origins { first_seq: Seq(1), first: Origin { writer, number: 0 }, count });
        acked
    }

    pub(super) fn add(&mut self, run: Origins) {
        match self.runs.last_mut() {
            Some(last) if last.is_followed_by(&run) => last.count += run.count,
            _ => self.runs.push(run),
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.runs.extend(other.runs);
    }
}

/// Reads an extent from its start and compares it with what was acked.
pub(super) async fn read_back(client: &Client, plan: &Plan, extent: ExtentId, acked: Acked) -> Result<Verification, Failure> {
    let mut check = Check::new(plan.clone(), extent, acked);
    let mut reader = client.reader(extent, Seq(1), ReaderOptions { follow: false, ..ReaderOptions::default() });
    let failed = |error| of_client(format!("read {extent} back"), &error);
    while let Some(records) = reader.next_page().await.map_err(failed)? {
        for record in records {
            check.record(record.seq, &record.data);
        }
    }
    Ok(check.end())
}

/// Compares an extent's records, which come in order and without gaps from 1 on, with what was acked.
struct Check {
    plan: Plan,
    extent: ExtentId,
    /// Ordered by seq; those before the record that comes next are gone.
    runs: std::iter::Peekable<std::vec::IntoIter<Origins>>,
    next: u64,
    seen: Verification,
}

impl Check {
    fn new(plan: Plan, extent: ExtentId, acked: Acked) -> Self {
        let mut runs = acked.runs;
        runs.sort_unstable_by_key(|run| run.first_seq);
        let mut seen = Verification::default();
        for pair in runs.windows(2).filter(|pair| pair[0].end() > pair[1].first_seq.0) {
            seen.wrong(|| format!("record {} of extent {extent} was acked twice", pair[1].first_seq));
        }
        Self { plan, extent, runs: runs.into_iter().peekable(), next: 1, seen }
    }

    fn record(&mut self, seq: Seq, data: &[u8]) {
        self.next = seq.0 + 1;
        while self.runs.next_if(|run| run.end() <= seq.0).is_some() {}
        let extent = self.extent;
        match self.runs.peek().and_then(|run| run.origin(seq.0)) {
            None => self.seen.wrong(|| format!("record {seq} of extent {extent} was sent by nobody")),
            Some(origin) if data == self.plan.pattern.record(origin) => self.seen.good += 1,
            Some(_) => self.seen.wrong(|| format!("record {seq} of extent {extent} has other bytes than were sent")),
        }
    }

    fn end(mut self) -> Verification {
        let (extent, next) = (self.extent, self.next);
        for run in self.runs {
            let first = run.first_seq.0.max(next);
            if first < run.end() {
                self.seen.missing(run.end() - first, || format!("extent {extent} ends before record {first}, which was acked"));
            }
        }
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::new(crate::job::parse("a.ini", "[a]\nsize=1m\nbs=100\n", &[]).unwrap().remove(0))
    }

    fn run(first_seq: u64, writer: u64, number: u64, count: u64) -> Origins {
        Origins { first_seq: Seq(first_seq), first: Origin { writer, number }, count }
    }

    /// Two writers that took turns: seqs 1-3 are the first's, 4-5 the second's, 6-7 the first's.
    fn acked() -> Acked {
        let mut acked = Acked::new(0);
        (1..=2).for_each(|seq| acked.add(run(seq, 1, seq - 1, 1)));
        acked.add(run(3, 1, 2, 1));
        acked.add(run(6, 1, 3, 2));
        let mut second = Acked::new(0);
        second.add(run(4, 2, 0, 2));
        acked.merge(second);
        acked
    }

    fn origins() -> Vec<Origin> {
        [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (1, 3), (1, 4)].map(|(writer, number)| Origin { writer, number }).to_vec()
    }

    fn check(acked: Acked, records: &[Origin]) -> Verification {
        let plan = plan();
        let mut check = Check::new(plan.clone(), ExtentId(7), acked);
        for (index, origin) in records.iter().enumerate() {
            check.record(Seq(index as u64 + 1), plan.pattern.record(*origin));
        }
        check.end()
    }

    #[test]
    fn acks_that_follow_each_other_are_kept_as_one_run() {
        assert_eq!(acked().runs, [run(1, 1, 0, 3), run(6, 1, 3, 2), run(4, 2, 0, 2)]);
    }

    #[test]
    fn what_was_sent_and_is_there_is_good() {
        let seen = check(acked(), &origins());
        assert!(seen.is_good());
        assert_eq!(seen, Verification { good: 7, ..Verification::default() });
    }

    #[test]
    fn what_is_not_there_is_missing() {
        for count in 0..7 {
            let seen = check(acked(), &origins()[..count]);
            assert_eq!((seen.good, seen.missing, seen.wrong), (count as u64, 7 - count as u64, 0));
            let problem = seen.first_problem.unwrap();
            assert!(problem.contains(&format!("before record {}", count + 1)), "{problem}");
        }
    }

    #[test]
    fn other_bytes_strangers_and_double_acks_are_wrong() {
        let mut swapped = origins();
        swapped.swap(2, 3);
        assert_eq!(check(acked(), &swapped).wrong, 2);
        let mut more = origins();
        more.push(Origin { writer: 9, number: 9 });
        let seen = check(acked(), &more);
        assert_eq!((seen.good, seen.wrong), (7, 1));
        assert!(seen.first_problem.unwrap().contains("record 8"));
        let mut twice = acked();
        twice.add(run(5, 3, 0, 1));
        assert!(!check(twice, &origins()).is_good());
    }
}
