use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Instant, SystemTime};

use log_format::ids::{Incarnation, NodeId};
use storage_node::status::Phase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::super::config::Config;
use super::super::shards::Medium;
use super::super::test_shards::{Behaviour, shard};
use super::*;

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7440);

/// An endpoint over shards of the given behaviours.
async fn endpoint(behaviours: &[Behaviour], stage: Stage) -> (SocketAddr, watch::Sender<Stage>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = watch::channel(stage);
    let about = About {
        node: NodeId(7),
        incarnation: Incarnation(3),
        medium: Medium { durability: "o_dsync".to_owned(), device: "vda \"ext4\"".to_owned(), alignment: 512 },
        admin: address,
        config: Config::default(),
        started: Instant::now(),
        started_at: SystemTime::now(),
    };
    let shards = behaviours.iter().enumerate().map(|(index, behaviour)| shard(index as u32, behaviour.clone())).collect();
    tokio::spawn(serve(listener, Arc::new(Admin { about, shards, stage: receiver })));
    (address, sender)
}

/// The status code and the body.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn a_serving_node_passes_all_probes() {
    let (address, _stage) =
        endpoint(&[Behaviour::Answers(Phase::Serving), Behaviour::Answers(Phase::Serving)], Stage::Serving { listen: LISTEN })
            .await;
    for path in ["/startupz", "/livez", "/readyz"] {
        assert_eq!(get(address, path).await, (200, "ok\n".to_owned()), "{path}");
    }
    assert_eq!(get(address, "/nothing").await.0, 404);
}

#[tokio::test]
async fn a_recovering_shard_is_live_but_neither_started_nor_ready() {
    let (address, _stage) =
        endpoint(&[Behaviour::Answers(Phase::Serving), Behaviour::Answers(Phase::Recovering)], Stage::Starting).await;
    assert_eq!(get(address, "/livez").await.0, 200);
    for path in ["/startupz", "/readyz"] {
        assert_eq!(get(address, path).await, (503, "shard 1 is recovering\nthe node is starting\n".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn a_read_only_shard_has_started_but_is_not_ready() {
    let (address, _stage) =
        endpoint(&[Behaviour::Answers(Phase::ReadOnly("disk full".to_owned()))], Stage::Serving { listen: LISTEN }).await;
    assert_eq!(get(address, "/startupz").await.0, 200);
    assert_eq!(get(address, "/livez").await.0, 200);
    assert_eq!(get(address, "/readyz").await, (503, "shard 0 is read-only: disk full\n".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_shard_fails_livez_and_readyz() {
    let (address, _stage) =
        endpoint(&[Behaviour::Answers(Phase::Serving), Behaviour::Hangs], Stage::Serving { listen: LISTEN }).await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(get(address, path).await, (503, "shard 1 does not answer within 2 s\n".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn a_draining_node_is_live_but_not_ready() {
    let (address, stage) =
        endpoint(&[Behaviour::Gone, Behaviour::Answers(Phase::Draining)], Stage::Serving { listen: LISTEN }).await;
    stage.send_replace(Stage::Draining { listen: Some(LISTEN) });
    assert_eq!(get(address, "/livez").await.0, 200);
    assert_eq!(get(address, "/readyz").await, (503, "shard 0 has ended\nshard 1 is draining\nthe node is draining\n".to_owned()));
}

#[tokio::test]
async fn status_is_json_with_every_shard() {
    let (address, _stage) =
        endpoint(&[Behaviour::Answers(Phase::ReadOnly("why".to_owned())), Behaviour::Gone], Stage::Serving { listen: LISTEN })
            .await;
    let (code, body) = get(address, "/status").await;
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(code, 200);
    assert_eq!(status["node"], "00000000-0000-0000-0000-000000000007");
    assert_eq!(status["listen"], "127.0.0.1:7440");
    assert_eq!(status["config"]["segment_size_bytes"], 268_435_456);
    assert_eq!(status["shards"][0]["state"], "read_only");
    assert_eq!(status["shards"][0]["read_only_reason"], "why");
    assert_eq!(status["shards"][0]["durable_block"], 15);
    assert_eq!(status["shards"][0]["counters"]["refusals"]["sealed"], 5);
    assert_eq!(status["shards"][0]["counters"]["commit_ns"]["count"], 3);
    assert_eq!(status["shards"][1]["state"], "ended");
}

#[tokio::test]
async fn metrics_are_served_as_prometheus_text() {
    let (address, _stage) = endpoint(&[Behaviour::Answers(Phase::Serving)], Stage::Serving { listen: LISTEN }).await;
    let (code, body) = get(address, "/metrics").await;
    assert_eq!(code, 200);
    assert!(body.contains("\nroost_records_appended_total{shard=\"0\"} 1001\n"), "{body}");
    assert!(body.contains("\nprocess_resident_memory_bytes "), "{body}");
}
