//! The client against an in-memory node: order, batching, windows, reconnects, every refusal, and a node that lies.
#![allow(clippy::unwrap_used)]

mod fake;

use fake::{FakeNode, Reaction};
use log_format::wire::{FRAME_HEADER_SIZE, Kind};
use roost_client::{
    Client, ClientError, ClientOptions, Commit, Epoch, ExtentId, ExtentKind, ExtentState, GroupId, NewExtent, Read,
    ReaderOptions, Refusal, Seq, ShardIndex, Timestamp,
};
use std::time::Duration;

const EXTENT: ExtentId = ExtentId(7);

fn options() -> ClientOptions {
    ClientOptions { reconnect_for: Duration::from_secs(5), ..ClientOptions::default() }
}

async fn connect(node: &FakeNode) -> Client {
    let client = Client::connect(&node.address, options()).await.unwrap();
    client.create_extent(NewExtent::with_id(EXTENT)).await.unwrap();
    client
}

fn tail() -> ReaderOptions {
    ReaderOptions { follow: false, ..ReaderOptions::default() }
}

async fn read_all(client: &Client, extent: ExtentId) -> Vec<Vec<u8>> {
    let mut reader = client.reader(extent, Seq(1), tail());
    let mut records = Vec::new();
    while let Some(record) = reader.next().await.unwrap() {
        assert_eq!(record.seq, Seq(records.len() as u64 + 1));
        records.push(record.data.to_vec());
    }
    records
}

#[tokio::test]
async fn pipelined_appends_keep_their_order_and_share_requests() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let mut appender = client.appender(EXTENT).await.unwrap();
    let records: Vec<Vec<u8>> = (0..5_000u32).map(|number| vec![number as u8; number as usize % 300]).collect();
    let mut acks = Vec::new();
    for record in &records {
        acks.push(appender.send(record).await.unwrap());
    }
    for (ack, seq) in acks.into_iter().zip(1..) {
        assert_eq!(ack.await.unwrap().seq, Seq(seq));
    }
    assert_eq!(node.records(EXTENT), records);
    let requests = node.seen(Kind::Append);
    assert!(requests.len() < 1_000, "{} requests for 5,000 records", requests.len());
    assert!(requests.is_sorted_by_key(|seen| seen.request_id));
    assert_eq!(read_all(&client, EXTENT).await, records);
}

#[tokio::test]
async fn records_up_to_the_limit_work_and_one_byte_more_is_too_large() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    for length in [0, 1, 4_096, 70_000, 1 << 20] {
        client.append(EXTENT, vec![7; length]).await.unwrap();
    }
    let error = client.append(EXTENT, vec![7; (1 << 20) + 1]).await.unwrap_err();
    assert_eq!(error.refusal(), Some(&Refusal::TooLarge { limit_bytes: 1 << 20 }));
    let lengths: Vec<_> = read_all(&client, EXTENT).await.iter().map(Vec::len).collect();
    assert_eq!(lengths, [0, 1, 4_096, 70_000, 1 << 20]);
}

#[tokio::test]
async fn requests_to_many_extents_interleave_on_one_connection() {
    let node = FakeNode::start(1);
    let client = Client::connect(&node.address, options()).await.unwrap();
    let mut appenders = Vec::new();
    for id in 1..=20 {
        client.create_extent(NewExtent::with_id(ExtentId(id))).await.unwrap();
        appenders.push(client.appender(ExtentId(id)).await.unwrap());
    }
    let mut acks = Vec::new();
    for round in 1..=50u64 {
        for appender in &mut appenders {
            acks.push((round, appender.send(format!("{} {round}", appender.extent())).await.unwrap()));
        }
    }
    for (round, ack) in acks {
        assert_eq!(ack.await.unwrap().seq, Seq(round));
    }
    for id in 1..=20 {
        let id = ExtentId(id);
        assert_eq!(node.records(id), (1..=50).map(|round| format!("{id} {round}").into_bytes()).collect::<Vec<_>>());
    }
    assert_eq!(node.state.lock().unwrap().connections, 1);
}

#[tokio::test]
async fn a_request_between_appends_sees_those_before_it_and_not_those_after() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let mut appender = client.appender(EXTENT).await.unwrap();
    // Nothing here yields to the tasks of the connection before the seal is polled: all of it waits for the socket together.
    let before = appender.send("before").await.unwrap();
    let (sealed, after) = tokio::join!(client.seal(EXTENT, Epoch(0)), async { appender.send("after").await.unwrap().await });
    assert_eq!(before.await.unwrap().seq, Seq(1));
    assert_eq!(sealed.unwrap().last_seq, Seq(1));
    assert_eq!(after.unwrap_err().refusal(), Some(&Refusal::Sealed { last: Seq(1) }));
}

