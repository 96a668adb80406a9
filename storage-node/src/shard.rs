//! A shard: one partition of a node, with its log, its extents and its indexes. It lives on one thread.
//!
//! The parts: [`crate::changes`] takes changes, [`crate::commit`] brings them to the device, [`crate::roll`] and [`crate::prepare`] keep
//! segments coming and going, [`crate::read`] serves what is committed, [`crate::recovery`] reads the log back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use log_format::ids::{BlockNumber, Epoch, ExtentId, ExtentKind, GroupId, Op, SegmentId, Seq, ShardIndex, Timestamp};
use log_format::wire::reply::{ExtentInfo, ExtentState};
use log_format::wire::{Record, Refusal};
use node_io::Runtime;
use tokio::sync::{Notify, Semaphore};

use crate::changes::{Appended, Gated, Operation, OperationDone};
use crate::commit::LogHead;
use crate::extents::{Extent, ExtentTable};
use crate::footers::PageCache;
use crate::options::ShardOptions;
use crate::prepare::{Preparer, prepare};
use crate::read::{ReadBatch, ReadRequest};
use crate::recovery::{Damage, RecoveryError, recover};
use crate::roll::{Unclosed, last_unclosed};
use crate::segment::Segment;
use crate::status::{Counters, Phase, ShardStatus};
use crate::tail_cache::TailCache;

/// Device reads under way at the same time.
const READ_DEPTH: usize = 8;

/// What the tasks of a shard share.
pub(crate) struct Inner<R: Runtime> {
    pub(crate) runtime: R,
    pub(crate) options: ShardOptions,
    pub(crate) dir: PathBuf,
    pub(crate) head: RefCell<LogHead<R>>,
    pub(crate) table: RefCell<ExtentTable>,
    pub(crate) segments: RefCell<BTreeMap<SegmentId, Rc<Segment<R>>>>,
    pub(crate) preparer: Preparer<R>,
    pub(crate) tail: RefCell<TailCache<R::Buf>>,
    pub(crate) pages: PageCache,
    pub(crate) read_depth: Semaphore,
    pub(crate) counters: RefCell<Counters>,
    /// Something entered the open block while the device was idle.
    pub(crate) dirty: Notify,
    /// Blocks reached the device, the log moved to another segment, or the shard failed: who waits for room looks again.
    pub(crate) room: Notify,
    /// A segment may have died.
    pub(crate) retire: Notify,
    /// Footers being written.
    pub(crate) closing: Cell<usize>,
    /// Segments whose footers are still to be written, or could not be.
    pub(crate) unclosed: RefCell<Vec<Unclosed<R>>>,
    pub(crate) connections: Cell<u64>,
    pub(crate) receive_bytes: Cell<u64>,
    pub(crate) damage: Vec<Damage>,
    recovery_ns: u64,
    recovery_blocks: u64,
}

/// A handle to a shard. Clones are of the same one.
pub struct Shard<R: Runtime>(pub(crate) Rc<Inner<R>>);

