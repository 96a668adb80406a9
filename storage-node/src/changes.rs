//! The changes that a shard takes: checked, numbered and put into the open block.
//!
//! A change is checked and put in one go, without an await between: what is refused leaves no trace, what is put is whole in one
//! block. Each answer names its gate, the block that must be durable before the answer may leave. Refusals
//! have one too: they may rest on changes that are not durable yet.

use std::rc::Rc;

use log_format::BLOCK_SIZE_MAX;
use log_format::block::{BLOCK_HEADER_SIZE, RUN_COUNT_MAX, RunKind, RunStart, run_space};
use log_format::ids::{BlockNumber, Epoch, ExtentId, ExtentKind, ExtentNumber, GroupId, Key, Op, Seq, Timestamp, shard_of};
use log_format::state::StateChange;
use log_format::wire::{Record, Refusal};
use node_io::Runtime;
use replicator::GroupError;

use crate::commit::LogHead;
use crate::extents::{Extent, ExtentTable, GroupCell};
use crate::pending::PendingChange;
use crate::shard::Inner;

/// An answer that may leave when its gate is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gated<T> {
    /// The answer.
    pub value: T,
    /// The block that must be durable first.
    pub gate: BlockNumber,
}

/// Where appended records went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The first record's seq.
    pub first_seq: Seq,
    /// How many there are.
    pub count: u32,
    /// The op that they are.
    pub op: Op,
}

/// One of the changes that a commit makes together.
#[derive(Clone, Debug)]
pub enum Operation<I> {
    /// Appends records.
    Append {
        /// To this extent.
        extent: ExtentId,
        /// The seq that the first must get.
        expected: Option<Seq>,
        /// The records.
        records: I,
    },
    /// Everything up to and including a seq is dead.
    Trim {
        /// In this extent.
        extent: ExtentId,
        /// The last dead seq.
        to: Seq,
    },
}

/// What one operation of a commit did: for a trim, the floor and no records.
pub type OperationDone = Appended;

/// Bytes of a state record with its run header, at most.
const STATE_SPACE: usize = 128;
/// Below this many bytes a payload of records needs no second look at the limits.
const SMALL: usize = 4096;

fn records_space<'a>(records: impl ExactSizeIterator<Item = Record<'a>> + Clone) -> usize {
    // A run more for each full one, and one since the first may not fill a run that is open.
    let extra_runs = records.len() / RUN_COUNT_MAX + 1;
    run_space(RunKind::Sequence, records.map(|record| record.payload.len())) + extra_runs * log_format::block::RUN_HEADER_SIZE
}

fn runs_of(records: usize) -> usize {
    records / RUN_COUNT_MAX + 2
}

fn refuse_group(error: GroupError) -> Refusal {
    match error {
        GroupError::Fenced { current } => Refusal::Fenced { epoch: current },
    }
}

