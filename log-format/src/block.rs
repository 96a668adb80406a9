//! Blocks: one group commit each, holding runs of records of any of a shard's extents (docs/format.md, section 4).
//!
//! [`BlockBuilder`] makes a block in place in a buffer that the I/O backend owns. [`Block`], [`Run`] and [`Record`] read one
//! without copying. The block's crc covers its header, the run headers and the records' checks, and each check covers the
//! record's address, its header and the checksum of its payload: so a block whose crc holds may still have damaged records, which
//! [`Record::verify`] finds one by one, and all others in it stay readable.

mod build;
mod decode;
#[cfg(test)]
mod tests;

pub use build::{BlockBuilder, BlockSeal, RunStart, run_space};
pub use decode::{Block, BlockHeader, LogIdentity, Record, Records, Run, RunHeader, Runs, decode_block_header};

use crate::ids::{BlockNumber, DeliverAt, ExtentId, SegmentId, Seq};
use crate::{BLOCK_SIZE_MAX, PAGE_SIZE, RECORD_SIZE_MAX};

/// Bytes of a block's header.
pub const BLOCK_HEADER_SIZE: usize = 64;
/// Bytes of a run's header.
pub const RUN_HEADER_SIZE: usize = 32;
/// The most records in one run.
pub const RUN_COUNT_MAX: usize = 65_535;
/// Bytes of a record's header, but in timer runs.
pub const RECORD_HEADER_SIZE: usize = 12;
/// Bytes of a record's header in timer runs.
pub const TIMER_RECORD_HEADER_SIZE: usize = 20;

const MAGIC: u32 = u32::from_le_bytes(*b"RBLK");
const FLAG_CHECKPOINT: u16 = 1;

/// The bit of a record's length field that says that its op ends with it.
const END_OF_OP: u32 = 1 << 31;
/// The bits of a record's length field that are the payload's length.
const LENGTH_MASK: u32 = (1 << 25) - 1;

/// Offsets of a block header's fields.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 4;
    pub(super) const FLAGS: usize = 6;
    pub(super) const SEGMENT: usize = 8;
    pub(super) const NUMBER: usize = 16;
    pub(super) const COMMITTED: usize = 24;
    pub(super) const LENGTH: usize = 32;
    pub(super) const USED: usize = 36;
    pub(super) const RUN_COUNT: usize = 40;
    pub(super) const RECORD_COUNT: usize = 44;
    pub(super) const LOG_ID: usize = 48;
    pub(super) const RESERVED: usize = 52;
    pub(super) const CRC: usize = 60;
}

/// Offsets of a run header's fields.
mod run {
    pub(super) const EXTENT_NUMBER: usize = 0;
    pub(super) const COUNT: usize = 4;
    pub(super) const KIND: usize = 6;
    pub(super) const RESERVED: usize = 7;
    pub(super) const FIRST_SEQ: usize = 8;
    pub(super) const OP: usize = 16;
    pub(super) const APPEND_TIME: usize = 24;
}

/// Offsets of a record header's fields.
mod record {
    pub(super) const LENGTH: usize = 0;
    pub(super) const PAYLOAD_CHECKSUM: usize = 4;
    pub(super) const CHECK: usize = 8;
    pub(super) const DELIVER_AT: usize = 12;
}

const _: () = {
    assert!(header::RESERVED + 8 == header::CRC && header::CRC + 4 == BLOCK_HEADER_SIZE);
    assert!(run::APPEND_TIME + 8 == RUN_HEADER_SIZE && RUN_HEADER_SIZE <= 32);
    assert!(record::CHECK + 4 == RECORD_HEADER_SIZE && RECORD_HEADER_SIZE <= 12);
    assert!(record::DELIVER_AT + 8 == TIMER_RECORD_HEADER_SIZE && TIMER_RECORD_HEADER_SIZE <= 20);
    assert!(RECORD_SIZE_MAX <= LENGTH_MASK as usize, "the length field holds the greatest payload");
    assert!(RUN_COUNT_MAX == u16::MAX as usize);
    assert!(BLOCK_SIZE_MAX.is_multiple_of(PAGE_SIZE) && BLOCK_SIZE_MAX <= u32::MAX as usize);
};

/// What the records of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RunKind {
    /// Records of a sequence extent.
    Sequence = 1,
    /// Records of a timer extent.
    Timer = 2,
    /// Changes of an extent's state ([`crate::state`]).
    State = 3,
    /// Parts of a checkpoint ([`crate::checkpoint`]).
    Checkpoint = 4,
}

impl RunKind {
    /// Bytes of the header of each record in such a run.
    pub const fn record_header_size(self) -> usize {
        match self {
            Self::Timer => TIMER_RECORD_HEADER_SIZE,
            Self::Sequence | Self::State | Self::Checkpoint => RECORD_HEADER_SIZE,
        }
    }

