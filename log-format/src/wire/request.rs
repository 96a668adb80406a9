//! What a client asks for. Each type says what must be there; what it means is docs/protocol.md's.

use super::body::{self, BodyError, OPERATIONS_MAX, RECORDS_MAX, check_count, generated, id_required, seq_option};
use super::{Direction, FrameHeader, KeyRanges, Kind, Records};
use crate::ids::{Epoch, ExtentId, ExtentKind, GroupId, Key, Seq, ShardIndex, Timestamp};
use flatbuffers::{ForwardsUOffset, Vector};

/// "Any shard" in a Hello.
pub(super) const ANY_SHARD: u32 = u32::MAX;

/// Opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The lowest protocol version that the client speaks.
    pub min_version: u16,
    /// The highest protocol version that the client speaks.
    pub max_version: u16,
    /// The shard that shall own the connection; none: whichever.
    pub shard: Option<ShardIndex>,
    /// Proof of who the client is; empty in this version.
    pub auth: &'a [u8],
    /// The client's name and version, for people.
    pub client: &'a str,
}

/// Makes an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateExtent {
    /// Its id, picked by the client.
    pub extent: ExtentId,
    /// Its group; the extent's own id if the client names none.
    pub group: GroupId,
    /// How it is read.
    pub kind: ExtentKind,
    /// The group's epoch as the client knows it.
    pub epoch: Epoch,
}

/// Appends records to one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append<'a> {
    /// The extent.
    pub extent: ExtentId,
    /// The group's epoch as the client knows it.
    pub epoch: Epoch,
    /// The seq that the first record must get.
    pub expected_seq: Option<Seq>,
    /// The records.
    pub records: Records<'a>,
}

/// Changes several extents of one group: all or nothing.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// The group.
    pub group: GroupId,
    /// The group's epoch as the client knows it.
    pub epoch: Epoch,
    operations: Vector<'a, ForwardsUOffset<generated::Operation<'a>>>,
}

/// One change of a [`Commit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Appends records.
    Append {
        /// To this extent.
        extent: ExtentId,
        /// The seq that the first record must get.
        expected_seq: Option<Seq>,
        /// The records.
        records: Records<'a>,
    },
    /// Declares everything up to a key dead.
    Trim {
        /// In this extent.
        extent: ExtentId,
        /// The last key that is dead.
        to: Key,
    },
    /// Declares ranges of keys dead.
    Discard {
        /// In this extent.
        extent: ExtentId,
        /// The ranges.
        ranges: KeyRanges<'a>,
    },
    /// Cancels a timer before it is due.
    Cancel {
        /// In this extent.
        extent: ExtentId,
        /// The timer's key.
        key: Key,
    },
}

/// Reads records in the order of seqs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The extent.
    pub extent: ExtentId,
    /// The first seq wanted, at least 1.
    pub from_seq: Seq,
    /// The most payload bytes wanted; a first record that is longer comes all the same.
    pub max_bytes: u32,
    /// The most records wanted; 0: as many as the node likes.
    pub max_records: u32,
    /// How long to wait while there is none, in milliseconds.
    pub wait_ms: u32,
}

/// Finds the first record appended at or after a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqAtTime {
    /// The extent.
    pub extent: ExtentId,
    /// The time.
    pub time: Timestamp,
}

/// Declares everything up to a key dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The extent.
    pub extent: ExtentId,
    /// The group's epoch as the client knows it.
    pub epoch: Epoch,
    /// The last key that is dead.
    pub to: Key,
}

/// Ends an extent: it takes no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The extent.
    pub extent: ExtentId,
    /// The group's epoch as the client knows it.
    pub epoch: Epoch,
}

/// Removes an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The extent.
    pub extent: ExtentId,
    /// The group's epoch as the client knows it.
    pub epoch: Epoch,
}

/// Asks about one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Describe {
    /// The extent.
    pub extent: ExtentId,
}

/// Asks about the extents of the connection's shard, in the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Only those with greater ids.
    pub after: Option<ExtentId>,
    /// At most this many; the node has a limit of its own.
    pub limit: u32,
}

