//! What a shard must hold: maps of extents and their records, and the ops that may or may not survive a crash.
//!
//! The engine applies ops one after the other and puts them into blocks in that order, so after a crash it must hold exactly what the
//! ops up to the end of some block add up to, and that block must not lie before any that an answer has rested on. The model keeps
//! the state that is certain (`base`), the ops behind it (`pending`), and what both add up to (`newest`), which is what the
//! engine's checks see. [`Model::recovered`] looks for the block at whose end the recovered shard stands.

use std::collections::{BTreeMap, VecDeque};

use log_format::ids::{BlockNumber, ExtentId, GroupId};
use log_format::wire::reply::{ExtentInfo, ExtentState};

use crate::payload::Payload;

/// A record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) payload: Payload,
    /// The block that holds it.
    pub(crate) gate: BlockNumber,
    /// When it was acked, in virtual time; 0: not yet.
    pub(crate) acked_at: u64,
}

/// An extent.
#[derive(Clone, Debug)]
pub(crate) struct ExtentModel {
    /// Tells an extent from an earlier one of the same id.
    pub(crate) incarnation: u64,
    pub(crate) group: GroupId,
    /// All records that are not trimmed, by seq.
    pub(crate) records: BTreeMap<u64, Stored>,
    pub(crate) last: u64,
    pub(crate) floor: u64,
    pub(crate) sealed: bool,
    /// The block of its seal.
    pub(crate) sealed_gate: BlockNumber,
    pub(crate) payload_bytes: u64,
    /// The block of its last change.
    pub(crate) gate: BlockNumber,
}

/// A group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupModel {
    pub(crate) epoch: u64,
    pub(crate) ops: u64,
    pub(crate) extents: usize,
}

/// One change of one extent.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Create { extent: ExtentId, incarnation: u64, epoch: u64 },
    Append { extent: ExtentId, payloads: Vec<Payload> },
    Seal { extent: ExtentId },
    Trim { extent: ExtentId, to: u64 },
    Delete { extent: ExtentId },
}

/// One atomic change of a group.
#[derive(Clone, Debug)]
pub(crate) struct ModelOp {
    pub(crate) gate: BlockNumber,
    pub(crate) group: GroupId,
    pub(crate) changes: Vec<Change>,
}

/// Extents and groups at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) extents: BTreeMap<ExtentId, ExtentModel>,
    pub(crate) groups: BTreeMap<GroupId, GroupModel>,
}

impl State {
    pub(crate) fn extent(&self, id: ExtentId) -> Option<&ExtentModel> {
        self.extents.get(&id)
    }

    fn existing(&mut self, id: ExtentId) -> &mut ExtentModel {
        self.extents.get_mut(&id).expect("ops are applied to extents that are there")
    }

