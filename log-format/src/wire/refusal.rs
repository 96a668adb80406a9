//! Why a node refuses a request: one variant per error code of the protocol, each with its typed detail.

use super::body::{self, BodyError, generated};
use crate::ids::{Epoch, NodeId, Seq, ShardIndex};
use flatbuffers::FlatBufferBuilder;

/// The longest message of a refusal on the wire, in bytes; longer ones are cut at a character's border.
pub const MESSAGE_LENGTH_MAX: usize = 1024;

/// A typed refusal. Unless it says otherwise, nothing of the request was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such extent on this shard.
    #[error("no such extent on this shard")]
    NotFound,
    /// The extent takes no more records.
    #[error("the extent is sealed; its last record is {last}")]
    Sealed {
        /// The last record's seq; 0 if it has none.
        last: Seq,
    },
    /// A primary of a higher epoch has been chosen.
    #[error("fenced: the group is at epoch {epoch}")]
    Fenced {
        /// The epoch that the node will accept.
        epoch: Epoch,
    },
    /// The records asked for were trimmed.
    #[error("trimmed: the first record that can be read is {floor}")]
    Trimmed {
        /// The first seq that can be read.
        floor: Seq,
    },
    /// Another shard of this node owns the group.
    #[error("shard {shard} owns this group")]
    WrongShard {
        /// The owner.
        shard: ShardIndex,
    },
    /// Another node takes the group's changes.
    #[error("node {node} is the group's primary")]
    NotPrimary {
        /// The primary.
        node: NodeId,
    },
    /// A record or a request is over the node's limit.
    #[error("too large: the limit is {limit_bytes} bytes")]
    TooLarge {
        /// The limit that was crossed, in bytes.
        limit_bytes: u64,
    },
    /// Another writer was there first.
    #[error("the extent's next seq is {next}, not the one expected")]
    SeqMismatch {
        /// The seq that the next record will get.
        next: Seq,
    },
    /// The node has too much to do.
    #[error("overloaded: try again after {retry_after_ms} ms")]
    Overloaded {
        /// When to try again, in milliseconds.
        retry_after_ms: u32,
    },
    /// The node takes no changes for now.
    #[error("read-only: {why}")]
    ReadOnly {
        /// Why, for people.
        why: String,
    },
    /// The bytes on the device are damaged.
    #[error("record {seq} is damaged on the device")]
    Corrupt {
        /// The damaged record's seq.
        seq: Seq,
    },
    /// A record's bytes do not fit the checksum that came with them.
    #[error("record {index} of the request does not fit its checksum")]
    BadChecksum {
        /// Which record of the request, from 0.
        index: u32,
    },
    /// The request makes no sense.
    #[error("bad request: {why}")]
    BadRequest {
        /// Why, for people.
        why: String,
    },
    /// This version of the node does not serve it.
    #[error("not supported by this version of the node: {what}")]
    Unsupported {
        /// What, for people.
        what: String,
    },
    /// The node is about to stop.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// The extent exists with another group or kind.
    #[error("the extent exists with another group or kind")]
    AlreadyExists,
    /// The device failed while the change was being written: it may or may not be there.
    #[error("the device failed during the change: it may or may not have been done")]
    UnknownOutcome,
    /// The node speaks none of the versions offered.
    #[error("no common protocol version: the node speaks {min} to {max}")]
    VersionMismatch {
        /// The lowest version that the node speaks.
        min: u16,
        /// The highest version that the node speaks.
        max: u16,
    },
}

impl Refusal {
    /// The error code on the wire, 1 to 18.
    pub fn code(&self) -> u16 {
        self.wire_code().0
    }

