//! Builds a footer whole, in memory, from sorted entries.

use super::page::{pages_max, write_section};
use super::{DirectoryEntry, SequenceEntry, TimerEntry, Trailer};
use crate::PAGE_SIZE;
use crate::block::LogIdentity;
use crate::ids::{BlockNumber, ExtentId, ExtentKind, ExtentNumber, SegmentId, Seq, Timestamp};

/// An extent with records in the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterExtent {
    /// The shard's number for it.
    pub number: ExtentNumber,
    /// The extent.
    pub id: ExtentId,
    /// Its kind.
    pub kind: ExtentKind,
    /// Its records in the segment.
    pub record_count: u64,
    /// Their live payload bytes.
    pub live_bytes: u64,
}

/// What a footer is built from.
#[derive(Clone, Copy, Debug)]
pub struct FooterInput<'a> {
    /// The segment.
    pub segment: SegmentId,
    /// The log that it belongs to.
    pub log_id: u32,
    /// Where the footer will be in the file; it enters the trailer only, so the footer's length does not depend on it.
    pub footer_offset: u64,
    /// The end of the last block.
    pub data_end: u64,
    /// The segment's first block; 0: it has none.
    pub first_block: BlockNumber,
    /// The segment's last block; 0: it has none.
    pub last_block: BlockNumber,
    /// The runs of its sequence extents, by (extent number, first seq).
    pub sequence: &'a [SequenceEntry],
    /// The records of its timer extents, by (extent number, deliver_at, seq).
    pub timers: &'a [TimerEntry],
    /// Its extents, by number: all that have entries, and no others.
    pub extents: &'a [FooterExtent],
}

/// Builds footers.
#[derive(Debug)]
pub struct FooterBuilder;

/// What the directory says of an extent from its entries in the other sections.
struct Span {
    number: ExtentNumber,
    first_seq: Seq,
    last_seq: Seq,
    first_page: u32,
    entry_count: u32,
}

/// Counts an entry in the span of its extent, which is the last one if there is one yet.
fn count_in(spans: &mut Vec<Span>, number: ExtentNumber, first_seq: Seq, last_seq: Seq, page: u32) {
    match spans.last_mut() {
        Some(span) if span.number == number => {
            span.first_seq = span.first_seq.min(first_seq);
            span.last_seq = span.last_seq.max(last_seq);
            span.entry_count += 1;
        }
        _ => spans.push(Span { number, first_seq, last_seq, first_page: page, entry_count: 1 }),
    }
}

impl FooterBuilder {
    /// The footer's pages, the trailer last.
    ///
    /// # Panics
    /// If entries are not sorted, not valid (docs/format.md) or of extents of another kind, or if an extent has none.
    pub fn build(input: &FooterInput<'_>) -> Vec<u8> {
        let identity = LogIdentity { segment: input.segment, log_id: input.log_id };
        let mut out = Vec::new();
        let mut sequence_spans = Vec::new();
        let sequence_pages = write_section(&identity, input.sequence, &mut out, |entry, page| {
            count_in(&mut sequence_spans, entry.extent, entry.first_seq, entry.last_seq(), page);
        });
        let mut timer_spans = Vec::new();
        let timer_pages = write_section(&identity, input.timers, &mut out, |entry, page| {
            count_in(&mut timer_spans, entry.extent, entry.seq, entry.seq, page);
        });

        assert_eq!(input.extents.len(), sequence_spans.len() + timer_spans.len(), "the extents are those that have entries");
        let directory: Vec<_> = input
            .extents
            .iter()
            .map(|extent| {
                let spans = match extent.kind {
                    ExtentKind::Sequence => &sequence_spans,
                    ExtentKind::Timer => &timer_spans,
                };
                let index =
                    spans.binary_search_by_key(&extent.number, |span| span.number).expect("each extent has entries of its kind");
                let Span { first_seq, last_seq, first_page, entry_count, .. } = spans[index];
                DirectoryEntry {
                    number: extent.number,
                    id: extent.id,
                    kind: extent.kind,
                    first_seq,
                    last_seq,
                    record_count: extent.record_count,
                    live_bytes: extent.live_bytes,
                    first_page,
                    entry_count,
                }
            })
            .collect();
        let directory_pages = write_section(&identity, &directory, &mut out, |_, _| ());

        let append_times = || input.sequence.iter().map(|entry| entry.append_time);
        let trailer = Trailer {
            segment: input.segment,
            log_id: input.log_id,
            sequence_pages,
            timer_pages,
            directory_pages,
            footer_offset: input.footer_offset,
            data_end: input.data_end,
            first_block: input.first_block,
            last_block: input.last_block,
            record_count: input.extents.iter().map(|extent| extent.record_count).sum(),
            payload_bytes: input.extents.iter().map(|extent| extent.live_bytes).sum(),
            append_time_min: append_times().min().unwrap_or(Timestamp(0)),
            append_time_max: append_times().max().unwrap_or(Timestamp(0)),
            extent_count: input.extents.len() as u32,
        };
        let start = out.len();
        out.resize(start + PAGE_SIZE, 0);
        trailer.encode(&mut out[start..]);
        out
    }
}

/// The most bytes of a footer with so many entries: what to keep free for it at the segment's end.
pub const fn footer_size_bound(sequence_entries: usize, timer_entries: usize, extents: usize) -> usize {
    let pages = pages_max::<SequenceEntry>(sequence_entries)
        .saturating_add(pages_max::<TimerEntry>(timer_entries))
        .saturating_add(pages_max::<DirectoryEntry>(extents))
        .saturating_add(1);
    pages.saturating_mul(PAGE_SIZE)
}
