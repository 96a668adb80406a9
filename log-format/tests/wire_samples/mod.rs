//! One frame of each kind and each refusal, and a reader that walks everything in a frame.

use log_format::ids::{
    DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Incarnation, Key, NodeId, Op, Seq, ShardIndex, Timestamp,
};
use log_format::wire::reply::{AppendAck, Durability, ExtentInfo, ExtentState, OperationResult, ReadEntry};
use log_format::wire::request::Operation;
use log_format::wire::{
    AppendTarget, BodyError, CommitOperation, Encoder, FRAME_HEADER_SIZE, FrameError, FrameHeader, KeyRange, Kind, ReadHead,
    RecordMeta, Refusal, Reply, Request, RequestId, encode_frame, reply, request,
};

pub(crate) const EXTENT: ExtentId = ExtentId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
pub(crate) const GROUP: GroupId = GroupId(0xfedc_ba98_7654_3210_8899_aabb_ccdd_eeff);
pub(crate) const NODE: NodeId = NodeId(0xaaaa_bbbb_cccc_dddd_eeee_ffff_0000_1111);

pub(crate) fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::NotFound,
        Refusal::Sealed { last: Seq(17) },
        Refusal::Fenced { epoch: Epoch(3) },
        Refusal::Trimmed { floor: Seq(100) },
        Refusal::WrongShard { shard: ShardIndex(1) },
        Refusal::NotPrimary { node: NODE },
        Refusal::TooLarge { limit_bytes: 1 << 20 },
        Refusal::SeqMismatch { next: Seq(9) },
        Refusal::Overloaded { retry_after_ms: 250 },
        Refusal::ReadOnly { why: "the disk is 93 % full".to_owned() },
        Refusal::Corrupt { seq: Seq(41) },
        Refusal::BadChecksum { index: 2 },
        Refusal::BadRequest { why: "nonsense".to_owned() },
        Refusal::Unsupported { what: "timer extents".to_owned() },
        Refusal::ShuttingDown,
        Refusal::AlreadyExists,
        Refusal::UnknownOutcome,
        Refusal::VersionMismatch { min: 1, max: 2 },
    ]
}

pub(crate) fn extent_info(extent: u128) -> ExtentInfo {
    ExtentInfo {
        extent: ExtentId(extent),
        group: GROUP,
        shard: ShardIndex(1),
        kind: ExtentKind::Sequence,
        state: ExtentState::Open,
        epoch: Epoch(2),
        first_seq: Seq(5),
        last_seq: Seq(9),
        committed_op: Op(12),
        records: 5,
        payload_bytes: 500,
    }
}

