//! From one segment to the next: the roll, the checkpoint at the new one's start, the footer of the old one, and its retirement.
//!
//! A segment's first block is written only when all blocks before it are durable, so a checkpoint never claims what a crash can
//! take away. Footers are written off the commit path: until one is on the device, its index stays in memory.

use std::io;
use std::rc::Rc;

use log_format::PAGE_SIZE;
use log_format::block::{RunKind, RunStart};
use log_format::checkpoint::CheckpointPart;
use log_format::footer::{FooterBuilder, FooterInput, Trailer};
use log_format::ids::{BlockNumber, ExtentId, ExtentNumber, Op, SegmentId, Seq, Timestamp};
use node_io::{File, Runtime};

use crate::commit::LogHead;
use crate::index::{FooterIndex, SegmentIndex};
use crate::segment::{PreparedSegment, Segment, spare_name, write_pages};
use crate::shard::Inner;

/// Entries in one part of a checkpoint: a part stays under about 256 KiB.
const PART_ENTRIES: usize = 1024;
/// Bytes of one entry in an encoded part, at most, group included.
pub(crate) const ENTRY_BYTES: u64 = 192;

/// What a closed segment's blocks were.
#[derive(Clone, Copy)]
pub(crate) struct BlockRange {
    pub(crate) first: BlockNumber,
    pub(crate) last: BlockNumber,
    /// Where the last one ends.
    pub(crate) data_end: u64,
}

/// A segment that takes no more blocks and has no footer yet.
pub(crate) struct Unclosed<R: Runtime> {
    pub(crate) segment: Rc<Segment<R>>,
    pub(crate) blocks: BlockRange,
    /// Whether its file is cut behind the footer: it is not full, or not to be used again.
    pub(crate) cut: bool,
}

impl<R: Runtime> Inner<R> {
    /// Moves the log to the next segment, unless that is under way.
    pub(crate) fn start_roll(self: &Rc<Self>) {
        let already = std::mem::replace(&mut self.head.borrow_mut().rolling, true);
        if !already {
            let inner = self.clone();
            self.runtime.spawn_detached(Box::pin(async move {
                if inner.roll().await.is_some() {
                    inner.close_in_background();
                }
            }));
        }
    }

    /// Finishes the open segment's blocks, opens the next segment and writes its checkpoint. None if the shard failed meanwhile.
    async fn roll(self: &Rc<Self>) -> Option<()> {
        self.settle().await?;
        let prepared = self.next_prepared().await;
        let (segment, blocks) = self.enter(prepared);
        self.unclosed.borrow_mut().push(Unclosed { segment, blocks, cut: false });
        self.write_checkpoint().await
    }

    /// Waits until nothing is on its way to the device; none if the shard failed.
    pub(crate) async fn settle(self: &Rc<Self>) -> Option<()> {
        loop {
            {
                let mut head = self.head.borrow_mut();
                if head.failed.is_some() {
                    return None;
                }
                if head.is_idle() {
                    return Some(());
                }
                if head.in_flight() < self.options.commit_depth {
                    self.submit(&mut head);
                }
            }
            self.room.notified().await;
        }
    }

    /// Waits for a segment to go on in.
    pub(crate) async fn next_prepared(&self) -> PreparedSegment<R> {
        loop {
            if let Some(prepared) = self.preparer.take() {
                return prepared;
            }
            self.preparer.arrived.notified().await;
        }
    }

    /// Makes a prepared segment the open one.
    pub(crate) fn enter(&self, prepared: PreparedSegment<R>) -> (Rc<Segment<R>>, BlockRange) {
        let mut head = self.head.borrow_mut();
        let (last, data_end) = (head.log_end(), head.log_end_offset());
        let first_of_next = head.first_number_of_next_segment();
        let segment = prepared.into_segment(self.options.segment_size, first_of_next);
        self.segments.borrow_mut().insert(segment.id, segment.clone());
        let old = head.move_to(segment);
        let range = BlockRange { first: old.first_block, last, data_end };
        (old, range)
    }

