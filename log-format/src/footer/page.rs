//! Index pages: sorted entries, coded as differences, each page readable by itself.

use super::entry::Entry;
use super::{DirectoryEntry, FooterError, Section, SequenceEntry, TimerEntry};
use crate::PAGE_SIZE;
use crate::block::LogIdentity;
use crate::codec::{Cursor, get_u16, get_u32, get_u64, is_zero, put_u16, put_u32, put_u64};
use crate::ids::SegmentId;

const MAGIC: u32 = u32::from_le_bytes(*b"RIDX");
const HEADER_SIZE: usize = 32;
/// Bytes of a page that entries can take.
pub(super) const ENTRIES_SIZE: usize = PAGE_SIZE - HEADER_SIZE;

mod field {
    pub(super) const MAGIC: usize = 0;
    pub(super) const SECTION: usize = 4;
    pub(super) const RESERVED: usize = 5;
    pub(super) const COUNT: usize = 6;
    pub(super) const SEGMENT: usize = 8;
    pub(super) const NUMBER: usize = 16;
    pub(super) const USED: usize = 20;
    pub(super) const LOG_ID: usize = 24;
    pub(super) const CRC: usize = 28;
}

const _: () = {
    assert!(field::CRC + 4 == HEADER_SIZE);
    assert!(ENTRIES_SIZE / TimerEntry::SIZE_MIN <= u16::MAX as usize, "the count of a page's entries fits its field");
    assert!(TimerEntry::SIZE_MIN <= SequenceEntry::SIZE_MIN && SequenceEntry::SIZE_MIN <= DirectoryEntry::SIZE_MIN);
};

/// The entries of an index page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexPage {
    /// By (extent number, first seq).
    Sequence(Vec<SequenceEntry>),
    /// By (extent number, deliver_at, seq).
    Timer(Vec<TimerEntry>),
    /// By extent number.
    Directory(Vec<DirectoryEntry>),
}

impl IndexPage {
    /// Reads the page at the start of `bytes`, which must be the page `number` of `section` in the footer of the segment named.
    pub fn decode(bytes: &[u8], identity: &LogIdentity, section: Section, number: u32) -> Result<Self, FooterError> {
        match section {
            Section::Sequence => decode_page(bytes, identity, number).map(Self::Sequence),
            Section::Timer => decode_page(bytes, identity, number).map(Self::Timer),
            Section::Directory => decode_page(bytes, identity, number).map(Self::Directory),
        }
    }
}

/// The crc over a page whose own crc field counts as zero.
fn page_crc(page: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[..field::CRC]), &[0; 4]);
    crc32c::crc32c_append(crc, &page[HEADER_SIZE..])
}

fn decode_page<E: Entry>(bytes: &[u8], identity: &LogIdentity, number: u32) -> Result<Vec<E>, FooterError> {
    let page = bytes.get(..PAGE_SIZE).ok_or(FooterError::Short { got: bytes.len() })?;
    let magic = get_u32(page, field::MAGIC);
    if magic != MAGIC {
        return Err(FooterError::Magic { found: magic });
    }
    let (stored, computed) = (get_u32(page, field::CRC), page_crc(page));
    if stored != computed {
        return Err(FooterError::Checksum { stored, computed });
    }
    let segment = SegmentId(get_u64(page, field::SEGMENT));
    if segment != identity.segment {
        return Err(FooterError::Segment { expected: identity.segment, found: segment });
    }
    let log_id = get_u32(page, field::LOG_ID);
    if log_id != identity.log_id {
        return Err(FooterError::LogId { expected: identity.log_id, found: log_id });
    }
    let (found_section, found) = (page[field::SECTION], get_u32(page, field::NUMBER));
    if found_section != E::SECTION as u8 || found != number {
        return Err(FooterError::Misplaced { expected_section: E::SECTION as u8, expected: number, found_section, found });
    }
    let (count, used) = (get_u16(page, field::COUNT), get_u32(page, field::USED));
    let wrong_count = FooterError::Count { count, used };
    let entries = page[HEADER_SIZE..].get(..used as usize).ok_or(wrong_count)?;
    if count == 0 || usize::from(count) * E::SIZE_MIN > entries.len() {
        return Err(wrong_count);
    }
    if page[field::RESERVED] != 0 || !is_zero(&page[HEADER_SIZE + entries.len()..]) {
        return Err(FooterError::Reserved);
    }
    let mut cursor = Cursor::new(entries);
    let mut decoded: Vec<E> = Vec::with_capacity(usize::from(count));
    for index in 0..count {
        let previous = decoded.last();
        let entry = E::get(previous, &mut cursor).filter(|entry| entry.is_valid(previous)).ok_or(FooterError::Entry { index })?;
        decoded.push(entry);
    }
    if !cursor.is_empty() {
        return Err(wrong_count);
    }
    Ok(decoded)
}

/// Writes a section as whole pages behind what is in `out`, telling of each entry on which page of the section it is. Gives the
/// number of pages.
///
/// # Panics
/// If an entry's values cannot be, or the entries are out of order.
pub(super) fn write_section<E: Entry>(
    identity: &LogIdentity,
    entries: &[E],
    out: &mut Vec<u8>,
    mut placed: impl FnMut(&E, u32),
) -> u32 {
    let mut coded = Vec::with_capacity(E::SIZE_MAX);
    let mut rest = entries;
    let mut before = None;
    let mut number = 0;
    while !rest.is_empty() {
        let start = out.len();
        out.resize(start + HEADER_SIZE, 0);
        let mut count = 0;
        let mut previous = None;
        while let Some((entry, behind)) = rest.split_first() {
            assert!(entry.is_valid(before), "entries of an index are valid and sorted");
            coded.clear();
            entry.put(previous, &mut coded);
            if out.len() - start + coded.len() > PAGE_SIZE {
                break;
            }
            out.extend_from_slice(&coded);
            placed(entry, number);
            previous = Some(entry);
            before = Some(entry);
            rest = behind;
            count += 1;
        }
        let used = out.len() - start - HEADER_SIZE;
        out.resize(start + PAGE_SIZE, 0);
        let page = &mut out[start..];
        put_u32(page, field::MAGIC, MAGIC);
        page[field::SECTION] = E::SECTION as u8;
        put_u16(page, field::COUNT, count);
        put_u64(page, field::SEGMENT, identity.segment.0);
        put_u32(page, field::NUMBER, number);
        put_u32(page, field::USED, used as u32);
        put_u32(page, field::LOG_ID, identity.log_id);
        let crc = page_crc(page);
        put_u32(page, field::CRC, crc);
        number += 1;
    }
    number
}

/// The most pages of a section with so many entries.
pub(super) const fn pages_max<E: Entry>(entries: usize) -> usize {
    entries.div_ceil(ENTRIES_SIZE / E::SIZE_MAX)
}