#[tokio::test]
async fn the_window_holds_back_until_acks_come() {
    let node = FakeNode::start(1);
    connect(&node).await;
    for (window_records, window_bytes) in [(10, usize::MAX), (usize::MAX, 1_000)] {
        let client = Client::connect(&node.address, ClientOptions { window_records, window_bytes, ..options() }).await.unwrap();
        let mut appender = client.appender(EXTENT).await.unwrap();
        let mut acks = Vec::new();
        while let Some(ack) = appender.try_send([1; 100]).unwrap() {
            acks.push(ack);
        }
        assert_eq!(acks.len(), 10);
        let next = appender.send([2; 100]).await.unwrap();
        assert!(acks[0].now().is_some(), "room came from an ack");
        next.await.unwrap();
    }
    // A record larger than the whole window goes alone.
    let client = Client::connect(&node.address, ClientOptions { window_bytes: 10, ..options() }).await.unwrap();
    client.append(EXTENT, [3; 5_000]).await.unwrap();
}

#[tokio::test]
async fn a_batch_is_one_request_and_the_expected_seq_guards_it() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let done = client.append_batch(EXTENT, &["a", "b", "c"], Some(Seq(1))).await.unwrap();
    assert_eq!((done.first_seq, done.count), (Seq(1), 3));
    let error = client.append_batch(EXTENT, &["d"], Some(Seq(1))).await.unwrap_err();
    assert_eq!(error.refusal(), Some(&Refusal::SeqMismatch { next: Seq(4) }));
    assert!(!error.is_outcome_unknown());
    assert_eq!(node.seen(Kind::Append).iter().map(|seen| seen.records).collect::<Vec<_>>(), [3, 1]);
    assert!(matches!(
        client.append_batch::<&str>(EXTENT, &[], None).await,
        Err(ClientError::Refused(Refusal::BadRequest { .. }))
    ));
    let many = vec![""; log_format::wire::RECORDS_MAX + 1];
    assert!(matches!(client.append_batch(EXTENT, &many, None).await, Err(ClientError::Refused(Refusal::BadRequest { .. }))));
    assert_eq!(client.append_batch(EXTENT, &many[1..], None).await.unwrap().count as usize, many.len() - 1);
}

#[tokio::test]
async fn a_commit_changes_all_its_extents_or_none() {
    let node = FakeNode::start(4);
    let client = Client::connect(&node.address, options()).await.unwrap();
    let group = GroupId(99);
    let [messages, leases] = [ExtentId(1), ExtentId(2)];
    for id in [messages, leases] {
        client.create_extent(NewExtent::with_id(id).in_group(group)).await.unwrap();
    }
    let commit =
        Commit::new(group).append(messages, Some(Seq(1)), ["one", "two"]).append(leases, None, ["lease"]).trim(messages, Seq(1));
    let done = client.commit(&commit).await.unwrap();
    let results: Vec<_> = done.results.iter().map(|result| (result.first_seq.0, result.count)).collect();
    assert_eq!(results, [(1, 2), (1, 1), (0, 0)]);
    assert_eq!(client.describe(messages).await.unwrap().first_seq, Seq(2));
    let error = client.commit(&commit).await.unwrap_err();
    assert_eq!(error.refusal(), Some(&Refusal::SeqMismatch { next: Seq(3) }));
    assert_eq!(node.records(leases).len(), 1);
    for bad in [Commit::new(group), Commit::new(group).append(messages, None, [""; 0])] {
        assert!(matches!(client.commit(&bad).await, Err(ClientError::Refused(Refusal::BadRequest { .. }))));
    }
}

