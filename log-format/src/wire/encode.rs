//! Writes frames, as bodies and headers; the payload bytes follow by the caller's hand.

use super::body::{ACKS_MAX, LIST_MAX, OPERATIONS_MAX, READ_RECORDS_MAX, RECORDS_MAX, generated, id_struct, key_struct};
use super::reply::{AppendAck, Durability, ExtentInfo, ExtentState, OperationResult, ReadEntry};
use super::{Direction, KeyRange, Kind, RecordMeta, Refusal, RequestId, encode_frame, reply, request};
use crate::ids::{DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Key, Op, Seq};
use flatbuffers::{FlatBufferBuilder, WIPOffset};

type Builder = FlatBufferBuilder<'static>;

mod sealed {
    pub trait Build {
        fn build(&self, builder: &mut super::Builder);
    }
}

/// A body that has no payload behind it.
pub trait Body: sealed::Build {
    /// Its frame's kind.
    const KIND: Kind;
    /// Its frame's direction.
    const DIRECTION: Direction;
}

/// Where an Append goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendTarget {
    /// The extent.
    pub extent: ExtentId,
    /// The group's epoch as the client knows it.
    pub epoch: Epoch,
    /// The seq that the first record must get.
    pub expected_seq: Option<Seq>,
}

/// One change of a Commit, to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOperation<'a> {
    /// Appends records; their bytes follow in the payload, in the order of the operations.
    Append {
        /// To this extent.
        extent: ExtentId,
        /// The seq that the first record must get.
        expected_seq: Option<Seq>,
        /// The records.
        records: &'a [RecordMeta],
        /// One a record in a timer extent, else empty.
        deliver_at: &'a [DeliverAt],
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
        ranges: &'a [KeyRange],
    },
    /// Cancels a timer before it is due.
    Cancel {
        /// In this extent.
        extent: ExtentId,
        /// The timer's key.
        key: Key,
    },
}

/// What an answer to a Read says besides its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHead {
    /// Where the next read of this reader starts.
    pub next_seq: Seq,
    /// The last committed seq of the extent; 0: none.
    pub committed_seq: Seq,
    /// Whether more can come.
    pub state: ExtentState,
    /// When the next record after these falls due; 0 in sequence extents.
    pub next_due: DeliverAt,
}

/// Writes frames behind one another into the caller's buffers. Holds its memory between frames; make one a connection.
///
/// Each method appends header and body to `out` and panics where a limit of the protocol is broken: limits are the caller's to check.
#[derive(Default)]
pub struct Encoder {
    builder: Builder,
}

fn payload_length(lengths: impl Iterator<Item = u32>) -> u32 {
    u32::try_from(lengths.map(u64::from).sum::<u64>()).expect("a frame's payload is under 4 GiB")
}

fn seq_field(seq: Option<Seq>) -> u64 {
    seq.map_or(0, |seq| seq.0)
}

impl Encoder {
    /// An encoder.
    pub fn new() -> Self {
        Self::default()
    }

    fn finish(&mut self, kind: Kind, direction: Direction, request_id: RequestId, payload_length: u32, out: &mut Vec<u8>) {
        encode_frame(kind, direction, request_id, payload_length, self.builder.finished_data(), out);
        self.builder.reset();
    }

