//! Replays the blocks of one segment: state and records into the extent table, runs into an index.
//!
//! A block is taken when it is current and next in order, and either proven to have been durable (a footer, a later segment or a later
//! block says so) or whole to the last record. The first block that is neither is the torn end: it and all behind it was
//! never acked. A block that is proven and gone is damage: what lies around it is kept.

use std::collections::BTreeMap;

use log_format::block::{Block, Record, Run, RunKind};
use log_format::footer::{IndexPage, Section};
use log_format::ids::{BlockNumber, ExtentId, ExtentKind, ExtentNumber};
use log_format::state::StateChange;
use log_format::{PAGE_SIZE, payload_checksum};
use node_io::{File, IoBuf, Runtime};

use crate::extents::ExtentTable;
use crate::index::{FooterIndex, MemoryIndex, RunEntry, SegmentIndex};
use crate::inventory::Found;
use crate::options::ShardOptions;
use crate::recovery::{Damage, Recovered, RecoveryError};
use crate::roll::BlockRange;
use crate::scan::BlockScan;
use crate::segment::DATA_START;

/// What the blocks are read for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The state is known from a later checkpoint.
    Index,
    /// The state is that of this segment's checkpoint or of the segment before.
    StateAndIndex,
}

/// The replay of one segment.
pub(crate) struct Replay<'a, R: Runtime> {
    found: &'a Found<R>,
    /// The last block that is known to have been durable here, if anything says so.
    proven: Option<BlockNumber>,
    /// The last block that may be taken: a later segment begins with the one behind it.
    bound: Option<BlockNumber>,
    end: u64,
}

impl<'a, R: Runtime> Replay<'a, R> {
    /// `last_block`: the last block of this segment by what the next one begins with.
    pub(crate) fn new(found: &'a Found<R>, last_block: Option<BlockNumber>, options: &ShardOptions) -> Self {
        let closed = found.trailer.as_ref().map(|trailer| trailer.last_block);
        let data_end = found.trailer.as_ref().map_or(options.segment_size.max(found.size), |trailer| trailer.data_end);
        // The segments between this one and the next may be gone: only its footer knows where it ended. Without one, nothing behind
        // it was let go, so the next is the one that was opened when it ended.
        let last = closed.or(last_block);
        Self { found, proven: last, bound: last, end: data_end.min(found.size) }
    }

    /// Adds the segment for its records alone: from its footer, or from its blocks where that can't be read.
    pub(crate) async fn index_only(&mut self, recovered: &mut Recovered<R>) -> Result<(), RecoveryError> {
        if let Some(trailer) = self.found.trailer {
            let footer = FooterIndex { trailer };
            if self.take_directory(&footer, &mut recovered.table).await? {
                let blocks = self.range(footer.trailer.last_block, footer.trailer.data_end);
                recovered.add_segment(self.found, SegmentIndex::Footer(footer), blocks);
                return Ok(());
            }
            tracing::warn!(segment = self.found.id.0, "the footer's directory is damaged: the index is rebuilt from the blocks");
        }
        let (memory, blocks) = self.walk(recovered, Purpose::Index).await?;
        recovered.add_segment(self.found, SegmentIndex::Memory(memory), blocks);
        Ok(())
    }

    /// Replays the segment's state and records.
    pub(crate) async fn state_and_index(&mut self, recovered: &mut Recovered<R>) -> Result<(), RecoveryError> {
        let (memory, blocks) = self.walk(recovered, Purpose::StateAndIndex).await?;
        let footer = self.found.trailer.map(|trailer| SegmentIndex::Footer(FooterIndex { trailer }));
        recovered.add_segment(self.found, footer.unwrap_or(SegmentIndex::Memory(memory)), blocks);
        if blocks.last >= blocks.first {
            (recovered.last_block, recovered.last_segment) = (blocks.last, self.found.id);
        }
        Ok(())
    }

