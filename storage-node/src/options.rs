//! What a shard is told at its start.

use log_format::ids::{Incarnation, NodeId, ShardIndex};

/// A shard's settings. All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// The node's id, bound into every segment.
    pub node: NodeId,
    /// The node's incarnation, bound into every segment.
    pub incarnation: Incarnation,
    /// Which shard this is.
    pub shard: ShardIndex,
    /// How many shards the node has.
    pub shard_count: u32,
    /// A segment's size: a multiple of 4096.
    pub segment_size: u64,
    /// Segments kept prepared ahead.
    pub prepared_segments: usize,
    /// A block is full at this size.
    pub block_size: usize,
    /// Blocks on their way to the device at the same time, at most.
    pub commit_depth: usize,
    /// The greatest record.
    pub record_size_max: usize,
    /// Recent blocks kept in memory for readers near the tail.
    pub tail_cache_bytes: usize,
    /// Footer pages kept in memory.
    pub page_cache_bytes: usize,
    /// Receive buffers of all connections together.
    pub receive_budget_bytes: usize,
    /// Requests that one connection may have unanswered.
    pub connection_in_flight: usize,
}

impl ShardOptions {
    /// The greatest payload of one request, in bytes: the records of an op lie in one block, and a segment holds a few of the greatest blocks.
    pub fn op_size_max(&self) -> usize {
        let quarter = usize::try_from(self.segment_size / 4).unwrap_or(usize::MAX);
        self.record_size_max.max(quarter.min(1 << 20))
    }
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            node: NodeId(0),
            incarnation: Incarnation(1),
            shard: ShardIndex(0),
            shard_count: 1,
            segment_size: 256 << 20,
            prepared_segments: 2,
            block_size: 256 << 10,
            commit_depth: 2,
            record_size_max: 1 << 20,
            tail_cache_bytes: 64 << 20,
            page_cache_bytes: 16 << 20,
            receive_budget_bytes: 256 << 20,
            connection_in_flight: 16_384,
        }
    }
}
