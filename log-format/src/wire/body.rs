//! What all bodies share: verification, ids, keys, limits, errors.

use crate::ids::{DeliverAt, Key, Seq};
use flatbuffers::{Follow, Verifiable, VerifierOptions};

pub(super) use crate::generated::wire as generated;

/// The most records of one request, over all its operations. All of them lie in one block.
pub const RECORDS_MAX: usize = 32_768;
/// The most operations of one Commit.
pub const OPERATIONS_MAX: usize = 1_024;
/// The most records of one answer to a Read.
pub const READ_RECORDS_MAX: usize = 16_384;
/// The most acks in one frame.
pub const ACKS_MAX: usize = 16_384;
/// The most extents in one answer to a List.
pub const LIST_MAX: usize = 2_048;

const MIB: usize = 1024 * 1024;
const OVERHEAD: usize = 4096;
// Every body at its limit fits the frame: records with checksum, length and delivery time; entries and acks of 32 bytes.
const _: () = assert!(RECORDS_MAX * 16 + OPERATIONS_MAX * 128 + OVERHEAD <= super::BODY_LENGTH_MAX as usize);
const _: () = assert!(READ_RECORDS_MAX * 32 + OVERHEAD <= super::BODY_LENGTH_MAX as usize);
const _: () = assert!(ACKS_MAX * 32 + OVERHEAD <= super::BODY_LENGTH_MAX as usize);
const _: () = assert!(LIST_MAX * 256 + OVERHEAD <= super::BODY_LENGTH_MAX as usize);

/// Why a body is none of this protocol's. The frame's checksum held, so the peer meant it: it is a mistake of the sender's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The bytes are no flatbuffer of the kind's schema.
    #[error("the body is not of its kind's schema")]
    Malformed,
    /// A field that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has a value that means nothing.
    #[error("{0} has no valid value")]
    Value(&'static str),
    /// More of something than one request may have.
    #[error("{count} {what}; at most {limit} are allowed")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The records' lengths do not add up to the payload.
    #[error("the records are {records} bytes long, the payload {payload}")]
    PayloadLength {
        /// The sum of the records' lengths.
        records: u64,
        /// The frame's payload length.
        payload: u64,
    },
    /// A request where an answer belongs, or the other way round.
    #[error("the frame goes the wrong way")]
    Direction,
}

/// Tables and bytes that a body may unfold to: flatbuffers can share parts, so that a small one unfolds to a large one.
const VERIFIER: VerifierOptions =
    VerifierOptions { max_depth: 8, max_tables: 4_096, max_apparent_size: 4 * MIB, ignore_missing_null_terminator: false };

pub(super) fn root<'a, T>(bytes: &'a [u8]) -> Result<T::Inner, BodyError>
where
    T: 'a + Follow<'a> + Verifiable,
{
    flatbuffers::root_with_opts::<T>(&VERIFIER, bytes).map_err(|_| BodyError::Malformed)
}

pub(super) fn id_struct(value: u128) -> generated::Id {
    generated::Id::new((value >> 64) as u64, value as u64)
}

pub(super) fn id_value(id: &generated::Id) -> u128 {
    u128::from(id.high()) << 64 | u128::from(id.low())
}

/// An id that must be there and not be zero.
pub(super) fn id_required(id: Option<&generated::Id>, what: &'static str) -> Result<u128, BodyError> {
    match id.map(id_value) {
        Some(0) | None => Err(BodyError::Missing(what)),
        Some(value) => Ok(value),
    }
}

pub(super) fn key_struct(key: Key) -> generated::Key {
    generated::Key::new(key.deliver_at.0, key.seq.0)
}

pub(super) fn key_value(key: &generated::Key) -> Key {
    Key { deliver_at: DeliverAt(key.deliver_at()), seq: Seq(key.seq()) }
}

/// 0 on the wire means none.
pub(super) fn seq_option(seq: u64) -> Option<Seq> {
    (seq != 0).then_some(Seq(seq))
}

pub(super) fn check_count(what: &'static str, count: usize, limit: usize) -> Result<(), BodyError> {
    if count > limit {
        return Err(BodyError::TooMany { what, count, limit });
    }
    Ok(())
}