/// Any request.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// See [`Hello`].
    Hello(Hello<'a>),
    /// See [`CreateExtent`].
    CreateExtent(CreateExtent),
    /// See [`Append`].
    Append(Append<'a>),
    /// See [`Commit`].
    Commit(Commit<'a>),
    /// See [`Read`].
    Read(Read),
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
    /// A kind that this version names but does not serve; its body and payload are not looked at.
    Unserved(Kind),
}

impl<'a> Request<'a> {
    /// Reads a request's body. `header` must have passed [`FrameHeader::check_body`]; the payload need not be there yet.
    ///
    /// # Errors
    /// The body is not of its kind's schema, breaks a limit, or does not fit the payload's length.
    pub fn decode(header: &FrameHeader, body: &'a [u8]) -> Result<Self, BodyError> {
        if header.direction != Direction::Request {
            return Err(BodyError::Direction);
        }
        let request = match header.kind {
            Kind::Hello => Self::Hello(Hello::decode(body)?),
            Kind::CreateExtent => Self::CreateExtent(CreateExtent::decode(body)?),
            Kind::Append => Self::Append(Append::decode(body)?),
            Kind::Commit => Self::Commit(Commit::decode(body)?),
            Kind::Read => Self::Read(Read::decode(body)?),
            Kind::SeqAtTime => Self::SeqAtTime(SeqAtTime::decode(body)?),
            Kind::Trim => Self::Trim(Trim::decode(body)?),
            Kind::Seal => Self::Seal(Seal::decode(body)?),
            Kind::Delete => Self::Delete(Delete::decode(body)?),
            Kind::Describe => Self::Describe(Describe::decode(body)?),
            Kind::List => Self::List(List::decode(body)?),
            Kind::ReadDue | Kind::Discard | Kind::Fence | Kind::Replicate | Kind::FetchTail => {
                return Ok(Self::Unserved(header.kind));
            }
        };
        let records = match &request {
            Self::Append(append) => append.records.payload_length(),
            Self::Commit(commit) => commit.payload_length(),
            _ => 0,
        };
        let payload = u64::from(header.payload_length);
        if records != payload {
            return Err(BodyError::PayloadLength { records, payload });
        }
        Ok(request)
    }
}

impl<'a> Hello<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Hello<'_>>(bytes)?;
        if body.min_version() > body.max_version() {
            return Err(BodyError::Value("the version range"));
        }
        Ok(Self {
            min_version: body.min_version(),
            max_version: body.max_version(),
            shard: (body.shard() != ANY_SHARD).then_some(ShardIndex(body.shard())),
            auth: body.auth().map(|auth| auth.bytes()).unwrap_or_default(),
            client: body.client().unwrap_or_default(),
        })
    }
}

impl CreateExtent {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::CreateExtent<'_>>(bytes)?;
        let extent = ExtentId(id_required(body.extent(), "the extent's id")?);
        let group = match body.group() {
            None => GroupId::from(extent),
            group => GroupId(id_required(group, "the group's id")?),
        };
        let kind = ExtentKind::from_byte(body.kind().0).ok_or(BodyError::Value("the extent's kind"))?;
        Ok(Self { extent, group, kind, epoch: Epoch(body.epoch()) })
    }
}

impl<'a> Append<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Append<'_>>(bytes)?;
        let extent = ExtentId(id_required(body.extent(), "the extent's id")?);
        let records = Records::decode(body.records(), body.deliver_at(), 0)?;
        check_count("records", records.count(), RECORDS_MAX)?;
        Ok(Self { extent, epoch: Epoch(body.epoch()), expected_seq: seq_option(body.expected_seq()), records })
    }
}

