//! What a node answers. A refusal is a [`Refusal`]; everything else is here.

use super::body::{self, ACKS_MAX, BodyError, LIST_MAX, OPERATIONS_MAX, READ_RECORDS_MAX, check_count, generated, id_required};
use super::{Direction, FrameHeader, Kind, Refusal, RequestId};
use crate::ids::{DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Incarnation, Key, NodeId, Op, Seq, ShardIndex, Timestamp};
use flatbuffers::Vector;

/// How far an acked change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Durability {
    /// It is on this node's device.
    Device = 1,
    /// It is on the devices of the group's ack quorum.
    Quorum = 2,
}

impl Durability {
    fn decode(value: generated::Durability) -> Result<Self, BodyError> {
        match value {
            generated::Durability::Device => Ok(Self::Device),
            generated::Durability::Quorum => Ok(Self::Quorum),
            _ => Err(BodyError::Value("the durability")),
        }
    }
}

/// Whether an extent takes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ExtentState {
    /// It does.
    Open = 1,
    /// It never will again.
    Sealed = 2,
}

impl ExtentState {
    fn decode(value: generated::ExtentState) -> Result<Self, BodyError> {
        match value {
            generated::ExtentState::Open => Ok(Self::Open),
            generated::ExtentState::Sealed => Ok(Self::Sealed),
            _ => Err(BodyError::Value("the extent's state")),
        }
    }
}

/// The connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The protocol version that this connection speaks.
    pub version: u16,
    /// The node.
    pub node: NodeId,
    /// The life of the node's data.
    pub incarnation: Incarnation,
    /// The shard that owns the connection.
    pub shard: ShardIndex,
    /// How many shards the node has, at least 1: with [`shard_of`](crate::ids::shard_of) the shard map.
    pub shard_count: u32,
    /// The longest record that the node takes, in bytes.
    pub max_record_size: u32,
    /// The longest payload of a frame, both ways, in bytes.
    pub max_frame_size: u32,
    /// How many requests may be unanswered before the node stops reading.
    pub max_in_flight: u32,
    /// How an ack becomes durable on this node, for people.
    pub durability: &'a str,
    /// The node's name and version, for people.
    pub software: &'a str,
}

/// The extent exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateExtent {
    /// Its id.
    pub extent: ExtentId,
    /// Its group.
    pub group: GroupId,
    /// Whether this request made it; it was there before otherwise.
    pub created: bool,
}

/// One Append is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendAck {
    /// The Append's request id.
    pub request_id: RequestId,
    /// Its first record's seq; the others follow without gaps.
    pub first_seq: Seq,
    /// Its op in the group.
    pub op: Op,
    /// How many records it had.
    pub count: u32,
    /// How far it has come.
    pub durability: Durability,
}

/// One or more Appends are done. See [`Append::acks`].
#[derive(Clone, Copy, Debug)]
pub struct Append<'a>(Vector<'a, generated::AppendAck>);

/// What one operation of a Commit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationResult {
    /// An append's first record's seq; 0 for the other operations.
    pub first_seq: Seq,
    /// An append's count of records; 0 for the other operations.
    pub count: u32,
}

/// A Commit is done.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// Its op in the group.
    pub op: Op,
    /// How far it has come.
    pub durability: Durability,
    results: Vector<'a, generated::OperationResult>,
}

/// A record that was read, but for its bytes, which lie in the payload in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEntry {
    /// Its seq.
    pub seq: Seq,
    /// When the node took it.
    pub append_time: Timestamp,
    /// When it falls due; 0 in a sequence extent.
    pub deliver_at: DeliverAt,
    /// Its length in bytes.
    pub length: u32,
    /// The checksum of its bytes.
    pub checksum: u32,
}

/// Records that were read. None: there was none within the wait, or, in a sealed extent, there will be none.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// Where the next read of this reader starts.
    pub next_seq: Seq,
    /// The last committed seq of the extent; 0: none.
    pub committed_seq: Seq,
    /// Whether more can come.
    pub state: ExtentState,
    /// When the next record after these falls due; 0 in sequence extents.
    pub next_due: DeliverAt,
    entries: Option<Vector<'a, generated::ReadRecord>>,
}

/// The first record at or after a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqAtTime {
    /// Its seq; the extent's next seq if there is none.
    pub seq: Seq,
    /// When it was appended; 0 if there is none.
    pub append_time: Timestamp,
}

/// The trim is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Its op in the group.
    pub op: Op,
    /// Everything up to this key is dead: never below the key asked for.
    pub floor: Key,
}

/// The extent is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The op in the group.
    pub op: Op,
    /// The extent's last record's seq; 0 if it has none.
    pub last_seq: Seq,
}

