//! The trailer: the last page of a closed segment's file, which says where the rest of the footer is.

use super::{FooterError, Section};
use crate::FORMAT_VERSION;
use crate::PAGE_SIZE;
use crate::block::LogIdentity;
use crate::codec::{get_u16, get_u32, get_u64, is_page_multiple, is_zero, put_u16, put_u32, put_u64};
use crate::ids::{BlockNumber, SegmentId, Timestamp};

const MAGIC: u32 = u32::from_le_bytes(*b"RTRL");

mod field {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 4;
    pub(super) const RESERVED: usize = 6;
    pub(super) const SEGMENT: usize = 8;
    pub(super) const LOG_ID: usize = 16;
    pub(super) const SEQUENCE_PAGES: usize = 20;
    pub(super) const TIMER_PAGES: usize = 24;
    pub(super) const DIRECTORY_PAGES: usize = 28;
    pub(super) const FOOTER_OFFSET: usize = 32;
    pub(super) const DATA_END: usize = 40;
    pub(super) const FIRST_BLOCK: usize = 48;
    pub(super) const LAST_BLOCK: usize = 56;
    pub(super) const RECORD_COUNT: usize = 64;
    pub(super) const PAYLOAD_BYTES: usize = 72;
    pub(super) const APPEND_TIME_MIN: usize = 80;
    pub(super) const APPEND_TIME_MAX: usize = 88;
    pub(super) const EXTENT_COUNT: usize = 96;
    pub(super) const RESERVED_TOO: usize = 100;
    pub(super) const CRC: usize = 124;
}

const _: () = assert!(field::RESERVED_TOO + 24 == field::CRC && field::CRC + 4 == 128);

/// Where the footer's sections are, and totals of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The segment.
    pub segment: SegmentId,
    /// The log that it belongs to.
    pub log_id: u32,
    /// Pages of the sequence index.
    pub sequence_pages: u32,
    /// Pages of the timer index.
    pub timer_pages: u32,
    /// Pages of the extent directory.
    pub directory_pages: u32,
    /// Where the footer starts in the file.
    pub footer_offset: u64,
    /// The end of the last block.
    pub data_end: u64,
    /// The first block of the segment; 0: it has none.
    pub first_block: BlockNumber,
    /// The last block of the segment; 0: it has none.
    pub last_block: BlockNumber,
    /// Records of sequence and timer extents.
    pub record_count: u64,
    /// Their payload bytes that were live when the segment was closed.
    pub payload_bytes: u64,
    /// The least append time in the sequence index; 0 if that is empty.
    pub append_time_min: Timestamp,
    /// The greatest append time in the sequence index; 0 if that is empty.
    pub append_time_max: Timestamp,
    /// Extents in the directory.
    pub extent_count: u32,
}

impl Trailer {
    /// Where a page of a section is in the file; the number must be less than the section's pages.
    pub fn page_offset(&self, section: Section, number: u32) -> u64 {
        let before = match section {
            Section::Sequence => 0,
            Section::Timer => u64::from(self.sequence_pages),
            Section::Directory => u64::from(self.sequence_pages) + u64::from(self.timer_pages),
        };
        self.footer_offset + (before + u64::from(number)) * PAGE_SIZE as u64
    }

    /// The end of the footer, behind the trailer. A trailer is current only in a file that ends here: compare.
    pub fn end(&self) -> u64 {
        self.page_offset(Section::Directory, self.directory_pages) + PAGE_SIZE as u64
    }

