//! The node's manifest (docs/format.md, section 2): who the node is and how its data is laid out.
//!
//! The file has two copies, written in turn, so that the newest valid one is never the one being written. A damaged copy gives way
//! to the other. A whole copy that a newer program wrote does not: falling back behind it would use data that this program does
//! not understand.

use std::cmp::Ordering;

use flatbuffers::FlatBufferBuilder;

use crate::codec::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::generated::disk;
use crate::ids::{Incarnation, NodeId};
use crate::segment::is_segment_size;
use crate::{FORMAT_VERSION, PAGE_SIZE};

/// The greatest count of shards: their directories have four decimal digits.
pub const SHARD_COUNT_MAX: u32 = 10_000;
/// The feature flags that this program knows: none yet.
pub const FEATURE_FLAGS_KNOWN: u64 = 0;

const MAGIC: u32 = u32::from_le_bytes(*b"RMAN");

mod field {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 4;
    pub(super) const RESERVED: usize = 6;
    pub(super) const GENERATION: usize = 8;
    pub(super) const BODY_LENGTH: usize = 16;
    pub(super) const CRC: usize = 20;
    pub(super) const BODY: usize = 24;
}

/// Who the node is and how its data is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The node.
    pub node: NodeId,
    /// Raised whenever its data is known to be new or replaced.
    pub incarnation: Incarnation,
    /// Its shards; never changed.
    pub shard_count: u32,
    /// Bytes of the segments that it makes.
    pub segment_size: u64,
    /// Features that a program must know to use the data.
    pub feature_flags: u64,
}

/// A valid copy of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestCopy {
    /// Which write it was: the greater wins.
    pub generation: u64,
    /// What it says.
    pub manifest: Manifest,
}

impl Manifest {
    /// The copy number `generation`, to be written at [`copy_offset`].
    ///
    /// # Panics
    /// If the values are such that [`decode_copy`] refuses them.
    pub fn encode_copy(&self, generation: u64) -> Box<[u8; PAGE_SIZE]> {
        assert_eq!(self.problem(), None, "the manifest is one that can be read back");
        self.page(generation)
    }

    fn page(&self, generation: u64) -> Box<[u8; PAGE_SIZE]> {
        let mut builder = FlatBufferBuilder::new();
        let node = disk::Id::new((self.node.0 >> 64) as u64, self.node.0 as u64);
        let args = disk::ManifestArgs {
            node: Some(&node),
            incarnation: self.incarnation.0,
            shard_count: self.shard_count,
            segment_size: self.segment_size,
            feature_flags: self.feature_flags,
        };
        let root = disk::Manifest::create(&mut builder, &args);
        builder.finish(root, None);
        let body = builder.finished_data();

        let mut page = Box::new([0; PAGE_SIZE]);
        put_u32(&mut page[..], field::MAGIC, MAGIC);
        put_u16(&mut page[..], field::VERSION, FORMAT_VERSION);
        put_u64(&mut page[..], field::GENERATION, generation);
        put_u32(&mut page[..], field::BODY_LENGTH, body.len() as u32);
        page[field::BODY..field::BODY + body.len()].copy_from_slice(body);
        let crc = copy_crc(&page[..], body.len());
        put_u32(&mut page[..], field::CRC, crc);
        page
    }

    /// Why the values cannot be.
    fn problem(&self) -> Option<ManifestError> {
        if self.node == NodeId(0) {
            return Some(ManifestError::Node);
        }
        if !(1..=SHARD_COUNT_MAX).contains(&self.shard_count) {
            return Some(ManifestError::ShardCount(self.shard_count));
        }
        if !is_segment_size(self.segment_size) {
            return Some(ManifestError::SegmentSize(self.segment_size));
        }
        let unknown = self.feature_flags & !FEATURE_FLAGS_KNOWN;
        (unknown != 0).then_some(ManifestError::Features { unknown })
    }
}

/// Where the copy of a generation lies in the file.
pub fn copy_offset(generation: u64) -> u64 {
    generation % 2 * PAGE_SIZE as u64
}

/// The crc over the header in front of it and the body behind it.
fn copy_crc(page: &[u8], body_length: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&page[..field::CRC]), &page[field::BODY..field::BODY + body_length])
}

