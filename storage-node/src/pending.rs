//! What a block changes: it becomes true when the block is durable, and is taken back when the block is lost.

use std::rc::Rc;

use log_format::ids::{BlockNumber, ExtentId, ExtentKind, ExtentNumber, Op, Seq, Timestamp};
use node_io::Monotonic;
use tokio::sync::Notify;

use crate::extents::ExtentTable;

/// Records that a block adds to an extent, to be indexed when it is durable.
pub(crate) struct PendingRun {
    pub(crate) number: ExtentNumber,
    pub(crate) id: ExtentId,
    pub(crate) kind: ExtentKind,
    pub(crate) first_seq: Seq,
    pub(crate) count: u32,
    /// Of the run header in the block.
    pub(crate) offset: u32,
    /// With its header.
    pub(crate) length: u32,
    pub(crate) last_op: Op,
    pub(crate) payload_bytes: u64,
}

/// What else becomes true when a block is durable. It holds what is needed to take it back, should the block never be.
pub(crate) enum PendingChange {
    /// An extent is there.
    Created { number: ExtentNumber, op: Op },
    /// An extent takes no more records.
    Sealed { number: ExtentNumber, op: Op },
    /// Records of an extent are dead, up to and including a seq.
    Trimmed { number: ExtentNumber, op: Op, to: Seq },
    /// An extent is gone.
    Deleted { number: ExtentNumber, op: Op },
}

/// A block as the engine sees it: what it changes, and who waits for it.
pub(crate) struct Contents {
    pub(crate) number: BlockNumber,
    /// What its buffer takes in memory.
    pub(crate) capacity: usize,
    pub(crate) runs: Vec<PendingRun>,
    /// In the order in which they were made.
    pub(crate) changes: Vec<PendingChange>,
    pub(crate) watchers: Vec<Rc<Notify>>,
    pub(crate) append_time: Timestamp,
    pub(crate) opened_at: Monotonic,
}

impl Contents {
    /// A block without anything in it.
    pub(crate) fn new(number: BlockNumber, capacity: usize, append_time: Timestamp, opened_at: Monotonic) -> Self {
        Self { number, capacity, runs: Vec::new(), changes: Vec::new(), watchers: Vec::new(), append_time, opened_at }
    }

    /// Takes back what the block changed in the table: it is lost. Blocks are taken back from the newest to the oldest. Gives those who wait
    /// for it.
    pub(crate) fn take_back(self, table: &mut ExtentTable) -> Vec<Rc<Notify>> {
        for change in self.changes.into_iter().rev() {
            match change {
                PendingChange::Created { number, .. } => drop(table.remove(number)),
                PendingChange::Sealed { number, .. } => {
                    if let Some(extent) = table.get_mut(number) {
                        extent.sealed = false;
                    }
                }
                PendingChange::Trimmed { number, .. } => {
                    if let Some(extent) = table.get_mut(number) {
                        extent.floor = extent.committed_floor;
                    }
                }
                PendingChange::Deleted { number, .. } => table.undo_delete(number),
            }
        }
        for run in self.runs {
            // An extent that was created in the same block is gone by now.
            if let Some(extent) = table.get_mut(run.number) {
                extent.last_seq = extent.committed_seq;
                extent.record_count -= u64::from(run.count);
                extent.payload_bytes -= run.payload_bytes;
            }
        }
        self.watchers
    }
}