    /// From its byte on disk.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Sequence),
            2 => Some(Self::Timer),
            3 => Some(Self::State),
            4 => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

/// The check of a record: binds its bytes' checksum and its header to its address. `deliver_at` is 0 but in timer extents.
pub fn record_check(extent: ExtentId, seq: Seq, deliver_at: DeliverAt, length_field: u32, payload_checksum: u32) -> u32 {
    check_behind_extent(crc32c::crc32c(&extent.to_bytes()), seq, deliver_at, length_field, payload_checksum)
}

/// [`record_check`] where the crc over the extent's id is known already.
fn check_behind_extent(extent_crc: u32, seq: Seq, deliver_at: DeliverAt, length_field: u32, payload_checksum: u32) -> u32 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&seq.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&deliver_at.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&length_field.to_le_bytes());
    bytes[20..].copy_from_slice(&payload_checksum.to_le_bytes());
    crc32c::crc32c_append(extent_crc, &bytes)
}

/// Why bytes are no current block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The bytes end before the block or run does.
    #[error("{got} bytes where {needed} are needed")]
    Short {
        /// How many it takes.
        needed: usize,
        /// How many there are.
        got: usize,
    },
    /// No block starts here. In space never written, `found` is 0.
    #[error("no block: its magic number is {found:#010x}")]
    Magic {
        /// What stands in its place.
        found: u32,
    },
    /// A block of a version that this one does not know.
    #[error("block of format version {found}: this program knows version 1")]
    Version {
        /// The version it claims.
        found: u16,
    },
    /// A stale block: what an older life of the file left behind.
    #[error("block of segment {found} in segment {expected}: left from an older life of the file")]
    Segment {
        /// The segment that the file is now.
        expected: SegmentId,
        /// The segment that the block belongs to.
        found: SegmentId,
    },
    /// A foreign block: of another node, another incarnation or another shard.
    #[error("block of the log {found:#010x} in the log {expected:#010x}: from another node, incarnation or shard")]
    LogId {
        /// The log that the file belongs to.
        expected: u32,
        /// The log that the block belongs to.
        found: u32,
    },
    /// A length is out of its bounds or contradicts another.
    #[error(
        "block claims {length} bytes, {used} of them used, {run_count} runs and {record_count} records, which no block can have"
    )]
    Length {
        /// The length it claims.
        length: u32,
        /// The bytes it claims to use.
        used: u32,
        /// The runs it claims to have.
        run_count: u32,
        /// The records it claims to have.
        record_count: u32,
    },
    /// A block number of 0, or a committed block that is not before this one.
    #[error("block with the number {number} that calls block {committed} committed")]
    Number {
        /// The number it claims.
        number: BlockNumber,
        /// The block it calls committed.
        committed: BlockNumber,
    },
    /// A reserved bit of the header is set.
    #[error("a reserved bit of the block header is set")]
    Reserved,
    /// The crc over header, run headers and checks does not hold.
    #[error("block checksum is {computed:#010x}, its header says {stored:#010x}")]
    Checksum {
        /// What the header says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
    /// A run is malformed.
    #[error("run at offset {offset} of the block: {problem}")]
    Run {
        /// Where its header is in the block; 0 if it stands alone.
        offset: u32,
        /// What is wrong with it.
        problem: RunProblem,
    },
}

/// What is wrong with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunProblem {
    /// It goes on past the block's used bytes.
    #[error("it is longer than the rest of the block")]
    Short,
    /// Its kind is unknown.
    #[error("its kind is {0}")]
    Kind(u8),
    /// It has no records.
    #[error("it has no records")]
    Empty,
    /// A reserved bit is set.
    #[error("a reserved bit is set")]
    Reserved,
    /// Its kind does not go with its extent number.
    #[error("its extent number is {0}")]
    ExtentNumber(u32),
    /// Its kind does not go with its first seq, or the seqs or ops of its records pass the greatest number.
    #[error("its first seq or op cannot be")]
    Numbers,
    /// The length of one of its records is greater than can be.
    #[error("a record in it claims {0} bytes")]
    RecordLength(u32),
    /// A checkpoint run in a block that is not flagged so, or another one in a block that is.
    #[error("its kind does not go with the block's checkpoint flag")]
    CheckpointFlag,
    /// The runs or records in the block are not as many as its header says.
    #[error("the block's header counts other runs or records")]
    Count,
}

/// What is wrong with one record of a current block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordDamage {
    /// Its header is damaged, or it belongs to another address.
    #[error("record check is {computed:#010x}, its header says {stored:#010x}: a damaged header, or a record of another address")]
    Check {
        /// What the header says.
        stored: u32,
        /// What it is for the address asked for.
        computed: u32,
    },
    /// A reserved bit of its header is set.
    #[error("a reserved bit of the record header is set")]
    Reserved,
    /// Its payload is damaged.
    #[error("payload checksum is {computed:#010x}, the record's header says {stored:#010x}")]
    Payload {
        /// What the header says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
}
