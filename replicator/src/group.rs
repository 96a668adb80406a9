//! A group as its primary sees it: the epoch, the ops given out, and how far each replica has them on its device.
//!
//! Invariants, checked in release builds too: `committed <= appended`; no replica is durable beyond `appended`;
//! `committed` is the greatest op that at least `ack_quorum` replicas have, and never goes back.

use log_format::ids::{Epoch, Op};

/// A replica's place in its group's replica set. The primary is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica(pub usize);

/// Why a group does not take a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The change comes from a primary that has been replaced.
    #[error("the group is at epoch {current}")]
    Fenced {
        /// The group's epoch.
        current: Epoch,
    },
}

/// The progress of one group.
#[derive(Clone, Debug)]
pub struct Group {
    epoch: Epoch,
    ack_quorum: usize,
    appended: Op,
    durable: Vec<Op>,
    committed: Op,
}

impl Group {
    /// A group at `epoch` whose ops up to `last_op` are committed, with `replicas` replicas of which `ack_quorum` must have an op
    /// before it is committed.
    ///
    /// # Panics
    /// If the quorum is empty or larger than the replica set.
    pub fn new(epoch: Epoch, last_op: Op, replicas: usize, ack_quorum: usize) -> Self {
        assert!(ack_quorum >= 1 && ack_quorum <= replicas, "a quorum of {ack_quorum} in {replicas} replicas");
        Self { epoch, ack_quorum, appended: last_op, durable: vec![last_op; replicas], committed: last_op }
    }

    /// A group that lives on this node alone.
    pub fn alone(epoch: Epoch, last_op: Op) -> Self {
        Self::new(epoch, last_op, 1, 1)
    }

    /// The group's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last op given out.
    pub fn appended(&self) -> Op {
        self.appended
    }

    /// The last op that the ack quorum has on its devices.
    pub fn committed(&self) -> Op {
        self.committed
    }

    /// Whether a change at `epoch` may enter.
    ///
    /// # Errors
    /// [`GroupError::Fenced`] for an epoch below the group's.
    pub fn admit(&self, epoch: Epoch) -> Result<(), GroupError> {
        if epoch < self.epoch { Err(GroupError::Fenced { current: self.epoch }) } else { Ok(()) }
    }

    /// Gives out the next op.
    pub fn append(&mut self) -> Op {
        self.appended = self.appended.next();
        self.appended
    }

    /// Gives up the ops that are not committed: the device failed under them, and their numbers are given out again.
    ///
    /// # Panics
    /// If the group has other replicas: they may have the ops, and only a new epoch may decide about them.
    pub fn abandon(&mut self) {
        assert_eq!(self.durable.len(), 1, "only a group that lives on one node can give ops up by itself");
        self.appended = self.committed;
    }

    /// `replica` has all ops up to `op` on its device. Says how far the group is committed now. Late and repeated reports change nothing.
    ///
    /// # Panics
    /// If the replica is none of the group's, or claims an op that was never given out.
    pub fn durable(&mut self, replica: Replica, op: Op) -> Op {
        assert!(op <= self.appended, "op {op} is durable, but only {} were given out", self.appended);
        let known = &mut self.durable[replica.0];
        if op > *known {
            *known = op;
            self.committed = self.quorum_op().max(self.committed);
        }
        self.committed
    }

    fn quorum_op(&self) -> Op {
        if let [alone] = self.durable[..] {
            return alone;
        }
        let mut sorted = self.durable.clone();
        sorted.sort_unstable_by(|left, right| right.cmp(left));
        sorted[self.ack_quorum - 1]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lower_epoch_is_fenced_and_a_higher_one_is_not() {
        let group = Group::alone(Epoch(5), Op(0));
        assert_eq!(group.admit(Epoch(4)), Err(GroupError::Fenced { current: Epoch(5) }));
        assert_eq!(group.admit(Epoch(5)), Ok(()));
        assert_eq!(group.admit(Epoch(6)), Ok(()));
    }

    #[test]
    fn one_slow_replica_of_three_does_not_hold_a_majority_back() {
        let mut group = Group::new(Epoch(1), Op(10), 3, 2);
        assert_eq!(group.append(), Op(11));
        assert_eq!(group.durable(Replica(0), Op(11)), Op(10));
        assert_eq!(group.durable(Replica(2), Op(11)), Op(11));
        assert_eq!(group.durable(Replica(1), Op(10)), Op(11));
    }

    #[test]
    fn ops_given_up_are_given_out_again() {
        let mut group = Group::alone(Epoch(0), Op(5));
        group.append();
        group.durable(Replica(0), Op(6));
        group.append();
        group.abandon();
        assert_eq!((group.appended(), group.append()), (Op(6), Op(7)));
    }

    #[test]
    #[should_panic(expected = "only 0 were given out")]
    fn a_replica_cannot_have_what_was_never_sent() {
        Group::alone(Epoch(0), Op(0)).durable(Replica(0), Op(1));
    }

    proptest! {
        /// Against a count from first principles: an op is committed when at least `quorum` replicas reported it or a later one.
        #[test]
        fn committed_is_what_a_quorum_has(
            replicas in 1usize..6,
            quorum_seed in 0usize..6,
            reports in prop::collection::vec((0usize..6, 0u64..50), 0..60),
        ) {
            let quorum = 1 + quorum_seed % replicas;
            let mut group = Group::new(Epoch(1), Op(0), replicas, quorum);
            for _ in 0..50 {
                group.append();
            }
            let mut best = vec![0u64; replicas];
            for (replica, op) in reports {
                let replica = replica % replicas;
                best[replica] = best[replica].max(op);
                let committed = group.durable(Replica(replica), Op(op));
                let expected = (0..=50).rev().find(|&op| best.iter().filter(|&&have| have >= op).count() >= quorum);
                prop_assert_eq!(Some(committed.0), expected);
            }
        }
    }
}