    /// The number that the group's next op gets.
    pub(crate) fn next_op(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |group| group.ops) + 1
    }

    fn apply(&mut self, op: &ModelOp) {
        for change in &op.changes {
            match *change {
                Change::Create { extent, incarnation, epoch } => {
                    let group = self.groups.entry(op.group).or_insert(GroupModel { epoch, ops: 0, extents: 0 });
                    group.extents += 1;
                    let created = ExtentModel {
                        incarnation,
                        group: op.group,
                        records: BTreeMap::new(),
                        last: 0,
                        floor: 0,
                        sealed: false,
                        sealed_gate: BlockNumber(0),
                        payload_bytes: 0,
                        gate: op.gate,
                    };
                    let before = self.extents.insert(extent, created);
                    assert!(before.is_none(), "an extent is created once");
                }
                Change::Append { extent, ref payloads } => {
                    let extent = self.existing(extent);
                    extent.gate = op.gate;
                    for &payload in payloads {
                        extent.last += 1;
                        extent.payload_bytes += u64::from(payload.length);
                        extent.records.insert(extent.last, Stored { payload, gate: op.gate, acked_at: 0 });
                    }
                }
                Change::Seal { extent } => {
                    let extent = self.existing(extent);
                    (extent.sealed, extent.sealed_gate, extent.gate) = (true, op.gate, op.gate);
                }
                Change::Trim { extent, to } => {
                    let extent = self.existing(extent);
                    extent.gate = op.gate;
                    extent.floor = extent.floor.max(to);
                    extent.records = extent.records.split_off(&(extent.floor + 1));
                }
                Change::Delete { extent } => {
                    self.extents.remove(&extent).expect("only an extent that is there is deleted");
                    let group = self.groups.get_mut(&op.group).expect("an extent's group is there");
                    group.extents -= 1;
                }
            }
        }
        let group = self.groups.get_mut(&op.group).expect("an op's group is there");
        group.ops += 1;
        if group.extents == 0 {
            self.groups.remove(&op.group);
        }
    }

    /// Compares with all that a shard lists; says the first difference. Everything must be committed.
    pub(crate) fn compare(&self, listed: &[ExtentInfo]) -> Result<(), String> {
        for info in listed {
            self.compare_one(info)?;
        }
        match self.extents.keys().find(|id| listed.iter().all(|info| info.extent != **id)) {
            Some(missing) => Err(format!("extent {missing} is missing")),
            None => Ok(()),
        }
    }

    fn compare_one(&self, info: &ExtentInfo) -> Result<(), String> {
        let id = info.extent;
        let Some(extent) = self.extents.get(&id) else { return Err(format!("extent {id} should not be there")) };
        let group = self.groups.get(&extent.group).ok_or_else(|| format!("group {} should not be there", extent.group))?;
        let state = if extent.sealed { ExtentState::Sealed } else { ExtentState::Open };
        let expected = (extent.group, state, extent.floor + 1, extent.last, group.ops, group.epoch);
        let found = (info.group, info.state, info.first_seq.0, info.last_seq.0, info.committed_op.0, info.epoch.0);
        if expected != found {
            let names = "(group, state, first seq, last seq, op, epoch)";
            return Err(format!("extent {id} has {names} {found:?}, not {expected:?}"));
        }
        let (expected, found) = ((extent.last - extent.floor, extent.payload_bytes), (info.records, info.payload_bytes));
        if expected != found {
            return Err(format!("extent {id} has (records, payload bytes) {found:?}, not {expected:?}"));
        }
        Ok(())
    }
}

/// What became of the ops that were in doubt at a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) survived: u64,
    pub(crate) vanished: u64,
    /// Commits over several extents among them.
    pub(crate) commits_survived: u64,
    pub(crate) commits_vanished: u64,
}

/// The model of one shard.
#[derive(Default)]
pub(crate) struct Model {
    base: State,
    pending: VecDeque<ModelOp>,
    newest: State,
    /// Extents deleted since the last recovery, with the block of it.
    deleted: BTreeMap<ExtentId, BlockNumber>,
    /// The last block that an answer rested on.
    answered: BlockNumber,
    /// Ops whose blocks failed, after which the shard went on: gone, unless it stops before anything is behind them.
    lost: VecDeque<ModelOp>,
    /// The shard has failed: nothing behind this block will be seen before a restart.
    frozen: Option<BlockNumber>,
    incarnations: u64,
}

impl Model {
    /// What the engine holds, undecided ops among it.
    pub(crate) fn newest(&self) -> &State {
        &self.newest
    }

