//! State records (docs/format.md, section 5): changes of an extent, kept in the same log as its records.

use crate::codec::Cursor;
use crate::ids::{DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Key, Seq};

const VERSION: u8 = 1;

mod tag {
    pub(super) const CREATED: u8 = 1;
    pub(super) const FENCED: u8 = 2;
    pub(super) const SEALED: u8 = 3;
    pub(super) const TRIMMED: u8 = 4;
    pub(super) const DISCARDED: u8 = 5;
    pub(super) const DELETED: u8 = 6;
    pub(super) const READ_FLOOR: u8 = 7;
}

/// A change of an extent: the payload of one record in a state run of that extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// The extent was created.
    Created {
        /// The extent.
        extent: ExtentId,
        /// The group that it belongs to.
        group: GroupId,
        /// Its kind.
        kind: ExtentKind,
        /// The group's epoch.
        epoch: Epoch,
    },
    /// The extent's group refuses lower epochs.
    Fenced {
        /// The least epoch that is not refused.
        epoch: Epoch,
    },
    /// The extent takes no more records.
    Sealed {
        /// Its last seq; 0: it has none.
        last: Seq,
    },
    /// All records up to and including this key are dead.
    Trimmed {
        /// The last dead key.
        key: Key,
    },
    /// The records of a range are dead.
    Discarded {
        /// The range's first key.
        first: Key,
        /// The range's last key.
        last: Key,
    },
    /// The extent is gone.
    Deleted,
    /// No record is inserted at or below this key from now on.
    ReadFloor {
        /// The key.
        key: Key,
    },
}

impl StateChange {
    /// Puts the change behind what is in `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let put_key = |out: &mut Vec<u8>, key: Key| {
            out.extend_from_slice(&key.deliver_at.0.to_le_bytes());
            out.extend_from_slice(&key.seq.0.to_le_bytes());
        };
        match *self {
            Self::Created { extent, group, kind, epoch } => {
                out.extend_from_slice(&[tag::CREATED, VERSION]);
                out.extend_from_slice(&extent.to_bytes());
                out.extend_from_slice(&group.to_bytes());
                out.push(kind as u8);
                out.extend_from_slice(&epoch.0.to_le_bytes());
            }
            Self::Fenced { epoch } => {
                out.extend_from_slice(&[tag::FENCED, VERSION]);
                out.extend_from_slice(&epoch.0.to_le_bytes());
            }
            Self::Sealed { last } => {
                out.extend_from_slice(&[tag::SEALED, VERSION]);
                out.extend_from_slice(&last.0.to_le_bytes());
            }
            Self::Trimmed { key } => {
                out.extend_from_slice(&[tag::TRIMMED, VERSION]);
                put_key(out, key);
            }
            Self::Discarded { first, last } => {
                out.extend_from_slice(&[tag::DISCARDED, VERSION]);
                put_key(out, first);
                put_key(out, last);
            }
            Self::Deleted => out.extend_from_slice(&[tag::DELETED, VERSION]),
            Self::ReadFloor { key } => {
                out.extend_from_slice(&[tag::READ_FLOOR, VERSION]);
                put_key(out, key);
            }
        }
    }

    /// Reads a change: all of `bytes`, no fewer and no more.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let short = StateError::Short { got: bytes.len() };
        let mut cursor = Cursor::new(bytes);
        let tag = cursor.u8().ok_or(short)?;
        let version = cursor.u8().ok_or(short)?;
        if !(tag::CREATED..=tag::READ_FLOOR).contains(&tag) {
            return Err(StateError::Tag(tag));
        }
        if version != VERSION {
            return Err(StateError::Version { tag, version });
        }
        let change = Self::decode_fields(tag, &mut cursor).ok_or(short)??;
        if !cursor.is_empty() {
            return Err(StateError::Surplus { got: bytes.len() });
        }
        Ok(change)
    }

    /// The fields behind a known tag; `None` where they end too early.
    fn decode_fields(tag: u8, cursor: &mut Cursor<'_>) -> Option<Result<Self, StateError>> {
        fn key(cursor: &mut Cursor<'_>) -> Option<Key> {
            Some(Key { deliver_at: DeliverAt(cursor.u64()?), seq: Seq(cursor.u64()?) })
        }
        Some(Ok(match tag {
            tag::CREATED => {
                let extent = ExtentId::from_bytes(cursor.id()?);
                let group = GroupId::from_bytes(cursor.id()?);
                let kind = cursor.u8()?;
                let epoch = Epoch(cursor.u64()?);
                if extent == ExtentId(0) || group == GroupId(0) {
                    return Some(Err(StateError::ZeroId));
                }
                match ExtentKind::from_byte(kind) {
                    Some(kind) => Self::Created { extent, group, kind, epoch },
                    None => return Some(Err(StateError::Kind(kind))),
                }
            }
            tag::FENCED => Self::Fenced { epoch: Epoch(cursor.u64()?) },
            tag::SEALED => Self::Sealed { last: Seq(cursor.u64()?) },
            tag::TRIMMED => Self::Trimmed { key: key(cursor)? },
            tag::DISCARDED => {
                let (first, last) = (key(cursor)?, key(cursor)?);
                if first > last {
                    return Some(Err(StateError::Range { first, last }));
                }
                Self::Discarded { first, last }
            }
            tag::DELETED => Self::Deleted,
            tag::READ_FLOOR => Self::ReadFloor { key: key(cursor)? },
            other => return Some(Err(StateError::Tag(other))),
        }))
    }
}

/// Why bytes are no state record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// They end too early.
    #[error("state record ends after {got} bytes, before its last field")]
    Short {
        /// How many there are.
        got: usize,
    },
    /// They go on behind the last field.
    #[error("state record of {got} bytes goes on behind its last field")]
    Surplus {
        /// How many there are.
        got: usize,
    },
    /// No change has this tag.
    #[error("state record with the unknown tag {0}")]
    Tag(u8),
    /// The change is of a version that this one does not know.
    #[error("state record with tag {tag} of version {version}: this program knows version 1")]
    Version {
        /// The change's tag.
        tag: u8,
        /// The version it claims.
        version: u8,
    },
    /// The extent's kind is unknown.
    #[error("state record creates an extent of the unknown kind {0}")]
    Kind(u8),
    /// The extent or its group has no id.
    #[error("state record creates an extent with an extent id or a group id of zero")]
    ZeroId,
    /// The range ends before it begins.
    #[error(
        "state record discards a range that ends before it begins: ({}, {}) to ({}, {})",
        .first.deliver_at, .first.seq, .last.deliver_at, .last.seq
    )]
    Range {
        /// Its first key.
        first: Key,
        /// Its last key.
        last: Key,
    },
}
