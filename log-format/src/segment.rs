//! The header page of a segment (docs/format.md, section 3): which file of which log this is.
//!
//! What lies behind it is current only if it carries the same segment id and log id.

use crate::block::LogIdentity;
use crate::codec::{get_id, get_u16, get_u32, get_u64, is_page_multiple, put_id, put_u16, put_u32, put_u64};
use crate::ids::{Incarnation, NodeId, SegmentId, ShardIndex, Timestamp};
use crate::{FORMAT_VERSION, PAGE_SIZE};

const MAGIC: u32 = u32::from_le_bytes(*b"RSEG");
/// The fewest pages of a segment: header, one block, one page of index, trailer.
const PAGES_MIN: usize = 4;

mod field {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 4;
    pub(super) const RESERVED: usize = 6;
    pub(super) const SEGMENT: usize = 8;
    pub(super) const NODE: usize = 16;
    pub(super) const INCARNATION: usize = 32;
    pub(super) const SHARD: usize = 40;
    pub(super) const LOG_ID: usize = 44;
    pub(super) const SEGMENT_SIZE: usize = 48;
    pub(super) const PREPARED_AT: usize = 56;
    pub(super) const CRC: usize = 64;
}

const _: () = {
    assert!(field::SHARD == field::NODE + 16 + 8, "node, incarnation and shard lie side by side for the log id");
    assert!(field::PREPARED_AT + 8 == field::CRC);
};

/// The log id: names a shard's log on a node's incarnation in four bytes.
pub fn log_id(node: NodeId, incarnation: Incarnation, shard: ShardIndex) -> u32 {
    let mut bytes = [0; 28];
    put_id(&mut bytes, 0, node.to_bytes());
    put_u64(&mut bytes, 16, incarnation.0);
    put_u32(&mut bytes, 24, shard.0);
    crc32c::crc32c(&bytes)
}

/// Whether a segment may have this many bytes: whole pages, and enough of them.
pub fn is_segment_size(bytes: u64) -> bool {
    is_page_multiple(bytes) && bytes >= (PAGES_MIN * PAGE_SIZE) as u64
}

/// A segment's header. Its log id follows from node, incarnation and shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The segment: greater than all before it in the shard.
    pub segment: SegmentId,
    /// The node that wrote it.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its shard.
    pub shard: ShardIndex,
    /// The file's size when it was prepared, in bytes.
    pub segment_size: u64,
    /// When it was prepared.
    pub prepared_at: Timestamp,
}

impl SegmentHeader {
    /// The id of the log that it belongs to.
    pub fn log_id(&self) -> u32 {
        log_id(self.node, self.incarnation, self.shard)
    }

    /// What its blocks must carry.
    pub fn identity(&self) -> LogIdentity {
        LogIdentity { segment: self.segment, log_id: self.log_id() }
    }

    /// Writes the header page into the first [`PAGE_SIZE`] bytes of `page`.
    ///
    /// # Panics
    /// If `page` is shorter.
    pub fn encode(&self, page: &mut [u8]) {
        let page = &mut page[..PAGE_SIZE];
        page.fill(0);
        put_u32(page, field::MAGIC, MAGIC);
        put_u16(page, field::VERSION, FORMAT_VERSION);
        put_u64(page, field::SEGMENT, self.segment.0);
        put_id(page, field::NODE, self.node.to_bytes());
        put_u64(page, field::INCARNATION, self.incarnation.0);
        put_u32(page, field::SHARD, self.shard.0);
        put_u32(page, field::LOG_ID, self.log_id());
        put_u64(page, field::SEGMENT_SIZE, self.segment_size);
        put_u64(page, field::PREPARED_AT, self.prepared_at.0);
        let crc = crc32c::crc32c(&page[..field::CRC]);
        put_u32(page, field::CRC, crc);
    }

    /// Reads the header page at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, SegmentError> {
        let page = bytes.get(..PAGE_SIZE).ok_or(SegmentError::Short { got: bytes.len() })?;
        let magic = get_u32(page, field::MAGIC);
        if magic != MAGIC {
            return Err(SegmentError::Magic { found: magic });
        }
        let version = get_u16(page, field::VERSION);
        if version != FORMAT_VERSION {
            return Err(SegmentError::Version { found: version });
        }
        let (stored, computed) = (get_u32(page, field::CRC), crc32c::crc32c(&page[..field::CRC]));
        if stored != computed {
            return Err(SegmentError::Checksum { stored, computed });
        }
        if get_u16(page, field::RESERVED) != 0 {
            return Err(SegmentError::Reserved);
        }
        let header = Self {
            segment: SegmentId(get_u64(page, field::SEGMENT)),
            node: NodeId::from_bytes(get_id(page, field::NODE)),
            incarnation: Incarnation(get_u64(page, field::INCARNATION)),
            shard: ShardIndex(get_u32(page, field::SHARD)),
            segment_size: get_u64(page, field::SEGMENT_SIZE),
            prepared_at: Timestamp(get_u64(page, field::PREPARED_AT)),
        };
        if get_u32(page, field::LOG_ID) != header.log_id() {
            return Err(SegmentError::LogId { stored: get_u32(page, field::LOG_ID), computed: header.log_id() });
        }
        if !is_segment_size(header.segment_size) {
            return Err(SegmentError::Size { found: header.segment_size });
        }
        Ok(header)
    }
}

/// Why a page is no segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The file ends inside its first page.
    #[error("{got} bytes where a segment header has 4096")]
    Short {
        /// How many bytes there are.
        got: usize,
    },
    /// No segment header. In space never written, `found` is 0.
    #[error("no segment header: its magic number is {found:#010x}")]
    Magic {
        /// What stands in its place.
        found: u32,
    },
    /// A segment of a version that this one does not know.
    #[error("segment of format version {found}: this program knows version 1")]
    Version {
        /// The version it claims.
        found: u16,
    },
    /// The header is damaged.
    #[error("segment header's checksum is {computed:#010x}, the header says {stored:#010x}")]
    Checksum {
        /// What the header says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
    /// A reserved bit is set.
    #[error("a reserved bit of the segment header is set")]
    Reserved,
    /// The log id does not follow from node, incarnation and shard.
    #[error("log id is {stored:#010x}, but node, incarnation and shard give {computed:#010x}")]
    LogId {
        /// What the header says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
    /// The segment's size is not a number of whole pages that can hold a segment.
    #[error("a segment of {found} bytes: not whole pages, or fewer than 4")]
    Size {
        /// The size it claims.
        found: u64,
    },
}
