//! Records of no bytes and of the most, batches, and commits, by the client against a node.

#![allow(clippy::unwrap_used)]

use client::{Client, ClientError, ClientOptions, Commit, Epoch, ExtentId, GroupId, NewExtent, ReaderOptions, Refusal, Seq};
use log_format::ids::shard_of;
use log_format::wire::Reply;
use std::path::Path;
use std::time::Duration;
use system_tests::raw::{RawConnection, append};
use system_tests::{Bound, Node, NodeOptions, scratch};

async fn connect(node: &Node) -> Client {
    Client::connect(node.address(), ClientOptions::default()).await.unwrap()
}

async fn read_all(client: &Client, extent: ExtentId) -> Vec<Vec<u8>> {
    let options = ReaderOptions { follow: false, ..ReaderOptions::default() };
    let mut reader = client.reader(extent, Seq(1), options);
    let mut records = Vec::new();
    while let Some(record) = reader.next().await.unwrap() {
        assert_eq!(record.seq, Seq(records.len() as u64 + 1));
        records.push(record.data.to_vec());
    }
    records
}

/// Appends records around the limit, in the client and past it, before and after a restart.
async fn limits_hold(data: &Path, options: &NodeOptions, limit: usize) {
    let node = Node::start_with(data, options);
    let client = connect(&node).await;
    assert_eq!(client.node().max_record_size as usize, limit);
    let extent = client.create_extent(NewExtent::new()).await.unwrap().extent;
    let largest: Vec<u8> = (0..limit as u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut expected = Vec::new();
    for bytes in [&b""[..], &largest, b"", &largest[1..], b"x", &largest] {
        let appended = client.append(extent, bytes).await.unwrap();
        expected.push(bytes.to_vec());
        assert_eq!(appended.seq, Seq(expected.len() as u64));
    }
    let too_large = [&largest[..], b"!"].concat();
    let is_too_large = |error: &ClientError| matches!(error, ClientError::Refused(Refusal::TooLarge { limit_bytes }) if *limit_bytes == limit as u64);
    assert!(is_too_large(&client.append(extent, &too_large).await.unwrap_err()), "the client refuses");
    expected.push(b"after".to_vec());
    assert_eq!(client.append(extent, "after").await.unwrap().seq, Seq(7));
    assert!(read_all(&client, extent).await == expected, "before the restart");

    // Past the client, which would not send it. The answer comes by itself, and the connection goes on.
    let shard = shard_of(extent.into(), client.node().shard_count);
    let mut raw = RawConnection::greeted(node.socket_address(), Some(shard.0));
    let answer = raw.ask(&append(5, extent, &[&too_large[..]]));
    assert_eq!(answer.refusal(), Refusal::TooLarge { limit_bytes: limit as u64 });
    let answer = raw.ask(&append(6, extent, &[b"raw"]));
    let Reply::Append(acks) = answer.reply() else { panic!("{answer:?}") };
    assert_eq!(acks.acks().next().unwrap().first_seq, Seq(8));
    expected.push(b"raw".to_vec());
    node.stop(Duration::from_secs(20));

    let node = Node::start_with(data, options);
    assert!(read_all(&connect(&node).await, extent).await == expected, "after the restart");
    node.kill();
    let node = Node::start_with(data, options);
    assert!(read_all(&connect(&node).await, extent).await == expected, "after a kill");
}

#[tokio::test]
async fn records_of_no_bytes_and_of_1_mib_work_and_one_byte_more_is_too_large() {
    let _bound = Bound::seconds("sizes", 120);
    let scratch = scratch!("sizes");
    limits_hold(&scratch.path("data"), &NodeOptions::default(), 1 << 20).await;
}

#[tokio::test]
async fn records_of_16_mib_work_where_they_are_allowed_and_one_byte_more_is_too_large() {
    let _bound = Bound::seconds("sizes, 16 MiB", 180);
    let scratch = scratch!("sizes-16m");
    let options = NodeOptions { segment_size: "64M", shards: 1, ..NodeOptions::default() };
    let options = options.with("ROOST_LOG_RECORD_SIZE_MAX", "16M").with("ROOST_LOG_PREPARED_SEGMENTS", 1);
    limits_hold(&scratch.path("data"), &options, 16 << 20).await;
}

#[tokio::test]
async fn batches_are_atomic_and_keep_their_expected_seq() {
    let _bound = Bound::seconds("batches", 60);
    let scratch = scratch!("batches");
    let node = Node::start(&scratch.path("data"));
    let client = connect(&node).await;
    let extent = client.create_extent(NewExtent::new()).await.unwrap().extent;
    let records: Vec<Vec<u8>> = (0..1000).map(|number| vec![number as u8; number % 700]).collect();
    let batch = client.append_batch(extent, &records, Some(Seq(1))).await.unwrap();
    assert_eq!((batch.first_seq, batch.count), (Seq(1), 1000));
    let refused = client.append_batch(extent, &records, Some(Seq(1))).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(Refusal::SeqMismatch { next: Seq(1001) })), "{refused}");
    // As many records as a request may have, and one more.
    let many: Vec<Vec<u8>> = vec![Vec::new(); 32_768];
    let batch = client.append_batch(extent, &many, Some(Seq(1001))).await.unwrap();
    assert_eq!((batch.first_seq, batch.count), (Seq(1001), 32_768));
    assert!(client.append_batch(extent, &vec![b""; 32_769], None).await.is_err());
    let expected: Vec<Vec<u8>> = records.into_iter().chain(many).collect();
    assert!(read_all(&client, extent).await == expected);
}

