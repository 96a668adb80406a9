//! The commit path: one block fills while others are on their way to the device, and becomes durable in order.
//!
//! Invariants: block n is durable when it and all blocks below it are on the device, and only then are its records indexed, its
//! extents' committed watermarks moved and its watchers told. Blocks are numbered when they are opened and written in that
//! order, each where the one before ends. After a failed write nothing more becomes durable in that segment.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use log_format::PAGE_SIZE;
use log_format::block::{BLOCK_HEADER_SIZE, BlockBuilder, BlockSeal, RUN_HEADER_SIZE, RunStart};
use log_format::ids::{BlockNumber, DeliverAt, ExtentKind, Op, SegmentId, Seq, Timestamp};
use log_format::wire::{Record, Refusal};
use node_io::{File, IoBuf, Monotonic, Runtime};
use replicator::Replica;
use tokio::sync::Notify;

use crate::extents::GroupCell;
use crate::index::{RunEntry, SegmentIndex, footer_bound};
use crate::pending::{Contents, PendingChange, PendingRun};
use crate::segment::{DATA_START, Segment};
use crate::shard::Inner;

/// Rounds up to whole pages.
pub(crate) fn page_align(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_SIZE)
}

/// The block that takes records now.
struct OpenBlock<R: Runtime> {
    contents: Contents,
    buffer: R::Buf,
    builder: BlockBuilder,
}

/// A block on its way to the device, or there already but behind one that is not.
struct InFlight<R: Runtime> {
    contents: Contents,
    offset: u64,
    length: usize,
    /// Its buffer, once it is on the device.
    written: Option<R::Buf>,
}

/// The head of the log.
pub(crate) struct LogHead<R: Runtime> {
    pub(crate) open: Rc<Segment<R>>,
    pub(crate) next_offset: u64,
    /// Runs in the open segment, durable or not: they decide how much room its footer will need.
    run_count: usize,
    current: Option<OpenBlock<R>>,
    in_flight: VecDeque<InFlight<R>>,
    next_number: BlockNumber,
    /// All blocks up to this one are decided: on the device, or lost.
    durable: BlockNumber,
    /// The last block of the log: differs from `durable` only while all blocks behind it are lost ones.
    log_end: BlockNumber,
    /// The segment that holds that block; 0: there is none.
    log_end_segment: SegmentId,
    /// Where that block ends in the open segment.
    log_end_offset: u64,
    /// Blocks that never became part of the log, as first and last.
    lost: Vec<(BlockNumber, BlockNumber)>,
    /// Writes that have not come back.
    writes_out: usize,
    last_append_time: Timestamp,
    last_submitted_at: Monotonic,
    /// The segment of the newest durable checkpoint: no older one is needed for its state.
    pub(crate) checkpoint: SegmentId,
    /// The open segment takes no more blocks; the next one is on its way.
    pub(crate) rolling: bool,
    pub(crate) draining: bool,
    /// Why the shard takes no appends.
    pub(crate) failed: Option<Rc<str>>,
    /// The shard is on its way to another segment, away from one that failed.
    pub(crate) moving_on: bool,
    builders: Vec<BlockBuilder>,
}

/// How many builders wait for reuse.
const SPARE_BUILDERS: usize = 8;

/// Whether a change may be written now.
enum Room {
    Ready,
    Wait,
    Roll,
}

impl<R: Runtime> LogHead<R> {
    /// The head of a log whose blocks up to `durable` are on the device, with an empty segment to go on in.
    pub(crate) fn new(
        open: Rc<Segment<R>>,
        durable: BlockNumber,
        durable_segment: SegmentId,
        last_append_time: Timestamp,
    ) -> Self {
        Self {
            // The new segment's own checkpoint is still to be written: until then no segment can go.
            checkpoint: SegmentId(0),
            open,
            next_offset: DATA_START,
            run_count: 0,
            current: None,
            in_flight: VecDeque::new(),
            next_number: durable.next(),
            durable,
            log_end: durable,
            log_end_segment: durable_segment,
            log_end_offset: DATA_START,
            lost: Vec::new(),
            writes_out: 0,
            last_append_time,
            last_submitted_at: Monotonic(0),
            rolling: false,
            draining: false,
            failed: None,
            moving_on: false,
            builders: Vec::new(),
        }
    }

    /// All blocks up to this one are decided: on the device, or lost.
    pub(crate) fn durable(&self) -> BlockNumber {
        self.durable
    }