    fn range(&self, last: BlockNumber, data_end: u64) -> BlockRange {
        BlockRange { first: self.found.first_block, last, data_end }
    }

    /// Enters the extents of a footer's directory into the table. False if a page of it is damaged: nothing is entered then.
    async fn take_directory(&self, footer: &FooterIndex, table: &mut ExtentTable) -> Result<bool, RecoveryError> {
        let pages = footer.trailer.directory_pages as usize;
        if pages == 0 {
            return Ok(true);
        }
        let mut entries = Vec::new();
        let offset = footer.directory_page_offset(0);
        let read = self.found.file.read_at(offset, pages * PAGE_SIZE).await;
        let (bytes, count) = read.map_err(RecoveryError::io(&self.found.path))?;
        for number in 0..pages {
            let page = bytes.as_slice()[..count].get(number * PAGE_SIZE..).unwrap_or_default();
            match IndexPage::decode(page, &self.found.identity, Section::Directory, number as u32) {
                Ok(IndexPage::Directory(page)) => entries.extend(page),
                _ => return Ok(false),
            }
        }
        for entry in entries {
            if let Some(extent) = table.get_mut(entry.number) {
                extent.extend_span(self.found.id, entry.first_seq, entry.last_seq);
            }
        }
        Ok(true)
    }

    async fn walk(&mut self, recovered: &mut Recovered<R>, purpose: Purpose) -> Result<(MemoryIndex, BlockRange), RecoveryError> {
        let path = &self.found.path;
        let mut memory = MemoryIndex::default();
        let mut scan = BlockScan::new(&self.found.file, self.found.identity, self.end);
        let (mut offset, mut expected) = (DATA_START, self.found.first_block);
        let mut unproven = Vec::new();
        while self.bound.is_none_or(|bound| expected <= bound) {
            let mut behind = offset;
            if let Some(block) = scan.block_at(offset).await.map_err(RecoveryError::io(path))?
                && block.header().number == expected
            {
                behind = offset + u64::from(block.header().length);
                self.prove(block.header().committed);
                if !self.is_proven(expected) {
                    unproven.push((expected, offset, block.header().length as usize));
                }
                if self.is_proven(expected) || is_whole(&block, &recovered.table) {
                    self.apply(&block, offset, purpose, recovered, &mut memory)?;
                    (offset, expected) = (behind, expected.next());
                    continue;
                }
            }
            let evidence = scan.evidence(behind, expected).await.map_err(RecoveryError::io(path))?;
            self.prove(evidence.committed);
            if !self.is_proven(expected) {
                unproven.retain(|(number, ..)| *number < expected);
                break;
            }
            if behind > offset {
                // The block's frame holds, one of its records does not: it is taken, and that record is found damaged by who reads it.
                tracing::error!(segment = self.found.id.0, block = expected.0, "a block that was acked has a damaged record");
                continue;
            }
            let next = evidence.next.filter(|(_, number)| self.bound.is_none_or(|bound| *number <= bound));
            let last = next.map_or_else(|| self.proven.unwrap_or(expected), |(_, number)| BlockNumber(number.0 - 1));
            let damage = Damage { segment: self.found.id, offset, first: expected, last };
            tracing::error!(
                segment = damage.segment.0,
                offset,
                first = damage.first.0,
                last = damage.last.0,
                "blocks that were acked are damaged"
            );
            recovered.damage.push(damage);
            match next {
                Some(next) => (offset, expected) = next,
                None => {
                    expected = last.next();
                    break;
                }
            }
        }
        unproven.retain(|(number, ..)| !self.is_proven(*number));
        self.write_again(&unproven).await.map_err(RecoveryError::io(path))?;
        Ok((memory, self.range(BlockNumber(expected.0 - 1), offset)))
    }

