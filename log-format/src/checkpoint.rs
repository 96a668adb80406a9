//! Checkpoints of a shard's extent table (docs/format.md, section 6), in parts that fit a record each.
//!
//! The flatbuffer is verified before it is read; unknown kinds and states, ids of zero and surplus entries are refused.

use flatbuffers::FlatBufferBuilder;

use crate::generated::disk;
use crate::ids::{DeliverAt, Epoch, ExtentId, ExtentKind, ExtentNumber, GroupId, Key, Op, SegmentId, Seq, Timestamp};

/// Bytes of a group's entry in a part.
pub const GROUP_ENTRY_SIZE: usize = size_of::<disk::GroupEntry>();
/// Bytes of an extent's entry in a part.
pub const EXTENT_ENTRY_SIZE: usize = size_of::<disk::ExtentEntry>();
/// Bytes of a part besides its entries, at most.
pub const PART_OVERHEAD: usize = 128;

const KIND_FULL: u8 = 1;

const _: () = assert!(GROUP_ENTRY_SIZE == 32 && EXTENT_ENTRY_SIZE == 104);

/// Whether an extent takes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ExtentState {
    /// It takes records.
    Open = 1,
    /// It does not, for ever.
    Sealed = 2,
}

impl ExtentState {
    /// From its byte on disk.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Open),
            2 => Some(Self::Sealed),
            _ => None,
        }
    }
}

/// A group as of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEntry {
    /// The group.
    pub group: GroupId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its last op; 0: none.
    pub last_op: Op,
}

/// An extent as of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentEntry {
    /// The extent.
    pub extent: ExtentId,
    /// Its group.
    pub group: GroupId,
    /// The last seq given; 0: none.
    pub last_seq: Seq,
    /// All up to and including this key is trimmed.
    pub floor: Key,
    /// Timer extents: nothing is inserted at or below this key.
    pub read_floor: Key,
    /// Its live records.
    pub record_count: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// The greatest append time given.
    pub last_append_time: Timestamp,
    /// The shard's number for it.
    pub number: ExtentNumber,
    /// Its kind.
    pub kind: ExtentKind,
    /// Its state.
    pub state: ExtentState,
}

/// One part of a full checkpoint: the payload of one checkpoint record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointPart {
    /// The checkpoint's parts in all, at least 1. Which one this is the run's first seq says.
    pub part_count: u32,
    /// The number that the next extent gets.
    pub next_extent_number: ExtentNumber,
    /// The segment with the last block before this one's first; 0: there is none.
    pub previous_segment: SegmentId,
    /// Some of the groups.
    pub groups: Vec<GroupEntry>,
    /// Some of the extents.
    pub extents: Vec<ExtentEntry>,
}

fn id(value: u128) -> disk::Id {
    disk::Id::new((value >> 64) as u64, value as u64)
}

fn read_id(id: &disk::Id) -> u128 {
    u128::from(id.high()) << 64 | u128::from(id.low())
}

fn key(key: Key) -> disk::Key {
    disk::Key::new(key.deliver_at.0, key.seq.0)
}

fn read_key(key: &disk::Key) -> Key {
    Key { deliver_at: DeliverAt(key.deliver_at()), seq: Seq(key.seq()) }
}

impl CheckpointPart {
    /// Bytes of a part with so many entries, at most.
    pub fn encoded_size_bound(groups: usize, extents: usize) -> usize {
        let groups = groups.saturating_mul(GROUP_ENTRY_SIZE);
        PART_OVERHEAD.saturating_add(groups).saturating_add(extents.saturating_mul(EXTENT_ENTRY_SIZE))
    }

    /// The part as the payload of a record.
    pub fn encode(&self) -> Vec<u8> {
        let groups: Vec<_> =
            self.groups.iter().map(|entry| disk::GroupEntry::new(&id(entry.group.0), entry.epoch.0, entry.last_op.0)).collect();
        let extents: Vec<_> = self
            .extents
            .iter()
            .map(|entry| {
                disk::ExtentEntry::new(
                    &id(entry.extent.0),
                    &id(entry.group.0),
                    entry.last_seq.0,
                    &key(entry.floor),
                    &key(entry.read_floor),
                    entry.record_count,
                    entry.payload_bytes,
                    entry.last_append_time.0,
                    entry.number.0,
                    entry.kind as u8,
                    entry.state as u8,
                )
            })
            .collect();
        let mut builder = FlatBufferBuilder::with_capacity(Self::encoded_size_bound(groups.len(), extents.len()));
        let groups = builder.create_vector(&groups);
        let extents = builder.create_vector(&extents);
        let args = disk::CheckpointPartArgs {
            part_count: self.part_count,
            kind: KIND_FULL,
            next_extent_number: self.next_extent_number.0,
            previous_segment: self.previous_segment.0,
            groups: Some(groups),
            extents: Some(extents),
        };
        let root = disk::CheckpointPart::create(&mut builder, &args);
        builder.finish(root, None);
        builder.finished_data().to_vec()
    }

