//! The shard's extents and groups in memory: what the log's state records and runs add up to.
//!
//! Two watermarks a record run through: `last_seq` moves when a record gets its place in a block (appended), `committed_seq` when
//! that block is durable on the ack quorum. Readers are shown nothing beyond the second.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use log_format::checkpoint::{ExtentEntry, ExtentState, GroupEntry};
use log_format::ids::{BlockNumber, Epoch, ExtentId, ExtentKind, ExtentNumber, GroupId, Key, Op, SegmentId, Seq, Timestamp};
use log_format::state::StateChange;
use replicator::Group;
use tokio::sync::Notify;

/// A group of extents that change together.
pub(crate) struct GroupCell {
    pub(crate) id: GroupId,
    pub(crate) progress: RefCell<Group>,
    /// Extents of the group in the table.
    members: Cell<usize>,
}

impl GroupCell {
    fn new(id: GroupId, progress: Group) -> Rc<Self> {
        Rc::new(Self { id, progress: RefCell::new(progress), members: Cell::new(0) })
    }
}

/// The records of one extent that lie in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) segment: SegmentId,
    pub(crate) first: Seq,
    pub(crate) last: Seq,
}

/// One extent.
pub(crate) struct Extent {
    pub(crate) id: ExtentId,
    pub(crate) number: ExtentNumber,
    pub(crate) kind: ExtentKind,
    pub(crate) group: Rc<GroupCell>,
    /// The last seq given.
    pub(crate) last_seq: Seq,
    /// The last seq that readers may see.
    pub(crate) committed_seq: Seq,
    pub(crate) sealed: bool,
    /// All up to and including this seq is trimmed, or will be when the trim is durable.
    pub(crate) floor: Seq,
    /// All up to and including this seq is trimmed for good: what readers are refused, and what may be recycled.
    pub(crate) committed_floor: Seq,
    /// Records and payload bytes ever appended.
    pub(crate) record_count: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) last_append_time: Timestamp,
    /// The newest block that holds a change of this extent.
    pub(crate) gate: BlockNumber,
    /// Where its committed records lie, in the order of seqs.
    pub(crate) spans: VecDeque<Span>,
    /// Woken when records are committed or the extent's state changes; made by the first reader that waits.
    pub(crate) arrival: Option<Rc<Notify>>,
}

impl Extent {
    /// The span that holds `seq`.
    pub(crate) fn span_of(&self, seq: Seq) -> Option<Span> {
        let place = self.spans.partition_point(|span| span.last < seq);
        self.spans.get(place).copied().filter(|span| span.first <= seq)
    }

    /// Adds committed records in `segment`; says whether it is the extent's first span there.
    pub(crate) fn extend_span(&mut self, segment: SegmentId, first: Seq, last: Seq) -> bool {
        if let Some(span) = self.spans.back_mut()
            && span.segment == segment
        {
            span.last = last;
            return false;
        }
        self.spans.push_back(Span { segment, first, last });
        true
    }

    /// Takes off the spans that are trimmed wholly and for good.
    pub(crate) fn take_dead_spans(&mut self) -> Vec<Span> {
        let dead = self.spans.partition_point(|span| span.last <= self.committed_floor);
        self.spans.drain(..dead).collect()
    }

    /// Wakes those who wait for records of this extent.
    pub(crate) fn announce(&self) {
        if let Some(arrival) = &self.arrival {
            arrival.notify_waiters();
        }
    }

    /// The event that [`Extent::announce`] fires.
    pub(crate) fn arrival(&mut self) -> Rc<Notify> {
        self.arrival.get_or_insert_with(|| Rc::new(Notify::new())).clone()
    }

    fn entry(&self) -> ExtentEntry {
        ExtentEntry {
            extent: self.id,
            group: self.group.id,
            number: self.number,
            kind: self.kind,
            state: if self.sealed { ExtentState::Sealed } else { ExtentState::Open },
            last_seq: self.last_seq,
            floor: Key { seq: self.floor, ..Key::default() },
            read_floor: Key::default(),
            record_count: self.record_count,
            payload_bytes: self.payload_bytes,
            last_append_time: self.last_append_time,
        }
    }
}