impl<R: Runtime> Inner<R> {
    /// Checks sizes and checksums: all that does not depend on the shard's state.
    fn check_records<'a>(&self, first: usize, records: impl Iterator<Item = Record<'a>>) -> Result<(), Refusal> {
        let limit = self.options.record_size_max;
        for (index, record) in records.enumerate() {
            if record.payload.len() > limit {
                return Err(Refusal::TooLarge { limit_bytes: limit as u64 });
            }
            if log_format::payload_checksum(record.payload) != record.checksum {
                return Err(Refusal::BadChecksum { index: u32::try_from(first + index).unwrap_or(u32::MAX) });
            }
        }
        Ok(())
    }

    /// Refuses what no block could hold.
    fn check_space(&self, space: usize) -> Result<(), Refusal> {
        if space <= SMALL {
            return Ok(());
        }
        let half_segment = usize::try_from(self.options.segment_size / 2).unwrap_or(usize::MAX);
        let limit = half_segment.min(BLOCK_SIZE_MAX) - BLOCK_HEADER_SIZE - 4096;
        if space > limit { Err(Refusal::TooLarge { limit_bytes: self.options.op_size_max() as u64 }) } else { Ok(()) }
    }

    /// Checks that the group belongs to this shard.
    pub(crate) fn check_shard(&self, group: GroupId) -> Result<(), Refusal> {
        let owner = shard_of(group, self.options.shard_count);
        if owner == self.options.shard { Ok(()) } else { Err(Refusal::WrongShard { shard: owner }) }
    }

    /// Appends records to an extent as one op.
    pub(crate) async fn append<'a>(
        self: &Rc<Self>,
        extent: ExtentId,
        epoch: Epoch,
        expected: Option<Seq>,
        records: impl ExactSizeIterator<Item = Record<'a>> + Clone,
    ) -> Result<Gated<Appended>, Refusal> {
        if records.len() == 0 {
            return Err(Refusal::BadRequest { why: "an append without records".to_owned() });
        }
        self.check_records(0, records.clone())?;
        let space = records_space(records.clone());
        self.check_space(space)?;
        self.reserve(space, runs_of(records.len())).await?;
        let mut head = self.head.borrow_mut();
        let mut table = self.table.borrow_mut();
        let extent = table.find_mut(extent).ok_or(Refusal::NotFound)?;
        extent.group.progress.borrow().admit(epoch).map_err(refuse_group)?;
        check_append(extent, expected, extent.last_seq.next())?;
        let op = extent.group.progress.borrow_mut().append();
        let value = put_append(&mut head, extent, op, records, true);
        let gate = head.newest();
        drop((head, table));
        self.changed();
        Ok(Gated { value, gate })
    }

    /// Makes several changes of one group as one op: all of them or none.
    pub(crate) async fn commit<'a, I: ExactSizeIterator<Item = Record<'a>> + Clone>(
        self: &Rc<Self>,
        group: GroupId,
        epoch: Epoch,
        operations: &[Operation<I>],
    ) -> Result<Gated<Vec<OperationDone>>, Refusal> {
        self.check_shard(group)?;
        if operations.iter().any(|operation| matches!(operation, Operation::Append { records, .. } if records.len() == 0)) {
            return Err(Refusal::BadRequest { why: "an append without records".to_owned() });
        }
        let Some(last) = operations.len().checked_sub(1) else {
            return Err(Refusal::BadRequest { why: "a commit without operations".to_owned() });
        };
        let (mut space, mut runs, mut records_before) = (0, 0, 0);
        for operation in operations {
            match operation {
                Operation::Append { records, .. } => {
                    self.check_records(records_before, records.clone())?;
                    records_before += records.len();
                    space += records_space(records.clone());
                    runs += runs_of(records.len());
                }
                Operation::Trim { .. } => {
                    space += STATE_SPACE;
                    runs += 1;
                }
            }
        }
        self.check_space(space)?;
        self.reserve(space, runs).await?;
        let mut head = self.head.borrow_mut();
        let mut table = self.table.borrow_mut();
        let group = table.group(group).ok_or(Refusal::NotFound)?.clone();
        group.progress.borrow().admit(epoch).map_err(refuse_group)?;
        check_commit(&table, &group, operations)?;
        let op = group.progress.borrow_mut().append();
        let mut done = Vec::with_capacity(operations.len());
        for (index, operation) in operations.iter().enumerate() {
            let end_of_op = index == last;
            done.push(match operation {
                Operation::Append { extent, records, .. } => {
                    let extent = table.find_mut(*extent).expect("checked above");
                    put_append(&mut head, extent, op, records.clone(), end_of_op)
                }
                Operation::Trim { extent, to } => {
                    let extent = table.find_mut(*extent).expect("checked above");
                    put_trim(&mut head, extent, op, *to, end_of_op);
                    Appended { first_seq: extent.floor, count: 0, op }
                }
            });
        }
        let gate = head.newest();
        drop((head, table));
        self.changed();
        Ok(Gated { value: done, gate })
    }

    /// Creates an extent. To create one again that is there is no error, so that a retry is safe; it says false then.
    pub(crate) async fn create(
        self: &Rc<Self>,
        id: ExtentId,
        group: GroupId,
        kind: ExtentKind,
        epoch: Epoch,
    ) -> Result<Gated<bool>, Refusal> {
        self.check_shard(group)?;
        if kind == ExtentKind::Timer {
            return Err(Refusal::Unsupported { what: "timer extents".to_owned() });
        }
        self.reserve(STATE_SPACE, 1).await?;
        let mut head = self.head.borrow_mut();
        let table = self.table.borrow_mut();
        if let Some(extent) = table.find(id) {
            let same = extent.group.id == group && extent.kind == kind;
            return if same { Ok(Gated { value: false, gate: head.newest() }) } else { Err(Refusal::AlreadyExists) };
        }
        if let Some(group) = table.group(group) {
            group.progress.borrow().admit(epoch).map_err(refuse_group)?;
        }
        drop(table);
        if !self.checkpoint_has_room() {
            let why = "the shard has as many extents as its segments' checkpoints have room for: use larger segments".to_owned();
            return Err(Refusal::BadRequest { why });
        }
        let mut table = self.table.borrow_mut();
        let number = table.next_number();
        table.create(number, id, group, kind, epoch).expect("neither the id nor the number is taken");
        let extent = table.get_mut(number).expect("just created");
        put_change(&mut head, extent, &StateChange::Created { extent: id, group, kind, epoch });
        let gate = head.newest();
        drop((head, table));
        self.changed();
        Ok(Gated { value: true, gate })
    }

    /// Changes the state of one extent by `change`, which says what to log, or nothing if the extent is that way already.
    async fn change_state<T>(
        self: &Rc<Self>,
        id: ExtentId,
        epoch: Epoch,
        change: impl FnOnce(&mut Extent) -> Result<(Option<StateChange>, T), Refusal>,
    ) -> Result<Gated<(Op, T)>, Refusal> {
        self.reserve(STATE_SPACE, 1).await?;
        let mut head = self.head.borrow_mut();
        let mut table = self.table.borrow_mut();
        let extent = table.find_mut(id).ok_or(Refusal::NotFound)?;
        extent.group.progress.borrow().admit(epoch).map_err(refuse_group)?;
        let (logged, value) = change(extent)?;
        let op = match &logged {
            Some(change) => put_change(&mut head, extent, change),
            None => extent.group.progress.borrow().appended(),
        };
        if let Some(StateChange::Deleted) = logged {
            let number = extent.number;
            table.begin_delete(number);
            head.put_pending(PendingChange::Deleted { number, op });
        }
        let gate = head.newest();
        drop((head, table));
        self.changed();
        Ok(Gated { value: (op, value), gate })
    }

    /// Seals an extent: it takes no more records. Gives its last seq. To seal it again changes nothing.
    pub(crate) async fn seal(self: &Rc<Self>, id: ExtentId, epoch: Epoch) -> Result<Gated<(Op, Seq)>, Refusal> {
        self.change_state(id, epoch, |extent| {
            let already = std::mem::replace(&mut extent.sealed, true);
            let change = StateChange::Sealed { last: extent.last_seq };
            Ok(((!already).then_some(change), extent.last_seq))
        })
        .await
    }

    /// Deletes an extent with all its records.
    pub(crate) async fn delete(self: &Rc<Self>, id: ExtentId, epoch: Epoch) -> Result<Gated<(Op, ())>, Refusal> {
        self.change_state(id, epoch, |_| Ok((Some(StateChange::Deleted), ()))).await
    }

    /// Declares all records up to and including `to` dead. Gives the floor, which never goes back.
    pub(crate) async fn trim(self: &Rc<Self>, id: ExtentId, epoch: Epoch, to: Seq) -> Result<Gated<(Op, Seq)>, Refusal> {
        self.change_state(id, epoch, |extent| {
            check_trim(extent, to, extent.last_seq)?;
            let raised = to > extent.floor;
            extent.floor = extent.floor.max(to);
            let key = Key { seq: to, ..Key::default() };
            Ok((raised.then_some(StateChange::Trimmed { key }), extent.floor))
        })
        .await
    }
}

