//! Where the records of a segment lie: in memory while the segment is open, in its footer when it is closed.
//!
//! Both answer the same question, the runs of an extent from a seq on. The index holds committed runs only, so whatever is found in
//! it may be served.

use std::collections::BTreeMap;

use log_format::block::Run;
use log_format::footer::{FooterExtent, SequenceEntry, Trailer, footer_size_bound};
use log_format::ids::{ExtentId, ExtentKind, ExtentNumber, Seq, Timestamp};

/// One run of one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunEntry {
    pub(crate) first_seq: Seq,
    pub(crate) append_time: Timestamp,
    /// Of the run header in the segment.
    pub(crate) offset: u64,
    /// With its header.
    pub(crate) length: u32,
    pub(crate) count: u32,
}

impl RunEntry {
    pub(crate) fn last_seq(&self) -> Seq {
        Seq(self.first_seq.0 + u64::from(self.count) - 1)
    }
}

impl RunEntry {
    /// The entry of a run in a block that lies at `block_offset` of its segment, and the payload bytes of its records.
    pub(crate) fn of(run: &Run<'_>, block_offset: u64) -> (Self, u64) {
        let header = run.header();
        let entry = Self {
            first_seq: header.first_seq,
            append_time: header.append_time,
            offset: block_offset + u64::from(run.offset()),
            length: run.length() as u32,
            count: u32::from(header.count),
        };
        (entry, run.records().map(|record| record.payload.len() as u64).sum())
    }
}

impl From<&SequenceEntry> for RunEntry {
    fn from(entry: &SequenceEntry) -> Self {
        Self {
            first_seq: entry.first_seq,
            append_time: entry.append_time,
            offset: entry.offset,
            length: entry.length,
            count: entry.count,
        }
    }
}

/// An extent's runs in one segment, in memory.
pub(crate) struct ExtentRuns {
    pub(crate) id: ExtentId,
    pub(crate) kind: ExtentKind,
    pub(crate) record_count: u64,
    pub(crate) payload_bytes: u64,
    /// In the order of seqs.
    pub(crate) runs: Vec<RunEntry>,
}

/// The index of a segment without a footer.
#[derive(Default)]
pub(crate) struct MemoryIndex {
    pub(crate) extents: BTreeMap<ExtentNumber, ExtentRuns>,
    run_count: usize,
}

impl MemoryIndex {
    /// Adds a committed run behind those that the extent has here.
    pub(crate) fn push(&mut self, number: ExtentNumber, id: ExtentId, kind: ExtentKind, run: RunEntry, payload_bytes: u64) {
        let extent = self.extents.entry(number).or_insert_with(|| ExtentRuns {
            id,
            kind,
            record_count: 0,
            payload_bytes: 0,
            runs: Vec::new(),
        });
        assert!(
            extent.runs.last().is_none_or(|last| last.last_seq() < run.first_seq),
            "runs of extent {id} enter the index in the order of their seqs"
        );
        extent.record_count += u64::from(run.count);
        extent.payload_bytes += payload_bytes;
        extent.runs.push(run);
        self.run_count += 1;
    }

    /// Up to `limit` runs of an extent, from the one that holds `from` or the next behind it.
    pub(crate) fn runs(&self, number: ExtentNumber, from: Seq, limit: usize) -> Vec<RunEntry> {
        self.extents.get(&number).map_or_else(Vec::new, |extent| {
            let start = extent.runs.partition_point(|run| run.last_seq() < from);
            extent.runs[start..].iter().take(limit).copied().collect()
        })
    }

    /// The first run of an extent appended at or after `time`.
    pub(crate) fn run_at_time(&self, number: ExtentNumber, time: Timestamp) -> Option<RunEntry> {
        let runs = &self.extents.get(&number)?.runs;
        runs.get(runs.partition_point(|run| run.append_time < time)).copied()
    }

    /// What a footer is built from: the runs by (extent number, seq), and the extents.
    pub(crate) fn for_footer(&self) -> (Vec<SequenceEntry>, Vec<FooterExtent>) {
        let mut sequence = Vec::with_capacity(self.run_count);
        let mut extents = Vec::with_capacity(self.extents.len());
        for (&number, extent) in &self.extents {
            extents.push(FooterExtent {
                number,
                id: extent.id,
                kind: extent.kind,
                record_count: extent.record_count,
                live_bytes: extent.payload_bytes,
            });
            sequence.extend(extent.runs.iter().map(|run| SequenceEntry {
                extent: number,
                first_seq: run.first_seq,
                count: run.count,
                append_time: run.append_time,
                offset: run.offset,
                length: run.length,
            }));
        }
        (sequence, extents)
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.run_count * size_of::<RunEntry>() + self.extents.len() * (size_of::<ExtentRuns>() + 32)) as u64
    }
}

/// The index of a closed segment: where its pages are.
#[derive(Clone)]
pub(crate) struct FooterIndex {
    pub(crate) trailer: Trailer,
}

impl FooterIndex {
    /// The offset of a page of the sequence index.
    pub(crate) fn sequence_page_offset(&self, page: u32) -> u64 {
        self.trailer.footer_offset + u64::from(page) * log_format::PAGE_SIZE as u64
    }

    /// The offset of a page of the extent directory.
    pub(crate) fn directory_page_offset(&self, page: u32) -> u64 {
        self.sequence_page_offset(self.trailer.sequence_pages + self.trailer.timer_pages + page)
    }
}

/// A segment's index, wherever it is.
pub(crate) enum SegmentIndex {
    /// Of a segment that is open, or whose footer is not yet on the device.
    Memory(MemoryIndex),
    /// Of a closed segment.
    Footer(FooterIndex),
}

impl SegmentIndex {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryIndex::default())
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Memory(memory) => memory.memory_bytes(),
            Self::Footer(_) => size_of::<FooterIndex>() as u64,
        }
    }
}

/// Bytes that the footer of a segment with so many runs needs at most.
pub(crate) fn footer_bound(runs: usize) -> u64 {
    // Each extent has a run at least, so there are at most as many extents as runs.
    footer_size_bound(runs, 0, runs) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, count: u32, time: u64) -> RunEntry {
        RunEntry { first_seq: Seq(first), append_time: Timestamp(time), offset: first * 100, length: 44, count }
    }

    #[test]
    fn runs_are_found_by_seq_and_by_time() {
        let mut index = MemoryIndex::default();
        for entry in [run(1, 5, 10), run(6, 1, 20), run(7, 3, 20), run(20, 1, 30)] {
            index.push(ExtentNumber(7), ExtentId(7), ExtentKind::Sequence, entry, 1);
        }
        let firsts =
            |from, limit| index.runs(ExtentNumber(7), Seq(from), limit).iter().map(|run| run.first_seq.0).collect::<Vec<_>>();
        assert_eq!(firsts(1, 9), [1, 6, 7, 20]);
        assert_eq!(firsts(5, 2), [1, 6]);
        assert_eq!(firsts(9, 9), [7, 20]);
        assert_eq!(firsts(10, 9), [20], "a gap leads to the run behind it");
        assert_eq!(firsts(21, 9), [0u64; 0]);
        assert!(index.runs(ExtentNumber(8), Seq(1), 9).is_empty());
        let at = |time| index.run_at_time(ExtentNumber(7), Timestamp(time)).map(|run| run.first_seq.0);
        assert_eq!((at(0), at(10), at(11), at(20), at(30), at(31)), (Some(1), Some(1), Some(6), Some(6), Some(20), None));
    }
}