    fn metas(&mut self, records: &[RecordMeta]) -> WIPOffset<flatbuffers::Vector<'static, generated::RecordMeta>> {
        self.builder.create_vector_from_iter(records.iter().map(|meta| generated::RecordMeta::new(meta.length, meta.checksum)))
    }

    fn times(&mut self, deliver_at: &[DeliverAt]) -> Option<WIPOffset<flatbuffers::Vector<'static, u64>>> {
        (!deliver_at.is_empty()).then(|| self.builder.create_vector_from_iter(deliver_at.iter().map(|time| time.0)))
    }

    /// A request or an answer without payload.
    ///
    /// # Panics
    /// If a list in it is over its limit.
    pub fn frame<B: Body>(&mut self, request_id: RequestId, body: &B, out: &mut Vec<u8>) {
        body.build(&mut self.builder);
        self.finish(B::KIND, B::DIRECTION, request_id, 0, out);
    }

    /// An Append; the records' bytes must follow. `deliver_at`: one a record in a timer extent, else empty.
    ///
    /// # Panics
    /// If there is no record or there are more than [`RECORDS_MAX`], or `deliver_at` is neither empty nor as long as `records`.
    pub fn append(
        &mut self,
        request_id: RequestId,
        target: &AppendTarget,
        records: &[RecordMeta],
        deliver_at: &[DeliverAt],
        out: &mut Vec<u8>,
    ) {
        assert!(!records.is_empty() && records.len() <= RECORDS_MAX, "{} records in an append", records.len());
        assert!(deliver_at.is_empty() || deliver_at.len() == records.len(), "one delivery time a record");
        let arguments = generated::AppendArgs {
            extent: Some(&id_struct(target.extent.0)),
            epoch: target.epoch.0,
            expected_seq: seq_field(target.expected_seq),
            records: Some(self.metas(records)),
            deliver_at: self.times(deliver_at),
        };
        let root = generated::Append::create(&mut self.builder, &arguments);
        self.builder.finish_minimal(root);
        self.finish(Kind::Append, Direction::Request, request_id, payload_length(records.iter().map(|meta| meta.length)), out);
    }

    /// A Commit; the bytes of all appended records must follow, in the order of the operations.
    ///
    /// # Panics
    /// If there is no operation or there are more than [`OPERATIONS_MAX`], or a list in an operation breaks its limit.
    pub fn commit(
        &mut self,
        request_id: RequestId,
        group: GroupId,
        epoch: Epoch,
        operations: &[CommitOperation<'_>],
        out: &mut Vec<u8>,
    ) {
        assert!(!operations.is_empty() && operations.len() <= OPERATIONS_MAX, "{} operations in a commit", operations.len());
        let records = operations.iter().flat_map(|operation| match operation {
            CommitOperation::Append { records, .. } => *records,
            _ => &[],
        });
        assert!(records.clone().count() <= RECORDS_MAX, "too many records in a commit");
        let length = payload_length(records.map(|meta| meta.length));
        let built: Vec<_> = operations.iter().map(|operation| self.operation(operation)).collect();
        let operations = self.builder.create_vector(&built);
        let arguments = generated::CommitArgs { group: Some(&id_struct(group.0)), epoch: epoch.0, operations: Some(operations) };
        let root = generated::Commit::create(&mut self.builder, &arguments);
        self.builder.finish_minimal(root);
        self.finish(Kind::Commit, Direction::Request, request_id, length, out);
    }

    fn operation(&mut self, operation: &CommitOperation<'_>) -> WIPOffset<generated::Operation<'static>> {
        let mut arguments = generated::OperationArgs::default();
        let (id, key);
        match *operation {
            CommitOperation::Append { extent, expected_seq, records, deliver_at } => {
                assert!(!records.is_empty(), "an append of no records");
                assert!(deliver_at.is_empty() || deliver_at.len() == records.len(), "one delivery time a record");
                arguments.kind = generated::OperationKind::Append;
                arguments.expected_seq = seq_field(expected_seq);
                arguments.records = Some(self.metas(records));
                arguments.deliver_at = self.times(deliver_at);
                id = id_struct(extent.0);
            }
            CommitOperation::Discard { extent, ranges } => {
                assert!(!ranges.is_empty(), "a discard of no ranges");
                let ranges =
                    ranges.iter().map(|range| generated::KeyRange::new(&key_struct(range.first), &key_struct(range.last)));
                arguments.kind = generated::OperationKind::Discard;
                arguments.ranges = Some(self.builder.create_vector_from_iter(ranges));
                id = id_struct(extent.0);
            }
            CommitOperation::Trim { extent, to: one } | CommitOperation::Cancel { extent, key: one } => {
                let is_trim = matches!(operation, CommitOperation::Trim { .. });
                arguments.kind = if is_trim { generated::OperationKind::Trim } else { generated::OperationKind::Cancel };
                key = key_struct(one);
                arguments.key = Some(&key);
                id = id_struct(extent.0);
            }
        }
        arguments.extent = Some(&id);
        generated::Operation::create(&mut self.builder, &arguments)
    }

    /// Acks of Appends, in the order of their requests. The frame's request id is the first's.
    ///
    /// # Panics
    /// If there is none or there are more than [`ACKS_MAX`].
    pub fn append_reply(&mut self, acks: &[AppendAck], out: &mut Vec<u8>) {
        assert!(!acks.is_empty() && acks.len() <= ACKS_MAX, "{} acks in a frame", acks.len());
        let list = acks.iter().map(|ack| {
            let durability = generated::Durability(ack.durability as u8);
            generated::AppendAck::new(ack.request_id.0, ack.first_seq.0, ack.op.0, ack.count, durability)
        });
        let list = self.builder.create_vector_from_iter(list);
        let root = generated::AppendReply::create(&mut self.builder, &generated::AppendReplyArgs { acks: Some(list) });
        self.builder.finish_minimal(root);
        self.finish(Kind::Append, Direction::Reply, acks[0].request_id, 0, out);
    }

    /// The answer to a Commit.
    ///
    /// # Panics
    /// If there are more results than a Commit may have operations.
    pub fn commit_reply(
        &mut self,
        request_id: RequestId,
        op: Op,
        durability: Durability,
        results: &[OperationResult],
        out: &mut Vec<u8>,
    ) {
        assert!(results.len() <= OPERATIONS_MAX, "{} results in a commit", results.len());
        let list = results.iter().map(|result| generated::OperationResult::new(result.first_seq.0, result.count));
        let list = self.builder.create_vector_from_iter(list);
        let durability = generated::Durability(durability as u8);
        let root = generated::CommitReply::create(
            &mut self.builder,
            &generated::CommitReplyArgs { op: op.0, durability, results: Some(list) },
        );
        self.builder.finish_minimal(root);
        self.finish(Kind::Commit, Direction::Reply, request_id, 0, out);
    }

    /// The answer to a Read; the records' bytes must follow.
    ///
    /// # Panics
    /// If there are more than [`READ_RECORDS_MAX`] records.
    pub fn read_reply(&mut self, request_id: RequestId, head: &ReadHead, entries: &[ReadEntry], out: &mut Vec<u8>) {
        assert!(entries.len() <= READ_RECORDS_MAX, "{} records in an answer", entries.len());
        let list = entries.iter().map(|entry| {
            generated::ReadRecord::new(entry.seq.0, entry.append_time.0, entry.deliver_at.0, entry.length, entry.checksum)
        });
        let arguments = generated::ReadReplyArgs {
            records: Some(self.builder.create_vector_from_iter(list)),
            next_seq: head.next_seq.0,
            committed_seq: head.committed_seq.0,
            state: generated::ExtentState(head.state as u8),
            next_due: head.next_due.0,
        };
        let root = generated::ReadReply::create(&mut self.builder, &arguments);
        self.builder.finish_minimal(root);
        self.finish(Kind::Read, Direction::Reply, request_id, payload_length(entries.iter().map(|entry| entry.length)), out);
    }

    /// Refuses a request of this kind.
    pub fn refusal(&mut self, request_id: RequestId, kind: Kind, refusal: &Refusal, out: &mut Vec<u8>) {
        refusal.build(&mut self.builder);
        self.finish(kind, Direction::Refusal, request_id, 0, out);
    }
}

/// `body!(type, kind, direction, generated type, |value, builder| arguments)`
macro_rules! body {
    ($type:ty, $kind:ident, $direction:ident, $table:ident, |$value:ident, $builder:ident| $build:block) => {
        impl Body for $type {
            const KIND: Kind = Kind::$kind;
            const DIRECTION: Direction = Direction::$direction;
        }

        impl sealed::Build for $type {
            fn build(&self, $builder: &mut Builder) {
                let $value = self;
                let root = $build;
                let root: WIPOffset<generated::$table<'static>> = root;
                $builder.finish_minimal(root);
            }
        }
    };
}

fn kind_field(kind: ExtentKind) -> generated::ExtentKind {
    generated::ExtentKind(kind as u8)
}

fn extent_info(builder: &mut Builder, info: &ExtentInfo) -> WIPOffset<generated::ExtentInfo<'static>> {
    let arguments = generated::ExtentInfoArgs {
        extent: Some(&id_struct(info.extent.0)),
        group: Some(&id_struct(info.group.0)),
        shard: info.shard.0,
        kind: kind_field(info.kind),
        state: generated::ExtentState(info.state as u8),
        epoch: info.epoch.0,
        first_seq: info.first_seq.0,
        last_seq: info.last_seq.0,
        committed_op: info.committed_op.0,
        records: info.records,
        payload_bytes: info.payload_bytes,
    };
    generated::ExtentInfo::create(builder, &arguments)
}

