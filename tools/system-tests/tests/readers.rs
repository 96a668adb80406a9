//! In-order readers of the client: each record once, in order, right after its ack.

#![allow(clippy::unwrap_used)]

use client::{Client, ClientOptions, Epoch, ExtentId, NewExtent, Reader, ReaderOptions, Seq};
use std::time::{Duration, Instant};
use system_tests::{Bound, Node, record, scratch};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Records that are appended one by one, and then many in flight.
const SINGLE: u64 = 500;
const MANY: u64 = 15_000;
/// How long after its ack a record may take to a waiting reader: far over what it takes on a busy machine, and far under the 10 s that a long
/// poll waits at most.
const DELAY_MAX: Duration = Duration::from_secs(3);
/// The same for most of them.
const DELAY_MOST: Duration = Duration::from_millis(100);

async fn connect(node: &Node) -> Client {
    Client::connect(node.address(), ClientOptions::default()).await.unwrap()
}

/// Reads to the end of the extent in a task of its own, checking each record; tells when each came, and at the end how many.
fn watch(mut reader: Reader, extent: ExtentId, first: u64, came: mpsc::UnboundedSender<(u64, Instant)>) -> JoinHandle<u64> {
    tokio::spawn(async move {
        let mut expected = first;
        while let Some(record_read) = reader.next().await.unwrap() {
            assert_eq!(record_read.seq, Seq(expected));
            assert!(record_read.data == record(extent.0, expected), "the bytes of record {expected}");
            // The test may have heard enough.
            let _ = came.send((expected, Instant::now()));
            expected += 1;
        }
        expected - first
    })
}

#[tokio::test]
async fn readers_from_the_start_and_at_the_tail_see_each_record_once_in_order_right_after_its_ack() {
    let _bound = Bound::seconds("readers", 180);
    let scratch = scratch!("readers");
    let node = Node::start(&scratch.path("data"));
    let (client, reading) = (connect(&node).await, connect(&node).await);
    let extent = client.create_extent(NewExtent::new()).await.unwrap().extent;
    let mut appender = client.appender(extent).await.unwrap();
    let (sender, mut came) = mpsc::unbounded_channel();
    let at_tail = watch(reading.reader(extent, Seq(1), ReaderOptions::default()), extent, 1, sender);

    let mut delays = Vec::new();
    for number in 1..=SINGLE {
        assert_eq!(appender.append(record(extent.0, number)).await.unwrap().seq, Seq(number));
        let acked = Instant::now();
        let (seq, at) = tokio::time::timeout(DELAY_MAX, came.recv()).await.expect("it comes right after its ack").unwrap();
        assert_eq!(seq, number);
        delays.push(at.saturating_duration_since(acked));
    }
    delays.sort_unstable();
    println!(
        "ack to reader: median {:?}, 90 % {:?}, most {:?}",
        delays[delays.len() / 2],
        delays[delays.len() * 9 / 10],
        delays[delays.len() - 1]
    );
    assert!(delays[delays.len() * 9 / 10] < DELAY_MOST, "{delays:?}");

    // Many in flight, while one reader is at the tail, one comes from the start, and one starts in the middle.
    let (sender, _heard) = mpsc::unbounded_channel();
    let from_start = watch(reading.reader(extent, Seq(1), ReaderOptions::default()), extent, 1, sender.clone());
    let options = ReaderOptions { max_records: 7, max_bytes: 4096, ..ReaderOptions::default() };
    let in_middle = watch(reading.reader(extent, Seq(SINGLE / 2), options), extent, SINGLE / 2, sender);
    let mut acks = Vec::new();
    for number in SINGLE + 1..=SINGLE + MANY {
        acks.push(appender.send(record(extent.0, number)).await.unwrap());
    }
    for (number, ack) in (SINGLE + 1..).zip(acks) {
        assert_eq!(ack.await.unwrap().seq, Seq(number));
    }
    assert_eq!(client.seal(extent, Epoch(0)).await.unwrap().last_seq, Seq(SINGLE + MANY));
    let readers = async { (at_tail.await.unwrap(), from_start.await.unwrap(), in_middle.await.unwrap()) };
    let counts = tokio::time::timeout(Duration::from_secs(100), readers).await.expect("readers end behind a sealed extent");
    assert_eq!(counts, (SINGLE + MANY, SINGLE + MANY, SINGLE + MANY - SINGLE / 2 + 1));
}

#[tokio::test]
async fn a_reader_goes_on_where_it_was_when_its_node_was_killed_and_came_back() {
    let _bound = Bound::seconds("readers, restart", 120);
    let scratch = scratch!("readers-restart");
    let data = scratch.path("data");
    let node = Node::start(&data);
    let (client, reading) = (connect(&node).await, connect(&node).await);
    let extent = client.create_extent(NewExtent::new()).await.unwrap().extent;
    for number in 1..=10 {
        client.append(extent, record(extent.0, number)).await.unwrap();
    }
    let (sender, mut came) = mpsc::unbounded_channel();
    let reader = watch(reading.reader(extent, Seq(1), ReaderOptions::default()), extent, 1, sender);
    while came.recv().await.unwrap().0 < 10 {}
    let address = node.address().to_owned();
    node.kill();
    let node = Node::start_at(&data, &address);
    let client = connect(&node).await;
    for number in 11..=20 {
        assert_eq!(client.append(extent, record(extent.0, number)).await.unwrap().seq, Seq(number));
    }
    client.seal(extent, Epoch(0)).await.unwrap();
    assert_eq!(reader.await.unwrap(), 20);
}

#[tokio::test]
async fn a_reader_waits_at_the_tail_and_not_in_the_way_of_others_on_its_connection() {
    let _bound = Bound::seconds("readers, waiting", 60);
    let scratch = scratch!("readers-waiting");
    let node = Node::start(&scratch.path("data"));
    let client = connect(&node).await;
    let extent = client.create_extent(NewExtent::new()).await.unwrap().extent;
    let (sender, _came) = mpsc::unbounded_channel();
    let readers: Vec<_> =
        (0..20).map(|_| watch(client.reader(extent, Seq(1), ReaderOptions::default()), extent, 1, sender.clone())).collect();
    // The same connection: 20 long polls wait on it.
    for number in 1..=100 {
        let appended = tokio::time::timeout(DELAY_MAX, client.append(extent, record(extent.0, number))).await;
        assert_eq!(appended.expect("long polls hold nothing up").unwrap().seq, Seq(number));
    }
    client.seal(extent, Epoch(0)).await.unwrap();
    for reader in readers {
        assert_eq!(reader.await.unwrap(), 100);
    }
}
