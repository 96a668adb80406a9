//! Peers that break the protocol, stop, or do not read, on raw sockets: each gets what docs/protocol.md says, and the others go on.

#![allow(clippy::unwrap_used)]

use log_format::ids::{Epoch, ExtentId, ExtentKind, GroupId, Seq, shard_of};
use log_format::wire::{
    Encoder, FRAME_HEADER_SIZE, FRAME_MAGIC, Kind, PROTOCOL_VERSION, RecordMeta, Refusal, Reply, RequestId, request,
};
use rand::RngExt;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use system_tests::raw::{RawConnection, append, frame, hello, is_kind};
use system_tests::{Bound, Node, record, scratch, seeded};

const SHARDS: u32 = 2;

/// An extent that the shard owns, another for each `number`.
fn extent_of(shard: u32, number: u128) -> ExtentId {
    (number * 1000 + 1..).map(ExtentId).find(|id| shard_of((*id).into(), SHARDS).0 == shard).unwrap()
}

/// A connection to shard 0 with an extent there.
fn with_extent(address: SocketAddr, number: u128) -> (RawConnection, ExtentId) {
    let mut connection = RawConnection::greeted(address, Some(0));
    let extent = extent_of(0, number);
    connection.create(extent);
    (connection, extent)
}

/// Appends and reads on a connection of its own.
fn assert_serves(address: SocketAddr) {
    let (mut connection, extent) = with_extent(address, 999);
    let answer = connection.ask(&append(9, extent, &["still here"]));
    assert!(is_kind(&answer, Kind::Append), "{answer:?}");
}

fn read(request_id: u64, extent: ExtentId, from: u64, wait_ms: u32) -> Vec<u8> {
    frame(request_id, &request::Read { extent, from_seq: Seq(from), max_bytes: 0, max_records: 0, wait_ms })
}