body!(request::Hello<'_>, Hello, Request, Hello, |hello, builder| {
    let auth = (!hello.auth.is_empty()).then(|| builder.create_vector(hello.auth));
    let client = builder.create_string(hello.client);
    let arguments = generated::HelloArgs {
        min_version: hello.min_version,
        max_version: hello.max_version,
        shard: hello.shard.map_or(request::ANY_SHARD, |shard| shard.0),
        auth,
        client: Some(client),
    };
    generated::Hello::create(builder, &arguments)
});
body!(request::CreateExtent, CreateExtent, Request, CreateExtent, |create, builder| {
    let arguments = generated::CreateExtentArgs {
        extent: Some(&id_struct(create.extent.0)),
        group: Some(&id_struct(create.group.0)),
        kind: kind_field(create.kind),
        epoch: create.epoch.0,
    };
    generated::CreateExtent::create(builder, &arguments)
});
body!(request::Read, Read, Request, Read, |read, builder| {
    let arguments = generated::ReadArgs {
        extent: Some(&id_struct(read.extent.0)),
        from_seq: read.from_seq.0,
        max_bytes: read.max_bytes,
        max_records: read.max_records,
        wait_ms: read.wait_ms,
    };
    generated::Read::create(builder, &arguments)
});
body!(request::SeqAtTime, SeqAtTime, Request, SeqAtTime, |at, builder| {
    generated::SeqAtTime::create(builder, &generated::SeqAtTimeArgs { extent: Some(&id_struct(at.extent.0)), time: at.time.0 })
});
body!(request::Trim, Trim, Request, Trim, |trim, builder| {
    let (extent, to) = (id_struct(trim.extent.0), key_struct(trim.to));
    generated::Trim::create(builder, &generated::TrimArgs { extent: Some(&extent), epoch: trim.epoch.0, to: Some(&to) })
});
body!(request::Seal, Seal, Request, Seal, |seal, builder| {
    generated::Seal::create(builder, &generated::SealArgs { extent: Some(&id_struct(seal.extent.0)), epoch: seal.epoch.0 })
});
body!(request::Delete, Delete, Request, Delete, |delete, builder| {
    generated::Delete::create(
        builder,
        &generated::DeleteArgs { extent: Some(&id_struct(delete.extent.0)), epoch: delete.epoch.0 },
    )
});
body!(request::Describe, Describe, Request, Describe, |describe, builder| {
    generated::Describe::create(builder, &generated::DescribeArgs { extent: Some(&id_struct(describe.extent.0)) })
});
body!(request::List, List, Request, List, |list, builder| {
    let after = list.after.map(|after| id_struct(after.0));
    generated::List::create(builder, &generated::ListArgs { after: after.as_ref(), limit: list.limit })
});
body!(reply::Hello<'_>, Hello, Reply, HelloReply, |hello, builder| {
    let durability = builder.create_string(hello.durability);
    let software = builder.create_string(hello.software);
    let arguments = generated::HelloReplyArgs {
        version: hello.version,
        node: Some(&id_struct(hello.node.0)),
        incarnation: hello.incarnation.0,
        shard: hello.shard.0,
        shard_count: hello.shard_count,
        max_record_size: hello.max_record_size,
        max_frame_size: hello.max_frame_size,
        max_in_flight: hello.max_in_flight,
        durability: Some(durability),
        software: Some(software),
    };
    generated::HelloReply::create(builder, &arguments)
});
body!(reply::CreateExtent, CreateExtent, Reply, CreateExtentReply, |create, builder| {
    let (extent, group) = (id_struct(create.extent.0), id_struct(create.group.0));
    let arguments = generated::CreateExtentReplyArgs { extent: Some(&extent), group: Some(&group), created: create.created };
    generated::CreateExtentReply::create(builder, &arguments)
});
body!(reply::SeqAtTime, SeqAtTime, Reply, SeqAtTimeReply, |at, builder| {
    generated::SeqAtTimeReply::create(builder, &generated::SeqAtTimeReplyArgs { seq: at.seq.0, append_time: at.append_time.0 })
});
body!(reply::Trim, Trim, Reply, TrimReply, |trim, builder| {
    generated::TrimReply::create(builder, &generated::TrimReplyArgs { op: trim.op.0, floor: Some(&key_struct(trim.floor)) })
});
body!(reply::Seal, Seal, Reply, SealReply, |seal, builder| {
    generated::SealReply::create(builder, &generated::SealReplyArgs { op: seal.op.0, last_seq: seal.last_seq.0 })
});
body!(reply::Delete, Delete, Reply, DeleteReply, |delete, builder| {
    generated::DeleteReply::create(builder, &generated::DeleteReplyArgs { op: delete.op.0 })
});
body!(reply::Describe, Describe, Reply, DescribeReply, |describe, builder| {
    let extent = extent_info(builder, &describe.extent);
    generated::DescribeReply::create(builder, &generated::DescribeReplyArgs { extent: Some(extent) })
});
body!(reply::List, List, Reply, ListReply, |list, builder| {
    assert!(list.extents.len() <= LIST_MAX, "{} extents in a list", list.extents.len());
    let extents: Vec<_> = list.extents.iter().map(|info| extent_info(builder, info)).collect();
    let extents = builder.create_vector(&extents);
    generated::ListReply::create(builder, &generated::ListReplyArgs { extents: Some(extents), more: list.more })
});