/// Whether an extent whose next seq would be `next` takes an append.
fn check_append(extent: &Extent, expected: Option<Seq>, next: Seq) -> Result<(), Refusal> {
    if extent.sealed {
        return Err(Refusal::Sealed { last: extent.last_seq });
    }
    match expected {
        Some(expected) if expected != next => Err(Refusal::SeqMismatch { next }),
        _ => Ok(()),
    }
}

fn check_trim(extent: &Extent, to: Seq, last: Seq) -> Result<(), Refusal> {
    if to > last {
        let why = format!("extent {} can't be trimmed to {to}: its last record is {last}", extent.id);
        return Err(Refusal::BadRequest { why });
    }
    Ok(())
}

/// Checks all operations of a commit against the state that those before them would leave.
fn check_commit<'a, I: ExactSizeIterator<Item = Record<'a>> + Clone>(
    table: &ExtentTable,
    group: &Rc<GroupCell>,
    operations: &[Operation<I>],
) -> Result<(), Refusal> {
    let mut last_seqs: Vec<(ExtentNumber, Seq)> = Vec::new();
    for operation in operations {
        let (Operation::Append { extent: id, .. } | Operation::Trim { extent: id, .. }) = operation;
        let extent = table.find(*id).ok_or(Refusal::NotFound)?;
        if !Rc::ptr_eq(&extent.group, group) {
            let why = format!("extent {id} is not in group {}", group.id);
            return Err(Refusal::BadRequest { why });
        }
        let known = last_seqs.iter().position(|(number, _)| *number == extent.number);
        let place = known.unwrap_or_else(|| {
            last_seqs.push((extent.number, extent.last_seq));
            last_seqs.len() - 1
        });
        let last = &mut last_seqs[place].1;
        match operation {
            Operation::Append { expected, records, .. } => {
                check_append(extent, *expected, last.next())?;
                last.0 += records.len() as u64;
            }
            Operation::Trim { to, .. } => check_trim(extent, *to, *last)?,
        }
    }
    Ok(())
}