/// The extent is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The op in the group.
    pub op: Op,
}

/// What a node knows of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentInfo {
    /// Its id.
    pub extent: ExtentId,
    /// Its group.
    pub group: GroupId,
    /// The shard that owns it.
    pub shard: ShardIndex,
    /// How it is read.
    pub kind: ExtentKind,
    /// Whether it takes records.
    pub state: ExtentState,
    /// The group's epoch.
    pub epoch: Epoch,
    /// The first seq that is not trimmed.
    pub first_seq: Seq,
    /// The last committed seq; 0: none.
    pub last_seq: Seq,
    /// The group's last committed op.
    pub committed_op: Op,
    /// Records that can be read.
    pub records: u64,
    /// Payload bytes ever appended, those of trimmed records among them.
    pub payload_bytes: u64,
}

/// About one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Describe {
    /// It.
    pub extent: ExtentInfo,
}

/// Some of a shard's extents, in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// They.
    pub extents: Vec<ExtentInfo>,
    /// Whether there are more behind them.
    pub more: bool,
}

/// Any answer.
#[derive(Clone, Debug)]
pub enum Reply<'a> {
    /// See [`Hello`].
    Hello(Hello<'a>),
    /// See [`CreateExtent`].
    CreateExtent(CreateExtent),
    /// See [`Append`].
    Append(Append<'a>),
    /// See [`Commit`].
    Commit(Commit<'a>),
    /// See [`Read`].
    Read(Read<'a>),
    /// See [`SeqAtTime`].
    SeqAtTime(SeqAtTime),
    /// See [`Trim`].
    Trim(Trim),
    /// See [`Seal`].
    Seal(Seal),
    /// See [`Delete`].
    Delete(Delete),
    /// See [`Describe`].
    Describe(Describe),
    /// See [`List`].
    List(List),
    /// The request was refused.
    Refused(Refusal),
}

impl<'a> Reply<'a> {
    /// Reads an answer's body. `header` must have passed [`FrameHeader::check_body`].
    ///
    /// # Errors
    /// The body is not of its kind's schema, breaks a limit, or does not fit the payload's length.
    pub fn decode(header: &FrameHeader, body: &'a [u8]) -> Result<Self, BodyError> {
        let reply = match (header.direction, header.kind) {
            (Direction::Request, _) => return Err(BodyError::Direction),
            (Direction::Refusal, _) => Self::Refused(Refusal::decode(body)?),
            (_, Kind::Hello) => Self::Hello(Hello::decode(body)?),
            (_, Kind::CreateExtent) => Self::CreateExtent(CreateExtent::decode(body)?),
            (_, Kind::Append) => Self::Append(Append::decode(body)?),
            (_, Kind::Commit) => Self::Commit(Commit::decode(body)?),
            (_, Kind::Read) => Self::Read(Read::decode(body)?),
            (_, Kind::SeqAtTime) => Self::SeqAtTime(SeqAtTime::decode(body)?),
            (_, Kind::Trim) => Self::Trim(Trim::decode(body)?),
            (_, Kind::Seal) => Self::Seal(Seal::decode(body)?),
            (_, Kind::Delete) => Self::Delete(Delete::decode(body)?),
            (_, Kind::Describe) => Self::Describe(Describe::decode(body)?),
            (_, Kind::List) => Self::List(List::decode(body)?),
            (_, Kind::ReadDue | Kind::Discard | Kind::Fence | Kind::Replicate | Kind::FetchTail) => {
                return Err(BodyError::Value("the answer's kind"));
            }
        };
        let records = if let Self::Read(read) = &reply { read.entries().map(|entry| u64::from(entry.length)).sum() } else { 0 };
        let payload = u64::from(header.payload_length);
        if records != payload {
            return Err(BodyError::PayloadLength { records, payload });
        }
        Ok(reply)
    }
}

impl<'a> Hello<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::HelloReply<'_>>(bytes)?;
        if body.shard_count() == 0 || body.shard() >= body.shard_count() {
            return Err(BodyError::Value("the shard map"));
        }
        Ok(Self {
            version: body.version(),
            node: NodeId(id_required(body.node(), "the node's id")?),
            incarnation: Incarnation(body.incarnation()),
            shard: ShardIndex(body.shard()),
            shard_count: body.shard_count(),
            max_record_size: body.max_record_size(),
            max_frame_size: body.max_frame_size(),
            max_in_flight: body.max_in_flight(),
            durability: body.durability().unwrap_or_default(),
            software: body.software().unwrap_or_default(),
        })
    }
}

impl CreateExtent {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::CreateExtentReply<'_>>(bytes)?;
        let extent = ExtentId(id_required(body.extent(), "the extent's id")?);
        Ok(Self { extent, group: GroupId(id_required(body.group(), "the group's id")?), created: body.created() })
    }
}