impl<'a> Commit<'a> {
    /// Reads the body, all operations with it.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Commit<'_>>(bytes)?;
        let group = GroupId(id_required(body.group(), "the group's id")?);
        let operations = body.operations().filter(|list| !list.is_empty()).ok_or(BodyError::Missing("the list of operations"))?;
        check_count("operations", operations.len(), OPERATIONS_MAX)?;
        let mut records = 0;
        let mut payload_offset = 0;
        for operation in operations.iter() {
            if let Operation::Append { records: appended, .. } = Operation::decode(operation, payload_offset)? {
                records += appended.count();
                payload_offset = appended.payload_end();
            }
        }
        check_count("records", records, RECORDS_MAX)?;
        Ok(Self { group, epoch: Epoch(body.epoch()), operations })
    }

    /// How many operations there are: at least one.
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// The operations, in order.
    pub fn operations(&self) -> impl Iterator<Item = Operation<'a>> + use<'a> {
        let mut payload_offset = 0;
        self.operations.iter().map(move |operation| {
            let operation = Operation::decode(operation, payload_offset).expect("decode() has read every operation");
            if let Operation::Append { records, .. } = &operation {
                payload_offset = records.payload_end();
            }
            operation
        })
    }

    /// Bytes of all records.
    pub fn payload_length(&self) -> u64 {
        self.operations()
            .map(|operation| if let Operation::Append { records, .. } = operation { records.payload_length() } else { 0 })
            .sum()
    }
}

impl<'a> Operation<'a> {
    fn decode(body: generated::Operation<'a>, payload_offset: u64) -> Result<Self, BodyError> {
        let extent = ExtentId(id_required(body.extent(), "an operation's extent id")?);
        let key = || body.key().map(body::key_value).ok_or(BodyError::Missing("an operation's key"));
        let is_append = body.kind() == generated::OperationKind::Append;
        if !is_append && (body.expected_seq() != 0 || body.records().is_some() || body.deliver_at().is_some()) {
            return Err(BodyError::Value("an operation other than an append with records or an expected seq"));
        }
        match body.kind() {
            generated::OperationKind::Append => Ok(Self::Append {
                extent,
                expected_seq: seq_option(body.expected_seq()),
                records: Records::decode(body.records(), body.deliver_at(), payload_offset)?,
            }),
            generated::OperationKind::Trim => Ok(Self::Trim { extent, to: key()? }),
            generated::OperationKind::Discard => Ok(Self::Discard { extent, ranges: KeyRanges::decode(body.ranges())? }),
            generated::OperationKind::Cancel => Ok(Self::Cancel { extent, key: key()? }),
            _ => Err(BodyError::Value("an operation's kind")),
        }
    }
}

impl Read {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Read<'_>>(bytes)?;
        Ok(Self {
            extent: ExtentId(id_required(body.extent(), "the extent's id")?),
            from_seq: seq_option(body.from_seq()).ok_or(BodyError::Value("the seq to read from"))?,
            max_bytes: body.max_bytes(),
            max_records: body.max_records(),
            wait_ms: body.wait_ms(),
        })
    }
}

impl SeqAtTime {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::SeqAtTime<'_>>(bytes)?;
        Ok(Self { extent: ExtentId(id_required(body.extent(), "the extent's id")?), time: Timestamp(body.time()) })
    }
}

impl Trim {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Trim<'_>>(bytes)?;
        Ok(Self {
            extent: ExtentId(id_required(body.extent(), "the extent's id")?),
            epoch: Epoch(body.epoch()),
            to: body.to().map(body::key_value).ok_or(BodyError::Missing("the key to trim to"))?,
        })
    }
}

impl Seal {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Seal<'_>>(bytes)?;
        Ok(Self { extent: ExtentId(id_required(body.extent(), "the extent's id")?), epoch: Epoch(body.epoch()) })
    }
}

impl Delete {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Delete<'_>>(bytes)?;
        Ok(Self { extent: ExtentId(id_required(body.extent(), "the extent's id")?), epoch: Epoch(body.epoch()) })
    }
}

impl Describe {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::Describe<'_>>(bytes)?;
        Ok(Self { extent: ExtentId(id_required(body.extent(), "the extent's id")?) })
    }
}

impl List {
    /// Reads the body.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BodyError> {
        let body = body::root::<generated::List<'_>>(bytes)?;
        let after = match body.after() {
            None => None,
            after => Some(ExtentId(id_required(after, "the id to list behind")?)),
        };
        Ok(Self { after, limit: body.limit() })
    }
}