fn start_of(extent: &Extent, kind: RunKind, first_seq: Seq, op: Op, append_time: Timestamp) -> RunStart {
    RunStart { extent_number: extent.number, extent: extent.id, kind, first_seq, op, append_time }
}

fn put_append<'a, R: Runtime>(
    head: &mut LogHead<R>,
    extent: &mut Extent,
    op: Op,
    records: impl ExactSizeIterator<Item = Record<'a>>,
    end_of_op: bool,
) -> Appended {
    let time = head.append_time();
    let (first_seq, count) = (extent.last_seq.next(), records.len());
    let start = start_of(extent, RunKind::Sequence, first_seq, op, time);
    extent.payload_bytes += head.put_records(&start, extent.kind, records, end_of_op);
    extent.last_seq = Seq(extent.last_seq.0 + count as u64);
    extent.record_count += count as u64;
    extent.last_append_time = time;
    extent.gate = head.newest();
    Appended { first_seq, count: count as u32, op }
}

fn put_trim<R: Runtime>(head: &mut LogHead<R>, extent: &mut Extent, op: Op, to: Seq, end_of_op: bool) {
    extent.floor = extent.floor.max(to);
    put_state(head, extent, op, &StateChange::Trimmed { key: Key { seq: to, ..Key::default() } }, end_of_op);
}

/// Logs a change of state as an op of its own.
fn put_change<R: Runtime>(head: &mut LogHead<R>, extent: &mut Extent, change: &StateChange) -> Op {
    let op = extent.group.progress.borrow_mut().append();
    put_state(head, extent, op, change, true);
    op
}

fn put_state<R: Runtime>(head: &mut LogHead<R>, extent: &mut Extent, op: Op, change: &StateChange, end_of_op: bool) {
    let mut payload = Vec::with_capacity(64);
    change.encode(&mut payload);
    let start = start_of(extent, RunKind::State, Seq(0), op, head.append_time());
    head.put_state(&start, &payload, end_of_op);
    let number = extent.number;
    match *change {
        StateChange::Created { .. } => head.put_pending(PendingChange::Created { number, op }),
        StateChange::Sealed { .. } => head.put_pending(PendingChange::Sealed { number, op }),
        StateChange::Trimmed { key } => head.put_pending(PendingChange::Trimmed { number, op, to: key.seq }),
        // The extent is hidden by who deletes it.
        StateChange::Deleted => {}
        StateChange::Fenced { .. } | StateChange::Discarded { .. } | StateChange::ReadFloor { .. } => {
            unreachable!("this version writes none of these")
        }
    }
    extent.gate = head.newest();
}
