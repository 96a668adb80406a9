//! SIGTERM under load: the node ends in time with exit code 0, clients get typed answers, and what was acked is there.

#![allow(clippy::unwrap_used)]

use client::{Client, ClientOptions};
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use system_tests::load::{Writer, check};
use system_tests::{Bound, Node, scratch, seeded};
use tokio::task::JoinSet;

/// The node's own bound for what is in flight, and room for a busy machine.
const END_MAX: Duration = Duration::from_secs(30);

async fn connect(node: &Node) -> Client {
    let options = ClientOptions { reconnect_for: Duration::ZERO, ..ClientOptions::default() };
    Client::connect(node.address(), options).await.unwrap()
}

#[tokio::test]
async fn sigterm_under_load_ends_the_node_in_time_and_keeps_what_was_acked() {
    let _bound = Bound::seconds("shutdown", 180);
    let mut random = seeded("shutdown");
    let scratch = scratch!("shutdown");
    let data = scratch.path("data");
    let mut node = Node::start(&data);
    let client = connect(&node).await;
    let mut writers: Vec<Writer> = (0..3).map(|_| Writer::new(8, &mut random)).collect();
    for writer in &writers {
        writer.create_all(&client).await;
    }
    drop(client);
    for round in 0..5 {
        let mut running = JoinSet::new();
        for writer in writers {
            // Any error but ShuttingDown and the loss of the connection fails the writer.
            running.spawn(writer.run_until_lost(connect(&node).await, ChaCha8Rng::from_rng(&mut random)));
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(20..400))).await;
        node.signal(Signal::SIGTERM);
        // The writers run on this thread, and must run for the node to get its last answers out.
        let ended = tokio::task::spawn_blocking(move || {
            let mut node = node;
            (node.wait(END_MAX), node)
        });
        let (status, ended) = ended.await.unwrap();
        assert_eq!(status.code(), Some(0), "round {round}: {status}");
        drop(ended);
        writers = running.join_all().await;

        node = Node::start(&data);
        let client = connect(&node).await;
        for writer in &mut writers {
            check(&client, writer, true).await;
        }
    }
    let acked: u64 = writers.iter().map(|writer| writer.acked).sum();
    let unknown: u64 = writers.iter().map(|writer| writer.unknown).sum();
    println!("{acked} records acked, 0 lost; {unknown} without an ack");
    assert!(acked > 100, "there was hardly any load");
}

#[tokio::test]
async fn an_idle_node_with_connections_and_long_polls_ends_at_once() {
    let _bound = Bound::seconds("shutdown, idle", 60);
    let scratch = scratch!("shutdown-idle");
    let node = Node::start(&scratch.path("data"));
    let client = connect(&node).await;
    let extent = client.create_extent(client::NewExtent::new()).await.unwrap().extent;
    let mut reader = client.reader(extent, client::Seq(1), client::ReaderOptions::default());
    let waiting = tokio::spawn(async move { reader.next().await });
    // The long poll stands when the node counts a connection on which something is under way; its answer to a later
    // request on the same connection says that it has been taken up.
    client.describe(extent).await.unwrap();
    tokio::task::spawn_blocking(move || node.stop(Duration::from_secs(8))).await.unwrap();
    assert!(waiting.await.unwrap().is_err(), "the long poll ends with its node");
}
