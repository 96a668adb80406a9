//! SIGKILL at random moments under load, again and again on the same data: nothing acked is lost, nothing comes that nobody sent.
//!
//! 50 rounds; with `ROOST_LONG=1` 500. `ROOST_SEED` repeats the load and the moments, as far as a real machine does.

#![allow(clippy::unwrap_used)]

use client::{Client, ClientOptions};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use system_tests::load::{Writer, check};
use system_tests::{Bound, Node, NodeOptions, is_long, scratch, seeded};
use tokio::task::JoinSet;

const WRITERS: usize = 4;
/// Extents of a writer.
const EXTENTS: usize = 25;
/// The longest that a node is under load before it is killed.
const LOAD_MAX_MS: u64 = 350;
/// Every so many rounds all but the newest records are trimmed, and what is left is read in full.
const TRIM_EVERY: usize = 8;
/// What the data may take on the disk at the end: two shards with their prepared segments, and what lives.
const DISK_MAX: u64 = 1 << 30;

fn options() -> NodeOptions {
    NodeOptions { segment_size: "4M", ..NodeOptions::default() }
}

/// A client that takes the loss of its node for what it is.
async fn connect(node: &Node) -> Client {
    let options = ClientOptions { reconnect_for: Duration::ZERO, ..ClientOptions::default() };
    Client::connect(node.address(), options).await.unwrap()
}

/// Starts the node; now and then one that is killed in the middle of its start comes first.
fn start(data: &Path, random: &mut ChaCha8Rng) -> Node {
    while random.random_ratio(1, 4) {
        let node = Node::launch(data, &options());
        std::thread::sleep(Duration::from_micros(random.random_range(0..120_000)));
        node.kill();
    }
    Node::start_with(data, &options())
}

fn disk_use(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(
            |entry| {
                if entry.file_type().unwrap().is_dir() {
                    disk_use(&entry.path())
                } else {
                    entry.metadata().unwrap().blocks() * 512
                }
            },
        )
        .sum()
}

/// Lets all writers append until the node is killed.
async fn load_until_killed(node: Node, writers: Vec<Writer>, random: &mut ChaCha8Rng) -> Vec<Writer> {
    let mut running = JoinSet::new();
    for writer in writers {
        let client = connect(&node).await;
        running.spawn(writer.run_until_lost(client, ChaCha8Rng::from_rng(random)));
    }
    tokio::time::sleep(Duration::from_micros(random.random_range(0..LOAD_MAX_MS * 1000))).await;
    node.kill();
    running.join_all().await
}

/// Checks everything against what was acked, and takes note of what else is there.
async fn check_all(client: &Client, writers: &mut [Writer], in_full: bool) {
    let mut known = BTreeSet::new();
    for writer in writers.iter_mut() {
        check(client, writer, in_full).await;
        known.extend(writer.extents.iter().map(|extent| extent.id));
    }
    let there: BTreeSet<_> = client.list().await.unwrap().into_iter().map(|info| info.extent).collect();
    assert_eq!(there, known, "the extents");
}

#[tokio::test]
async fn what_was_acked_survives_sigkill_at_any_moment() {
    let rounds = if is_long() { 500 } else { 50 };
    let _bound = Bound::seconds("kill", if is_long() { 1800 } else { 240 });
    let mut random = seeded("kill");
    let scratch = scratch!("kill");
    let data = scratch.path("data");
    let started = Instant::now();
    let node = start(&data, &mut random);
    let client = connect(&node).await;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let writer = Writer::new(EXTENTS, &mut random);
        writer.create_all(&client).await;
        writers.push(writer);
    }
    let mut node = node;
    for round in 1..=rounds {
        writers = load_until_killed(node, writers, &mut random).await;
        node = start(&data, &mut random);
        let client = connect(&node).await;
        let in_full = round % TRIM_EVERY == 0 || round == rounds;
        check_all(&client, &mut writers, in_full).await;
        if in_full {
            for writer in &mut writers {
                writer.trim_all(&client).await;
            }
        }
    }
    let acked: u64 = writers.iter().map(|writer| writer.acked).sum();
    let unknown: u64 = writers.iter().map(|writer| writer.unknown).sum();
    let on_disk = disk_use(&data);
    println!(
        "{rounds} rounds in {:.1} s: {acked} records acked, 0 lost; {unknown} without an ack; {on_disk} bytes on disk",
        started.elapsed().as_secs_f64()
    );
    assert!(acked > 100 * rounds as u64, "there was hardly any load: {acked} records in {rounds} rounds");
    assert!(on_disk < DISK_MAX, "{on_disk} bytes on disk: trimmed segments are not used again");
    node.stop(Duration::from_secs(20));
}
