//! Footers of closed segments (docs/format.md, section 7): indexes over the segment's records, in pages that are checked one by one.
//!
//! A footer is always derivable from the segment's blocks: whatever is wrong with it costs time, not data. [`FooterBuilder`]
//! writes one whole; [`Trailer`] says where its pages are; [`IndexPage`] reads one of them.

mod build;
mod entry;
mod page;
#[cfg(test)]
mod tests;
mod trailer;

pub use build::{FooterBuilder, FooterExtent, FooterInput, footer_size_bound};
pub use entry::{DirectoryEntry, SequenceEntry, TimerEntry, find_extent, sequence_position, timer_position};
pub use page::IndexPage;
pub use trailer::Trailer;

use crate::ids::SegmentId;

/// What the pages of a part of the footer hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Section {
    /// [`SequenceEntry`]s.
    Sequence = 1,
    /// [`TimerEntry`]s.
    Timer = 2,
    /// [`DirectoryEntry`]s.
    Directory = 3,
}

/// Why a page is no index page or no trailer of the footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FooterError {
    /// The bytes end inside the page.
    #[error("{got} bytes where a page of the footer has 4096")]
    Short {
        /// How many bytes there are.
        got: usize,
    },
    /// No page of a footer. In space never written, `found` is 0.
    #[error("no such page of a footer: its magic number is {found:#010x}")]
    Magic {
        /// What stands in its place.
        found: u32,
    },
    /// A trailer of a version that this one does not know.
    #[error("footer of format version {found}: this program knows version 1")]
    Version {
        /// The version it claims.
        found: u16,
    },
    /// The page is damaged.
    #[error("checksum of the footer's page is {computed:#010x}, the page says {stored:#010x}")]
    Checksum {
        /// What the page says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
    /// A stale page: what an older life of the file left behind.
    #[error("footer page of segment {found} in segment {expected}: left from an older life of the file")]
    Segment {
        /// The segment that the file is now.
        expected: SegmentId,
        /// The segment that the page belongs to.
        found: SegmentId,
    },
    /// A foreign page: of another node, another incarnation or another shard.
    #[error("footer page of the log {found:#010x} in the log {expected:#010x}: from another node, incarnation or shard")]
    LogId {
        /// The log that the file belongs to.
        expected: u32,
        /// The log that the page belongs to.
        found: u32,
    },
    /// A page of another section or another number than the one wanted: it was written to a wrong place.
    #[error("page {found} of section {found_section} where page {expected} of section {expected_section} belongs")]
    Misplaced {
        /// The section wanted.
        expected_section: u8,
        /// The page wanted.
        expected: u32,
        /// The section that the page claims.
        found_section: u8,
        /// The number that it claims.
        found: u32,
    },
    /// A reserved bit or a byte behind the last entry is not zero.
    #[error("a reserved byte of the footer's page is not zero")]
    Reserved,
    /// The count or the length of the entries is out of its bounds, or the entries are not as many or as long.
    #[error("index page does not have the {count} entries in {used} bytes that it claims")]
    Count {
        /// The entries it claims.
        count: u16,
        /// The bytes it claims for them.
        used: u32,
    },
    /// An entry is malformed, or does not follow the one before it.
    #[error("entry {index} of the index page is malformed or out of order")]
    Entry {
        /// Which one, from 0.
        index: u16,
    },
    /// The places or counts in the trailer contradict each other.
    #[error("the trailer's places or counts contradict each other")]
    Trailer,
}