/// Why recovered state contradicts itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    #[error("extent {0} exists already")]
    Exists(ExtentId),
    #[error("there is no extent number {0}")]
    UnknownNumber(ExtentNumber),
    #[error("extent number {0} was given twice")]
    NumberTaken(ExtentNumber),
    #[error("extent {extent} names a group {group} that is not listed")]
    UnknownGroup { extent: ExtentId, group: GroupId },
}

/// All extents of the shard.
#[derive(Default)]
pub(crate) struct ExtentTable {
    by_id: BTreeMap<ExtentId, ExtentNumber>,
    by_number: BTreeMap<ExtentNumber, Extent>,
    /// Extents whose deletion is not durable yet: nobody finds them, but what they had before still becomes durable.
    deleting: BTreeMap<ExtentNumber, Extent>,
    groups: BTreeMap<GroupId, Rc<GroupCell>>,
    next_number: ExtentNumber,
}

impl ExtentTable {
    pub(crate) fn new() -> Self {
        Self { next_number: ExtentNumber(1), ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(crate) fn next_number(&self) -> ExtentNumber {
        self.next_number
    }

    pub(crate) fn find(&self, id: ExtentId) -> Option<&Extent> {
        self.by_number.get(self.by_id.get(&id)?)
    }

    pub(crate) fn find_mut(&mut self, id: ExtentId) -> Option<&mut Extent> {
        self.by_number.get_mut(self.by_id.get(&id)?)
    }

    pub(crate) fn get(&self, number: ExtentNumber) -> Option<&Extent> {
        self.by_number.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: ExtentNumber) -> Option<&mut Extent> {
        self.by_number.get_mut(&number)
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Rc<GroupCell>> {
        self.groups.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.by_number.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Extent> {
        self.by_number.values_mut()
    }

    /// Extents in the order of their ids, behind `after`.
    pub(crate) fn list(&self, after: ExtentId) -> impl Iterator<Item = &Extent> {
        let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        self.by_id.range(behind).filter_map(|(_, number)| self.by_number.get(number))
    }

    fn insert(&mut self, extent: Extent) -> Result<(), TableError> {
        if self.by_id.contains_key(&extent.id) {
            return Err(TableError::Exists(extent.id));
        }
        if self.by_number.contains_key(&extent.number) {
            return Err(TableError::NumberTaken(extent.number));
        }
        self.next_number = self.next_number.max(extent.number.next());
        extent.group.members.set(extent.group.members.get() + 1);
        self.by_id.insert(extent.id, extent.number);
        self.by_number.insert(extent.number, extent);
        Ok(())
    }

    /// Adds an extent, and its group if it is the first of it. The creation is not yet an op of the group.
    pub(crate) fn create(
        &mut self,
        number: ExtentNumber,
        id: ExtentId,
        group: GroupId,
        kind: ExtentKind,
        epoch: Epoch,
    ) -> Result<(), TableError> {
        let group = self.groups.entry(group).or_insert_with(|| GroupCell::new(group, Group::alone(epoch, Op(0)))).clone();
        self.insert(Extent {
            id,
            number,
            kind,
            group,
            last_seq: Seq(0),
            committed_seq: Seq(0),
            sealed: false,
            floor: Seq(0),
            committed_floor: Seq(0),
            record_count: 0,
            payload_bytes: 0,
            last_append_time: Timestamp(0),
            gate: BlockNumber(0),
            spans: VecDeque::new(),
            arrival: None,
        })
    }

    /// Takes an extent off, and its group if it was the last of it.
    pub(crate) fn remove(&mut self, number: ExtentNumber) -> Option<Extent> {
        let extent = self.by_number.remove(&number)?;
        self.by_id.remove(&extent.id);
        let members = extent.group.members.get() - 1;
        extent.group.members.set(members);
        if members == 0 {
            self.groups.remove(&extent.group.id);
        }
        Some(extent)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &Rc<GroupCell>> {
        self.groups.values()
    }

    /// Hides an extent whose deletion is on its way to the device.
    pub(crate) fn begin_delete(&mut self, number: ExtentNumber) {
        let extent = self.remove(number).expect("an extent that is there is deleted");
        self.deleting.insert(number, extent);
    }

    /// The deletion of an extent is durable.
    pub(crate) fn end_delete(&mut self, number: ExtentNumber) -> Extent {
        self.deleting.remove(&number).expect("its deletion was begun")
    }

    /// The deletion of an extent never happens: it comes back, and its group if that went with it.
    pub(crate) fn undo_delete(&mut self, number: ExtentNumber) {
        let extent = self.end_delete(number);
        self.groups.entry(extent.group.id).or_insert_with(|| extent.group.clone());
        self.insert(extent).expect("what was created since was taken back before");
    }

    /// An extent, be its deletion on its way or not.
    pub(crate) fn get_mut_even_deleting(&mut self, number: ExtentNumber) -> Option<&mut Extent> {
        self.by_number.get_mut(&number).or_else(|| self.deleting.get_mut(&number))
    }

    /// Applies a state record that was read back from the log. A deleted extent is given back.
    pub(crate) fn replay(&mut self, number: ExtentNumber, op: Op, change: &StateChange) -> Result<Option<Extent>, TableError> {
        if let StateChange::Created { extent, group, kind, epoch } = *change {
            self.create(number, extent, group, kind, epoch)?;
        }
        let extent = self.by_number.get_mut(&number).ok_or(TableError::UnknownNumber(number))?;
        replay_op(&extent.group, op);
        match change {
            StateChange::Sealed { .. } => extent.sealed = true,
            StateChange::Trimmed { key } => {
                extent.floor = extent.floor.max(key.seq);
                extent.committed_floor = extent.floor;
            }
            StateChange::Deleted => return Ok(self.remove(number)),
            // Epochs move with the fence, timer extents with their own issue: this version writes none of these.
            StateChange::Created { .. }
            | StateChange::Fenced { .. }
            | StateChange::Discarded { .. }
            | StateChange::ReadFloor { .. } => {}
        }
        Ok(None)
    }

    /// Counts records that were read back from the log.
    pub(crate) fn replay_records(
        &mut self,
        number: ExtentNumber,
        last: Seq,
        op: Op,
        count: u64,
        payload_bytes: u64,
        time: Timestamp,
    ) {
        if let Some(extent) = self.by_number.get_mut(&number) {
            extent.last_seq = extent.last_seq.max(last);
            extent.committed_seq = extent.last_seq;
            extent.record_count += count;
            extent.payload_bytes += payload_bytes;
            extent.last_append_time = extent.last_append_time.max(time);
            replay_op(&extent.group, op);
        }
    }

    /// The table as a checkpoint's entries.
    pub(crate) fn entries(&self) -> (Vec<GroupEntry>, Vec<ExtentEntry>) {
        let groups = self.groups.values().map(|group| {
            let progress = group.progress.borrow();
            GroupEntry { group: group.id, epoch: progress.epoch(), last_op: progress.appended() }
        });
        (groups.collect(), self.iter().map(Extent::entry).collect())
    }

    /// The table that a checkpoint's entries describe. All of it is committed: a checkpoint is written behind durable blocks only.
    pub(crate) fn from_entries(
        next_number: ExtentNumber,
        groups: &[GroupEntry],
        extents: &[ExtentEntry],
    ) -> Result<Self, TableError> {
        let mut table = Self { next_number, ..Self::default() };
        for entry in groups {
            table.groups.insert(entry.group, GroupCell::new(entry.group, Group::alone(entry.epoch, entry.last_op)));
        }
        for entry in extents {
            let group = table.groups.get(&entry.group).cloned();
            let group = group.ok_or(TableError::UnknownGroup { extent: entry.extent, group: entry.group })?;
            table.insert(Extent {
                id: entry.extent,
                number: entry.number,
                kind: entry.kind,
                group,
                last_seq: entry.last_seq,
                committed_seq: entry.last_seq,
                sealed: entry.state == ExtentState::Sealed,
                floor: entry.floor.seq,
                committed_floor: entry.floor.seq,
                record_count: entry.record_count,
                payload_bytes: entry.payload_bytes,
                last_append_time: entry.last_append_time,
                gate: BlockNumber(0),
                spans: VecDeque::new(),
                arrival: None,
            })?;
        }
        Ok(table)
    }
}

fn replay_op(group: &GroupCell, op: Op) {
    let mut progress = group.progress.borrow_mut();
    if op > progress.appended() {
        *progress = Group::alone(progress.epoch(), op);
    }
}
