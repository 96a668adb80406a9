//! Roost's wire protocol, version 1 (docs/protocol.md): frames, and their bodies as plain values.
//!
//! Neither the node nor a client touches generated code: they read with [`Request::decode`] and [`Reply::decode`] and
//! write with an [`Encoder`]. What is read borrows from the receive buffer; nothing is allocated for a record or an ack.
//!
//! Contract: decoders are total. Counts and lengths are bounded before they are used, an id that must be there is not zero, and
//! the records of a request add up to the payload that its header announces, before a byte of that payload has arrived.

mod body;
mod encode;
mod frame;
mod records;
mod refusal;
pub mod reply;
pub mod request;

pub use body::{ACKS_MAX, BodyError, LIST_MAX, OPERATIONS_MAX, READ_RECORDS_MAX, RECORDS_MAX};
pub use encode::{AppendTarget, Body, CommitOperation, Encoder, ReadHead};
pub use frame::{
    BODY_LENGTH_MAX, Direction, FRAME_HEADER_SIZE, FRAME_MAGIC, FrameError, FrameHeader, Kind, PROTOCOL_VERSION, RequestId,
    encode_frame,
};
pub use records::{KeyRange, KeyRanges, Record, RecordIter, RecordMeta, Records};
pub use refusal::{MESSAGE_LENGTH_MAX, Refusal};
pub use reply::Reply;
pub use request::Request;