/// Reads the copy at the start of `bytes`.
pub fn decode_copy(bytes: &[u8]) -> Result<ManifestCopy, ManifestError> {
    let page = bytes.get(..PAGE_SIZE).ok_or(ManifestError::Short { got: bytes.len() })?;
    let magic = get_u32(page, field::MAGIC);
    if magic != MAGIC {
        return Err(ManifestError::Magic { found: magic });
    }
    let body_length = get_u32(page, field::BODY_LENGTH);
    if body_length as usize > PAGE_SIZE - field::BODY {
        return Err(ManifestError::BodyLength(body_length));
    }
    let (stored, computed) = (get_u32(page, field::CRC), copy_crc(page, body_length as usize));
    if stored != computed {
        return Err(ManifestError::Checksum { stored, computed });
    }
    // Behind the crc: a copy that another version wrote must not be taken for a damaged one.
    let version = get_u16(page, field::VERSION);
    if version != FORMAT_VERSION {
        return Err(ManifestError::Version { found: version });
    }
    if get_u16(page, field::RESERVED) != 0 {
        return Err(ManifestError::Reserved);
    }
    let body = flatbuffers::root::<disk::Manifest<'_>>(&page[field::BODY..field::BODY + body_length as usize])?;
    let node = body.node().ok_or(ManifestError::Node)?;
    let manifest = Manifest {
        node: NodeId(u128::from(node.high()) << 64 | u128::from(node.low())),
        incarnation: Incarnation(body.incarnation()),
        shard_count: body.shard_count(),
        segment_size: body.segment_size(),
        feature_flags: body.feature_flags(),
    };
    match manifest.problem() {
        Some(problem) => Err(problem),
        None => Ok(ManifestCopy { generation: get_u64(page, field::GENERATION), manifest }),
    }
}

/// Reads both copies, given as the bytes at their offsets, and takes the newest valid one.
pub fn choose(copy0: &[u8], copy1: &[u8]) -> Result<ManifestCopy, ChooseError> {
    let read = |bytes, place: u64| {
        let copy = decode_copy(bytes)?;
        if copy.generation % 2 != place {
            return Err(ManifestError::Misplaced { generation: copy.generation });
        }
        Ok(copy)
    };
    match (read(copy0, 0), read(copy1, 1)) {
        (Err(error), _) | (_, Err(error)) if error.is_from_newer_program() => Err(ChooseError::Newer(error)),
        (Ok(first), Ok(second)) => Ok(match first.generation.cmp(&second.generation) {
            Ordering::Greater => first,
            Ordering::Equal | Ordering::Less => second,
        }),
        (Ok(copy), Err(_)) | (Err(_), Ok(copy)) => Ok(copy),
        (Err(first), Err(second)) => Err(ChooseError::Neither { first: Box::new(first), second: Box::new(second) }),
    }
}

/// Why a page is no copy of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The file ends inside the copy.
    #[error("{got} bytes where a copy has 4096")]
    Short {
        /// How many bytes there are.
        got: usize,
    },
    /// No manifest. In space never written, `found` is 0.
    #[error("no manifest: its magic number is {found:#010x}")]
    Magic {
        /// What stands in its place.
        found: u32,
    },
    /// The body is longer than a copy.
    #[error("a body of {0} bytes does not fit into a copy")]
    BodyLength(u32),
    /// The copy is damaged.
    #[error("its checksum is {computed:#010x}, its header says {stored:#010x}")]
    Checksum {
        /// What the header says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
    /// A whole copy of a version that this one does not know.
    #[error("format version {found}: this program knows version 1")]
    Version {
        /// The version it claims.
        found: u16,
    },
    /// A reserved bit is set.
    #[error("a reserved bit of the header is set")]
    Reserved,
    /// The body is no flatbuffer.
    #[error("its body is no valid flatbuffer")]
    Body(#[from] flatbuffers::InvalidFlatbuffer),
    /// There is no node id, or it is zero.
    #[error("it has no node id")]
    Node,
    /// No node has that many shards.
    #[error("it has {0} shards: a node has 1 to 10000")]
    ShardCount(u32),
    /// No segment has that many bytes.
    #[error("it has segments of {0} bytes: not whole pages, or fewer than 4")]
    SegmentSize(u64),
    /// The data needs features that this program does not have.
    #[error("the data uses features that this program does not know: {unknown:#x}")]
    Features {
        /// The unknown flags.
        unknown: u64,
    },
    /// A copy of a generation that belongs to the other place.
    #[error("generation {generation} does not belong to this place of the file")]
    Misplaced {
        /// The generation it claims.
        generation: u64,
    },
}

impl ManifestError {
    fn is_from_newer_program(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Features { .. })
    }
}