impl<R: Runtime> Clone for Shard<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: Runtime> Shard<R> {
    /// Opens the shard whose log is in `dir`, reading it back; makes the directory if it is missing.
    ///
    /// # Errors
    /// If the device refuses, or the log has nothing to start from.
    pub async fn open(runtime: R, dir: &Path, options: ShardOptions) -> Result<Self, RecoveryError> {
        let started = runtime.monotonic();
        runtime.create_dir_all(dir).await.map_err(RecoveryError::io(dir))?;
        let recovered = recover(&runtime, dir, &options).await?;
        let counters = RefCell::new(Counters::default());
        let mut spares = recovered.spares;
        let spare = (!spares.is_empty()).then(|| spares.remove(0));
        let id = recovered.next_segment;
        let prepared =
            prepare(&runtime, dir, &options, spare, id, &counters, async |_| ()).await.map_err(RecoveryError::io(dir))?;
        let segment = prepared.into_segment(options.segment_size, recovered.last_block.next());
        let mut segments = recovered.segments;
        segments.insert(segment.id, segment.clone());
        let mut head = LogHead::new(segment, recovered.last_block, recovered.last_segment, recovered.last_append_time);
        // Appends come in when the new segment's checkpoint is durable.
        head.rolling = true;
        let inner = Rc::new(Inner {
            head: RefCell::new(head),
            table: RefCell::new(recovered.table),
            segments: RefCell::new(segments),
            preparer: Preparer::new(id.next(), spares),
            tail: RefCell::new(TailCache::new(options.tail_cache_bytes)),
            pages: PageCache::new(options.page_cache_bytes),
            read_depth: Semaphore::new(READ_DEPTH),
            counters,
            dirty: Notify::new(),
            room: Notify::new(),
            retire: Notify::new(),
            closing: Cell::new(0),
            unclosed: RefCell::default(),
            connections: Cell::new(0),
            receive_bytes: Cell::new(0),
            damage: recovered.damage,
            recovery_ns: runtime.monotonic().since(started).as_nanos() as u64,
            recovery_blocks: recovered.blocks_replayed,
            runtime,
            options,
            dir: dir.to_owned(),
        });
        tracing::info!(
            shard = inner.options.shard.0,
            segments = inner.segments.borrow().len(),
            extents = inner.table.borrow().len(),
            blocks_replayed = inner.recovery_blocks,
            took_ms = inner.recovery_ns / 1_000_000,
            "the log is read back"
        );
        let shard = Self(inner);
        for (segment, blocks) in recovered.unclosed {
            shard.0.unclosed.borrow_mut().push(Unclosed { segment, blocks, cut: true });
        }
        shard.begin().await;
        Ok(shard)
    }

    async fn begin(&self) {
        let inner = &self.0;
        if let Some(damage) = inner.damage.first() {
            // A checkpoint now would pretend that nothing is missing.
            inner.fail(&format!(
                "blocks {} to {} of segment {} were durable and are damaged: restore the shard from a replica or a backup",
                damage.first, damage.last, damage.segment
            ));
        } else {
            inner.runtime.spawn_detached(Box::pin(inner.clone().run_committer()));
            inner.runtime.spawn_detached(Box::pin(inner.clone().run_preparer()));
            inner.runtime.spawn_detached(Box::pin(inner.clone().run_retirer()));
            if inner.write_checkpoint().await.is_some() {
                // Only now: before the checkpoint is durable, the tail of an unclosed segment is what a restart would start from.
                inner.close_in_background();
            }
        }
    }

    /// Which shard this is.
    pub fn index(&self) -> ShardIndex {
        self.0.options.shard
    }

    /// Its settings.
    pub fn options(&self) -> &ShardOptions {
        &self.0.options
    }

    /// Ranges of blocks found damaged when the log was read back.
    pub fn damage(&self) -> &[Damage] {
        &self.0.damage
    }