    /// The last block of the log.
    pub(crate) fn log_end(&self) -> BlockNumber {
        self.log_end
    }

    /// The segment that holds the last block of the log; 0: there is none.
    pub(crate) fn log_end_segment(&self) -> SegmentId {
        self.log_end_segment
    }

    /// Where the log's last block ends in the open segment.
    pub(crate) fn log_end_offset(&self) -> u64 {
        self.log_end_offset
    }

    /// Whether block `number` never became part of the log.
    pub(crate) fn is_lost(&self, number: BlockNumber) -> bool {
        self.lost.iter().any(|&(first, last)| first <= number && number <= last)
    }

    pub(crate) fn writes_out(&self) -> usize {
        self.writes_out
    }

    /// The newest block that holds anything: what an answer waits for that rests on all changes so far.
    pub(crate) fn newest(&self) -> BlockNumber {
        let newest = match &self.current {
            Some(block) if !block.builder.is_empty() => block.contents.number,
            // The open block holds nothing yet, or there is none: the one before it is the newest.
            _ => self.last_submitted(),
        };
        // No answer rests on a lost block.
        if newest == self.durable { self.log_end } else { newest }
    }

    /// The last block handed to the device.
    pub(crate) fn last_submitted(&self) -> BlockNumber {
        let unsubmitted = u64::from(self.current.is_some());
        BlockNumber(self.next_number.0 - 1 - unsubmitted)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether no change is waiting for the device.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.current.as_ref().is_none_or(|block| block.builder.is_empty())
    }

    /// Whether nothing was handed to the device for so long.
    pub(crate) fn is_quiet(&self, now: Monotonic, time: Duration) -> bool {
        self.in_flight.is_empty() && now.since(self.last_submitted_at) >= time
    }

    /// Moves the head to a new segment. Everything before is durable.
    pub(crate) fn move_to(&mut self, segment: Rc<Segment<R>>) -> Rc<Segment<R>> {
        assert!(self.is_idle(), "a segment's first block comes behind durable blocks only");
        self.next_offset = DATA_START;
        self.log_end_offset = DATA_START;
        self.run_count = 0;
        std::mem::replace(&mut self.open, segment)
    }

    /// The number that the next segment's first block will have. Gives up the open block if it is empty.
    pub(crate) fn first_number_of_next_segment(&mut self) -> BlockNumber {
        self.give_up_empty_block();
        self.next_number
    }

    /// Takes an open block back that nothing was put into, with its number: the change that it was opened for was refused.
    fn give_up_empty_block(&mut self) {
        if let Some(block) = self.current.take() {
            assert!(block.builder.is_empty(), "only an empty block is given up");
            self.next_number = block.contents.number;
        }
    }

    /// Has `watcher` told when block `gate` is durable or lost. Does nothing if it is durable already.
    pub(crate) fn watch(&mut self, gate: BlockNumber, watcher: &Rc<Notify>) {
        if gate <= self.durable {
            return;
        }
        if self.failed.is_some() {
            watcher.notify_one();
            return;
        }
        let current = self.current.as_mut().map(|block| &mut block.contents).filter(|contents| contents.number == gate);
        let contents = current.or_else(|| {
            let place = usize::try_from(gate.0 - self.durable.0 - 1).ok()?;
            self.in_flight.get_mut(place).map(|block| &mut block.contents)
        });
        contents.expect("a block that is not durable is open or in flight").watchers.push(watcher.clone());
    }

    /// Whether the open segment has room for `bytes` of blocks more, with an index of `runs` runs more.
    fn segment_holds(&self, bytes: usize, runs: usize, segment_size: u64) -> bool {
        self.next_offset + bytes as u64 + footer_bound(self.run_count + runs) <= segment_size
    }

    /// The append time of what enters the open block.
    pub(crate) fn append_time(&self) -> Timestamp {
        self.current.as_ref().expect("room was reserved").contents.append_time
    }