#[tokio::test]
async fn every_refusal_reaches_the_caller_typed() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let refusals = [
        Refusal::NotFound,
        Refusal::Sealed { last: Seq(17) },
        Refusal::Fenced { epoch: Epoch(3) },
        Refusal::Trimmed { floor: Seq(100) },
        Refusal::NotPrimary { node: log_format::ids::NodeId(4) },
        Refusal::TooLarge { limit_bytes: 9 },
        Refusal::SeqMismatch { next: Seq(9) },
        Refusal::Overloaded { retry_after_ms: 250 },
        Refusal::ReadOnly { why: "the disk is full".to_owned() },
        Refusal::Corrupt { seq: Seq(41) },
        Refusal::BadChecksum { index: 2 },
        Refusal::BadRequest { why: "nonsense".to_owned() },
        Refusal::Unsupported { what: "it".to_owned() },
        Refusal::ShuttingDown,
        Refusal::AlreadyExists,
        Refusal::UnknownOutcome,
        Refusal::VersionMismatch { min: 2, max: 3 },
    ];
    for refusal in refusals {
        let sent = refusal.clone();
        node.hook(move |_| Reaction::Refuse(sent.clone()));
        let error = client.append(EXTENT, "x").await.unwrap_err();
        assert_eq!(error.refusal(), Some(&refusal));
        assert_eq!(error.is_outcome_unknown(), refusal == Refusal::UnknownOutcome);
        assert_eq!(client.describe(EXTENT).await.unwrap_err().refusal(), Some(&refusal));
        assert_eq!(client.commit(&Commit::new(GroupId(1)).trim(EXTENT, Seq(1))).await.unwrap_err().refusal(), Some(&refusal));
    }
    node.hook(|_| Reaction::Serve);
    client.append(EXTENT, "the connection still stands").await.unwrap();
    assert_eq!(node.state.lock().unwrap().connections, 1);
}

#[tokio::test]
async fn a_refused_append_leaves_its_neighbours_alone() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let mut count = 0;
    node.hook(move |seen| {
        count += u32::from(seen.kind == Kind::Append);
        if seen.kind == Kind::Append && count == 2 {
            Reaction::Refuse(Refusal::BadChecksum { index: 0 })
        } else {
            Reaction::Serve
        }
    });
    let mut appender = client.appender(EXTENT).await.unwrap();
    let mut acks = Vec::new();
    for record in ["a", "b", "c"] {
        acks.push(appender.send_batch(&[record], None).await.unwrap());
    }
    let mut results = Vec::new();
    for ack in acks {
        results.push(ack.await.map(|batch| batch.first_seq.0).map_err(|error| error.refusal().cloned()));
    }
    assert_eq!(results, [Ok(1), Err(Some(Refusal::BadChecksum { index: 0 })), Ok(2)]);
}

#[tokio::test]
async fn extents_are_found_on_the_shard_of_their_group() {
    let node = FakeNode::start(4);
    let maker = Client::connect(&node.address, options()).await.unwrap();
    let mut ids = Vec::new();
    for id in 1..=16 {
        let new = NewExtent::with_id(ExtentId(id)).in_group(GroupId(1_000 + id * 77));
        maker.create_extent(new).await.unwrap();
        maker.append(new.extent, format!("first of {id}")).await.unwrap();
        ids.push(new.extent);
    }
    // Another client does not know the groups.
    let client = Client::connect(&node.address, options()).await.unwrap();
    for id in &ids {
        assert_eq!(client.append(*id, "second").await.unwrap().seq, Seq(2));
        assert_eq!(read_all(&client, *id).await.len(), 2);
    }
    let listed: Vec<_> = client.list().await.unwrap().iter().map(|info| info.extent).collect();
    assert_eq!(listed, ids);
    let shards: std::collections::BTreeSet<_> = client.list().await.unwrap().iter().map(|info| info.shard).collect();
    assert_eq!(shards.len(), 4, "the test's groups are on all shards");
    assert_eq!(client.append(ExtentId(500), "x").await.unwrap_err().refusal(), Some(&Refusal::NotFound));
    // Made anew in a group of another shard, behind the client's back: found again.
    let moved = ids[0];
    maker.delete(moved, Epoch(0)).await.unwrap();
    let old = log_format::ids::shard_of(GroupId(1_077), 4);
    let group = (1..).map(GroupId).find(|group| log_format::ids::shard_of(*group, 4) != old).unwrap();
    maker.create_extent(NewExtent::with_id(moved).in_group(group)).await.unwrap();
    assert_eq!(client.append(moved, "third").await.unwrap().seq, Seq(1));
    assert_eq!(client.describe(moved).await.unwrap().shard, log_format::ids::shard_of(group, 4));
}

