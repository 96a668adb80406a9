//! The frame: a 32-byte header of fixed layout, a flatbuffers body, then raw payload bytes.
//!
//! Header, little-endian: magic `RWIR` (4), version (2), kind (1), flags (1), request id (8), body length (4), payload length (4),
//! reserved (4), crc32c over the header's bytes 0..28 and the body (4). Payload bytes are covered by each record's own checksum.
//!
//! Contract: [`FrameHeader::decode`] bounds the body's length before anybody uses it; the payload's is bounded by
//! [`FrameHeader::check_payload_limit`], since the limit is the peer's to say. Neither says that the header is true: that is
//! [`FrameHeader::check_body`], once the body is there.

use std::fmt;

/// Bytes in a frame's header.
pub const FRAME_HEADER_SIZE: usize = 32;
/// The version of the frame's layout and of the bodies that this crate speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// The first four bytes of every frame, read as a little-endian integer.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"RWIR");
/// The greatest body of a frame, in bytes.
pub const BODY_LENGTH_MAX: u32 = 1024 * 1024;

const CHECKED_HEADER_SIZE: usize = 28;
const FLAG_RESPONSE: u8 = 1;
const FLAG_ERROR: u8 = 2;

/// Names a request on its connection; its answer carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// What a frame asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Opens a connection.
    Hello = 1,
    /// Makes an extent.
    CreateExtent = 2,
    /// Appends records to one extent.
    Append = 3,
    /// Changes several extents of one group at once.
    Commit = 4,
    /// Reads records in the order of seqs.
    Read = 5,
    /// Reads records in the order of their delivery times.
    ReadDue = 6,
    /// Finds the first record appended at or after a time.
    SeqAtTime = 7,
    /// Declares everything up to a key dead.
    Trim = 8,
    /// Declares ranges of keys dead.
    Discard = 9,
    /// Ends an extent.
    Seal = 10,
    /// Removes an extent.
    Delete = 11,
    /// Asks about one extent.
    Describe = 12,
    /// Asks about a shard's extents.
    List = 13,
    /// Refuses lower epochs of a group from now on.
    Fence = 14,
    /// Carries ops from a primary to a secondary.
    Replicate = 15,
    /// Fetches the ops that a replica misses.
    FetchTail = 16,
}

impl Kind {
    /// All kinds, by their byte.
    pub const ALL: [Kind; 16] = [
        Kind::Hello,
        Kind::CreateExtent,
        Kind::Append,
        Kind::Commit,
        Kind::Read,
        Kind::ReadDue,
        Kind::SeqAtTime,
        Kind::Trim,
        Kind::Discard,
        Kind::Seal,
        Kind::Delete,
        Kind::Describe,
        Kind::List,
        Kind::Fence,
        Kind::Replicate,
        Kind::FetchTail,
    ];

    /// From its byte in a frame header.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte.checked_sub(1)?)).copied()
    }
}

/// Which way a frame goes, and whether it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client: a request.
    Request,
    /// From the node: the request was done.
    Reply,
    /// From the node: the request was refused; the body is a [`Refusal`](super::Refusal).
    Refusal,
}

impl Direction {
    fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Reply => FLAG_RESPONSE,
            Self::Refusal => FLAG_RESPONSE | FLAG_ERROR,
        }
    }

    fn from_flags(flags: u8) -> Option<Self> {
        match flags {
            0 => Some(Self::Request),
            FLAG_RESPONSE => Some(Self::Reply),
            flags if flags == FLAG_RESPONSE | FLAG_ERROR => Some(Self::Refusal),
            _ => None,
        }
    }
}

/// Why bytes are no frame. The connection is of no further use: where its next frame starts is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first four bytes are another protocol's.
    #[error("not a Roost frame: it starts with {found:#010x}, not {FRAME_MAGIC:#010x}")]
    Magic {
        /// What stands there.
        found: u32,
    },
    /// A version of the frame layout that this crate does not read.
    #[error("frame version {found} is not supported (this side speaks {PROTOCOL_VERSION})")]
    Version {
        /// The frame's version.
        found: u16,
    },
    /// An unknown kind.
    #[error("unknown frame kind {found}")]
    Kind {
        /// The byte that stands there.
        found: u8,
    },
    /// Flags that mean nothing.
    #[error("unknown frame flags {found:#04x}")]
    Flags {
        /// The byte that stands there.
        found: u8,
    },
    /// Reserved bytes that are not zero.
    #[error("reserved bytes of the frame header are not zero")]
    Reserved,
    /// A body longer than any frame may have.
    #[error("the body of {length} bytes is over the limit of {BODY_LENGTH_MAX}")]
    BodyTooLong {
        /// What the header claims.
        length: u32,
    },
    /// A payload longer than the peer agreed to take.
    #[error("the payload of {length} bytes is over the limit of {limit}")]
    PayloadTooLong {
        /// What the header claims.
        length: u32,
        /// What was agreed.
        limit: u32,
    },
    /// The header's checksum does not fit header and body.
    #[error("frame checksum mismatch: the header says {expected:#010x}, the bytes give {actual:#010x}")]
    Checksum {
        /// What the header says.
        expected: u32,
        /// What header and body give.
        actual: u32,
    },
}

