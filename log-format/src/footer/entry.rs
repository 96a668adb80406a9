//! The entries of the three indexes: how they are coded, what they must fulfil, and how one is found in a page.

use super::Section;
use crate::block::{BLOCK_HEADER_SIZE, RECORD_HEADER_SIZE, RUN_COUNT_MAX, RUN_HEADER_SIZE};
use crate::codec::{Cursor, put_varint, unzigzag, varint_size_max, zigzag};
use crate::ids::{DeliverAt, ExtentId, ExtentKind, ExtentNumber, Key, Seq, Timestamp};
use crate::{BLOCK_SIZE_MAX, PAGE_SIZE, RECORD_SIZE_MAX};

/// Where the first run of a segment can be.
const RUN_OFFSET_MIN: u64 = (PAGE_SIZE + BLOCK_HEADER_SIZE) as u64;

/// A run of a sequence extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceEntry {
    /// The extent.
    pub extent: ExtentNumber,
    /// The run's first seq.
    pub first_seq: Seq,
    /// Its records.
    pub count: u32,
    /// When they were appended.
    pub append_time: Timestamp,
    /// Where the run's header is in the segment.
    pub offset: u64,
    /// Bytes of the run, header and all.
    pub length: u32,
}

impl SequenceEntry {
    /// The run's last seq.
    pub fn last_seq(&self) -> Seq {
        Seq(self.first_seq.0.saturating_add(u64::from(self.count).saturating_sub(1)))
    }
}

/// A record of a timer extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerEntry {
    /// The extent.
    pub extent: ExtentNumber,
    /// When the record falls due.
    pub deliver_at: DeliverAt,
    /// Its seq.
    pub seq: Seq,
    /// Where its header is in the segment.
    pub offset: u64,
    /// Bytes of its payload.
    pub payload_length: u32,
}

impl TimerEntry {
    /// The record's key.
    pub fn key(&self) -> Key {
        Key { deliver_at: self.deliver_at, seq: self.seq }
    }
}

/// An extent that has records in the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The shard's number for the extent.
    pub number: ExtentNumber,
    /// The extent.
    pub id: ExtentId,
    /// Its kind, which says in which section its entries are.
    pub kind: ExtentKind,
    /// The least seq of its records here.
    pub first_seq: Seq,
    /// The greatest seq of its records here.
    pub last_seq: Seq,
    /// Its records here.
    pub record_count: u64,
    /// Their payload bytes that were live when the segment was closed.
    pub live_bytes: u64,
    /// The page of its section with its first entry, from 0.
    pub first_page: u32,
    /// Its entries in its section: they follow each other, over as many pages as it takes.
    pub entry_count: u32,
}

/// Of the entries of a page of the sequence index: the index of the first that holds `seq` of `extent` or lies behind it;
/// `entries.len()` if all lie before it.
pub fn sequence_position(entries: &[SequenceEntry], extent: ExtentNumber, seq: Seq) -> usize {
    entries.partition_point(|entry| (entry.extent, entry.last_seq()) < (extent, seq))
}

/// Of the entries of a page of the timer index: the index of the first at or behind `key` of `extent`; `entries.len()` if all lie
/// before it.
pub fn timer_position(entries: &[TimerEntry], extent: ExtentNumber, key: Key) -> usize {
    entries.partition_point(|entry| (entry.extent, entry.key()) < (extent, key))
}

/// The entry of an extent in a page of the directory.
pub fn find_extent(entries: &[DirectoryEntry], extent: ExtentNumber) -> Option<&DirectoryEntry> {
    entries.binary_search_by_key(&extent, |entry| entry.number).ok().map(|index| &entries[index])
}

/// What all entries can do.
pub(super) trait Entry: Copy {
    const SECTION: Section;
    /// Bytes of an entry, at least and at most.
    const SIZE_MIN: usize;
    const SIZE_MAX: usize;

    /// Puts the entry behind what is in `out`, as a difference to the one before it in the page.
    fn put(&self, previous: Option<&Self>, out: &mut Vec<u8>);

    /// The inverse of [`Entry::put`]; `None` if the bytes end or a number passes its greatest value.
    fn get(previous: Option<&Self>, cursor: &mut Cursor<'_>) -> Option<Self>;

    /// Whether its values can be, and it follows the one before it in order.
    fn is_valid(&self, previous: Option<&Self>) -> bool;
}

fn varint_u32(cursor: &mut Cursor<'_>) -> Option<u32> {
    u32::try_from(cursor.varint()?).ok()
}

/// The extent number that is `delta` behind the one before it.
fn extent_behind(previous: Option<ExtentNumber>, cursor: &mut Cursor<'_>) -> Option<ExtentNumber> {
    previous.map_or(0, |number| number.0).checked_add(varint_u32(cursor)?).map(ExtentNumber)
}

/// A difference in either direction; wraps, so that any two numbers have one.
fn put_signed_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    put_varint(out, zigzag(to.wrapping_sub(from) as i64));
}

fn signed_delta(from: u64, cursor: &mut Cursor<'_>) -> Option<u64> {
    Some(from.wrapping_add(unzigzag(cursor.varint()?) as u64))
}

impl Entry for SequenceEntry {
    const SECTION: Section = Section::Sequence;
    const SIZE_MIN: usize = 6;
    const SIZE_MAX: usize =
        varint_size_max(32) + varint_size_max(64) + varint_size_max(16) + varint_size_max(64) * 2 + varint_size_max(26);