#[tokio::test]
async fn a_shard_that_names_the_owner_is_believed() {
    let node = FakeNode::start(2);
    let client = Client::connect(&node.address, options()).await.unwrap();
    let own = ShardIndex(log_format::ids::shard_of(EXTENT.into(), 2).0);
    client.create_extent(NewExtent::with_id(EXTENT)).await.unwrap();
    let mut is_told = false;
    node.hook(move |seen| {
        if seen.kind == Kind::Append && !std::mem::replace(&mut is_told, true) {
            return Reaction::Refuse(Refusal::WrongShard { shard: own });
        }
        Reaction::Serve
    });
    assert_eq!(client.append(EXTENT, "x").await.unwrap().seq, Seq(1));
    assert_eq!(node.seen(Kind::Append).len(), 2);
}

#[tokio::test]
async fn appends_in_flight_on_a_lost_connection_are_not_sent_again() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let mut appender = client.appender(EXTENT).await.unwrap();
    let mut count = 0;
    node.hook(move |seen| {
        count += u32::from(seen.kind == Kind::Append);
        match (seen.kind, count) {
            (Kind::Append, 2) => Reaction::ServeAndCut,
            _ => Reaction::Serve,
        }
    });
    let first = appender.send_batch(&["first"], None).await.unwrap();
    let lost = appender.send_batch(&["done but not acked"], None).await.unwrap();
    let never = appender.send_batch(&["never seen"], None).await.unwrap();
    assert_eq!(first.await.unwrap().first_seq, Seq(1));
    for error in [lost.await.unwrap_err(), never.await.unwrap_err()] {
        assert!(matches!(error, ClientError::Disconnected { .. }), "{error}");
        assert!(error.is_outcome_unknown());
    }
    // The expected seq finds out what happened: the record is there, so the repeat is refused.
    let error = appender.append_batch(&["done but not acked"], Some(Seq(2))).await.unwrap_err();
    assert_eq!(error.refusal(), Some(&Refusal::SeqMismatch { next: Seq(3) }));
    assert_eq!(appender.append("after").await.unwrap().seq, Seq(3));
    assert_eq!(node.records(EXTENT), [&b"first"[..], b"done but not acked", b"after"]);
    assert_eq!(node.state.lock().unwrap().connections, 2);
}

#[tokio::test]
async fn reads_and_questions_are_repeated_on_a_new_connection() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    client.append(EXTENT, "one").await.unwrap();
    for kind in [Kind::Read, Kind::Describe, Kind::List, Kind::SeqAtTime, Kind::Trim, Kind::Seal, Kind::CreateExtent] {
        let mut is_cut = false;
        node.hook(
            move |seen| {
                if seen.kind == kind && !std::mem::replace(&mut is_cut, true) { Reaction::Cut } else { Reaction::Serve }
            },
        );
        match kind {
            Kind::Read => {
                let read = Read { extent: EXTENT, from_seq: Seq(1), max_bytes: 100, max_records: 0, wait_ms: 0 };
                assert_eq!(client.read(read).await.unwrap().records.len(), 1);
            }
            Kind::Describe => assert_eq!(client.describe(EXTENT).await.unwrap().last_seq, Seq(1)),
            Kind::List => assert_eq!(client.list().await.unwrap().len(), 1),
            Kind::SeqAtTime => {
                let found = client.seq_at_time(EXTENT, Timestamp(1)).await.unwrap();
                assert_eq!((found.seq, found.append_time), (Seq(1), Timestamp(1_000_000_000)));
            }
            Kind::Trim => assert_eq!(client.trim(EXTENT, Seq(1), Epoch(0)).await.unwrap(), Seq(1)),
            Kind::Seal => assert_eq!(client.seal(EXTENT, Epoch(0)).await.unwrap().last_seq, Seq(1)),
            _ => assert!(!client.create_extent(NewExtent::with_id(EXTENT)).await.unwrap().created),
        }
        assert_eq!(node.seen(kind).len() % 2, usize::from(kind == Kind::CreateExtent), "{kind:?} was sent twice");
    }
    // A delete is not.
    node.hook(|seen| if seen.kind == Kind::Delete { Reaction::Cut } else { Reaction::Serve });
    assert!(matches!(client.delete(EXTENT, Epoch(0)).await, Err(ClientError::Disconnected { .. })));
    assert_eq!(node.seen(Kind::Delete).len(), 1);
}