    /// Writes the checkpoint of the extent table as the open segment's first blocks, waits until it is durable, and lets appends in.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>) -> Option<()> {
        let previous = self.head.borrow().log_end_segment();
        for (index, part) in self.checkpoint_parts(previous).iter().enumerate() {
            while self.head.borrow().in_flight() >= self.options.commit_depth {
                if self.head.borrow().failed.is_some() {
                    return None;
                }
                self.room.notified().await;
            }
            let start = RunStart {
                extent_number: ExtentNumber(0),
                extent: ExtentId(0),
                kind: RunKind::Checkpoint,
                first_seq: Seq(index as u64),
                op: Op(0),
                append_time: Timestamp(self.runtime.wall_clock()),
            };
            self.submit_checkpoint(&mut self.head.borrow_mut(), &start, part);
        }
        self.settle().await?;
        let mut head = self.head.borrow_mut();
        head.checkpoint = head.open.id;
        head.rolling = false;
        drop(head);
        self.room.notify_waiters();
        self.retire.notify_one();
        Some(())
    }

    fn checkpoint_parts(&self, previous_segment: SegmentId) -> Vec<Vec<u8>> {
        let table = self.table.borrow();
        let (groups, extents) = table.entries();
        let count = groups.len().max(extents.len()).div_ceil(PART_ENTRIES).max(1);
        let slice = |length: usize, index: usize| (index * PART_ENTRIES).min(length)..((index + 1) * PART_ENTRIES).min(length);
        (0..count)
            .map(|index| {
                CheckpointPart {
                    part_count: count as u32,
                    next_extent_number: table.next_number(),
                    previous_segment,
                    groups: groups[slice(groups.len(), index)].to_vec(),
                    extents: extents[slice(extents.len(), index)].to_vec(),
                }
                .encode()
            })
            .collect()
    }

    /// Whether the checkpoint of one extent more would still leave most of a segment to records.
    pub(crate) fn checkpoint_has_room(&self) -> bool {
        (self.table.borrow().len() as u64 + 1) * ENTRY_BYTES <= self.options.segment_size / 4
    }

    /// Closes the unclosed segments one after the other, off the commit path. The checkpoint of the open one is durable: before that, they
    /// are what a restart would start from.
    pub(crate) fn close_in_background(self: &Rc<Self>) {
        let inner = self.clone();
        self.closing.set(self.closing.get() + 1);
        self.runtime.spawn_detached(Box::pin(async move {
            for segment in inner.unclosed.take() {
                inner.close_and_report(segment).await;
            }
            inner.closing.set(inner.closing.get() - 1);
            inner.room.notify_waiters();
        }));
    }

    /// Closes a segment. A failure is logged, and tried again with the next segment: until then recovery takes longer, and no segment
    /// behind this one can go.
    pub(crate) async fn close_and_report(&self, unclosed: Unclosed<R>) {
        if let Err(error) = self.close_segment(&unclosed.segment, unclosed.blocks, unclosed.cut).await {
            self.counters.borrow_mut().device_errors += 1;
            tracing::warn!(shard = self.options.shard.0, segment = unclosed.segment.id.0, %error, "the footer could not be written");
            self.unclosed.borrow_mut().push(unclosed);
        }
    }

    /// Writes a segment's footer and drops its index from memory. With `cut`, the file ends behind the footer; else the footer ends the file.
    pub(crate) async fn close_segment(&self, segment: &Segment<R>, blocks: BlockRange, cut: bool) -> io::Result<()> {
        let mut footer = {
            let index = segment.index.borrow();
            let SegmentIndex::Memory(memory) = &*index else { panic!("a segment is closed once") };
            let (sequence, extents) = memory.for_footer();
            FooterBuilder::build(&FooterInput {
                segment: segment.id,
                log_id: segment.identity.log_id,
                // Where it really goes depends on its length; only the trailer says so.
                footer_offset: blocks.data_end,
                data_end: blocks.data_end,
                first_block: blocks.first,
                last_block: blocks.last,
                sequence: &sequence,
                timers: &[],
                extents: &extents,
            })
        };
        let length = footer.len() as u64;
        let offset = if cut { blocks.data_end } else { segment.size.get() - length };
        assert!(offset >= blocks.data_end, "the footer was given room");
        let (pages, page) = footer.split_at_mut(length as usize - PAGE_SIZE);
        let mut trailer = Trailer::decode(page, &segment.identity).expect("the trailer was built here");
        trailer.footer_offset = offset;
        trailer.encode(page);
        if cut {
            // First the size: a file without its footer is an unclosed one, while a footer that isn't at the end would be none.
            segment.file.set_size(offset + length).await?;
            segment.size.set(offset + length);
        }
        // The trailer last, when all pages that it stands for are on the medium: who finds it may rely on them.
        write_pages(&segment.file, pages, offset).await?;
        segment.file.sync().await?;
        write_pages(&segment.file, page, offset + pages.len() as u64).await?;
        segment.file.sync().await?;
        *segment.index.borrow_mut() = SegmentIndex::Footer(FooterIndex { trailer });
        segment.closed.set(true);
        segment.settled.set(true);
        let mut counters = self.counters.borrow_mut();
        counters.footer_bytes_written += length;
        counters.segments_closed += 1;
        self.retire.notify_one();
        Ok(())
    }

    /// The retirer's task: turns segments without live records into spares.
    pub(crate) async fn run_retirer(self: Rc<Self>) {
        loop {
            self.retire.notified().await;
            if let Err(error) = self.retire_dead_segments().await {
                self.counters.borrow_mut().device_errors += 1;
                tracing::warn!(shard = self.options.shard.0, %error, "a dead segment could not be retired");
            }
        }
    }

    async fn retire_dead_segments(&self) -> io::Result<()> {
        while let Some(next) = self.next_to_retire() {
            let segment = match next {
                Retire::Settle(segment) => {
                    self.settle_footer(&segment).await?;
                    continue;
                }
                Retire::Go(segment) => segment,
            };
            if segment.size.get() == self.options.segment_size {
                let spare = self.dir.join(spare_name(segment.id));
                self.runtime.rename(&segment.path, &spare).await?;
                // Before its header changes: a file's name and its header never disagree on the medium.
                self.runtime.sync_dir(&self.dir).await?;
                self.preparer.add_spare(spare);
            } else {
                self.runtime.remove(&segment.path).await?;
            }
        }
        Ok(())
    }

    /// The oldest dead segment, taken off the log, or what must be made sure of before it can go.
    fn next_to_retire(&self) -> Option<Retire<R>> {
        let checkpoint = self.head.borrow().checkpoint;
        let mut segments = self.segments.borrow_mut();
        // Behind a segment without a footer none may go: where it ended is known from the one behind it alone.
        let mut closed = segments.values().take_while(|segment| segment.closed.get());
        // A reader that is in the middle of a segment holds it.
        let dead = closed.find(|segment| segment.is_dead(checkpoint) && Rc::strong_count(segment) == 1)?.id;
        if let Some((_, segment)) = segments.range(..=dead).find(|(_, segment)| !segment.settled.get()) {
            return Some(Retire::Settle(segment.clone()));
        }
        segments.remove(&dead).map(Retire::Go)
    }

    /// Writes the trailer of a segment again that was found closed at the start. It may have been in a cache alone, and a flush would not tell.
    async fn settle_footer(&self, segment: &Segment<R>) -> io::Result<()> {
        let offset = segment.size.get() - PAGE_SIZE as u64;
        let (trailer, count) = segment.file.read_at(offset, PAGE_SIZE).await?;
        segment.file.write_at(trailer, count, offset).await.0?;
        segment.file.sync().await?;
        segment.settled.set(true);
        Ok(())
    }
}

/// A step towards fewer segments.
enum Retire<R: Runtime> {
    /// Make sure of this footer first.
    Settle(Rc<Segment<R>>),
    /// Nothing needs this one any more.
    Go(Rc<Segment<R>>),
}

/// The open segment, to be closed when the shard ends.
pub(crate) fn last_unclosed<R: Runtime>(head: &LogHead<R>) -> Unclosed<R> {
    let blocks = BlockRange { first: head.open.first_block, last: head.log_end(), data_end: head.log_end_offset() };
    Unclosed { segment: head.open.clone(), blocks, cut: true }
}