    /// Puts the records of one op, or of an op's part, into the open block: behind the last run where that can be, else as runs of their own. Gives their payload bytes.
    pub(crate) fn put_records<'a>(
        &mut self,
        start: &RunStart,
        kind: ExtentKind,
        records: impl ExactSizeIterator<Item = Record<'a>>,
        end_of_op: bool,
    ) -> u64 {
        let block = self.current.as_mut().expect("room was reserved");
        let buffer = block.buffer.as_mut_slice();
        let record_header = start.kind.record_header_size() as u32;
        let last = records.len() - 1;
        let mut needs_run = !block.builder.continues(start);
        let mut payload_bytes = 0;
        for (index, record) in records.enumerate() {
            if needs_run || block.builder.room() == 0 {
                let start = RunStart { first_seq: Seq(start.first_seq.0 + index as u64), ..*start };
                let offset = block.builder.begin_run(buffer, &start);
                self.run_count += 1;
                block.contents.runs.push(PendingRun {
                    number: start.extent_number,
                    id: start.extent,
                    kind,
                    first_seq: start.first_seq,
                    count: 0,
                    offset,
                    length: RUN_HEADER_SIZE as u32,
                    last_op: start.op,
                    payload_bytes: 0,
                });
                needs_run = false;
            }
            block.builder.push_record(buffer, record.payload, record.checksum, record.deliver_at, end_of_op && index == last);
            let run = block.contents.runs.last_mut().expect("a run was begun");
            run.count += 1;
            run.length += record_header + record.payload.len() as u32;
            run.payload_bytes += record.payload.len() as u64;
            run.last_op = start.op;
            payload_bytes += record.payload.len() as u64;
        }
        payload_bytes
    }

    /// Puts a state record into the open block.
    pub(crate) fn put_state(&mut self, start: &RunStart, payload: &[u8], end_of_op: bool) {
        let block = self.current.as_mut().expect("room was reserved");
        block.builder.begin_run(block.buffer.as_mut_slice(), start);
        let checksum = log_format::payload_checksum(payload);
        block.builder.push_record(block.buffer.as_mut_slice(), payload, checksum, DeliverAt(0), end_of_op);
    }

    /// A change becomes true when the open block is durable.
    pub(crate) fn put_pending(&mut self, change: PendingChange) {
        self.current.as_mut().expect("room was reserved").contents.changes.push(change);
    }
}

impl<R: Runtime> Inner<R> {
    /// Waits until the open block has room for a change of `space` bytes with `runs` run headers at most. Between its return and the
    /// change there must be no await.
    pub(crate) async fn reserve(self: &Rc<Self>, space: usize, runs: usize) -> Result<(), Refusal> {
        loop {
            self.admit_changes()?;
            match self.try_reserve(space, runs) {
                Room::Ready => return Ok(()),
                Room::Wait => {}
                Room::Roll => self.start_roll(),
            }
            if let Some(why) = self.preparer.trouble()
                && self.head.borrow().rolling
            {
                return Err(Refusal::ReadOnly { why });
            }
            self.room.notified().await;
        }
    }

    fn admit_changes(&self) -> Result<(), Refusal> {
        let head = self.head.borrow();
        if let Some(why) = &head.failed {
            return Err(Refusal::ReadOnly { why: why.to_string() });
        }
        if head.draining { Err(Refusal::ShuttingDown) } else { Ok(()) }
    }

    fn try_reserve(self: &Rc<Self>, space: usize, runs: usize) -> Room {
        let options = &self.options;
        let mut head = self.head.borrow_mut();
        if head.rolling {
            return Room::Wait;
        }
        if let Some(block) = &head.current {
            let used = block.builder.used() + space;
            let fits = used <= block.contents.capacity && head.segment_holds(page_align(used), runs, options.segment_size);
            if fits {
                return Room::Ready;
            }
            if head.in_flight.len() >= options.commit_depth {
                return Room::Wait;
            }
            self.submit(&mut head);
        }
        let needed = page_align(BLOCK_HEADER_SIZE + space);
        if !head.segment_holds(needed, runs, options.segment_size) {
            return Room::Roll;
        }
        self.open_block(&mut head, needed.max(options.block_size));
        Room::Ready
    }

    fn open_block(&self, head: &mut LogHead<R>, capacity: usize) {
        head.give_up_empty_block();
        let append_time = Timestamp(self.runtime.wall_clock()).max(head.last_append_time);
        head.last_append_time = append_time;
        let mut builder = head.builders.pop().unwrap_or_default();
        builder.reset();
        let contents = Contents::new(head.next_number, capacity, append_time, self.runtime.monotonic());
        head.current = Some(OpenBlock { contents, buffer: head.open.file.allocate(capacity), builder });
        head.next_number = head.next_number.next();
    }

    /// Something entered the open block: it is written at the end of this turn if the device is idle, so that all that arrived in the
    /// same turn shares it; else when the block is full or a block on its way arrives.
    pub(crate) fn changed(&self) {
        if self.head.borrow().in_flight.is_empty() {
            self.dirty.notify_one();
        }
    }

