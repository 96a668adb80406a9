//! What is written is what is read, for any values.
#![allow(clippy::unwrap_used)]

use log_format::ids::{DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Key, Op, Seq, ShardIndex, Timestamp};
use log_format::wire::reply::{AppendAck, Durability, ExtentInfo, ExtentState, OperationResult, ReadEntry};
use log_format::wire::request::Operation;
use log_format::wire::{
    AppendTarget, Body, CommitOperation, Encoder, FRAME_HEADER_SIZE, FrameHeader, KeyRange, Kind, MESSAGE_LENGTH_MAX,
    RECORDS_MAX, ReadHead, RecordMeta, Refusal, Reply, Request, RequestId, reply, request,
};
use proptest::prelude::*;

fn split(frame: &[u8]) -> (FrameHeader, &[u8], &[u8]) {
    let header = FrameHeader::decode(frame.first_chunk().unwrap()).unwrap();
    let (body, payload) = frame[FRAME_HEADER_SIZE..].split_at(header.body_length as usize);
    header.check_body(body).unwrap();
    (header, body, payload)
}

fn encode(body: &impl Body) -> Vec<u8> {
    let mut out = Vec::new();
    Encoder::new().frame(RequestId(7), body, &mut out);
    out
}

fn id() -> impl Strategy<Value = u128> {
    1..=u128::MAX
}

fn key() -> impl Strategy<Value = Key> {
    any::<(u64, u64)>().prop_map(|(deliver_at, seq)| Key { deliver_at: DeliverAt(deliver_at), seq: Seq(seq) })
}

fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..20)
}

fn expected() -> impl Strategy<Value = Option<Seq>> {
    proptest::option::of((1..=u64::MAX).prop_map(Seq))
}

fn info() -> impl Strategy<Value = ExtentInfo> {
    (id(), id(), any::<[u64; 7]>(), any::<u32>(), any::<bool>(), any::<bool>()).prop_map(
        |(extent, group, n, shard, timer, sealed)| ExtentInfo {
            extent: ExtentId(extent),
            group: GroupId(group),
            shard: ShardIndex(shard),
            kind: if timer { ExtentKind::Timer } else { ExtentKind::Sequence },
            state: if sealed { ExtentState::Sealed } else { ExtentState::Open },
            epoch: Epoch(n[0]),
            first_seq: Seq(n[1]),
            last_seq: Seq(n[2]),
            committed_op: Op(n[3]),
            records: n[4],
            payload_bytes: n[5],
        },
    )
}

#[derive(Clone, Debug)]
enum Change {
    Append(u128, Option<Seq>, Vec<Vec<u8>>, bool),
    Trim(u128, Key),
    Discard(u128, Vec<(Key, Key)>),
    Cancel(u128, Key),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (id(), expected(), records(), any::<bool>())
            .prop_map(|(id, seq, records, timer)| Change::Append(id, seq, records, timer)),
        (id(), key()).prop_map(|(id, key)| Change::Trim(id, key)),
        (id(), proptest::collection::vec((key(), key()), 1..4)).prop_map(|(id, ranges)| Change::Discard(id, ranges)),
        (id(), key()).prop_map(|(id, key)| Change::Cancel(id, key)),
    ]
}