    fn put(&self, previous: Option<&Self>, out: &mut Vec<u8>) {
        let same_extent = previous.filter(|previous| previous.extent == self.extent);
        put_varint(out, u64::from(self.extent.0 - previous.map_or(0, |previous| previous.extent.0)));
        put_varint(out, self.first_seq.0 - same_extent.map_or(0, |previous| previous.first_seq.0));
        put_varint(out, u64::from(self.count));
        put_signed_delta(out, same_extent.map_or(0, |previous| previous.append_time.0), self.append_time.0);
        put_varint(out, self.offset);
        put_varint(out, u64::from(self.length));
    }

    fn get(previous: Option<&Self>, cursor: &mut Cursor<'_>) -> Option<Self> {
        let extent = extent_behind(previous.map(|previous| previous.extent), cursor)?;
        let same_extent = previous.filter(|previous| previous.extent == extent);
        Some(Self {
            extent,
            first_seq: Seq(same_extent.map_or(0, |previous| previous.first_seq.0).checked_add(cursor.varint()?)?),
            count: varint_u32(cursor)?,
            append_time: Timestamp(signed_delta(same_extent.map_or(0, |previous| previous.append_time.0), cursor)?),
            offset: cursor.varint()?,
            length: varint_u32(cursor)?,
        })
    }

    fn is_valid(&self, previous: Option<&Self>) -> bool {
        let follows = previous.is_none_or(|previous| (previous.extent, previous.last_seq()) < (self.extent, self.first_seq));
        let length_min = RUN_HEADER_SIZE as u64 + u64::from(self.count) * RECORD_HEADER_SIZE as u64;
        follows
            && self.extent > ExtentNumber(0)
            && self.first_seq > Seq(0)
            && (1..=RUN_COUNT_MAX as u32).contains(&self.count)
            && self.first_seq.0.checked_add(u64::from(self.count)).is_some()
            && self.offset >= RUN_OFFSET_MIN
            && self.offset.checked_add(u64::from(self.length)).is_some()
            && u64::from(self.length) >= length_min
            && self.length as usize <= BLOCK_SIZE_MAX
    }
}

impl Entry for TimerEntry {
    const SECTION: Section = Section::Timer;
    const SIZE_MIN: usize = 5;
    const SIZE_MAX: usize = varint_size_max(32) + varint_size_max(64) * 3 + varint_size_max(25);

    fn put(&self, previous: Option<&Self>, out: &mut Vec<u8>) {
        let same_extent = previous.filter(|previous| previous.extent == self.extent);
        put_varint(out, u64::from(self.extent.0 - previous.map_or(0, |previous| previous.extent.0)));
        put_varint(out, self.deliver_at.0 - same_extent.map_or(0, |previous| previous.deliver_at.0));
        put_signed_delta(out, same_extent.map_or(0, |previous| previous.seq.0), self.seq.0);
        put_varint(out, self.offset);
        put_varint(out, u64::from(self.payload_length));
    }

    fn get(previous: Option<&Self>, cursor: &mut Cursor<'_>) -> Option<Self> {
        let extent = extent_behind(previous.map(|previous| previous.extent), cursor)?;
        let same_extent = previous.filter(|previous| previous.extent == extent);
        Some(Self {
            extent,
            deliver_at: DeliverAt(same_extent.map_or(0, |previous| previous.deliver_at.0).checked_add(cursor.varint()?)?),
            seq: Seq(signed_delta(same_extent.map_or(0, |previous| previous.seq.0), cursor)?),
            offset: cursor.varint()?,
            payload_length: varint_u32(cursor)?,
        })
    }

    fn is_valid(&self, previous: Option<&Self>) -> bool {
        let follows = previous.is_none_or(|previous| (previous.extent, previous.key()) < (self.extent, self.key()));
        follows
            && self.extent > ExtentNumber(0)
            && self.seq > Seq(0)
            && self.offset >= RUN_OFFSET_MIN + RUN_HEADER_SIZE as u64
            && self.offset.checked_add(BLOCK_SIZE_MAX as u64).is_some()
            && self.payload_length as usize <= RECORD_SIZE_MAX
    }
}

impl Entry for DirectoryEntry {
    const SECTION: Section = Section::Directory;
    const SIZE_MIN: usize = 1 + 16 + 1 + 6;
    const SIZE_MAX: usize = varint_size_max(32) * 3 + 16 + 1 + varint_size_max(64) * 4;

    fn put(&self, previous: Option<&Self>, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.number.0 - previous.map_or(0, |previous| previous.number.0)));
        out.extend_from_slice(&self.id.to_bytes());
        out.push(self.kind as u8);
        put_varint(out, self.first_seq.0);
        put_varint(out, self.last_seq.0 - self.first_seq.0);
        put_varint(out, self.record_count);
        put_varint(out, self.live_bytes);
        put_varint(out, u64::from(self.first_page));
        put_varint(out, u64::from(self.entry_count));
    }

    fn get(previous: Option<&Self>, cursor: &mut Cursor<'_>) -> Option<Self> {
        let number = extent_behind(previous.map(|previous| previous.number), cursor)?;
        let id = ExtentId::from_bytes(cursor.id()?);
        let kind = ExtentKind::from_byte(cursor.u8()?)?;
        let first_seq = cursor.varint()?;
        Some(Self {
            number,
            id,
            kind,
            first_seq: Seq(first_seq),
            last_seq: Seq(first_seq.checked_add(cursor.varint()?)?),
            record_count: cursor.varint()?,
            live_bytes: cursor.varint()?,
            first_page: varint_u32(cursor)?,
            entry_count: varint_u32(cursor)?,
        })
    }

    fn is_valid(&self, previous: Option<&Self>) -> bool {
        previous.is_none_or(|previous| previous.number < self.number)
            && self.number > ExtentNumber(0)
            && self.id != ExtentId(0)
            && self.first_seq > Seq(0)
            && self.first_seq <= self.last_seq
            && self.entry_count > 0
    }
}