impl<'a> Append<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let acks = body::root::<generated::AppendReply<'_>>(bytes)?.acks();
        let acks = acks.filter(|acks| !acks.is_empty()).ok_or(BodyError::Missing("the list of acks"))?;
        check_count("acks", acks.len(), ACKS_MAX)?;
        for ack in acks.iter() {
            Durability::decode(ack.durability())?;
        }
        Ok(Self(acks))
    }

    /// The acks, in the order of their requests on the connection: at least one.
    pub fn acks(&self) -> impl ExactSizeIterator<Item = AppendAck> + use<'a> {
        self.0.iter().map(|ack| AppendAck {
            request_id: RequestId(ack.request_id()),
            first_seq: Seq(ack.first_seq()),
            op: Op(ack.op()),
            count: ack.count(),
            durability: Durability::decode(ack.durability()).expect("decode() has read every ack"),
        })
    }
}

impl<'a> Commit<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::CommitReply<'_>>(bytes)?;
        let results = body.results().ok_or(BodyError::Missing("the list of results"))?;
        check_count("results", results.len(), OPERATIONS_MAX)?;
        Ok(Self { op: Op(body.op()), durability: Durability::decode(body.durability())?, results })
    }

    /// One result an operation, in the operations' order.
    pub fn results(&self) -> impl ExactSizeIterator<Item = OperationResult> + use<'a> {
        self.results.iter().map(|result| OperationResult { first_seq: Seq(result.first_seq()), count: result.count() })
    }
}

impl<'a> Read<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::ReadReply<'_>>(bytes)?;
        check_count("records", body.records().map_or(0, |records| records.len()), READ_RECORDS_MAX)?;
        Ok(Self {
            next_seq: Seq(body.next_seq()),
            committed_seq: Seq(body.committed_seq()),
            state: ExtentState::decode(body.state())?,
            next_due: DeliverAt(body.next_due()),
            entries: body.records(),
        })
    }

    /// The records, in order, without their bytes.
    pub fn entries(&self) -> impl Iterator<Item = ReadEntry> + use<'a> {
        self.entries.into_iter().flatten().map(|entry| ReadEntry {
            seq: Seq(entry.seq()),
            append_time: Timestamp(entry.append_time()),
            deliver_at: DeliverAt(entry.deliver_at()),
            length: entry.length(),
            checksum: entry.checksum(),
        })
    }

    /// How many records there are.
    pub fn count(&self) -> usize {
        self.entries.map_or(0, |entries| entries.len())
    }
}

impl SeqAtTime {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::SeqAtTimeReply<'_>>(bytes)?;
        Ok(Self { seq: Seq(body.seq()), append_time: Timestamp(body.append_time()) })
    }
}

impl Trim {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::TrimReply<'_>>(bytes)?;
        Ok(Self { op: Op(body.op()), floor: body.floor().map(body::key_value).ok_or(BodyError::Missing("the floor"))? })
    }
}

impl Seal {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::SealReply<'_>>(bytes)?;
        Ok(Self { op: Op(body.op()), last_seq: Seq(body.last_seq()) })
    }
}

impl Delete {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        Ok(Self { op: Op(body::root::<generated::DeleteReply<'_>>(bytes)?.op()) })
    }
}

impl ExtentInfo {
    fn decode(body: generated::ExtentInfo<'_>) -> Result<Self, BodyError> {
        Ok(Self {
            extent: ExtentId(id_required(body.extent(), "the extent's id")?),
            group: GroupId(id_required(body.group(), "the group's id")?),
            shard: ShardIndex(body.shard()),
            kind: ExtentKind::from_byte(body.kind().0).ok_or(BodyError::Value("the extent's kind"))?,
            state: ExtentState::decode(body.state())?,
            epoch: Epoch(body.epoch()),
            first_seq: Seq(body.first_seq()),
            last_seq: Seq(body.last_seq()),
            committed_op: Op(body.committed_op()),
            records: body.records(),
            payload_bytes: body.payload_bytes(),
        })
    }
}

impl Describe {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::DescribeReply<'_>>(bytes)?;
        Ok(Self { extent: ExtentInfo::decode(body.extent().ok_or(BodyError::Missing("the extent"))?)? })
    }
}

impl List {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::ListReply<'_>>(bytes)?;
        check_count("extents", body.extents().map_or(0, |extents| extents.len()), LIST_MAX)?;
        let extents = body.extents().into_iter().flatten().map(ExtentInfo::decode).collect::<Result<_, _>>()?;
        Ok(Self { extents, more: body.more() })
    }
}