    /// The name of the variant: what metrics and JSON output call it.
    pub fn name(&self) -> &'static str {
        self.wire_code().variant_name().expect("every variant maps to a named code")
    }

    fn wire_code(&self) -> generated::ErrorCode {
        use generated::ErrorCode as Code;
        match self {
            Self::NotFound => Code::NotFound,
            Self::Sealed { .. } => Code::Sealed,
            Self::Fenced { .. } => Code::Fenced,
            Self::Trimmed { .. } => Code::Trimmed,
            Self::WrongShard { .. } => Code::WrongShard,
            Self::NotPrimary { .. } => Code::NotPrimary,
            Self::TooLarge { .. } => Code::TooLarge,
            Self::SeqMismatch { .. } => Code::SeqMismatch,
            Self::Overloaded { .. } => Code::Overloaded,
            Self::ReadOnly { .. } => Code::ReadOnly,
            Self::Corrupt { .. } => Code::Corrupt,
            Self::BadChecksum { .. } => Code::BadChecksum,
            Self::BadRequest { .. } => Code::BadRequest,
            Self::Unsupported { .. } => Code::Unsupported,
            Self::ShuttingDown => Code::ShuttingDown,
            Self::AlreadyExists => Code::AlreadyExists,
            Self::UnknownOutcome => Code::UnknownOutcome,
            Self::VersionMismatch { .. } => Code::VersionMismatch,
        }
    }

    /// Reads a refusal's body.
    ///
    /// # Errors
    /// The body is malformed, or its code or detail is not one of this version's.
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        use generated::ErrorCode as Code;
        let error = body::root::<generated::Error<'_>>(bytes)?;
        let detail = error.detail();
        let narrow = || u32::try_from(detail).map_err(|_| BodyError::Value("error detail"));
        let message = || error.message().unwrap_or_default().to_owned();
        Ok(match error.code() {
            Code::NotFound => Self::NotFound,
            Code::Sealed => Self::Sealed { last: Seq(detail) },
            Code::Fenced => Self::Fenced { epoch: Epoch(detail) },
            Code::Trimmed => Self::Trimmed { floor: Seq(detail) },
            Code::WrongShard => Self::WrongShard { shard: ShardIndex(narrow()?) },
            Code::NotPrimary => {
                Self::NotPrimary { node: NodeId(error.node().map(body::id_value).ok_or(BodyError::Missing("primary node"))?) }
            }
            Code::TooLarge => Self::TooLarge { limit_bytes: detail },
            Code::SeqMismatch => Self::SeqMismatch { next: Seq(detail) },
            Code::Overloaded => Self::Overloaded { retry_after_ms: narrow()? },
            Code::ReadOnly => Self::ReadOnly { why: message() },
            Code::Corrupt => Self::Corrupt { seq: Seq(detail) },
            Code::BadChecksum => Self::BadChecksum { index: narrow()? },
            Code::BadRequest => Self::BadRequest { why: message() },
            Code::Unsupported => Self::Unsupported { what: message() },
            Code::ShuttingDown => Self::ShuttingDown,
            Code::AlreadyExists => Self::AlreadyExists,
            Code::UnknownOutcome => Self::UnknownOutcome,
            Code::VersionMismatch => {
                let range = narrow()?;
                Self::VersionMismatch { min: (range >> 16) as u16, max: range as u16 }
            }
            _ => return Err(BodyError::Value("error code")),
        })
    }

    pub(super) fn build(&self, builder: &mut FlatBufferBuilder<'static>) {
        let detail = match *self {
            Self::Sealed { last: seq }
            | Self::Trimmed { floor: seq }
            | Self::SeqMismatch { next: seq }
            | Self::Corrupt { seq } => seq.0,
            Self::Fenced { epoch } => epoch.0,
            Self::WrongShard { shard } => u64::from(shard.0),
            Self::TooLarge { limit_bytes } => limit_bytes,
            Self::Overloaded { retry_after_ms } => u64::from(retry_after_ms),
            Self::BadChecksum { index } => u64::from(index),
            Self::VersionMismatch { min, max } => u64::from(min) << 16 | u64::from(max),
            _ => 0,
        };
        let message = match self {
            Self::ReadOnly { why } | Self::BadRequest { why } => Some(builder.create_string(cut(why))),
            Self::Unsupported { what } => Some(builder.create_string(cut(what))),
            _ => None,
        };
        let node = match self {
            Self::NotPrimary { node } => Some(body::id_struct(node.0)),
            _ => None,
        };
        let arguments = generated::ErrorArgs { code: self.wire_code(), detail, node: node.as_ref(), message };
        let root = generated::Error::create(builder, &arguments);
        builder.finish_minimal(root);
    }
}

fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(MESSAGE_LENGTH_MAX)]
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Self::BadRequest { why: error.to_string() }
    }
}

impl From<super::FrameError> for Refusal {
    fn from(error: super::FrameError) -> Self {
        match error {
            super::FrameError::Version { .. } => {
                Self::VersionMismatch { min: super::PROTOCOL_VERSION, max: super::PROTOCOL_VERSION }
            }
            super::FrameError::PayloadTooLong { limit, .. } => Self::TooLarge { limit_bytes: u64::from(limit) },
            super::FrameError::BodyTooLong { .. } => Self::TooLarge { limit_bytes: u64::from(super::BODY_LENGTH_MAX) },
            error => Self::BadRequest { why: error.to_string() },
        }
    }
}