#[tokio::test]
async fn a_restarted_node_is_found_again_and_a_gone_one_is_an_error() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let address = node.stop();
    let restart = std::thread::spawn(move || {
        // Long enough that the client's first attempts are refused: it must try more than once.
        std::thread::sleep(Duration::from_millis(150));
        FakeNode::start_on(address, 1)
    });
    client.create_extent(NewExtent::with_id(EXTENT)).await.unwrap();
    assert_eq!(client.append(EXTENT, "x").await.unwrap().seq, Seq(1));
    let address = restart.join().unwrap().stop();
    let hasty = ClientOptions { reconnect_for: Duration::from_millis(50), ..options() };
    let error = Client::connect(&address.to_string(), hasty).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(!error.is_outcome_unknown());
}

#[tokio::test]
async fn a_reader_at_the_tail_gets_each_record_once_right_after_its_ack() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let mut reader = client.reader(EXTENT, Seq(1), ReaderOptions { max_records: 3, ..ReaderOptions::default() });
    let reading = tokio::spawn(async move {
        let mut seqs = Vec::new();
        while let Some(record) = reader.next().await.unwrap() {
            assert_eq!(record.data, record.seq.to_string());
            seqs.push(record.seq.0);
        }
        seqs
    });
    for seq in 1..=200u64 {
        client.append(EXTENT, seq.to_string()).await.unwrap();
    }
    client.seal(EXTENT, Epoch(0)).await.unwrap();
    assert_eq!(reading.await.unwrap(), (1..=200).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reader_survives_lost_connections() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let records: Vec<Vec<u8>> = (0..500u32).map(|number| number.to_string().into_bytes()).collect();
    client.append_batch(EXTENT, &records, None).await.unwrap();
    let mut count = 0;
    node.hook(move |seen| {
        count += u32::from(seen.kind == Kind::Read);
        if seen.kind == Kind::Read && count % 3 == 0 { Reaction::Cut } else { Reaction::Serve }
    });
    let mut reader = client.reader(EXTENT, Seq(1), ReaderOptions { max_records: 20, follow: false, ..ReaderOptions::default() });
    let mut read = Vec::new();
    while let Some(page) = reader.next_page().await.unwrap() {
        read.extend(page.into_iter().map(|record| record.data.to_vec()));
    }
    assert_eq!(read, records);
    assert!(node.state.lock().unwrap().connections > 5);
}

#[tokio::test]
async fn a_reader_loses_nothing_when_it_is_dropped_while_it_waits() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    let records: Vec<Vec<u8>> = (0..500u32).map(|number| number.to_string().into_bytes()).collect();
    client.append_batch(EXTENT, &records, None).await.unwrap();
    let mut reader = client.reader(EXTENT, Seq(1), ReaderOptions { max_records: 20, follow: false, ..ReaderOptions::default() });
    let mut read = Vec::new();
    let mut drops = 0;
    loop {
        tokio::select! {
            biased;
            record = reader.next() => match record.unwrap() {
                Some(record) => read.push(record.data.to_vec()),
                None => break,
            },
            () = tokio::task::yield_now() => drops += 1,
        }
    }
    assert_eq!(read, records);
    assert!(drops > 0);
    assert!(node.seen(Kind::Read).len() <= 30, "what was asked for is not asked for again");
}

#[tokio::test]
async fn a_reader_says_trimmed_and_goes_on_where_it_is_told() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    client.append_batch(EXTENT, &["a", "b", "c", "d"], None).await.unwrap();
    assert_eq!(client.trim(EXTENT, Seq(2), Epoch(0)).await.unwrap(), Seq(2));
    let mut reader = client.reader(EXTENT, Seq(1), tail());
    let Err(ClientError::Refused(Refusal::Trimmed { floor })) = reader.next().await else { panic!("it is trimmed") };
    assert_eq!((floor, reader.position()), (Seq(3), Seq(1)));
    reader.seek(floor);
    assert_eq!(reader.next().await.unwrap().unwrap().data, "c");
    assert_eq!(reader.position(), Seq(4));
    assert_eq!(reader.next().await.unwrap().unwrap().data, "d");
    assert_eq!(reader.next().await.unwrap(), None);
    // At the tail it may be asked again.
    client.append(EXTENT, "e").await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap().data, "e");
}