    /// The committer: writes the open block when the device is idle.
    pub(crate) async fn run_committer(self: Rc<Self>) {
        loop {
            self.dirty.notified().await;
            let mut head = self.head.borrow_mut();
            if head.in_flight.is_empty() {
                self.submit(&mut head);
            }
        }
    }

    /// Hands the open block to the device, unless it is empty or there is none.
    pub(crate) fn submit(self: &Rc<Self>, head: &mut LogHead<R>) {
        if head.current.as_ref().is_none_or(|block| block.builder.is_empty()) || head.failed.is_some() {
            return;
        }
        let block = head.current.take().expect("checked above");
        self.submit_block(head, block, false);
    }

    /// Writes one part of a checkpoint as a block of its own. The caller keeps to the commit depth.
    pub(crate) fn submit_checkpoint(self: &Rc<Self>, head: &mut LogHead<R>, start: &RunStart, part: &[u8]) {
        assert!(head.current.is_none(), "checkpoint blocks stand before all others");
        let space = log_format::block::run_space(start.kind, std::iter::once(part.len()));
        self.open_block(head, page_align(BLOCK_HEADER_SIZE + space));
        let mut block = head.current.take().expect("just opened");
        block.builder.begin_run(block.buffer.as_mut_slice(), start);
        let checksum = log_format::payload_checksum(part);
        block.builder.push_record(block.buffer.as_mut_slice(), part, checksum, DeliverAt(0), true);
        self.submit_block(head, block, true);
    }

    fn submit_block(self: &Rc<Self>, head: &mut LogHead<R>, mut block: OpenBlock<R>, checkpoint: bool) {
        let seal = BlockSeal {
            segment: head.open.id,
            log_id: head.open.identity.log_id,
            number: block.contents.number,
            committed: head.log_end,
            checkpoint,
        };
        let length = block.builder.finish(block.buffer.as_mut_slice(), &seal);
        let offset = head.next_offset;
        head.next_offset += length as u64;
        head.last_submitted_at = self.runtime.monotonic();
        if head.builders.len() < SPARE_BUILDERS {
            head.builders.push(block.builder);
        }
        let (inner, file, number, buffer) = (self.clone(), head.open.file.clone(), seal.number, block.buffer);
        head.in_flight.push_back(InFlight { contents: block.contents, offset, length, written: None });
        head.writes_out += 1;
        self.runtime.spawn_detached(Box::pin(async move {
            let started = inner.runtime.monotonic();
            let (result, buffer) = file.write_at(buffer, length, offset).await;
            let took = inner.runtime.monotonic().since(started);
            inner.written(number, result, buffer, took.as_nanos() as u64);
        }));
    }

    /// A block's write came back.
    fn written(self: &Rc<Self>, number: BlockNumber, result: io::Result<()>, buffer: R::Buf, took_ns: u64) {
        self.head.borrow_mut().writes_out -= 1;
        if let Err(error) = result {
            self.fail(&format!("the write of block {number} failed: {error}"));
            return;
        }
        let mut head = self.head.borrow_mut();
        if head.is_lost(number) {
            drop(head);
            self.room.notify_waiters();
            return;
        }
        self.counters.borrow_mut().device_write_ns.observe(took_ns);
        let place = head.in_flight.iter().position(|block| block.contents.number == number).expect("it was in flight");
        head.in_flight[place].written = Some(buffer);
        while head.in_flight.front().is_some_and(|block| block.written.is_some()) {
            let block = head.in_flight.pop_front().expect("there is a front");
            let number = block.contents.number;
            assert_eq!(number, head.durable.next(), "blocks become durable in order");
            (head.durable, head.log_end) = (number, number);
            head.log_end_segment = head.open.id;
            head.log_end_offset = block.offset + block.length as u64;
            let segment = head.open.clone();
            self.make_durable(&segment, block);
        }
        // What gathered meanwhile goes now: the device has a place free.
        if head.in_flight.len() < self.options.commit_depth {
            self.submit(&mut head);
        }
        drop(head);
        self.room.notify_waiters();
    }

