//! The JSON of /status.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use log_format::ids::{Incarnation, NodeId};
use serde_json::{Map, Value, json};
use storage_node::status::{Counters, Histogram, Phase, ShardStatus};

use super::config::Config;
use super::control::Stage;
use super::health::ShardHealth;
use super::shards::Medium;

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What does not change while the node runs.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) medium: Medium,
    pub(crate) admin: SocketAddr,
    pub(crate) config: Config,
    pub(crate) started: Instant,
    pub(crate) started_at: SystemTime,
}

impl About {
    /// When the process started, in seconds since the Unix epoch.
    pub(crate) fn started_at_seconds(&self) -> f64 {
        self.started_at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    }
}

/// Everything the node says about itself.
pub(crate) fn status(about: &About, stage: &Stage, shards: &[ShardHealth]) -> Value {
    let Config { node, log, memory, .. } = &about.config;
    json!({
        "node": about.node.to_string(),
        "incarnation": about.incarnation.0,
        "version": VERSION,
        "stage": stage.name(),
        "uptime_seconds": about.started.elapsed().as_secs_f64(),
        "started_at_seconds": about.started_at_seconds(),
        "listen": stage.listen().map(|address| address.to_string()),
        "admin": about.admin.to_string(),
        "durability": about.medium.durability,
        "device": about.medium.device,
        "alignment_bytes": about.medium.alignment,
        "config": {
            "data_dir": node.data_dir.to_string_lossy(),
            "shards": shards.len(),
            "segment_size_bytes": log.segment_size.0,
            "prepared_segments": log.prepared_segments,
            "block_size_bytes": log.block_size.0,
            "commit_depth": log.commit_depth,
            "record_size_max_bytes": log.record_size_max.0,
            "tail_cache_bytes": memory.tail_cache.0,
            "page_cache_bytes": memory.page_cache.0,
            "receive_budget_bytes": memory.receive_budget.0,
            "connection_in_flight": memory.connection_in_flight,
        },
        "shards": shards.iter().enumerate().map(|(index, health)| shard(index, health)).collect::<Vec<_>>(),
    })
}

fn shard(index: usize, health: &ShardHealth) -> Value {
    let status = match health {
        ShardHealth::Silent => return json!({ "shard": index, "state": "silent" }),
        ShardHealth::Ended => return json!({ "shard": index, "state": "ended" }),
        ShardHealth::Reported(status) => status,
    };
    let ShardStatus {
        shard,
        phase,
        open_segment,
        segments,
        segments_prepared,
        last_block,
        durable_block,
        blocks_in_flight,
        extents_open,
        extents_sealed,
        records_live,
        payload_bytes_held,
        connections,
        receive_buffer_bytes,
        tail_cache_bytes,
        index_bytes,
        recovery_ns,
        recovery_blocks,
        counters: totals,
    } = status.as_ref();
    json!({
        "shard": shard.0,
        "state": phase_name(phase),
        "read_only_reason": match phase { Phase::ReadOnly(why) => Some(why), _ => None },
        "open_segment": open_segment.0,
        "segments": segments,
        "segments_prepared": segments_prepared,
        "last_block": last_block.0,
        "durable_block": durable_block.0,
        "blocks_in_flight": blocks_in_flight,
        "extents_open": extents_open,
        "extents_sealed": extents_sealed,
        "records_live": records_live,
        "payload_bytes_held": payload_bytes_held,
        "connections": connections,
        "receive_buffer_bytes": receive_buffer_bytes,
        "tail_cache_bytes": tail_cache_bytes,
        "index_bytes": index_bytes,
        "recovery_ns": recovery_ns,
        "recovery_blocks": recovery_blocks,
        "counters": counters(totals),
    })
}

fn counters(totals: &Counters) -> Value {
    let Counters {
        records_appended,
        payload_bytes_appended,
        records_read,
        payload_bytes_read,
        blocks_written,
        block_bytes_written,
        prepare_bytes_written,
        footer_bytes_written,
        device_bytes_read,
        segments_closed,
        segments_recycled,
        device_errors,
        checksum_failures,
        refusals,
        device_write_ns,
        commit_ns,
        block_size_bytes,
    } = totals;
    let refused: Map<String, Value> = refusals
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
        .map(|(code, count)| (refusal_name(code), json!(count)))
        .collect();
    json!({
        "records_appended": records_appended,
        "payload_bytes_appended": payload_bytes_appended,
        "records_read": records_read,
        "payload_bytes_read": payload_bytes_read,
        "blocks_written": blocks_written,
        "block_bytes_written": block_bytes_written,
        "prepare_bytes_written": prepare_bytes_written,
        "footer_bytes_written": footer_bytes_written,
        "device_bytes_read": device_bytes_read,
        "segments_closed": segments_closed,
        "segments_recycled": segments_recycled,
        "device_errors": device_errors,
        "checksum_failures": checksum_failures,
        "refusals": refused,
        "device_write_ns": histogram(device_write_ns),
        "commit_ns": histogram(commit_ns),
        "block_size_bytes": histogram(block_size_bytes),
    })
}

fn histogram(histogram: &Histogram) -> Value {
    json!({ "bounds": histogram.bounds, "counts": histogram.counts, "sum": histogram.sum, "count": histogram.count() })
}

/// The name of a phase.
pub(crate) fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Recovering => "recovering",
        Phase::Serving => "serving",
        Phase::ReadOnly(_) => "read_only",
        Phase::Draining => "draining",
    }
}

/// The name of an error code of the protocol (`ErrorCode` in log-format/schema/wire.fbs).
pub(crate) fn refusal_name(code: usize) -> String {
    const NAMES: [&str; 19] = [
        "none",
        "not_found",
        "sealed",
        "fenced",
        "trimmed",
        "wrong_shard",
        "not_primary",
        "too_large",
        "seq_mismatch",
        "overloaded",
        "read_only",
        "corrupt",
        "bad_checksum",
        "bad_request",
        "unsupported",
        "shutting_down",
        "already_exists",
        "unknown_outcome",
        "version_mismatch",
    ];
    NAMES.get(code).map_or_else(|| format!("code_{code}"), |name| (*name).to_owned())
}