    pub(crate) fn next_incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }

    /// The last op that was applied to any group lies in this block, or before.
    fn last_gate(&self) -> BlockNumber {
        self.pending.back().map_or(BlockNumber(0), |op| op.gate)
    }

    /// The engine has applied an op.
    pub(crate) fn applied(&mut self, op: ModelOp) {
        assert!(self.frozen.is_none(), "a shard that has failed applied an op: {op:?}");
        assert!(
            op.gate >= self.last_gate(),
            "an op went into block {}, the one before it into block {}",
            op.gate,
            self.last_gate()
        );
        assert!(op.gate > self.answered || self.answered == BlockNumber(0) || op.gate >= self.answered, "blocks go on");
        for change in &op.changes {
            if let Change::Delete { extent } = change {
                self.deleted.insert(*extent, op.gate);
            }
        }
        // The segment that the shard went on in begins with a checkpoint, which is durable now: they can't come back.
        self.lost.clear();
        self.newest.apply(&op);
        self.pending.push_back(op);
    }

    /// The block that an answer about `extent` rests on.
    pub(crate) fn rests_on(&self, extent: ExtentId) -> BlockNumber {
        let there = self.newest.extent(extent).map(|extent| extent.gate);
        there.or_else(|| self.deleted.get(&extent).copied()).unwrap_or_default()
    }

    /// An answer has left that rests on the changes up to block `gate`: they must be there for good.
    pub(crate) fn answered(&mut self, gate: BlockNumber) {
        self.answered = self.answered.max(gate);
        while let Some(op) = self.pending.pop_front_if(|op| op.gate <= self.answered) {
            self.base.apply(&op);
        }
    }

    /// Notes that the records of an append were acked.
    pub(crate) fn acked(&mut self, extent: ExtentId, first: u64, count: u64, now: u64) {
        if let Some(extent) = self.newest.extents.get_mut(&extent) {
            extent.records.range_mut(first..first + count).for_each(|(_, record)| record.acked_at = now);
        }
    }

    /// The shard has failed with `durable` as its last good block: what lies behind it is not seen any more.
    pub(crate) fn freeze(&mut self, durable: BlockNumber) {
        if self.frozen.is_some() {
            return;
        }
        assert!(durable >= self.answered, "block {} was answered for, but only {durable} is durable", self.answered);
        self.frozen = Some(durable);
        self.newest = self.base.clone();
        self.pending.iter().take_while(|op| op.gate <= durable).for_each(|op| self.newest.apply(op));
        self.deleted.retain(|_, gate| *gate <= durable);
    }

    /// The newest block that an undecided op lies in and that `is_lost`.
    pub(crate) fn newest_pending(&self, is_lost: impl Fn(BlockNumber) -> bool) -> Option<BlockNumber> {
        self.pending.iter().rev().map(|op| op.gate).find(|gate| is_lost(*gate))
    }

    /// The shard takes changes. Should it have failed before, then what `is_lost` will never be seen again. Says whether it had.
    pub(crate) fn moved_on(&mut self, is_lost: impl Fn(BlockNumber) -> bool) -> bool {
        let had_failed = self.frozen.take().is_some();
        if !had_failed && !self.pending.iter().any(|op| is_lost(op.gate)) {
            return false;
        }
        let (lost, pending) = self.pending.drain(..).partition(|op| is_lost(op.gate));
        (self.lost, self.pending) = (lost, pending);
        self.newest = self.base.clone();
        self.pending.iter().for_each(|op| self.newest.apply(op));
        self.deleted.retain(|_, gate| !is_lost(*gate));
        true
    }

    /// Whether an id was used and is free for good.
    pub(crate) fn is_free(&self, extent: ExtentId) -> bool {
        self.newest.extent(extent).is_none() && self.deleted.get(&extent).is_none_or(|gate| *gate <= self.answered)
    }

    /// The node crashed. Its last block with all before it on the device was `durable`, as far as it had told.
    pub(crate) fn crashed(&mut self, durable: BlockNumber) {
        if self.lost.back().is_some_and(|op| op.gate < durable) {
            self.lost.clear();
        }
        self.answered(durable);
    }

    /// A shard was recovered and lists `listed`: finds the block up to which it holds all ops.
    pub(crate) fn recovered(&mut self, listed: &[ExtentInfo]) -> Result<Doubt, String> {
        let mut state = self.base.clone();
        let mut differences = Vec::new();
        let mut found = None;
        let ops: Vec<ModelOp> = self.lost.drain(..).chain(self.pending.drain(..)).collect();
        for count in 0..=ops.len() {
            let between_blocks = count == 0 || ops.get(count).is_none_or(|next| next.gate > ops[count - 1].gate);
            if between_blocks {
                match state.compare(listed) {
                    Ok(()) => found = Some((count, state.clone())),
                    Err(difference) => differences.push(format!("with {count} of {} ops in doubt: {difference}", ops.len())),
                }
            }
            if let Some(op) = ops.get(count) {
                state.apply(op);
            }
        }
        let Some((kept, mut state)) = found else { return Err(differences.join("\n  ")) };
        // All of it is certain from now on.
        state.extents.values_mut().for_each(|extent| {
            (extent.gate, extent.sealed_gate) = (BlockNumber(0), BlockNumber(0));
            extent.records.values_mut().for_each(|record| record.gate = BlockNumber(0));
        });
        let several = |ops: &[ModelOp]| ops.iter().filter(|op| op.changes.len() > 1).count() as u64;
        let doubt = Doubt {
            survived: kept as u64,
            vanished: (ops.len() - kept) as u64,
            commits_survived: several(&ops[..kept]),
            commits_vanished: several(&ops[kept..]),
        };
        let incarnations = self.incarnations;
        *self = Self { base: state.clone(), newest: state, incarnations, ..Self::default() };
        Ok(doubt)
    }
}