fn times(count: usize, timer: bool) -> Vec<DeliverAt> {
    if timer { (0..count as u64).map(|time| DeliverAt(time * 1_000 + 1)).collect() } else { Vec::new() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn appends(extent in id(), epoch in any::<u64>(), expected_seq in expected(), records in records(), timer in any::<bool>()) {
        let metas: Vec<_> = records.iter().map(|record| RecordMeta::of(record)).collect();
        let times = times(records.len(), timer);
        let target = AppendTarget { extent: ExtentId(extent), epoch: Epoch(epoch), expected_seq };
        let mut out = Vec::new();
        Encoder::new().append(RequestId(1), &target, &metas, &times, &mut out);
        out.extend_from_slice(&records.concat());
        let (header, body, payload) = split(&out);
        prop_assert_eq!(header.payload_length as usize, payload.len());
        let Ok(Request::Append(append)) = Request::decode(&header, body) else { panic!("not an append") };
        prop_assert_eq!((append.extent, append.epoch, append.expected_seq), (target.extent, target.epoch, expected_seq));
        prop_assert_eq!(append.records.has_delivery_times(), timer);
        prop_assert_eq!(append.records.count(), records.len());
        prop_assert!(append.records.lengths().map(|length| length as usize).eq(records.iter().map(Vec::len)));
        let read: Vec<_> = append.records.iter(payload).unwrap().collect();
        prop_assert_eq!(read.len(), records.len());
        for (index, (record, bytes)) in read.iter().zip(&records).enumerate() {
            prop_assert_eq!(record.payload, &bytes[..]);
            prop_assert_eq!(record.checksum, log_format::payload_checksum(bytes));
            prop_assert_eq!(record.deliver_at, times.get(index).copied().unwrap_or_default());
        }
        if !payload.is_empty() {
            prop_assert!(append.records.iter(&payload[1..]).is_err());
        }
    }

    #[test]
    fn commits(group in id(), changes in proptest::collection::vec(change(), 1..10)) {
        let mut payload = Vec::new();
        let parts: Vec<_> = changes.iter().map(|change| match change {
            Change::Append(_, _, records, timer) => {
                payload.extend_from_slice(&records.concat());
                (records.iter().map(|record| RecordMeta::of(record)).collect(), times(records.len(), *timer), Vec::new())
            }
            Change::Discard(_, ranges) => {
                (Vec::new(), Vec::new(), ranges.iter().map(|&(first, last)| KeyRange { first, last }).collect::<Vec<_>>())
            }
            _ => (Vec::new(), Vec::new(), Vec::new()),
        }).collect();
        let operations: Vec<_> = changes.iter().zip(&parts).map(|(change, (records, deliver_at, ranges))| match *change {
            Change::Append(id, expected_seq, ..) => CommitOperation::Append { extent: ExtentId(id), expected_seq, records, deliver_at },
            Change::Trim(id, to) => CommitOperation::Trim { extent: ExtentId(id), to },
            Change::Discard(id, _) => CommitOperation::Discard { extent: ExtentId(id), ranges },
            Change::Cancel(id, key) => CommitOperation::Cancel { extent: ExtentId(id), key },
        }).collect();
        let mut out = Vec::new();
        Encoder::new().commit(RequestId(1), GroupId(group), Epoch(4), &operations, &mut out);
        let (header, body, _) = split(&out);
        prop_assert_eq!(header.payload_length as usize, payload.len());
        let Ok(Request::Commit(commit)) = Request::decode(&header, body) else { panic!("not a commit") };
        prop_assert_eq!((commit.group, commit.epoch, commit.count()), (GroupId(group), Epoch(4), changes.len()));
        prop_assert_eq!(commit.payload_length(), payload.len() as u64);
        for (operation, (change, (_, _, ranges))) in commit.operations().zip(changes.iter().zip(&parts)) {
            match (operation, change) {
                (Operation::Append { extent, expected_seq, records }, Change::Append(id, seq, sent, timer)) => {
                    prop_assert_eq!((extent, expected_seq, records.has_delivery_times()), (ExtentId(*id), *seq, *timer));
                    prop_assert!(records.iter(&payload).unwrap().map(|record| record.payload.to_vec()).eq(sent.iter().cloned()));
                }
                (Operation::Trim { extent, to }, Change::Trim(id, key)) => prop_assert_eq!((extent, to), (ExtentId(*id), *key)),
                (Operation::Cancel { extent, key }, Change::Cancel(id, sent)) => prop_assert_eq!((extent, key), (ExtentId(*id), *sent)),
                (Operation::Discard { extent, ranges: read }, Change::Discard(id, _)) => {
                    prop_assert_eq!(extent, ExtentId(*id));
                    prop_assert!(read.iter().eq(ranges.iter().copied()));
                }
                (operation, change) => panic!("{change:?} became {operation:?}"),
            }
        }
    }

    #[test]
    fn acks(acks in proptest::collection::vec(any::<(u64, u64, u64, u32, bool)>(), 1..200)) {
        let acks: Vec<_> = acks.into_iter().map(|(id, seq, op, count, quorum)| AppendAck {
            request_id: RequestId(id),
            first_seq: Seq(seq),
            op: Op(op),
            count,
            durability: if quorum { Durability::Quorum } else { Durability::Device },
        }).collect();
        let mut out = b"before".to_vec();
        Encoder::new().append_reply(&acks, &mut out);
        let (header, body, _) = split(&out[6..]);
        prop_assert_eq!(header.request_id, acks[0].request_id);
        let Ok(Reply::Append(append)) = Reply::decode(&header, body) else { panic!("not an answer to an append") };
        prop_assert!(append.acks().eq(acks));
    }

    #[test]
    fn commit_results(op in any::<u64>(), results in proptest::collection::vec(any::<(u64, u32)>(), 0..20)) {
        let results: Vec<_> = results.into_iter().map(|(seq, count)| OperationResult { first_seq: Seq(seq), count }).collect();
        let mut out = Vec::new();
        Encoder::new().commit_reply(RequestId(3), Op(op), Durability::Device, &results, &mut out);
        let (header, body, _) = split(&out);
        let Ok(Reply::Commit(commit)) = Reply::decode(&header, body) else { panic!("not an answer to a commit") };
        prop_assert_eq!((commit.op, commit.durability), (Op(op), Durability::Device));
        prop_assert!(commit.results().eq(results));
    }

    #[test]
    fn reads(head in any::<(u64, u64, bool, u64)>(), entries in proptest::collection::vec(any::<(u64, u64, u64, u16, u32)>(), 0..50)) {
        let entries: Vec<_> = entries.into_iter().map(|(seq, time, due, length, checksum)| ReadEntry {
            seq: Seq(seq),
            append_time: Timestamp(time),
            deliver_at: DeliverAt(due),
            length: u32::from(length),
            checksum,
        }).collect();
        let state = if head.2 { ExtentState::Sealed } else { ExtentState::Open };
        let head = ReadHead { next_seq: Seq(head.0), committed_seq: Seq(head.1), state, next_due: DeliverAt(head.3) };
        let mut out = Vec::new();
        Encoder::new().read_reply(RequestId(3), &head, &entries, &mut out);
        let (header, body, _) = split(&out);
        prop_assert_eq!(u64::from(header.payload_length), entries.iter().map(|entry| u64::from(entry.length)).sum::<u64>());
        let Ok(Reply::Read(read)) = Reply::decode(&header, body) else { panic!("not an answer to a read") };
        prop_assert_eq!((read.next_seq, read.committed_seq, read.state, read.next_due), (head.next_seq, head.committed_seq, state, head.next_due));
        prop_assert_eq!(read.count(), entries.len());
        prop_assert!(read.entries().eq(entries));
    }

    #[test]
    fn lists(extents in proptest::collection::vec(info(), 0..20), more in any::<bool>()) {
        let list = reply::List { extents, more };
        let out = encode(&list);
        let (header, body, _) = split(&out);
        let Ok(Reply::List(read)) = Reply::decode(&header, body) else { panic!("not a list") };
        prop_assert_eq!(read, list);
    }

    #[test]
    fn requests_for_reads(extent in id(), from in 1..=u64::MAX, bounds in any::<(u32, u32, u32)>()) {
        let sent = request::Read {
            extent: ExtentId(extent),
            from_seq: Seq(from),
            max_bytes: bounds.0,
            max_records: bounds.1,
            wait_ms: bounds.2,
        };
        let out = encode(&sent);
        let (header, body, _) = split(&out);
        let Ok(Request::Read(read)) = Request::decode(&header, body) else { panic!("not a read") };
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn messages_of_any_length(why in ".{0,600}") {
        let mut out = Vec::new();
        Encoder::new().refusal(RequestId(1), Kind::Trim, &Refusal::BadRequest { why: why.clone() }, &mut out);
        let (header, body, _) = split(&out);
        prop_assert_eq!(header.kind, Kind::Trim);
        let Ok(Reply::Refused(Refusal::BadRequest { why: read })) = Reply::decode(&header, body) else { panic!("not a refusal") };
        prop_assert!(why.starts_with(&read));
        prop_assert!(read.len() == why.len() || read.len() > MESSAGE_LENGTH_MAX - 4 && read.len() <= MESSAGE_LENGTH_MAX);
    }
}

#[test]
fn hello_any_shard_and_a_shard() {
    for shard in [None, Some(ShardIndex(0)), Some(ShardIndex(63))] {
        let sent = request::Hello { min_version: 1, max_version: 3, shard, auth: b"", client: "tests" };
        let out = encode(&sent);
        let (header, body, _) = split(&out);
        let Ok(Request::Hello(read)) = Request::decode(&header, body) else { panic!("not a hello") };
        assert_eq!(read, sent);
    }
}

#[test]
fn an_append_at_the_limit_of_records_fits_a_frame() {
    let metas = vec![RecordMeta { length: 0, checksum: 0 }; RECORDS_MAX];
    let times = vec![DeliverAt(u64::MAX); RECORDS_MAX];
    let target = AppendTarget { extent: ExtentId(1), epoch: Epoch(0), expected_seq: None };
    let mut out = Vec::new();
    Encoder::new().append(RequestId(1), &target, &metas, &times, &mut out);
    let (header, body, _) = split(&out);
    let Ok(Request::Append(append)) = Request::decode(&header, body) else { panic!("not an append") };
    assert_eq!(append.records.count(), RECORDS_MAX);
}

/// The examples in docs/protocol.md, by which another language checks its shard map.
#[test]
fn the_shard_map_is_the_documented_one() {
    let page = include_str!("../../docs/protocol.md");
    let rows: Vec<Vec<&str>> =
        page.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').map(str::trim).collect()).collect();
    assert!(rows.len() >= 4);
    for row in rows {
        let group: GroupId = row[1].trim_matches('`').parse().unwrap();
        for (shards, documented) in [2, 3, 7, 64].into_iter().zip(&row[2..]) {
            assert_eq!(log_format::ids::shard_of(group, shards).to_string(), *documented, "{group} of {shards}");
        }
    }
}