    /// Writes the trailer into the first [`PAGE_SIZE`] bytes of `page`.
    ///
    /// # Panics
    /// If `page` is shorter.
    pub fn encode(&self, page: &mut [u8]) {
        let page = &mut page[..PAGE_SIZE];
        page.fill(0);
        put_u32(page, field::MAGIC, MAGIC);
        put_u16(page, field::VERSION, FORMAT_VERSION);
        put_u64(page, field::SEGMENT, self.segment.0);
        put_u32(page, field::LOG_ID, self.log_id);
        put_u32(page, field::SEQUENCE_PAGES, self.sequence_pages);
        put_u32(page, field::TIMER_PAGES, self.timer_pages);
        put_u32(page, field::DIRECTORY_PAGES, self.directory_pages);
        put_u64(page, field::FOOTER_OFFSET, self.footer_offset);
        put_u64(page, field::DATA_END, self.data_end);
        put_u64(page, field::FIRST_BLOCK, self.first_block.0);
        put_u64(page, field::LAST_BLOCK, self.last_block.0);
        put_u64(page, field::RECORD_COUNT, self.record_count);
        put_u64(page, field::PAYLOAD_BYTES, self.payload_bytes);
        put_u64(page, field::APPEND_TIME_MIN, self.append_time_min.0);
        put_u64(page, field::APPEND_TIME_MAX, self.append_time_max.0);
        put_u32(page, field::EXTENT_COUNT, self.extent_count);
        let crc = crc32c::crc32c(&page[..field::CRC]);
        put_u32(page, field::CRC, crc);
    }

    /// Reads the trailer at the start of `bytes`, which must be the one of the segment named.
    pub fn decode(bytes: &[u8], identity: &LogIdentity) -> Result<Self, FooterError> {
        let page = bytes.get(..PAGE_SIZE).ok_or(FooterError::Short { got: bytes.len() })?;
        let magic = get_u32(page, field::MAGIC);
        if magic != MAGIC {
            return Err(FooterError::Magic { found: magic });
        }
        let version = get_u16(page, field::VERSION);
        if version != FORMAT_VERSION {
            return Err(FooterError::Version { found: version });
        }
        let (stored, computed) = (get_u32(page, field::CRC), crc32c::crc32c(&page[..field::CRC]));
        if stored != computed {
            return Err(FooterError::Checksum { stored, computed });
        }
        let trailer = Self {
            segment: SegmentId(get_u64(page, field::SEGMENT)),
            log_id: get_u32(page, field::LOG_ID),
            sequence_pages: get_u32(page, field::SEQUENCE_PAGES),
            timer_pages: get_u32(page, field::TIMER_PAGES),
            directory_pages: get_u32(page, field::DIRECTORY_PAGES),
            footer_offset: get_u64(page, field::FOOTER_OFFSET),
            data_end: get_u64(page, field::DATA_END),
            first_block: BlockNumber(get_u64(page, field::FIRST_BLOCK)),
            last_block: BlockNumber(get_u64(page, field::LAST_BLOCK)),
            record_count: get_u64(page, field::RECORD_COUNT),
            payload_bytes: get_u64(page, field::PAYLOAD_BYTES),
            append_time_min: Timestamp(get_u64(page, field::APPEND_TIME_MIN)),
            append_time_max: Timestamp(get_u64(page, field::APPEND_TIME_MAX)),
            extent_count: get_u32(page, field::EXTENT_COUNT),
        };
        if trailer.segment != identity.segment {
            return Err(FooterError::Segment { expected: identity.segment, found: trailer.segment });
        }
        if trailer.log_id != identity.log_id {
            return Err(FooterError::LogId { expected: identity.log_id, found: trailer.log_id });
        }
        if get_u16(page, field::RESERVED) != 0 || !is_zero(&page[field::RESERVED_TOO..field::CRC]) {
            return Err(FooterError::Reserved);
        }
        if trailer.is_consistent() { Ok(trailer) } else { Err(FooterError::Trailer) }
    }

    /// Whether its places and counts go together; [`Self::end`] and [`Self::page_offset`] cannot overflow then.
    fn is_consistent(&self) -> bool {
        let has_blocks = self.first_block > BlockNumber(0);
        self.footer_offset <= u64::MAX / 2
            && is_page_multiple(self.footer_offset)
            && is_page_multiple(self.data_end)
            && self.data_end <= self.footer_offset
            && if has_blocks { self.data_end > PAGE_SIZE as u64 } else { self.data_end == PAGE_SIZE as u64 }
            && self.first_block <= self.last_block
            && (has_blocks || self.last_block == BlockNumber(0))
            && self.append_time_min <= self.append_time_max
            && (self.extent_count == 0) == (self.directory_pages == 0)
            && (self.extent_count > 0 || (self.sequence_pages == 0 && self.timer_pages == 0))
    }
}
