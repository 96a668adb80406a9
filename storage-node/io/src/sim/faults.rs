//! What may go wrong in simulation, how likely it is, and how often it did.
//!
//! The prose of what each disk fault means stands at the head of [`super::disk`].

use std::ops::RangeInclusive;
use std::time::Duration;

/// How likely each fault of a node is, and how slow its devices are. May be changed while the node runs.
///
/// Probabilities are per operation, from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// A write fails with EIO; an arbitrary part of it was written.
    pub write_error: f64,
    /// The device takes only the first part of a write. Half the time the rest follows in a second piece, else it fails.
    pub short_write: f64,
    /// A sync fails with EIO; what it was to cover is durable or lost, for good.
    pub sync_error: f64,
    /// A read fails with EIO.
    pub read_error: f64,
    /// Opening, renaming, removing, making or syncing a name fails with EIO, without effect.
    pub name_error: f64,
    /// At a crash, a write that is cut off is torn between its sectors, instead of being there as a whole or not at all.
    pub torn_write: f64,
    /// At a crash, names that were not synced are lost in part or in whole.
    pub lost_names: f64,
    /// The size of the disk: a write that needs more fails with ENOSPC.
    pub disk_bytes: u64,
    /// How long a read takes.
    pub read_latency: LatencyRange,
    /// How long a write takes.
    pub write_latency: LatencyRange,
    /// How long a sync takes, of a file or a directory.
    pub sync_latency: LatencyRange,
    /// How long an operation on names takes.
    pub name_latency: LatencyRange,
    /// How long bytes that this node sends are on their way.
    pub network_latency: LatencyRange,
}

impl Default for Faults {
    /// No errors while running, but the worst at a crash; a disk of 64 GiB, as fast as a good device.
    fn default() -> Self {
        Self {
            write_error: 0.0,
            short_write: 0.0,
            sync_error: 0.0,
            read_error: 0.0,
            name_error: 0.0,
            torn_write: 0.5,
            lost_names: 0.5,
            disk_bytes: 64 << 30,
            read_latency: LatencyRange::from_micros(20, 200),
            write_latency: LatencyRange::from_micros(30, 400),
            sync_latency: LatencyRange::from_micros(30, 1_000),
            name_latency: LatencyRange::from_micros(5, 100),
            network_latency: LatencyRange::from_micros(10, 200),
        }
    }
}

/// The least and the greatest time that something takes; the seed chooses between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyRange {
    /// The least.
    pub min: Duration,
    /// The greatest.
    pub max: Duration,
}

impl LatencyRange {
    /// From microseconds.
    pub const fn from_micros(min: u64, max: u64) -> Self {
        Self { min: Duration::from_micros(min), max: Duration::from_micros(max) }
    }

    pub(super) fn nanos(self) -> RangeInclusive<u64> {
        let min = self.min.as_nanos() as u64;
        min..=(self.max.as_nanos() as u64).max(min)
    }
}

/// A fault or crash outcome that the simulation can reach. Each is counted when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// A write failed with EIO.
    WriteError,
    /// A write was taken in part, the rest in a second piece.
    ShortWriteResumed,
    /// A write was taken in part and then failed.
    ShortWriteFailed,
    /// A sync failed.
    SyncError,
    /// A read failed.
    ReadError,
    /// An operation on a name failed.
    NameError,
    /// The disk was full.
    NoSpace,
    /// A crash kept nothing of what was unflushed.
    CrashKeptNone,
    /// A crash kept a prefix of the unflushed writes.
    CrashKeptPrefix,
    /// A crash kept an arbitrary subset of the unflushed sectors.
    CrashKeptSubset,
    /// A crash kept all: the process died, the machine did not.
    CrashKeptAll,
    /// A completed write that was never flushed was lost in whole at a crash.
    WriteLost,
    /// A write was torn between its sectors by a crash.
    WriteTorn,
    /// A name that was not synced went back to what it was.
    NameLost,
    /// A bit was flipped at rest.
    BitFlip,
    /// The wall clock was stepped.
    ClockStep,
    /// A connection was cut by a crash or by hand.
    ConnectionCut,
    /// A read from a connection gave less than was there.
    ReadSegmented,
    /// A writer to a connection had to wait for its reader.
    BackPressure,
}

/// What a crash leaves of the writes that were completed but not flushed, or in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// Nothing.
    KeepNone,
    /// The first of them, in the order in which they completed; the next one may be torn.
    KeepPrefix,
    /// Any of them, whole or torn.
    KeepSubset,
    /// All: the process dies, the machine goes on. They are still unflushed afterwards.
    KeepAll,
}
