//! What can go wrong for a caller of the client.

use log_format::ids::{ExtentId, Seq};
use log_format::wire::{BodyError, FrameError, Refusal};
use std::io;
use std::sync::Arc;

/// Why a request has no answer, or not the one hoped for. Cheap to clone: one failure may answer many requests.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The node said no. Unless the refusal is [`Refusal::UnknownOutcome`], nothing was done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection was lost while the request was under way: whether it was done is unknown.
    #[error("connection to {address} lost before the answer came ({why}): whether the request was done is unknown")]
    Disconnected {
        /// The node.
        address: Arc<str>,
        /// How it was lost.
        why: Arc<str>,
    },
    /// No connection could be made. The request was not sent.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The node.
        address: Arc<str>,
        /// Why.
        source: Arc<io::Error>,
    },
    /// The node broke the protocol. The connection is closed; whether the request was done is unknown.
    #[error("{address} broke the protocol: {why}")]
    Protocol {
        /// The node.
        address: Arc<str>,
        /// How.
        why: Arc<str>,
    },
    /// A record's bytes came without fitting their checksum: they were damaged on the way.
    #[error("record {seq} of extent {extent} came damaged: its bytes do not fit their checksum")]
    Damaged {
        /// The extent.
        extent: ExtentId,
        /// The record's seq.
        seq: Seq,
    },
}

impl ClientError {
    pub(crate) fn protocol(address: &Arc<str>, why: impl AsRef<str>) -> Self {
        Self::Protocol { address: Arc::clone(address), why: why.as_ref().into() }
    }

    pub(crate) fn disconnected(address: &Arc<str>, why: impl AsRef<str>) -> Self {
        Self::Disconnected { address: Arc::clone(address), why: why.as_ref().into() }
    }

    pub(crate) fn frame(address: &Arc<str>, error: &FrameError) -> Self {
        Self::protocol(address, error.to_string())
    }

    pub(crate) fn body(address: &Arc<str>, error: &BodyError) -> Self {
        Self::protocol(address, error.to_string())
    }

    /// Whether the request may have been done although no good answer came: sending it again may do it twice.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Disconnected { .. } | Self::Protocol { .. } | Self::Refused(Refusal::UnknownOutcome))
    }

    /// The node's refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
