//! The records of an append as they lie in a frame: lengths, checksums and delivery times in the body, bytes in the payload.
//!
//! A [`Records`] borrows the body, knows which part of the frame's payload is its own, and allocates nothing.

use super::body::{BodyError, generated};
use crate::ids::{DeliverAt, Key, Seq};
use flatbuffers::Vector;

const META_SIZE: usize = 8;
const DELIVER_AT_SIZE: usize = 8;
const RANGE_SIZE: usize = 32;
const _: () = assert!(size_of::<generated::RecordMeta>() == META_SIZE);
const _: () = assert!(size_of::<generated::KeyRange>() == RANGE_SIZE);

/// A record's length and the checksum of its bytes, as an append's body lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// Bytes of the record.
    pub length: u32,
    /// [`payload_checksum`](crate::payload_checksum) of them.
    pub checksum: u32,
}

impl RecordMeta {
    /// Of these bytes.
    ///
    /// # Panics
    /// If they are 4 GiB or more.
    pub fn of(bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).expect("a record is far shorter than 4 GiB");
        Self { length, checksum: crate::payload_checksum(bytes) }
    }
}

/// One record of an append. That its bytes fit the checksum is not yet proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its bytes.
    pub payload: &'a [u8],
    /// The checksum that the client gave.
    pub checksum: u32,
    /// When it falls due; 0 in a sequence extent.
    pub deliver_at: DeliverAt,
}

/// The records of one append, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    metas: &'a [u8],
    deliver_at: Option<&'a [u8]>,
    payload_offset: u64,
    payload_length: u64,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn double_word(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl<'a> Records<'a> {
    /// `payload_offset`: where in the frame's payload these records start.
    pub(super) fn decode(
        metas: Option<Vector<'a, generated::RecordMeta>>,
        deliver_at: Option<Vector<'a, u64>>,
        payload_offset: u64,
    ) -> Result<Self, BodyError> {
        let metas = metas.map(|metas| metas.bytes()).unwrap_or_default();
        let deliver_at = deliver_at.map(|times| times.bytes());
        if metas.is_empty() {
            return Err(BodyError::Missing("the list of records"));
        }
        if deliver_at.is_some_and(|times| times.len() / DELIVER_AT_SIZE != metas.len() / META_SIZE) {
            return Err(BodyError::Value("the count of delivery times"));
        }
        let mut records = Self { metas, deliver_at, payload_offset, payload_length: 0 };
        records.payload_length = records.lengths().map(u64::from).sum();
        Ok(records)
    }

    /// How many records there are: at least one.
    pub fn count(&self) -> usize {
        self.metas.len() / META_SIZE
    }

    /// Bytes of all of them.
    pub fn payload_length(&self) -> u64 {
        self.payload_length
    }

    pub(super) fn payload_end(&self) -> u64 {
        self.payload_offset.saturating_add(self.payload_length)
    }

    /// Whether the client gave delivery times, as it must in a timer extent and must not in a sequence extent.
    pub fn has_delivery_times(&self) -> bool {
        self.deliver_at.is_some()
    }

    /// Each record's length, in bytes: known before the payload is there.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.metas.chunks_exact(META_SIZE).map(|meta| word(meta, 0))
    }

    /// The records with their bytes. `payload` is the whole payload of the frame.
    ///
    /// # Errors
    /// [`BodyError::PayloadLength`] if the payload is shorter than the records.
    pub fn iter<'p>(&self, payload: &'p [u8]) -> Result<RecordIter<'p>, BodyError>
    where
        'a: 'p,
    {
        let range = usize::try_from(self.payload_offset).ok().zip(usize::try_from(self.payload_end()).ok());
        let rest = range
            .and_then(|(start, end)| payload.get(start..end))
            .ok_or(BodyError::PayloadLength { records: self.payload_end(), payload: payload.len() as u64 })?;
        Ok(RecordIter { metas: self.metas, deliver_at: self.deliver_at, rest })
    }
}

/// Iterates over the [`Record`]s of an append.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    metas: &'a [u8],
    deliver_at: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let (meta, metas) = self.metas.split_at_checked(META_SIZE)?;
        self.metas = metas;
        let (payload, rest) = self.rest.split_at(word(meta, 0) as usize);
        self.rest = rest;
        let mut deliver_at = DeliverAt(0);
        if let Some(times) = self.deliver_at {
            let (time, times) = times.split_at(DELIVER_AT_SIZE);
            deliver_at = DeliverAt(double_word(time, 0));
            self.deliver_at = Some(times);
        }
        Some(Record { payload, checksum: word(meta, 4), deliver_at })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.metas.len() / META_SIZE;
        (count, Some(count))
    }
}

impl ExactSizeIterator for RecordIter<'_> {}

/// All keys from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub first: Key,
    /// The last key.
    pub last: Key,
}

/// A list of ranges of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRanges<'a>(&'a [u8]);

impl<'a> KeyRanges<'a> {
    pub(super) fn decode(ranges: Option<Vector<'a, generated::KeyRange>>) -> Result<Self, BodyError> {
        match ranges {
            Some(ranges) if !ranges.is_empty() => Ok(Self(ranges.bytes())),
            _ => Err(BodyError::Missing("the list of ranges")),
        }
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = KeyRange> + use<'a> {
        let key = |bytes: &[u8], at| Key { deliver_at: DeliverAt(double_word(bytes, at)), seq: Seq(double_word(bytes, at + 8)) };
        self.0.chunks_exact(RANGE_SIZE).map(move |range| KeyRange { first: key(range, 0), last: key(range, 16) })
    }
}