#[tokio::test]
async fn a_commit_is_done_in_all_its_extents_or_in_none() {
    let _bound = Bound::seconds("commit", 60);
    let scratch = scratch!("commit");
    let data = scratch.path("data");
    let node = Node::start(&data);
    let client = connect(&node).await;
    let group = GroupId(0xfeed);
    let mut extents = Vec::new();
    for _ in 0..3 {
        extents.push(client.create_extent(NewExtent::new().in_group(group)).await.unwrap().extent);
    }
    let [messages, leases, done] = extents[..] else { unreachable!("there are three") };
    let first = Commit::new(group).append(messages, Some(Seq(1)), ["a", "b", "c"]).append(leases, None, ["lease"]);
    let committed = client.commit(&first).await.unwrap();
    assert_eq!(committed.results.iter().map(|result| (result.first_seq.0, result.count)).collect::<Vec<_>>(), [(1, 3), (1, 1)]);
    let second = Commit::new(group).append(done, Some(Seq(1)), ["b"]).trim(messages, Seq(2)).append(messages, Some(Seq(4)), [""]);
    let after = client.commit(&second).await.unwrap();
    assert_eq!(after.op.0, committed.op.0 + 1);

    // The last operation does not fit: nothing of the commit is done.
    let refused = Commit::new(group).append(leases, None, ["x"]).trim(messages, Seq(3)).append(done, Some(Seq(9)), ["x"]);
    let error = client.commit(&refused).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Refusal::SeqMismatch { next: Seq(2) })), "{error}");
    // One of another group that is on this shard, so that the shard knows it.
    let stranger = (1..).map(ExtentId).find(|id| shard_of((*id).into(), 2) == shard_of(group, 2)).unwrap();
    client.create_extent(NewExtent::with_id(stranger)).await.unwrap();
    let error = client.commit(&Commit::new(group).append(leases, None, ["x"]).append(stranger, None, ["x"])).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Refusal::BadRequest { .. })), "{error}");

    let infos = async |client: &Client| {
        let mut infos = Vec::new();
        for extent in [messages, leases, done] {
            let info = client.describe(extent).await.unwrap();
            infos.push((info.group, info.first_seq.0, info.last_seq.0, info.records));
        }
        infos
    };
    let expected = [(group, 3, 4, 2), (group, 1, 1, 1), (group, 1, 1, 1)];
    assert_eq!(infos(&client).await, expected);
    node.kill();
    let node = Node::start(&data);
    let client = connect(&node).await;
    assert_eq!(infos(&client).await, expected);
    assert_eq!(client.trim(messages, Seq(4), Epoch(0)).await.unwrap(), Seq(4));
}
