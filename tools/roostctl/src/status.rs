//! `roostctl status`: what the node is, and how much it holds.

use crate::Connect;
use crate::failure::Failure;
use crate::output::{Output, table};
use client::{ExtentState, ShardIndex};
use serde::Serialize;

#[derive(Serialize)]
struct Status<'a> {
    node: String,
    incarnation: u64,
    software: &'a str,
    durability: &'a str,
    record_size_max: u32,
    shards: Vec<Shard>,
}

#[derive(Default, Serialize)]
struct Shard {
    shard: u32,
    extents_open: u64,
    extents_sealed: u64,
    records: u64,
    payload_bytes: u64,
}

pub(crate) async fn run(connect: &Connect) -> Result<(), Failure> {
    let client = connect.client(Connect::options()).await?;
    let node = client.node();
    let mut shards = Vec::new();
    for shard in 0..node.shard_count {
        let listed = client.list_shard(ShardIndex(shard)).await;
        let extents = listed.map_err(|error| Failure::of_client(format!("list the extents of shard {shard}"), error))?;
        let mut sum = Shard { shard, ..Shard::default() };
        for info in extents {
            match info.state {
                ExtentState::Open => sum.extents_open += 1,
                ExtentState::Sealed => sum.extents_sealed += 1,
            }
            sum.records += info.records;
            sum.payload_bytes += info.payload_bytes;
        }
        shards.push(sum);
    }
    let status = Status {
        node: node.node.to_string(),
        incarnation: node.incarnation.0,
        software: &node.software,
        durability: &node.durability,
        record_size_max: node.max_record_size,
        shards,
    };
    let mut output = Output::new();
    if connect.json {
        output.json(&status)?;
    } else {
        output.line(format!("node {} ({}), incarnation {}", status.node, status.software, status.incarnation))?;
        output.line(format!("durability {}, records up to {} bytes", status.durability, status.record_size_max))?;
        let row = |shard: &Shard| {
            [u64::from(shard.shard), shard.extents_open, shard.extents_sealed, shard.records, shard.payload_bytes]
                .map(|number| number.to_string())
                .to_vec()
        };
        let rows: Vec<_> = status.shards.iter().map(row).collect();
        for line in table(&["shard", "open extents", "sealed extents", "records", "payload bytes"], &rows, 0) {
            output.line(line)?;
        }
    }
    output.flush()
}