#[tokio::test]
async fn a_record_damaged_on_the_way_is_asked_for_again_and_then_an_error() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    client.append(EXTENT, "payload").await.unwrap();
    let mut is_damaged = false;
    node.hook(move |seen| {
        if seen.kind == Kind::Read && !std::mem::replace(&mut is_damaged, true) {
            return Reaction::Change(|frame| *frame.last_mut().unwrap() ^= 1);
        }
        Reaction::Serve
    });
    assert_eq!(read_all(&client, EXTENT).await, [b"payload"]);
    node.hook(
        |seen| {
            if seen.kind == Kind::Read { Reaction::Change(|frame| *frame.last_mut().unwrap() ^= 1) } else { Reaction::Serve }
        },
    );
    let error = client.reader(EXTENT, Seq(1), tail()).next().await.unwrap_err();
    assert!(matches!(error, ClientError::Damaged { extent: EXTENT, seq: Seq(1) }), "{error}");
}

fn reseal(frame: &mut Vec<u8>, change: impl FnOnce(&mut [u8])) {
    let header = log_format::wire::FrameHeader::decode(frame.first_chunk().unwrap()).unwrap();
    let end = header.payload_offset();
    let mut body = frame[FRAME_HEADER_SIZE..end].to_vec();
    change(&mut body);
    let mut out = Vec::new();
    log_format::wire::encode_frame(header.kind, header.direction, header.request_id, header.payload_length, &body, &mut out);
    out.extend_from_slice(&frame[end..]);
    *frame = out;
}

#[tokio::test]
async fn a_node_that_lies_about_an_append_is_left() {
    let ack_again = |frame: &mut Vec<u8>| frame.extend_from_within(..);
    let other_count = |frame: &mut Vec<u8>| {
        // The count stands 8 bytes before the end of an ack, which ends the body.
        reseal(frame, |body| {
            let at = body.len() - 8;
            body[at] = 9;
        });
    };
    let flip_header = |frame: &mut Vec<u8>| frame[9] ^= 1;
    let flip_body = |frame: &mut Vec<u8>| frame[FRAME_HEADER_SIZE + 20] ^= 1;
    let other_magic = |frame: &mut Vec<u8>| frame[..4].copy_from_slice(b"HTTP");
    let huge_payload = |frame: &mut Vec<u8>| frame[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    let request_back = |frame: &mut Vec<u8>| {
        frame.clear();
        let read = Read { extent: EXTENT, from_seq: Seq(1), max_bytes: 1, max_records: 1, wait_ms: 0 };
        log_format::wire::Encoder::new().frame(log_format::wire::RequestId(1), &read, frame);
    };
    let unknown_id = |frame: &mut Vec<u8>| {
        frame.clear();
        log_format::wire::Encoder::new().refusal(log_format::wire::RequestId(77), Kind::Append, &Refusal::NotFound, frame);
    };
    type Lie = fn(&mut Vec<u8>);
    let cases: [(&str, Lie); 8] = [
        ("an ack twice", ack_again),
        ("a wrong count", other_count),
        ("a flipped bit in the header", flip_header),
        ("a flipped bit in the body", flip_body),
        ("another protocol", other_magic),
        ("a huge payload", huge_payload),
        ("a request as an answer", request_back),
        ("an unknown request id", unknown_id),
    ];
    for (name, lie) in cases {
        let node = FakeNode::start(1);
        let client = connect(&node).await;
        node.hook(move |seen| if seen.kind == Kind::Append { Reaction::Change(lie) } else { Reaction::Serve });
        let mut appender = client.appender(EXTENT).await.unwrap();
        let first = appender.send_batch(&["x"], None).await.unwrap();
        let second = appender.send_batch(&["y"], None).await.unwrap();
        let (first, second) = (first.await, second.await);
        let error = second.unwrap_err();
        assert!(matches!(error, ClientError::Protocol { .. }), "{name}: {error}");
        assert!(name == "an ack twice" || first.is_err(), "{name}");
        node.hook(|_| Reaction::Serve);
        appender.append("a new connection").await.unwrap();
        assert_eq!(node.state.lock().unwrap().connections, 2, "{name}");
    }
}

#[tokio::test]
async fn a_node_that_answers_a_read_with_other_records_is_not_believed() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    client.append_batch(EXTENT, &["aaaa", "bbbb", "cccc"], None).await.unwrap();
    // The answer to a question of its own kind, but for another place.
    node.hook(|seen| {
        if seen.kind != Kind::Read {
            return Reaction::Serve;
        }
        Reaction::Change(|frame| {
            reseal(frame, |body| {
                let at = body.windows(8).position(|window| window == 1u64.to_le_bytes()).unwrap();
                body[at] = 2;
            });
        })
    });
    let error = client.reader(EXTENT, Seq(1), tail()).next().await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn a_refusal_without_a_request_ends_the_connection() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    node.hook(|seen| if seen.kind == Kind::Append { Reaction::RefuseAs(0, Refusal::ShuttingDown) } else { Reaction::Serve });
    let error = client.append(EXTENT, "x").await.unwrap_err();
    assert!(matches!(&error, ClientError::Disconnected { why, .. } if why.contains("shutting down")), "{error}");
}