    /// Reads a part.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let part = flatbuffers::root::<disk::CheckpointPart<'_>>(bytes)?;
        if part.kind() != KIND_FULL {
            return Err(CheckpointError::Kind(part.kind()));
        }
        if part.part_count() == 0 {
            return Err(CheckpointError::PartCount);
        }
        let groups = part.groups().ok_or(CheckpointError::Missing("groups"))?;
        let extents = part.extents().ok_or(CheckpointError::Missing("extents"))?;
        let next_extent_number = ExtentNumber(part.next_extent_number());
        Ok(Self {
            part_count: part.part_count(),
            next_extent_number,
            previous_segment: SegmentId(part.previous_segment()),
            groups: groups.iter().map(read_group).collect::<Result<_, _>>()?,
            extents: extents.iter().map(|entry| read_extent(entry, next_extent_number)).collect::<Result<_, _>>()?,
        })
    }
}

fn read_group(entry: &disk::GroupEntry) -> Result<GroupEntry, CheckpointError> {
    let group = GroupId(read_id(entry.group()));
    if group == GroupId(0) {
        return Err(CheckpointError::ZeroId);
    }
    Ok(GroupEntry { group, epoch: Epoch(entry.epoch()), last_op: Op(entry.last_op()) })
}

fn read_extent(entry: &disk::ExtentEntry, next: ExtentNumber) -> Result<ExtentEntry, CheckpointError> {
    let extent = ExtentId(read_id(entry.extent()));
    let group = GroupId(read_id(entry.group()));
    let number = ExtentNumber(entry.number());
    if extent == ExtentId(0) || group == GroupId(0) {
        return Err(CheckpointError::ZeroId);
    }
    if number == ExtentNumber(0) || number >= next {
        return Err(CheckpointError::Number { extent, number, next });
    }
    Ok(ExtentEntry {
        extent,
        group,
        last_seq: Seq(entry.last_seq()),
        floor: read_key(entry.floor()),
        read_floor: read_key(entry.read_floor()),
        record_count: entry.record_count(),
        payload_bytes: entry.payload_bytes(),
        last_append_time: Timestamp(entry.last_append_time()),
        number,
        kind: ExtentKind::from_byte(entry.kind()).ok_or(CheckpointError::ExtentKind { extent, kind: entry.kind() })?,
        state: ExtentState::from_byte(entry.state()).ok_or(CheckpointError::ExtentState { extent, state: entry.state() })?,
    })
}

/// Why bytes are no part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// They are no flatbuffer.
    #[error("checkpoint part is no valid flatbuffer")]
    Malformed(#[from] flatbuffers::InvalidFlatbuffer),
    /// The checkpoint's kind is unknown.
    #[error("checkpoint of the unknown kind {0}")]
    Kind(u8),
    /// The checkpoint claims to have no parts.
    #[error("checkpoint of no parts")]
    PartCount,
    /// A list is missing.
    #[error("checkpoint part without its {0}")]
    Missing(&'static str),
    /// A group or an extent has no id.
    #[error("checkpoint part with an id of zero")]
    ZeroId,
    /// An extent's number is 0 or was not given yet.
    #[error("extent {extent} has the number {number} in a checkpoint that gives {next} next")]
    Number {
        /// The extent.
        extent: ExtentId,
        /// Its number.
        number: ExtentNumber,
        /// The number that the next extent gets.
        next: ExtentNumber,
    },
    /// An extent's kind is unknown.
    #[error("extent {extent} is of the unknown kind {kind}")]
    ExtentKind {
        /// The extent.
        extent: ExtentId,
        /// Its kind's byte.
        kind: u8,
    },
    /// An extent's state is unknown.
    #[error("extent {extent} is in the unknown state {state}")]
    ExtentState {
        /// The extent.
        extent: ExtentId,
        /// Its state's byte.
        state: u8,
    },
}