/// Name and bytes, payload and all.
pub(crate) fn frames() -> Vec<(String, Vec<u8>)> {
    let mut encoder = Encoder::new();
    let mut frames = Vec::new();
    let mut add = |name: &str, write: &mut dyn FnMut(&mut Encoder, RequestId, &mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut encoder, RequestId(0x0102_0304_0506_0708), &mut out);
        frames.push((name.to_owned(), out));
    };
    let epoch = Epoch(2);
    let key = Key { deliver_at: DeliverAt(0), seq: Seq(4) };
    let records: [&[u8]; 3] = [b"first", b"", b"third record"];
    let metas = records.map(RecordMeta::of);
    let times = [DeliverAt(11), DeliverAt(12), DeliverAt(13)];

    let hello =
        request::Hello { min_version: 1, max_version: 1, shard: Some(ShardIndex(1)), auth: b"secret", client: "samples 1.0" };
    add("request_hello", &mut |encoder, id, out| encoder.frame(id, &hello, out));
    let any = request::Hello { shard: None, auth: b"", ..hello };
    add("request_hello_any_shard", &mut |encoder, id, out| encoder.frame(id, &any, out));
    let create = request::CreateExtent { extent: EXTENT, group: GROUP, kind: ExtentKind::Sequence, epoch };
    add("request_create_extent", &mut |encoder, id, out| encoder.frame(id, &create, out));
    let target = AppendTarget { extent: EXTENT, epoch, expected_seq: Some(Seq(7)) };
    add("request_append", &mut |encoder, id, out| {
        encoder.append(id, &target, &metas, &[], out);
        out.extend_from_slice(&records.concat());
    });
    add("request_append_timers", &mut |encoder, id, out| {
        encoder.append(id, &target, &metas, &times, out);
        out.extend_from_slice(&records.concat());
    });
    add("request_commit", &mut |encoder, id, out| {
        let operations = [
            CommitOperation::Append { extent: EXTENT, expected_seq: None, records: &metas[..1], deliver_at: &[] },
            CommitOperation::Trim { extent: EXTENT, to: key },
            CommitOperation::Append {
                extent: ExtentId(9),
                expected_seq: Some(Seq(3)),
                records: &metas[1..],
                deliver_at: &times[1..],
            },
            CommitOperation::Discard { extent: EXTENT, ranges: &[KeyRange { first: key, last: key }] },
            CommitOperation::Cancel { extent: EXTENT, key },
        ];
        encoder.commit(id, GROUP, epoch, &operations, out);
        out.extend_from_slice(&records.concat());
    });
    let read = request::Read { extent: EXTENT, from_seq: Seq(1), max_bytes: 65_536, max_records: 100, wait_ms: 500 };
    add("request_read", &mut |encoder, id, out| encoder.frame(id, &read, out));
    let at = request::SeqAtTime { extent: EXTENT, time: Timestamp(1_700_000_000_000_000_000) };
    add("request_seq_at_time", &mut |encoder, id, out| encoder.frame(id, &at, out));
    add("request_trim", &mut |encoder, id, out| encoder.frame(id, &request::Trim { extent: EXTENT, epoch, to: key }, out));
    add("request_seal", &mut |encoder, id, out| encoder.frame(id, &request::Seal { extent: EXTENT, epoch }, out));
    add("request_delete", &mut |encoder, id, out| encoder.frame(id, &request::Delete { extent: EXTENT, epoch }, out));
    add("request_describe", &mut |encoder, id, out| encoder.frame(id, &request::Describe { extent: EXTENT }, out));
    add("request_list", &mut |encoder, id, out| encoder.frame(id, &request::List { after: Some(EXTENT), limit: 10 }, out));
    add("request_list_all", &mut |encoder, id, out| encoder.frame(id, &request::List { after: None, limit: 0 }, out));

    let hello = reply::Hello {
        version: 1,
        node: NODE,
        incarnation: Incarnation(1),
        shard: ShardIndex(1),
        shard_count: 2,
        max_record_size: 1 << 20,
        max_frame_size: 4 << 20,
        max_in_flight: 16_384,
        durability: "o_dsync",
        software: "roostd 0.1.0",
    };
    add("reply_hello", &mut |encoder, id, out| encoder.frame(id, &hello, out));
    let created = reply::CreateExtent { extent: EXTENT, group: GROUP, created: true };
    add("reply_create_extent", &mut |encoder, id, out| encoder.frame(id, &created, out));
    add("reply_append", &mut |encoder, id, out| {
        let ack = AppendAck { request_id: id, first_seq: Seq(7), op: Op(3), count: 3, durability: Durability::Device };
        let next = AppendAck { request_id: RequestId(id.0 + 1), first_seq: Seq(10), op: Op(4), ..ack };
        encoder.append_reply(&[ack, next], out);
    });
    add("reply_commit", &mut |encoder, id, out| {
        let results = [OperationResult { first_seq: Seq(7), count: 1 }, OperationResult::default()];
        encoder.commit_reply(id, Op(5), Durability::Quorum, &results, out);
    });
    let head = ReadHead { next_seq: Seq(4), committed_seq: Seq(9), state: ExtentState::Open, next_due: DeliverAt(0) };
    add("reply_read", &mut |encoder, id, out| {
        let entries: Vec<_> = metas.iter().zip(1..).map(|(meta, seq)| read_entry(seq, *meta)).collect();
        encoder.read_reply(id, &head, &entries, out);
        out.extend_from_slice(&records.concat());
    });
    add("reply_read_end", &mut |encoder, id, out| {
        encoder.read_reply(id, &ReadHead { state: ExtentState::Sealed, ..head }, &[], out);
    });
    let at = reply::SeqAtTime { seq: Seq(8), append_time: Timestamp(1_700_000_000_000_000_001) };
    add("reply_seq_at_time", &mut |encoder, id, out| encoder.frame(id, &at, out));
    add("reply_trim", &mut |encoder, id, out| encoder.frame(id, &reply::Trim { op: Op(6), floor: key }, out));
    add("reply_seal", &mut |encoder, id, out| encoder.frame(id, &reply::Seal { op: Op(7), last_seq: Seq(9) }, out));
    add("reply_delete", &mut |encoder, id, out| encoder.frame(id, &reply::Delete { op: Op(8) }, out));
    add("reply_describe", &mut |encoder, id, out| encoder.frame(id, &reply::Describe { extent: extent_info(EXTENT.0) }, out));
    let list = reply::List { extents: vec![extent_info(1), extent_info(2)], more: true };
    add("reply_list", &mut |encoder, id, out| encoder.frame(id, &list, out));
    for refusal in refusals() {
        add(&format!("refusal_{:02}", refusal.code()), &mut |encoder, id, out| encoder.refusal(id, Kind::Append, &refusal, out));
    }
    frames
}

