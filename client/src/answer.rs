//! What a node answered, as values of the caller's own.

use bytes::Bytes;
use log_format::ids::{Op, Seq, Timestamp};
use log_format::wire::reply::{self, Durability, ExtentState, OperationResult};

/// A record that was read. Its bytes were checked against their checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the extent.
    pub seq: Seq,
    /// When the node took it.
    pub append_time: Timestamp,
    /// Its bytes: a part of the answer it came in, which stays in memory as long as any record of it does.
    pub data: Bytes,
}

/// Some records of an extent, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// They.
    pub records: Vec<Record>,
    /// Where the next read starts.
    pub next_seq: Seq,
    /// The last committed seq of the extent; 0: none.
    pub committed_seq: Seq,
    /// Whether more can come.
    pub state: ExtentState,
}

/// A commit is done, all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its op in the group.
    pub op: Op,
    /// How far it has come.
    pub durability: Durability,
    /// One result an operation, in the operations' order.
    pub results: Vec<OperationResult>,
}

/// Any answer but acks of appends and commits.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    CreateExtent(reply::CreateExtent),
    Read(Page),
    SeqAtTime(reply::SeqAtTime),
    Trim(reply::Trim),
    Seal(reply::Seal),
    Delete(reply::Delete),
    Describe(reply::Describe),
    List(reply::List),
}