#[tokio::test]
async fn a_node_that_refuses_hello_or_answers_nonsense_is_an_error() {
    let node = FakeNode::start(1);
    node.hook(|_| Reaction::Refuse(Refusal::VersionMismatch { min: 2, max: 3 }));
    let error = Client::connect(&node.address, options()).await.unwrap_err();
    assert_eq!(error.refusal(), Some(&Refusal::VersionMismatch { min: 2, max: 3 }));
    node.hook(|_| Reaction::Raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()));
    assert!(matches!(Client::connect(&node.address, options()).await, Err(ClientError::Protocol { .. })));
    node.hook(|_| Reaction::Cut);
    assert!(matches!(Client::connect(&node.address, options()).await, Err(ClientError::Connect { .. })));
    node.hook(|_| Reaction::Ignore);
    let hasty = ClientOptions { connect_timeout: Duration::from_millis(50), ..options() };
    assert!(matches!(Client::connect(&node.address, hasty).await, Err(ClientError::Connect { .. })));
}

#[tokio::test]
async fn a_silent_node_is_taken_for_lost() {
    let node = FakeNode::start(1);
    connect(&node).await;
    let hasty = ClientOptions { response_timeout: Duration::from_millis(50), ..options() };
    let client = Client::connect(&node.address, hasty).await.unwrap();
    node.hook(|seen| if seen.kind == Kind::Append { Reaction::Ignore } else { Reaction::Serve });
    assert!(matches!(client.append(EXTENT, "x").await, Err(ClientError::Disconnected { .. })));
}

#[tokio::test]
async fn dropping_the_client_ends_what_is_in_flight() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    node.hook(|seen| if seen.kind == Kind::Append { Reaction::Ignore } else { Reaction::Serve });
    let mut appender = client.appender(EXTENT).await.unwrap();
    let ack = appender.send("x").await.unwrap();
    drop((client, appender));
    assert!(matches!(ack.await, Err(ClientError::Disconnected { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_client() {
    let node = FakeNode::start(2);
    let client = connect(&node).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8u32 {
        let client = client.clone();
        tasks.spawn(async move {
            let mut appender = client.appender(EXTENT).await.unwrap();
            let mut acks = Vec::new();
            for number in 0..500u32 {
                acks.push(appender.send(format!("{task} {number}")).await.unwrap());
            }
            let mut seqs = Vec::new();
            for ack in acks {
                seqs.push(ack.await.unwrap().seq.0);
            }
            (task, seqs)
        });
    }
    let results = tasks.join_all().await;
    let records = node.records(EXTENT);
    assert_eq!(records.len(), 4_000);
    for (task, seqs) in results {
        assert!(seqs.is_sorted(), "acks of one task come in its order");
        for (seq, number) in seqs.iter().zip(0..) {
            assert_eq!(records[*seq as usize - 1], format!("{task} {number}").into_bytes());
        }
    }
}

#[tokio::test]
async fn a_sealed_extent_is_described_and_timers_are_refused() {
    let node = FakeNode::start(1);
    let client = connect(&node).await;
    client.append(EXTENT, "abc").await.unwrap();
    client.seal(EXTENT, Epoch(0)).await.unwrap();
    let info = client.describe(EXTENT).await.unwrap();
    assert_eq!((info.state, info.records, info.payload_bytes), (ExtentState::Sealed, 1, 3));
    let timer = NewExtent { kind: ExtentKind::Timer, ..NewExtent::new() };
    assert!(matches!(client.create_extent(timer).await, Err(ClientError::Refused(Refusal::Unsupported { .. }))));
    assert_eq!(
        client.create_extent(NewExtent::with_id(EXTENT).in_group(GroupId(3))).await.unwrap_err().refusal(),
        Some(&Refusal::AlreadyExists)
    );
    client.delete(EXTENT, Epoch(0)).await.unwrap();
    assert_eq!(client.describe(EXTENT).await.unwrap_err().refusal(), Some(&Refusal::NotFound));
}