pub(crate) fn read_entry(seq: u64, meta: RecordMeta) -> ReadEntry {
    let append_time = Timestamp(1_700_000_000_000_000_000 + seq);
    ReadEntry { seq: Seq(seq), append_time, deliver_at: DeliverAt(0), length: meta.length, checksum: meta.checksum }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Problem {
    Short,
    Frame(FrameError),
    Body(BodyError),
}

impl From<FrameError> for Problem {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

/// Reads a frame to the last byte, as either side would, and says what is in it.
pub(crate) fn walk(bytes: &[u8]) -> Result<String, Problem> {
    let (header, rest) = bytes.split_first_chunk::<FRAME_HEADER_SIZE>().ok_or(Problem::Short)?;
    let header = FrameHeader::decode(header)?;
    header.check_payload_limit(16 << 20)?;
    let (body, payload) = rest.split_at_checked(header.body_length as usize).ok_or(Problem::Short)?;
    header.check_body(body)?;
    if payload.len() != header.payload_length as usize {
        return Err(Problem::Short);
    }
    if header.direction != log_format::wire::Direction::Request {
        let reply = Reply::decode(&header, body)?;
        return Ok(match &reply {
            Reply::Append(append) => format!("{:?}", append.acks().collect::<Vec<_>>()),
            Reply::Commit(commit) => format!("{commit:?} {:?}", commit.results().collect::<Vec<_>>()),
            Reply::Read(read) => format!("{read:?} {:?}", read.entries().collect::<Vec<_>>()),
            reply => format!("{reply:?}"),
        });
    }
    let request = Request::decode(&header, body)?;
    Ok(match &request {
        Request::Append(append) => format!("{append:?} {:?}", append.records.iter(payload)?.collect::<Vec<_>>()),
        Request::Commit(commit) => {
            let mut text = format!("{:?} {:?} {}", commit.group, commit.epoch, commit.count());
            for operation in commit.operations() {
                match operation {
                    Operation::Append { extent, expected_seq, records } => {
                        text += &format!(" append {extent} {expected_seq:?} {:?}", records.iter(payload)?.collect::<Vec<_>>());
                    }
                    Operation::Discard { extent, ranges } => {
                        text += &format!(" discard {extent} {:?}", ranges.iter().collect::<Vec<_>>())
                    }
                    other => text += &format!(" {other:?}"),
                }
            }
            text
        }
        request => format!("{request:?}"),
    })
}

/// The same frame with another body, its header made to fit.
pub(crate) fn with_body(frame: &[u8], body: &[u8]) -> Vec<u8> {
    let header = FrameHeader::decode(frame.first_chunk().expect("a frame has a header")).expect("a sample's header is valid");
    let mut out = Vec::new();
    encode_frame(header.kind, header.direction, header.request_id, header.payload_length, body, &mut out);
    out.extend_from_slice(&frame[header.payload_offset()..]);
    out
}
