//! What the tests of a shard in simulation share.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::path::Path;
use std::time::Duration;

use log_format::ids::{Epoch, ExtentId, ExtentKind, Seq};
use log_format::wire::{Record, Refusal};
use node_io::sim::SimRuntime;
use storage_node::{ReadBatch, ReadRequest, Shard, ShardOptions};

pub const DIR: &str = "/data/shard-0000";

pub fn options() -> ShardOptions {
    ShardOptions {
        segment_size: 1 << 20,
        prepared_segments: 1,
        block_size: 64 << 10,
        record_size_max: 128 << 10,
        tail_cache_bytes: 128 << 10,
        page_cache_bytes: 64 << 10,
        ..ShardOptions::default()
    }
}

pub async fn open(runtime: SimRuntime) -> Shard<SimRuntime> {
    Shard::open(runtime, Path::new(DIR), options()).await.expect("the shard opens")
}

pub fn records(payloads: &[Vec<u8>]) -> Vec<Record<'_>> {
    let record = |payload| Record { payload, checksum: log_format::payload_checksum(payload), deliver_at: Default::default() };
    payloads.iter().map(|payload| record(payload)).collect()
}

pub async fn append(shard: &Shard<SimRuntime>, extent: u128, payloads: &[Vec<u8>]) -> Result<Seq, Refusal> {
    let appended = shard.append(ExtentId(extent), Epoch(0), None, records(payloads).into_iter()).await?;
    shard.durable(appended.gate).await?;
    Ok(appended.value.first_seq)
}

pub async fn create(shard: &Shard<SimRuntime>, extent: u128) {
    let id = ExtentId(extent);
    let created = shard.create(id, id.into(), ExtentKind::Sequence, Epoch(0)).await.expect("created");
    shard.durable(created.gate).await.expect("durable");
}

pub async fn read(shard: &Shard<SimRuntime>, extent: u128, from: u64) -> Result<ReadBatch, Refusal> {
    let request = ReadRequest { extent: ExtentId(extent), from: Seq(from), max_bytes: 100_000, max_records: 1000 };
    shard.read(&request, Duration::ZERO).await
}

pub async fn read_all(shard: &Shard<SimRuntime>, extent: u128) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut from = 1;
    loop {
        let batch = read(shard, extent, from).await.expect("readable");
        if batch.entries.is_empty() {
            return all;
        }
        let mut rest = &batch.payload[..];
        for entry in &batch.entries {
            assert_eq!(entry.seq, Seq(all.len() as u64 + 1), "seqs are contiguous");
            let (payload, behind) = rest.split_at(entry.length as usize);
            all.push(payload.to_vec());
            rest = behind;
        }
        from = batch.next.0;
    }
}

pub fn payload(index: u64) -> Vec<u8> {
    let length = (index * 7919 % 3000) as usize;
    (0..length).map(|place| (index as usize * 31 + place) as u8).collect()
}