#[test]
fn random_bytes_are_cut_off_before_and_after_the_hello() {
    let _bound = Bound::seconds("random bytes", 120);
    let mut random = seeded("random bytes");
    let scratch = scratch!("random");
    let node = Node::start(&scratch.path("data"));
    for round in 0..60 {
        let mut connection = match round % 2 {
            0 => RawConnection::connect(node.socket_address()),
            _ => RawConnection::greeted(node.socket_address(), None),
        };
        let mut bytes = vec![0; random.random_range(FRAME_HEADER_SIZE..100_000)];
        random.fill(&mut bytes[..]);
        if round % 3 == 0 {
            // A frame's start, at least.
            bytes[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
            bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        }
        // The node may have seen enough before all is sent.
        let _ = connection.stream.write_all(&bytes);
        connection.expect_end();
    }
    assert_serves(node.socket_address());
}

#[test]
fn good_frames_with_a_bit_flipped_never_stop_the_node_or_change_what_was_sent() {
    let _bound = Bound::seconds("flipped bits", 120);
    let mut random = seeded("flipped bits");
    let scratch = scratch!("flipped");
    let node = Node::start(&scratch.path("data"));
    let (mut good, extent) = with_extent(node.socket_address(), 1);
    let sent = record(7, 3);
    for _ in 0..150 {
        let mut frame = append(3, extent, &[&sent[..]]);
        let bit = random.random_range(0..frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        let mut connection = RawConnection::greeted(node.socket_address(), Some(0));
        connection.send(&frame);
        connection.half_close();
        connection.expect_end();
    }
    let answer = good.ask(&read(4, extent, 1, 0));
    assert!(answer.payload.is_empty(), "a damaged request was carried out: {answer:?}");
    assert_serves(node.socket_address());
}

#[test]
fn a_bad_checksum_of_a_frame_is_refused_and_the_connection_closed() {
    let _bound = Bound::seconds("bad checksum", 60);
    let scratch = scratch!("checksum");
    let node = Node::start(&scratch.path("data"));
    let (mut connection, extent) = with_extent(node.socket_address(), 1);
    let mut damaged = frame(77, &request::Describe { extent });
    *damaged.last_mut().unwrap() ^= 0x40;
    let answer = connection.ask(&damaged);
    assert!(matches!(answer.refusal(), Refusal::BadRequest { .. }), "{answer:?}");
    assert_eq!(answer.header.request_id, RequestId(77));
    connection.expect_end();

    let mut connection = RawConnection::connect(node.socket_address());
    let mut damaged = hello(None);
    *damaged.last_mut().unwrap() ^= 0x40;
    let answer = connection.ask(&damaged);
    assert!(matches!(answer.refusal(), Refusal::BadRequest { .. }), "{answer:?}");
    connection.expect_end();
    assert_serves(node.socket_address());
}

#[test]
fn a_record_that_does_not_fit_its_checksum_is_named_and_nothing_is_written() {
    let _bound = Bound::seconds("bad record", 60);
    let scratch = scratch!("bad-record");
    let node = Node::start(&scratch.path("data"));
    let (mut connection, extent) = with_extent(node.socket_address(), 1);
    let mut damaged = append(5, extent, &["one", "two", "three"]);
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(connection.ask(&damaged).refusal(), Refusal::BadChecksum { index: 2 });
    let answer = connection.ask(&append(6, extent, &["good"]));
    let Reply::Append(acks) = answer.reply() else { panic!("{answer:?}") };
    assert_eq!(acks.acks().next().unwrap().first_seq, Seq(1));
}

#[test]
fn lengths_that_lie_are_refused() {
    let _bound = Bound::seconds("lying lengths", 60);
    let scratch = scratch!("lengths");
    let node = Node::start(&scratch.path("data"));
    let (mut connection, extent) = with_extent(node.socket_address(), 1);
    // The records add up to less than the payload: that request makes no sense, the frame does.
    let mut lying = append(5, extent, &["12345"]);
    let payload_length = u32::from_le_bytes(lying[20..24].try_into().unwrap());
    assert_eq!(payload_length, 5);
    lying[20..24].copy_from_slice(&6u32.to_le_bytes());
    seal_header(&mut lying);
    lying.push(b'6');
    let answer = connection.ask(&lying);
    assert!(matches!(answer.refusal(), Refusal::BadRequest { .. }), "{answer:?}");
    // A body that is none of its kind.
    let mut body = Vec::new();
    log_format::wire::encode_frame(Kind::Trim, log_format::wire::Direction::Request, RequestId(6), 0, b"nonsense", &mut body);
    let answer = connection.ask(&body);
    assert!(matches!(answer.refusal(), Refusal::BadRequest { .. }), "{answer:?}");
    assert!(is_kind(&connection.ask(&append(7, extent, &["fine"])), Kind::Append), "the connection goes on");

    // A body longer than any may be: no frame.
    let mut huge = frame(8, &request::Describe { extent });
    huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    connection.send(&huge);
    connection.expect_end();

    // A payload of 4 GiB that never comes costs the node nothing.
    let mut connection = RawConnection::greeted(node.socket_address(), Some(0));
    let mut endless = append(9, extent, &["x"]);
    endless[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    seal_header(&mut endless);
    let answer = connection.ask(&endless);
    assert!(matches!(answer.refusal(), Refusal::TooLarge { .. }), "{answer:?}");
    assert!(node.metric("roost_receive_buffer_bytes", &[]) < 4e6);
    assert_serves(node.socket_address());
}

/// Makes the checksum of a changed frame right again.
fn seal_header(frame: &mut [u8]) {
    let body = u32::from_le_bytes(frame[16..20].try_into().unwrap()) as usize;
    let checked = [&frame[..28], &frame[FRAME_HEADER_SIZE..FRAME_HEADER_SIZE + body]].concat();
    frame[28..32].copy_from_slice(&log_format::payload_checksum(&checked).to_le_bytes());
}

#[test]
fn a_payload_of_one_byte_over_the_limit_is_too_large_and_the_connection_goes_on() {
    let _bound = Bound::seconds("over the limit", 60);
    let scratch = scratch!("limit");
    let node = Node::start(&scratch.path("data"));
    let mut connection = RawConnection::connect(node.socket_address());
    let answer = connection.ask(&hello(Some(0)));
    let Reply::Hello(greeting) = answer.reply() else { panic!("{answer:?}") };
    let (frame_max, record_max) = (greeting.max_frame_size as usize, greeting.max_record_size as usize);
    let extent = extent_of(0, 1);
    connection.create(extent);
    for (size, fits) in [(frame_max, true), (frame_max + 1, false)] {
        let mut records = vec![vec![b'r'; record_max]; size / record_max];
        if size % record_max > 0 {
            records.push(vec![b's'; size % record_max]);
        }
        let answer = connection.ask(&append(5, extent, &records));
        if fits {
            assert!(is_kind(&answer, Kind::Append), "{:?}", answer.header);
        } else {
            assert_eq!(answer.refusal(), Refusal::TooLarge { limit_bytes: frame_max as u64 });
        }
    }
    assert!(is_kind(&connection.ask(&append(6, extent, &["after"])), Kind::Append));
}

#[test]
fn half_a_frame_and_then_silence_holds_nobody_up() {
    let _bound = Bound::seconds("half a frame", 60);
    let scratch = scratch!("half");
    let node = Node::start(&scratch.path("data"));
    let (mut connection, extent) = with_extent(node.socket_address(), 1);
    let whole = append(5, extent, &[record(1, 1), vec![7; 900_000]]);
    let mut silent = Vec::new();
    for length in [1, FRAME_HEADER_SIZE - 1, FRAME_HEADER_SIZE, FRAME_HEADER_SIZE + 10, whole.len() / 2, whole.len() - 1] {
        let mut half = RawConnection::greeted(node.socket_address(), Some(0));
        half.send(&whole[..length]);
        silent.push((half, length));
        let mut before_hello = RawConnection::connect(node.socket_address());
        before_hello.send(&hello(None)[..length.min(40)]);
        silent.push((before_hello, usize::MAX));
        let started = Instant::now();
        assert!(is_kind(&connection.ask(&append(6, extent, &["others go on"])), Kind::Append));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    // Those who go on after all are served.
    for (mut half, length) in silent.into_iter().filter(|(_, length)| *length < usize::MAX) {
        half.send(&whole[length..]);
        assert!(is_kind(&half.answer(), Kind::Append));
    }
}

#[test]
fn a_frame_that_comes_byte_by_byte_is_a_frame() {
    let _bound = Bound::seconds("byte by byte", 60);
    let scratch = scratch!("bytes");
    let node = Node::start(&scratch.path("data"));
    let mut connection = RawConnection::connect(node.socket_address());
    let extent = extent_of(1, 1);
    let create = request::CreateExtent { extent, group: GroupId::from(extent), kind: ExtentKind::Sequence, epoch: Epoch(0) };
    for (bytes, kind) in
        [(hello(Some(1)), Kind::Hello), (frame(2, &create), Kind::CreateExtent), (append(3, extent, &["slowly"]), Kind::Append)]
    {
        for byte in bytes {
            connection.send(&[byte]);
        }
        assert!(is_kind(&connection.answer(), kind));
    }
}

#[test]
fn five_hundred_idle_connections_cost_little_and_hold_nobody_up() {
    let _bound = Bound::seconds("idle connections", 120);
    let scratch = scratch!("idle");
    let node = Node::start(&scratch.path("data"));
    let before = node.metric("process_resident_memory_bytes", &[]);
    let idle: Vec<_> = (0..500).map(|number| RawConnection::greeted(node.socket_address(), Some(number % SHARDS))).collect();
    assert_eq!(node.metric("roost_connections", &[]), 500.0);
    let grown = node.metric("process_resident_memory_bytes", &[]) - before;
    assert!(grown < 500.0 * 64.0 * 1024.0, "{grown} bytes for 500 connections");
    assert_serves(node.socket_address());
    drop(idle);
    wait_until(|| node.metric("roost_connections", &[]) == 0.0);
}

/// Asks again and again, up to a bound.
fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come to pass");
        std::thread::yield_now();
    }
}

#[test]
fn a_reader_that_never_reads_is_held_back_and_holds_nobody_up() {
    let _bound = Bound::seconds("never reads", 120);
    let scratch = scratch!("never-reads");
    let node = Node::start(&scratch.path("data"));
    let (mut connection, extent) = with_extent(node.socket_address(), 1);
    for number in 0..16 {
        assert!(is_kind(&connection.ask(&append(number + 5, extent, &[vec![3; 1 << 20]])), Kind::Append));
    }
    let before = node.metric("process_resident_memory_bytes", &[]);
    let mut deaf: Vec<_> = (0..4).map(|_| RawConnection::greeted(node.socket_address(), Some(0))).collect();
    for connection in &mut deaf {
        connection.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        // 2,000 MiB of answers, of which the sockets hold a few.
        for number in 0..2000 {
            if connection.stream.write_all(&read(number + 1, extent, 1 + number % 16, 0)).is_err() {
                break;
            }
        }
    }
    let started = Instant::now();
    for number in 0..50 {
        assert!(is_kind(&connection.ask(&append(number + 100, extent, &["others"])), Kind::Append));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let grown = node.metric("process_resident_memory_bytes", &[]) - before;
    println!("grown by {grown} bytes");
    assert!(grown < 200e6, "{grown} bytes");
    // Another reader of the same shard gets its answers.
    let answer = connection.ask(&read(500, extent, 17, 0));
    assert_eq!(answer.payload, "others".repeat(50).into_bytes());
    drop(deaf);
    wait_until(|| node.metric("roost_connections", &[]) == 1.0);
}

#[test]
fn a_sender_that_never_reads_its_acks_is_held_back_and_its_records_are_there() {
    let _bound = Bound::seconds("never reads acks", 120);
    let scratch = scratch!("never-acks");
    let node = Node::start(&scratch.path("data"));
    let (mut connection, _) = with_extent(node.socket_address(), 1);
    // So many answers that no socket holds them all: a refusal is longer than an ack.
    connection.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let stranger = frame(7, &request::Describe { extent: extent_of(0, 500) });
    let many = stranger.repeat(1000);
    let mut sent = 0;
    while sent < 400 << 20 && connection.stream.write_all(&many).is_ok() {
        sent += many.len();
    }
    assert!(sent < 400 << 20, "nothing holds it back");
    assert!(node.metric("process_resident_memory_bytes", &[]) < 500e6);
    assert_serves(node.socket_address());
}

#[test]
fn each_hello_lands_on_its_shard_and_a_request_to_the_wrong_one_is_told_the_right_one() {
    let _bound = Bound::seconds("shards", 60);
    let scratch = scratch!("shards");
    let node = Node::start(&scratch.path("data"));
    let mut seen = Vec::new();
    for wanted in [Some(0), Some(1), None, None] {
        let mut connection = RawConnection::connect(node.socket_address());
        let answer = connection.ask(&hello(wanted));
        let Reply::Hello(greeting) = answer.reply() else { panic!("{answer:?}") };
        assert_eq!(greeting.shard_count, SHARDS);
        assert!(wanted.is_none_or(|shard| shard == greeting.shard.0), "{wanted:?}: {greeting:?}");
        seen.push(greeting.shard.0);
        let (here, there) = (greeting.shard.0, 1 - greeting.shard.0);
        let body = |extent: ExtentId| request::CreateExtent {
            extent,
            group: GroupId::from(extent),
            kind: ExtentKind::Sequence,
            epoch: Epoch(0),
        };
        let answer = connection.ask(&frame(3, &body(extent_of(there, 2))));
        assert!(matches!(answer.refusal(), Refusal::WrongShard { shard } if shard.0 == there), "{answer:?}");
        assert!(is_kind(&connection.ask(&frame(4, &body(extent_of(here, 2)))), Kind::CreateExtent));
        assert_eq!(connection.ask(&append(5, extent_of(there, 2), &["lost"])).refusal(), Refusal::NotFound);
        assert!(is_kind(&connection.ask(&append(6, extent_of(here, 2), &["found"])), Kind::Append));
    }
    assert_ne!(seen[2], seen[3], "those who do not mind are spread");
}

#[test]
fn the_first_frame_is_a_hello_of_a_version_and_a_shard_that_there_are() {
    let _bound = Bound::seconds("hello", 60);
    let scratch = scratch!("hello");
    let node = Node::start(&scratch.path("data"));
    let refused = |bytes: &[u8]| {
        let mut connection = RawConnection::connect(node.socket_address());
        let refusal = connection.ask(bytes).refusal();
        connection.expect_end();
        refusal
    };
    let versions =
        |min_version, max_version| frame(0, &request::Hello { min_version, max_version, shard: None, auth: &[], client: "test" });
    assert_eq!(refused(&versions(2, 9)), Refusal::VersionMismatch { min: 1, max: 1 });
    assert_eq!(refused(&hello(Some(SHARDS))), Refusal::WrongShard { shard: log_format::ids::ShardIndex(SHARDS - 1) });
    assert!(matches!(refused(&frame(1, &request::List { after: None, limit: 0 })), Refusal::BadRequest { .. }));

    let mut connection = RawConnection::connect(node.socket_address());
    assert!(is_kind(&connection.ask(&versions(0, 900)), Kind::Hello), "a common version is found");
    assert!(matches!(connection.ask(&hello(None)).refusal(), Refusal::BadRequest { .. }), "there is one Hello");
    assert!(is_kind(&connection.ask(&frame(2, &request::List { after: None, limit: 0 })), Kind::List));
}

#[test]
fn the_hand_over_to_a_shard_loses_no_byte_of_what_comes_right_behind_the_hello() {
    let _bound = Bound::seconds("hand-over", 60);
    let scratch = scratch!("hand-over");
    let node = Node::start(&scratch.path("data"));
    for shard in [0, 1] {
        let extent = extent_of(shard, 1);
        RawConnection::greeted(node.socket_address(), Some(shard)).create(extent);
        for round in 0..50 {
            let mut connection = RawConnection::connect(node.socket_address());
            let mut bytes = hello(Some(shard));
            for number in 1..=round + 1 {
                bytes.extend(append(number, extent, &[record(extent.0, number)]));
            }
            // In two parts that are cut anywhere.
            let cut = bytes.len() * round as usize / 50;
            connection.send(&bytes[..cut]);
            connection.send(&bytes[cut..]);
            assert!(is_kind(&connection.answer(), Kind::Hello));
            let mut acked = 0;
            while acked <= round {
                let answer = connection.answer();
                let Reply::Append(acks) = answer.reply() else { panic!("{answer:?}") };
                for ack in acks.acks() {
                    acked += 1;
                    assert_eq!(ack.request_id, RequestId(acked));
                }
            }
        }
    }
}

#[test]
fn pipelined_requests_of_all_kinds_are_answered_each_once() {
    let _bound = Bound::seconds("pipelined", 60);
    let mut random = seeded("pipelined");
    let scratch = scratch!("pipelined");
    let node = Node::start(&scratch.path("data"));
    let (mut connection, extent) = with_extent(node.socket_address(), 1);
    let mut expected = std::collections::BTreeMap::new();
    let mut bytes = Vec::new();
    let mut records = 0u64;
    for id in 10..2010u64 {
        let (kind, frame) = match random.random_range(0..8) {
            0 | 1 => {
                records += 2;
                (Kind::Append, append(id, extent, &[record(1, id), record(2, id)]))
            }
            2 => {
                records += 1;
                let data = record(3, id);
                let metas = [RecordMeta::of(&data)];
                let operation = log_format::wire::CommitOperation::Append {
                    extent,
                    expected_seq: Some(Seq(records)),
                    records: &metas,
                    deliver_at: &[],
                };
                let mut frame = Vec::new();
                Encoder::new().commit(RequestId(id), extent.into(), Epoch(0), &[operation], &mut frame);
                frame.extend(data);
                (Kind::Commit, frame)
            }
            3 => (Kind::Read, read(id, extent, 1, 0)),
            4 => (Kind::Describe, frame(id, &request::Describe { extent })),
            5 => (Kind::List, frame(id, &request::List { after: None, limit: 0 })),
            6 => (Kind::SeqAtTime, frame(id, &request::SeqAtTime { extent, time: log_format::ids::Timestamp(1) })),
            _ => (Kind::Append, append(id, extent_of(0, 77), &["nowhere"])),
        };
        expected.insert(id, kind);
        bytes.extend(frame);
    }
    let mut sending = connection.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || sending.write_all(&bytes).unwrap());
    let (mut last_ack, mut acked) = (0, 0);
    while !expected.is_empty() {
        let answer = connection.answer();
        let ids = match answer.reply() {
            Reply::Append(acks) => {
                let acks: Vec<_> = acks.acks().collect();
                assert_eq!(answer.header.request_id, acks[0].request_id);
                acked += acks.iter().map(|ack| u64::from(ack.count)).sum::<u64>();
                acks.iter().map(|ack| ack.request_id.0).collect()
            }
            Reply::Commit(_) => {
                acked += 1;
                vec![answer.header.request_id.0]
            }
            Reply::Refused(refusal) => {
                // More reads at a time than a connection may have are overloading it.
                assert!(matches!(refusal, Refusal::NotFound | Refusal::Overloaded { .. }), "{refusal}");
                assert_eq!(expected.remove(&answer.header.request_id.0), Some(answer.header.kind));
                continue;
            }
            _ => {
                assert_eq!(expected.remove(&answer.header.request_id.0), Some(answer.header.kind));
                continue;
            }
        };
        for id in ids {
            assert!(id > last_ack, "acks come in the order of their requests");
            last_ack = id;
            assert_eq!(expected.remove(&id), Some(answer.header.kind));
        }
    }
    sender.join().unwrap();
    assert_eq!(acked, records);
}

#[test]
fn a_peer_that_has_ended_its_sending_side_gets_its_answers() {
    let _bound = Bound::seconds("half closed", 60);
    let scratch = scratch!("half-closed");
    let node = Node::start(&scratch.path("data"));
    let (_keep, extent) = with_extent(node.socket_address(), 1);
    for round in 0..20 {
        let mut connection = RawConnection::greeted(node.socket_address(), Some(0));
        let mut bytes = Vec::new();
        for number in 1..=100 {
            bytes.extend(append(number, extent, &[record(round, number)]));
        }
        // A long poll for a record that comes with the appends, and a read.
        bytes.extend(read(1000, extent, 100 * round as u64 + 1, 5000));
        connection.send(&bytes);
        connection.half_close();
        let (mut acked, mut has_read) = (0, false);
        while let Some(answer) = connection.receive().unwrap() {
            match answer.reply() {
                Reply::Append(acks) => acked += acks.acks().len(),
                Reply::Read(read) => has_read = read.entries().next().is_some(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((acked, has_read), (100, true), "round {round}");
    }
}

#[test]
fn a_port_scanner_and_an_http_client_do_no_harm() {
    let _bound = Bound::seconds("scanner", 60);
    let scratch = scratch!("scanner");
    let node = Node::start(&scratch.path("data"));
    for _ in 0..200 {
        drop(RawConnection::connect(node.socket_address()));
    }
    let mut http = RawConnection::connect(node.socket_address());
    http.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = Vec::new();
    let _ = http.stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(&FRAME_MAGIC.to_le_bytes()), "{answer:?}");
    assert_serves(node.socket_address());
}
