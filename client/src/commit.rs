//! Builds a Commit: several changes on extents of one group that are done together or not at all.

use log_format::ids::{DeliverAt, Epoch, ExtentId, GroupId, Key, Seq};
use log_format::wire::{CommitOperation, RecordMeta};
use std::ops::Range;

/// The changes of one commit, in order. Hand it to [`Client::commit`](crate::Client::commit).
///
/// ```
/// use roost_client::{Commit, ExtentId, GroupId, Seq};
/// let (messages, leases) = (ExtentId(1), ExtentId(2));
/// let commit = Commit::new(GroupId(7))
///     .append(messages, None, ["a message"])
///     .append(leases, Some(Seq(1)), ["its lease"])
///     .trim(messages, Seq(10));
/// ```
#[derive(Clone, Debug)]
pub struct Commit {
    pub(crate) group: GroupId,
    pub(crate) epoch: Epoch,
    pub(crate) payload: Vec<u8>,
    metas: Vec<RecordMeta>,
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Append { extent: ExtentId, expected_seq: Option<Seq>, metas: Range<usize> },
    Trim { extent: ExtentId, to: Seq },
}

impl Commit {
    /// A commit without changes, on this group.
    pub fn new(group: GroupId) -> Self {
        Self { group, epoch: Epoch(0), payload: Vec::new(), metas: Vec::new(), changes: Vec::new() }
    }

    /// Sends this epoch of the group instead of 0.
    #[must_use]
    pub fn epoch(mut self, epoch: Epoch) -> Self {
        self.epoch = epoch;
        self
    }

    /// Appends records, at least one. With `expected_seq` the commit is refused unless the first gets that seq.
    #[must_use]
    pub fn append<T: AsRef<[u8]>>(
        mut self,
        extent: ExtentId,
        expected_seq: Option<Seq>,
        records: impl IntoIterator<Item = T>,
    ) -> Self {
        let start = self.metas.len();
        for record in records {
            self.metas.push(RecordMeta::of(record.as_ref()));
            self.payload.extend_from_slice(record.as_ref());
        }
        self.changes.push(Change::Append { extent, expected_seq, metas: start..self.metas.len() });
        self
    }

    /// Declares everything up to and including `to` dead.
    #[must_use]
    pub fn trim(mut self, extent: ExtentId, to: Seq) -> Self {
        self.changes.push(Change::Trim { extent, to });
        self
    }

    pub(crate) fn operations(&self) -> Vec<CommitOperation<'_>> {
        let operation = |change: &Change| match change {
            Change::Append { extent, expected_seq, metas } => CommitOperation::Append {
                extent: *extent,
                expected_seq: *expected_seq,
                records: &self.metas[metas.clone()],
                deliver_at: &[],
            },
            Change::Trim { extent, to } => {
                CommitOperation::Trim { extent: *extent, to: Key { deliver_at: DeliverAt(0), seq: *to } }
            }
        };
        self.changes.iter().map(operation).collect()
    }

    /// What would make the node refuse it, or the encoder.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        if self.changes.is_empty() {
            Some("a commit without changes")
        } else if self.changes.len() > log_format::wire::OPERATIONS_MAX {
            Some("a commit of too many changes")
        } else if self.changes.iter().any(|change| matches!(change, Change::Append { metas, .. } if metas.is_empty())) {
            Some("an append without records in a commit")
        } else {
            None
        }
    }
}
