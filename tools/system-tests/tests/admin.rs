//! What a live node says of itself: its figures are those of the load that it had.

#![allow(clippy::unwrap_used)]

use client::{Client, ClientError, ClientOptions, Epoch, NewExtent, Read, Seq};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::Duration;
use system_tests::{Bound, Node, NodeOptions, record, scratch};

/// The sum over the shards of a figure of /status.
fn status_sum(status: &Value, path: &str) -> u64 {
    status["shards"].as_array().unwrap().iter().map(|shard| shard.pointer(path).and_then(Value::as_u64).unwrap()).sum()
}

fn status(node: &Node) -> Value {
    let (code, body) = node.get("/status");
    assert_eq!(code, 200);
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn the_figures_of_a_live_node_are_those_of_its_load() {
    let _bound = Bound::seconds("figures", 120);
    let scratch = scratch!("figures");
    let data = scratch.path("data");
    let options = NodeOptions { segment_size: "1M", ..NodeOptions::default() };
    let node = Node::start_with(&data, &options);
    for path in ["/startupz", "/livez", "/readyz"] {
        assert_eq!(node.get(path), (200, "ok\n".to_owned()), "{path}");
    }
    assert_eq!(node.get("/nothing").0, 404);
    assert_eq!(node.metric("roost_records_appended_total", &[]), 0.0);

    let client = Client::connect(node.address(), ClientOptions::default()).await.unwrap();
    let (mut records, mut bytes) = (0u64, 0u64);
    let mut extents = Vec::new();
    for _ in 0..6 {
        let extent = client.create_extent(NewExtent::new()).await.unwrap().extent;
        let mut appender = client.appender(extent).await.unwrap();
        let mut acks = Vec::new();
        for number in 0..500 {
            let mut record = record(extent.0, number);
            record.truncate(20_000);
            (records, bytes) = (records + 1, bytes + record.len() as u64);
            acks.push(appender.send(record).await.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
        extents.push(extent);
    }
    let extent = extents[0];
    let page = client.read(Read { extent, from_seq: Seq(1), max_bytes: 0, max_records: 10, wait_ms: 0 }).await.unwrap();
    let read: usize = page.records.iter().map(|record| record.data.len()).sum();
    client.seal(extent, Epoch(0)).await.unwrap();
    for _ in 0..3 {
        assert!(matches!(client.append(extent, "late").await, Err(ClientError::Refused(_))));
    }
    client.trim(extents[1], Seq(100), Epoch(0)).await.unwrap();
    client.delete(extents[2], Epoch(0)).await.unwrap();

    let figure = |name, labels: &[&str]| node.metric(name, labels) as u64;
    assert_eq!(figure("roost_records_appended_total", &[]), records);
    assert_eq!(figure("roost_payload_appended_bytes_total", &[]), bytes);
    assert_eq!(figure("roost_records_read_total", &[]), page.records.len() as u64);
    assert_eq!(figure("roost_payload_read_bytes_total", &[]), read as u64);
    assert_eq!(figure("roost_refusals_total", &[]), 3);
    assert_eq!(figure("roost_extents", &["state=\"open\""]), 4);
    assert_eq!(figure("roost_extents", &["state=\"sealed\""]), 1);
    assert_eq!(figure("roost_records_live", &[]), records - 500 - 100);
    assert_eq!(figure("roost_connections", &[]), 2);
    assert_eq!(figure("roost_device_errors_total", &[]), 0);
    assert_eq!(figure("roost_checksum_failures_total", &[]), 0);
    assert_eq!(figure("roost_shard_state", &["state=\"serving\""]), 2);
    assert_eq!(figure("roost_blocks_in_flight", &[]), 0);
    let (blocks, written) = (figure("roost_blocks_written_total", &[]), figure("roost_block_written_bytes_total", &[]));
    assert!(blocks > 6 && written > bytes && written % 4096 == 0 && written >= blocks * 4096, "{blocks} blocks, {written} bytes");
    // 1.7 MiB in segments of 1 MiB: one is closed, off the commit path, in its own time; the test's bound is the limit.
    while figure("roost_segments_closed_total", &[]) == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(figure("roost_device_write_seconds_count", &[]), blocks);
    assert_eq!(figure("roost_block_size_bytes_sum", &[]), written);
    assert!(node.metric("roost_commit_seconds_sum", &[]) > 0.0);

    let status = status(&node);
    assert_eq!(status["stage"], "serving");
    assert_eq!(status["listen"], node.address());
    assert_eq!(status["node"], client.node().node.to_string());
    assert_eq!(status_sum(&status, "/counters/records_appended"), records);
    assert_eq!(status_sum(&status, "/records_live"), records - 600);
    assert_eq!(status_sum(&status, "/segments"), figure("roost_segments", &[]));
    drop(client);
    node.stop(Duration::from_secs(20));

    // What lives is found again; what is counted since the start begins anew.
    let node = Node::start_with(&data, &options);
    assert_eq!(node.metric("roost_records_live", &[]) as u64, records - 600);
    assert_eq!(node.metric("roost_records_appended_total", &[]), 0.0);
    assert_eq!(node.metric("roost_extents", &["state=\"sealed\""]), 1.0);
}

#[tokio::test]
async fn the_metrics_are_well_formed_and_every_family_is_described() {
    let _bound = Bound::seconds("metrics", 60);
    let scratch = scratch!("metrics");
    let node = Node::start(&scratch.path("data"));
    let (code, text) = node.get("/metrics");
    assert_eq!(code, 200);
    let mut described = std::collections::BTreeMap::new();
    let mut samples = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(described.insert(name, kind), None, "{name} twice");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            assert!(samples.insert(series), "{series} twice");
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| name.strip_suffix(part))
                .filter(|name| described.contains_key(name));
            let kind = described.get(family.unwrap_or(name)).unwrap_or_else(|| panic!("{name} is not described"));
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        }
    }
    assert!(samples.len() > 50);
}

#[test]
fn a_node_that_stops_is_not_ready_and_a_stopped_one_says_nothing() {
    let _bound = Bound::seconds("not ready", 60);
    let scratch = scratch!("not-ready");
    let mut node = Node::start(&scratch.path("data"));
    let admin = node.ready_value("admin").to_owned();
    node.signal(Signal::SIGINT);
    assert_eq!(node.wait(Duration::from_secs(20)).code(), Some(0));
    assert!(std::net::TcpStream::connect(admin).is_err());
}