    /// Appends records to an extent as one op.
    ///
    /// # Errors
    /// NotFound, Sealed, Fenced, SeqMismatch, TooLarge, BadChecksum, ReadOnly, ShuttingDown. Nothing is appended then.
    pub async fn append<'a>(
        &self,
        extent: ExtentId,
        epoch: Epoch,
        expected: Option<Seq>,
        records: impl ExactSizeIterator<Item = Record<'a>> + Clone,
    ) -> Result<Gated<Appended>, Refusal> {
        self.0.append(extent, epoch, expected, records).await
    }

    /// Makes several changes of extents of one group as one op: all of them or none.
    ///
    /// # Errors
    /// As [`Shard::append`], and WrongShard and BadRequest. Nothing is changed then.
    pub async fn commit<'a, I: ExactSizeIterator<Item = Record<'a>> + Clone>(
        &self,
        group: GroupId,
        epoch: Epoch,
        operations: &[Operation<I>],
    ) -> Result<Gated<Vec<OperationDone>>, Refusal> {
        self.0.commit(group, epoch, operations).await
    }

    /// Creates an extent; false if it was there already, with the same group and kind.
    ///
    /// # Errors
    /// WrongShard, AlreadyExists, Unsupported, BadRequest, Fenced, ReadOnly, ShuttingDown.
    pub async fn create(&self, id: ExtentId, group: GroupId, kind: ExtentKind, epoch: Epoch) -> Result<Gated<bool>, Refusal> {
        self.0.create(id, group, kind, epoch).await
    }

    /// Seals an extent; gives its last seq.
    ///
    /// # Errors
    /// NotFound, Fenced, ReadOnly, ShuttingDown.
    pub async fn seal(&self, id: ExtentId, epoch: Epoch) -> Result<Gated<(Op, Seq)>, Refusal> {
        self.0.seal(id, epoch).await
    }

    /// Deletes an extent with all its records.
    ///
    /// # Errors
    /// NotFound, Fenced, ReadOnly, ShuttingDown.
    pub async fn delete(&self, id: ExtentId, epoch: Epoch) -> Result<Gated<(Op, ())>, Refusal> {
        self.0.delete(id, epoch).await
    }

    /// Declares all records of an extent up to and including `to` dead; gives the floor.
    ///
    /// # Errors
    /// NotFound, BadRequest, Fenced, ReadOnly, ShuttingDown.
    pub async fn trim(&self, id: ExtentId, epoch: Epoch, to: Seq) -> Result<Gated<(Op, Seq)>, Refusal> {
        self.0.trim(id, epoch, to).await
    }

    /// Reads committed records; waits up to `wait` for one if there is none yet.
    ///
    /// # Errors
    /// NotFound, Trimmed, Corrupt.
    pub async fn read(&self, request: &ReadRequest, wait: Duration) -> Result<ReadBatch, Refusal> {
        self.0.wait_readable(request, wait).await?;
        self.0.read(request).await
    }

    /// Waits up to `wait` until a read would find a record, or will never find one.
    ///
    /// # Errors
    /// NotFound, Trimmed.
    pub async fn wait_readable(&self, request: &ReadRequest, wait: Duration) -> Result<(), Refusal> {
        self.0.wait_readable(request, wait).await
    }

    /// The first record appended at or after `time`.
    ///
    /// # Errors
    /// NotFound, Corrupt.
    pub async fn seq_at_time(&self, id: ExtentId, time: Timestamp) -> Result<Option<(Seq, Timestamp)>, Refusal> {
        self.0.seq_at_time(id, time).await
    }

    /// Describes an extent.
    ///
    /// # Errors
    /// NotFound.
    pub fn describe(&self, id: ExtentId) -> Result<Gated<ExtentInfo>, Refusal> {
        let table = self.0.table.borrow();
        let extent = table.find(id).ok_or(Refusal::NotFound)?;
        Ok(Gated { value: self.info(extent), gate: extent.gate })
    }

    /// Up to `limit` extents in the order of their ids, behind `after`; and whether there are more.
    pub fn list(&self, after: Option<ExtentId>, limit: usize) -> Gated<(Vec<ExtentInfo>, bool)> {
        let table = self.0.table.borrow();
        let mut found = table.list(after.unwrap_or(ExtentId(0)));
        let extents: Vec<_> = found.by_ref().take(limit).map(|extent| self.info(extent)).collect();
        Gated { value: (extents, found.next().is_some()), gate: self.0.head.borrow().newest() }
    }

    fn info(&self, extent: &Extent) -> ExtentInfo {
        let progress = extent.group.progress.borrow();
        ExtentInfo {
            extent: extent.id,
            group: extent.group.id,
            shard: self.0.options.shard,
            kind: extent.kind,
            state: if extent.sealed { ExtentState::Sealed } else { ExtentState::Open },
            epoch: progress.epoch(),
            first_seq: extent.floor.next(),
            // All of this is true when the answer's gate is durable: a sealed extent is not described with an end that grows meanwhile.
            last_seq: extent.last_seq,
            committed_op: progress.committed(),
            records: extent.last_seq.0 - extent.floor.0,
            payload_bytes: extent.payload_bytes,
        }
    }

    /// The gate of an answer that may rest on any change so far.
    pub fn newest(&self) -> BlockNumber {
        self.0.head.borrow().newest()
    }

    /// Whether an answer behind `gate` may leave: none while it is undecided, and an error if it never will be.
    pub fn decided(&self, gate: BlockNumber) -> Option<Result<(), Refusal>> {
        let head = self.0.head.borrow();
        if head.is_lost(gate) {
            return Some(Err(Refusal::UnknownOutcome));
        }
        if gate <= head.durable() { Some(Ok(())) } else { head.failed.as_ref().map(|_| Err(Refusal::UnknownOutcome)) }
    }

    /// Has `watcher` told when `gate` is decided.
    pub fn watch(&self, gate: BlockNumber, watcher: &Rc<Notify>) {
        self.0.head.borrow_mut().watch(gate, watcher);
    }

    /// Waits until `gate` is decided.
    ///
    /// # Errors
    /// UnknownOutcome if the device failed before.
    pub async fn durable(&self, gate: BlockNumber) -> Result<(), Refusal> {
        let watcher = Rc::new(Notify::new());
        loop {
            if let Some(decided) = self.decided(gate) {
                return decided;
            }
            self.watch(gate, &watcher);
            watcher.notified().await;
        }
    }

    /// Refuses new work, finishes what is in flight and closes the open segment.
    pub async fn drain(&self) {
        let inner = &self.0;
        inner.head.borrow_mut().draining = true;
        inner.room.notify_waiters();
        inner.preparer.wanted.notify_one();
        inner.table.borrow().iter().for_each(Extent::announce);
        while inner.head.borrow().rolling && inner.head.borrow().failed.is_none() && inner.preparer.trouble().is_none() {
            inner.room.notified().await;
        }
        if inner.settle().await.is_some() && !inner.head.borrow().rolling {
            let last = last_unclosed(&inner.head.borrow());
            inner.close_and_report(last).await;
        }
        while inner.closing.get() > 0 {
            inner.room.notified().await;
        }
    }

    /// Reports on the shard.
    pub fn status(&self) -> ShardStatus {
        let inner = &self.0;
        let head = inner.head.borrow();
        let table = inner.table.borrow();
        let segments = inner.segments.borrow();
        let trouble = inner.preparer.trouble().filter(|_| head.rolling);
        let phase = if let Some(why) = &head.failed {
            Phase::ReadOnly(why.to_string())
        } else if head.draining {
            Phase::Draining
        } else if let Some(why) = trouble {
            Phase::ReadOnly(why)
        } else {
            Phase::Serving
        };
        let sealed = table.iter().filter(|extent| extent.sealed).count() as u64;
        let index_bytes: u64 = segments.values().map(|segment| segment.index.borrow().memory_bytes()).sum();
        ShardStatus {
            shard: inner.options.shard,
            phase,
            open_segment: head.open.id,
            segments: segments.len() as u64,
            segments_prepared: inner.preparer.ready_count() as u64,
            last_block: head.last_submitted(),
            durable_block: head.log_end(),
            blocks_in_flight: head.in_flight() as u64,
            extents_open: table.len() as u64 - sealed,
            extents_sealed: sealed,
            records_live: table.iter().map(|extent| extent.committed_seq.0.saturating_sub(extent.floor.0)).sum(),
            payload_bytes_held: table.iter().map(|extent| extent.payload_bytes).sum(),
            connections: inner.connections.get(),
            receive_buffer_bytes: inner.receive_bytes.get(),
            tail_cache_bytes: inner.tail.borrow().bytes() as u64,
            index_bytes: index_bytes + inner.pages.bytes() as u64,
            recovery_ns: inner.recovery_ns,
            recovery_blocks: inner.recovery_blocks,
            counters: inner.counters.borrow().clone(),
        }
    }
}