/// Why a node's manifest cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// Both copies are unusable.
    #[error("both copies of the manifest are unusable; at offset 0: {first}; at offset 4096: {second}")]
    Neither {
        /// What is wrong with the copy at offset 0.
        first: Box<ManifestError>,
        /// What is wrong with the copy at offset 4096.
        second: Box<ManifestError>,
    },
    /// A copy is whole, but a newer program wrote it.
    #[error("the manifest was written by a newer program: {0}; use that one")]
    Newer(ManifestError),
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: Manifest =
        Manifest { node: NodeId(1), incarnation: Incarnation(1), shard_count: 1, segment_size: 1 << 20, feature_flags: 0 };

    #[test]
    fn generations_alternate_between_the_two_places() {
        assert_eq!([copy_offset(0), copy_offset(1), copy_offset(2), copy_offset(u64::MAX)], [0, 4096, 0, 4096]);
    }

    #[test]
    fn values_that_no_node_has_are_refused_and_never_written() {
        let rows = [
            (Manifest { node: NodeId(0), ..MANIFEST }, ManifestError::Node),
            (Manifest { shard_count: 0, ..MANIFEST }, ManifestError::ShardCount(0)),
            (Manifest { shard_count: 10_001, ..MANIFEST }, ManifestError::ShardCount(10_001)),
            (Manifest { segment_size: 8192, ..MANIFEST }, ManifestError::SegmentSize(8192)),
            (Manifest { segment_size: (1 << 20) + 1, ..MANIFEST }, ManifestError::SegmentSize((1 << 20) + 1)),
            (Manifest { feature_flags: 1 << 63, ..MANIFEST }, ManifestError::Features { unknown: 1 << 63 }),
        ];
        for (manifest, error) in rows {
            assert_eq!(decode_copy(&manifest.page(1)[..]), Err(error));
            assert!(std::panic::catch_unwind(|| manifest.encode_copy(1)).is_err());
        }
    }

    #[test]
    fn a_whole_copy_of_a_newer_program_is_never_passed_over() {
        let [old, new] = [6, 7].map(|generation| MANIFEST.page(generation));
        let features = |generation| Manifest { feature_flags: 2, ..MANIFEST }.page(generation);
        let newer = Err(ChooseError::Newer(ManifestError::Features { unknown: 2 }));
        assert_eq!(choose(&old[..], &features(7)[..]), newer);
        assert_eq!(choose(&features(8)[..], &new[..]), newer);
        assert_eq!(choose(&[0; PAGE_SIZE], &features(7)[..]), newer);
    }

    #[test]
    fn a_damaged_copy_gives_way_to_the_other() {
        let [old, new, newest] = [6, 7, 8].map(|generation| MANIFEST.page(generation));
        let generation = |copy0: &[u8], copy1: &[u8]| choose(copy0, copy1).map(|copy| copy.generation);
        assert_eq!(generation(&old[..], &new[..]), Ok(7));
        assert_eq!(generation(&newest[..], &new[..]), Ok(8));
        assert_eq!(generation(&old[..], &[0; PAGE_SIZE]), Ok(6));
        assert_eq!(generation(&[], &new[..]), Ok(7));
        // Written to the place of the other: it is not the newest that was meant to be there.
        assert_eq!(generation(&old[..], &newest[..]), Ok(6));
        // A bit of the version alone is damage, not a newer program.
        let mut damaged = new.clone();
        damaged[field::VERSION] ^= 2;
        assert_eq!(generation(&old[..], &damaged[..]), Ok(6));
    }
}