/// A frame's header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it asks for or answers.
    pub kind: Kind,
    /// Which way it goes.
    pub direction: Direction,
    /// The request that it is, or answers.
    pub request_id: RequestId,
    /// Bytes of body behind the header.
    pub body_length: u32,
    /// Bytes of payload behind the body.
    pub payload_length: u32,
    checksum: u32,
    checksum_of_header: u32,
}

fn u32_at(bytes: &[u8; FRAME_HEADER_SIZE], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl FrameHeader {
    /// Reads a header. Its lengths and kind are plausible after this, not yet proven true: see [`FrameHeader::check_body`].
    ///
    /// # Errors
    /// All but [`FrameError::PayloadTooLong`] and [`FrameError::Checksum`].
    pub fn decode(bytes: &[u8; FRAME_HEADER_SIZE]) -> Result<Self, FrameError> {
        let magic = u32_at(bytes, 0);
        if magic != FRAME_MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != PROTOCOL_VERSION {
            return Err(FrameError::Version { found: version });
        }
        let kind = Kind::from_byte(bytes[6]).ok_or(FrameError::Kind { found: bytes[6] })?;
        let direction = Direction::from_flags(bytes[7]).ok_or(FrameError::Flags { found: bytes[7] })?;
        let request_id = RequestId(u64::from(u32_at(bytes, 8)) | u64::from(u32_at(bytes, 12)) << 32);
        let body_length = u32_at(bytes, 16);
        let payload_length = u32_at(bytes, 20);
        if u32_at(bytes, 24) != 0 {
            return Err(FrameError::Reserved);
        }
        if body_length > BODY_LENGTH_MAX {
            return Err(FrameError::BodyTooLong { length: body_length });
        }
        let checksum = u32_at(bytes, CHECKED_HEADER_SIZE);
        let checksum_of_header = crc32c::crc32c(&bytes[..CHECKED_HEADER_SIZE]);
        Ok(Self { kind, direction, request_id, body_length, payload_length, checksum, checksum_of_header })
    }

    /// Bounds the payload's length, before room is made for it.
    ///
    /// # Errors
    /// [`FrameError::PayloadTooLong`].
    pub fn check_payload_limit(&self, limit: u32) -> Result<(), FrameError> {
        if self.payload_length > limit {
            return Err(FrameError::PayloadTooLong { length: self.payload_length, limit });
        }
        Ok(())
    }

    /// Proves header and body by the checksum. `body` must be the frame's whole body.
    ///
    /// # Errors
    /// [`FrameError::Checksum`].
    pub fn check_body(&self, body: &[u8]) -> Result<(), FrameError> {
        let actual = crc32c::crc32c_append(self.checksum_of_header, body);
        if body.len() != self.body_length as usize || actual != self.checksum {
            return Err(FrameError::Checksum { expected: self.checksum, actual });
        }
        Ok(())
    }

    /// Bytes of header and body together: where the payload starts.
    pub fn payload_offset(&self) -> usize {
        FRAME_HEADER_SIZE + self.body_length as usize
    }

    /// Bytes of the whole frame.
    pub fn frame_length(&self) -> usize {
        self.payload_offset() + self.payload_length as usize
    }
}

/// Appends a frame's header and body to `out`; `payload_length` bytes of payload must follow them on the wire.
///
/// # Panics
/// If the body is over [`BODY_LENGTH_MAX`].
pub fn encode_frame(
    kind: Kind,
    direction: Direction,
    request_id: RequestId,
    payload_length: u32,
    body: &[u8],
    out: &mut Vec<u8>,
) {
    assert!(body.len() <= BODY_LENGTH_MAX as usize, "a body of {} bytes is over the limit", body.len());
    let mut header = [0; FRAME_HEADER_SIZE];
    header[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    header[6] = kind as u8;
    header[7] = direction.flags();
    header[8..16].copy_from_slice(&request_id.0.to_le_bytes());
    header[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[20..24].copy_from_slice(&payload_length.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..CHECKED_HEADER_SIZE]), body);
    header[CHECKED_HEADER_SIZE..].copy_from_slice(&checksum.to_le_bytes());
    out.reserve(FRAME_HEADER_SIZE + body.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(body);
}