    /// Makes blocks durable that are whole but may be so in a cache alone: of a write that failed or was never finished, and was not lost
    /// since the machine went on. What is built on them would stand without them after the next power cut.
    async fn write_again(&self, blocks: &[(BlockNumber, u64, usize)]) -> std::io::Result<()> {
        for &(_, offset, length) in blocks {
            let (buffer, count) = self.found.file.read_at(offset, length).await?;
            self.found.file.write_at(buffer, count, offset).await.0?;
        }
        if blocks.is_empty() { Ok(()) } else { self.found.file.sync().await }
    }

    /// Something says that all blocks up to `committed` were durable.
    fn prove(&mut self, committed: BlockNumber) {
        if committed >= self.found.first_block {
            self.proven = self.proven.max(Some(committed));
        }
    }

    fn is_proven(&self, number: BlockNumber) -> bool {
        self.proven.is_some_and(|proven| number <= proven)
    }

    fn apply(
        &self,
        block: &Block<'_>,
        offset: u64,
        purpose: Purpose,
        recovered: &mut Recovered<R>,
        memory: &mut MemoryIndex,
    ) -> Result<(), RecoveryError> {
        recovered.blocks_replayed += 1;
        for run in block.runs() {
            let header = run.header();
            recovered.last_append_time = recovered.last_append_time.max(header.append_time);
            match header.kind {
                RunKind::Checkpoint | RunKind::Timer => {}
                RunKind::State if purpose == Purpose::StateAndIndex => self.apply_state(&run, &mut recovered.table)?,
                RunKind::State => {}
                RunKind::Sequence => self.apply_records(&run, offset, purpose, &mut recovered.table, memory),
            }
        }
        Ok(())
    }

    fn apply_state(&self, run: &Run<'_>, table: &mut ExtentTable) -> Result<(), RecoveryError> {
        for record in run.records() {
            let change = StateChange::decode(record.payload)
                .map_err(|error| RecoveryError::Contradiction { path: self.found.path.clone(), why: error.to_string() })?;
            table
                .replay(run.header().extent_number, record.op, &change)
                .map_err(RecoveryError::contradiction(&self.found.path))?;
        }
        Ok(())
    }

    fn apply_records(&self, run: &Run<'_>, offset: u64, purpose: Purpose, table: &mut ExtentTable, memory: &mut MemoryIndex) {
        let header = run.header();
        let Some(extent) = table.get_mut(header.extent_number) else { return };
        let (entry, payload_bytes) = RunEntry::of(run, offset);
        let last_op = run.records().last().map_or(header.op, |record| record.op);
        extent.extend_span(self.found.id, entry.first_seq, entry.last_seq());
        if self.found.trailer.is_none() || purpose == Purpose::Index {
            memory.push(header.extent_number, extent.id, ExtentKind::Sequence, entry, payload_bytes);
        }
        if purpose == Purpose::StateAndIndex {
            let count = u64::from(header.count);
            table.replay_records(header.extent_number, entry.last_seq(), last_op, count, payload_bytes, header.append_time);
        }
    }
}

/// Whether every record of a block verifies.
fn is_whole(block: &Block<'_>, table: &ExtentTable) -> bool {
    let mut created: BTreeMap<ExtentNumber, ExtentId> = BTreeMap::new();
    block.runs().all(|run| {
        let number = run.header().extent_number;
        run.records().all(|record| {
            if run.header().kind == RunKind::State
                && let Ok(StateChange::Created { extent, .. }) = StateChange::decode(record.payload)
            {
                created.insert(number, extent);
            }
            let extent = match run.header().kind {
                RunKind::Checkpoint => Some(ExtentId(0)),
                _ => created.get(&number).copied().or_else(|| table.get(number).map(|extent| extent.id)),
            };
            verifies(&record, extent)
        })
    })
}

/// Without the extent's id, a record's bytes can still be held against their checksum.
fn verifies(record: &Record<'_>, extent: Option<ExtentId>) -> bool {
    match extent {
        Some(extent) => record.verify(extent).is_ok(),
        None => payload_checksum(record.payload) == record.payload_checksum,
    }
}
