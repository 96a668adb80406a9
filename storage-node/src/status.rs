//! What a shard tells the control thread about itself, and what the control thread may ask of it.
//!
//! Plain values: they cross threads by channel, and the admin endpoint renders them.

use log_format::ids::{BlockNumber, SegmentId, ShardIndex};
use tokio::sync::oneshot;

/// What the control thread asks of a shard.
pub enum ShardCommand {
    /// Report.
    Status(oneshot::Sender<ShardStatus>),
    /// Refuse new work, finish what is in flight, close the open segment, end. The answer comes when all of that is done.
    Drain(oneshot::Sender<()>),
}

/// Where a shard is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading its log back.
    Recovering,
    /// Taking appends and reads.
    Serving,
    /// Serving reads; appends are refused for the reason given.
    ReadOnly(String),
    /// Finishing what is in flight.
    Draining,
}

/// A histogram with fixed upper bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The buckets' upper bounds, ascending; a last bucket without a bound follows.
    pub bounds: &'static [u64],
    /// Observations in each bucket: one more than `bounds`.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// Counts one observation.
    pub fn observe(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Observations in all.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Upper bounds for latencies, in nanoseconds: 50 us to 10 s.
pub const LATENCY_BOUNDS_NS: &[u64] = &[
    50_000,
    100_000,
    200_000,
    400_000,
    800_000,
    1_600_000,
    3_200_000,
    6_400_000,
    12_800_000,
    25_600_000,
    51_200_000,
    102_400_000,
    1_000_000_000,
    10_000_000_000,
];
/// Upper bounds for sizes of blocks, in bytes: 4 KiB to 16 MiB.
pub const SIZE_BOUNDS_BYTES: &[u64] =
    &[4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576, 4_194_304, 16_777_216];

/// Totals since the shard started.
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    /// Records acked.
    pub records_appended: u64,
    /// Payload bytes of the records acked.
    pub payload_bytes_appended: u64,
    /// Records given to readers.
    pub records_read: u64,
    /// Payload bytes given to readers.
    pub payload_bytes_read: u64,
    /// Blocks on the device.
    pub blocks_written: u64,
    /// Bytes written to the device for blocks, padding and all.
    pub block_bytes_written: u64,
    /// Bytes written to the device to prepare segments.
    pub prepare_bytes_written: u64,
    /// Bytes written to the device for footers.
    pub footer_bytes_written: u64,
    /// Bytes read from the device.
    pub device_bytes_read: u64,
    /// Segments closed.
    pub segments_closed: u64,
    /// Retired segments taken for reuse.
    pub segments_recycled: u64,
    /// Failed device writes, flushes and reads.
    pub device_errors: u64,
    /// Records, blocks and index pages whose checks failed.
    pub checksum_failures: u64,
    /// Refusals, by the error code of the protocol.
    pub refusals: [u64; 32],
    /// Device write time of a block, ns.
    pub device_write_ns: Histogram,
    /// From an append's arrival in a block to its durability, ns.
    pub commit_ns: Histogram,
    /// Block lengths, bytes.
    pub block_size_bytes: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            records_appended: 0,
            payload_bytes_appended: 0,
            records_read: 0,
            payload_bytes_read: 0,
            blocks_written: 0,
            block_bytes_written: 0,
            prepare_bytes_written: 0,
            footer_bytes_written: 0,
            device_bytes_read: 0,
            segments_closed: 0,
            segments_recycled: 0,
            device_errors: 0,
            checksum_failures: 0,
            refusals: [0; 32],
            device_write_ns: Histogram::new(LATENCY_BOUNDS_NS),
            commit_ns: Histogram::new(LATENCY_BOUNDS_NS),
            block_size_bytes: Histogram::new(SIZE_BOUNDS_BYTES),
        }
    }
}

/// A shard's report.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardStatus {
    /// Which shard.
    pub shard: ShardIndex,
    /// Where it is in its life.
    pub phase: Phase,
    /// The segment that takes blocks now.
    pub open_segment: SegmentId,
    /// Segments in the log, the open one among them.
    pub segments: u64,
    /// Segments prepared and waiting.
    pub segments_prepared: u64,
    /// The last block handed to the device.
    pub last_block: BlockNumber,
    /// The last block on the device with all before it.
    pub durable_block: BlockNumber,
    /// Blocks on their way to the device.
    pub blocks_in_flight: u64,
    /// Extents that take appends.
    pub extents_open: u64,
    /// Extents that are sealed.
    pub extents_sealed: u64,
    /// Records readable.
    pub records_live: u64,
    /// Payload bytes appended to the extents that are there, trimmed ones among them.
    pub payload_bytes_held: u64,
    /// Connections that this shard owns.
    pub connections: u64,
    /// Bytes in receive buffers.
    pub receive_buffer_bytes: u64,
    /// Bytes of blocks kept in memory for readers near the tail.
    pub tail_cache_bytes: u64,
    /// Bytes of index kept in memory.
    pub index_bytes: u64,
    /// How long reading the log back took at the start, ns.
    pub recovery_ns: u64,
    /// Blocks rolled forward at the start.
    pub recovery_blocks: u64,
    /// Totals since the start.
    pub counters: Counters,
}