    fn make_durable(&self, segment: &Rc<Segment<R>>, block: InFlight<R>) {
        let mut table = self.table.borrow_mut();
        let mut index = segment.index.borrow_mut();
        let SegmentIndex::Memory(memory) = &mut *index else { panic!("the open segment's index is in memory") };
        let contents = block.contents;
        let buffer = block.written.expect("only blocks on the device become durable");
        let mut counters = self.counters.borrow_mut();
        for run in &contents.runs {
            counters.records_appended += u64::from(run.count);
            counters.payload_bytes_appended += run.payload_bytes;
            // An extent whose deletion is durable is gone; none of its records can come behind that.
            let Some(extent) = table.get_mut_even_deleting(run.number) else { continue };
            let entry = RunEntry {
                first_seq: run.first_seq,
                append_time: contents.append_time,
                offset: block.offset + u64::from(run.offset),
                length: run.length,
                count: run.count,
            };
            commit_op(&extent.group, run.last_op);
            memory.push(run.number, run.id, run.kind, entry, run.payload_bytes);
            if extent.extend_span(segment.id, entry.first_seq, entry.last_seq()) {
                segment.live_spans.set(segment.live_spans.get() + 1);
            }
            extent.committed_seq = entry.last_seq();
            extent.announce();
        }
        let mut dead = Vec::new();
        for change in contents.changes {
            match change {
                PendingChange::Created { number, op } | PendingChange::Sealed { number, op } => {
                    if let Some(extent) = table.get_mut_even_deleting(number) {
                        commit_op(&extent.group, op);
                        extent.announce();
                    }
                }
                PendingChange::Trimmed { number, op, to } => {
                    if let Some(extent) = table.get_mut_even_deleting(number) {
                        commit_op(&extent.group, op);
                        extent.committed_floor = extent.committed_floor.max(to);
                        dead.extend(extent.take_dead_spans());
                        extent.announce();
                    }
                }
                PendingChange::Deleted { number, op } => {
                    let extent = table.end_delete(number);
                    commit_op(&extent.group, op);
                    dead.extend(extent.spans.iter().copied());
                    extent.announce();
                }
            }
        }
        counters.blocks_written += 1;
        counters.block_bytes_written += block.length as u64;
        counters.block_size_bytes.observe(block.length as u64);
        counters.commit_ns.observe(self.runtime.monotonic().since(contents.opened_at).as_nanos() as u64);
        drop((index, counters, table));
        self.tail.borrow_mut().insert(segment.id, block.offset, buffer, contents.capacity);
        for watcher in contents.watchers {
            watcher.notify_one();
        }
        self.release(&dead);
    }

    /// Spans without a live record: segments that hold nothing else can go.
    pub(crate) fn release(&self, dead: &[crate::extents::Span]) {
        let segments = self.segments.borrow();
        for span in dead {
            if let Some(segment) = segments.get(&span.segment) {
                segment.live_spans.set(segment.live_spans.get().checked_sub(1).expect("a span is released once"));
            }
        }
        if !dead.is_empty() {
            self.retire.notify_one();
        }
    }

    /// The open segment failed: nothing that is not durable now will ever be acked. Appends are refused until the shard has moved on to
    /// another segment. Reads go on, of what is durable: the changes that never will be are taken back, newest first, so that no answer
    /// rests on them. The numbers of the lost blocks are not used again.
    pub(crate) fn fail(self: &Rc<Self>, why: &str) {
        let mut head = self.head.borrow_mut();
        self.counters.borrow_mut().device_errors += 1;
        if head.failed.is_some() {
            drop(head);
            self.room.notify_waiters();
            return;
        }
        tracing::error!(shard = self.options.shard.0, why, "the shard stops taking appends");
        head.failed = Some(why.into());
        let mut watchers = Vec::new();
        let mut table = self.table.borrow_mut();
        if let Some(block) = head.current.take() {
            watchers.extend(block.contents.take_back(&mut table));
        }
        while let Some(block) = head.in_flight.pop_back() {
            watchers.extend(block.contents.take_back(&mut table));
        }
        let (log_end, last) = (head.log_end, BlockNumber(head.next_number.0 - 1));
        if last > log_end {
            head.lost.push((log_end.next(), last));
        }
        head.durable = last;
        head.next_offset = head.log_end_offset;
        for extent in table.iter_mut() {
            extent.gate = extent.gate.min(log_end);
        }
        for group in table.groups() {
            group.progress.borrow_mut().abandon();
        }
        drop((head, table));
        self.start_moving_on();
        watchers.iter().for_each(|watcher| watcher.notify_one());
        self.room.notify_waiters();
    }
}

fn commit_op(group: &GroupCell, op: Op) {
    group.progress.borrow_mut().durable(Replica(0), op);
}
