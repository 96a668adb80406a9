//! Reads a shard's log back: which files are segments, the newest checkpoint, and the blocks behind it.
//!
//! The rules are those of docs/format.md, section 8. Nothing of the log is changed here: what is unfinished is listed for the shard to
//! finish, so a crash during recovery is like the one before it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use log_format::block::RunKind;
use log_format::checkpoint::CheckpointPart;
use log_format::ids::{BlockNumber, SegmentId, Timestamp};
use node_io::Runtime;

use crate::extents::{ExtentTable, TableError};
use crate::index::{FooterIndex, SegmentIndex};
use crate::inventory::{Found, Inventory};
use crate::options::ShardOptions;
use crate::replay::Replay;
use crate::roll::BlockRange;
use crate::scan::BlockScan;
use crate::segment::{DATA_START, Segment};

/// Why a shard's log can't be read back.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The device refuses.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There are blocks, but no checkpoint to start from.
    #[error(
        "{dir}: no segment has a readable checkpoint, but segment {segment} has blocks: the log is damaged. \
         Nothing was changed; restore the directory from a replica or a backup"
    )]
    NoCheckpoint {
        /// The shard's directory.
        dir: PathBuf,
        /// The newest segment with blocks.
        segment: SegmentId,
    },
    /// A checkpoint or a state record contradicts what was read before it.
    #[error("{path}: the log contradicts itself: {why}. Nothing was changed; restore the directory from a replica or a backup")]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// How.
        why: String,
    },
}

impl RecoveryError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn contradiction(path: &Path) -> impl FnOnce(TableError) -> Self {
        move |error| Self::Contradiction { path: path.to_owned(), why: error.to_string() }
    }
}

/// A range of blocks that were durable once and can't be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// In this segment.
    pub segment: SegmentId,
    /// From this offset on.
    pub offset: u64,
    /// The first block that is missing.
    pub first: BlockNumber,
    /// The last one.
    pub last: BlockNumber,
}

/// What a shard's directory holds.
pub(crate) struct Recovered<R: Runtime> {
    pub(crate) table: ExtentTable,
    pub(crate) segments: BTreeMap<SegmentId, Rc<Segment<R>>>,
    /// Segments whose footers are still to be written.
    pub(crate) unclosed: Vec<(Rc<Segment<R>>, BlockRange)>,
    /// Files of full size without live data.
    pub(crate) spares: Vec<PathBuf>,
    pub(crate) next_segment: SegmentId,
    pub(crate) last_block: BlockNumber,
    /// The segment that holds the last block; 0: there is none.
    pub(crate) last_segment: SegmentId,
    pub(crate) last_append_time: Timestamp,
    /// Blocks read behind the checkpoint.
    pub(crate) blocks_replayed: u64,
    pub(crate) damage: Vec<Damage>,
}

/// Reads the log in `dir` back.
pub(crate) async fn recover<R: Runtime>(runtime: &R, dir: &Path, options: &ShardOptions) -> Result<Recovered<R>, RecoveryError> {
    let inventory = Inventory::take(runtime, dir, options).await?;
    let mut recovered = Recovered {
        table: ExtentTable::new(),
        segments: BTreeMap::new(),
        unclosed: Vec::new(),
        spares: inventory.spares,
        next_segment: inventory.next_segment,
        last_block: BlockNumber(0),
        last_segment: SegmentId(0),
        last_append_time: Timestamp(0),
        blocks_replayed: 0,
        damage: Vec::new(),
    };
    let found = inventory.found;
    let Some(newest) = found.last() else { return Ok(recovered) };
    let Some(checkpoint) = newest_checkpoint(&found).await? else {
        return Err(RecoveryError::NoCheckpoint { dir: dir.to_owned(), segment: newest.id });
    };
    recovered.table = checkpoint.table;
    // The wall clock may have been stepped back since: append times do not follow it.
    let last_times = recovered.table.iter().map(|extent| extent.last_append_time);
    recovered.last_append_time = last_times.max().unwrap_or_default();
    let from = checkpoint.place;
    for (place, segment) in found.iter().enumerate() {
        // What a later segment begins with tells where this one ended, and that all of it was durable.
        let next = found.get(place + 1).filter(|next| next.previous == segment.id);
        let last_block = next.map(|next| next.log_end_before);
        let mut replay = Replay::new(segment, last_block, options);
        if place < from {
            replay.index_only(&mut recovered).await?;
        } else {
            replay.state_and_index(&mut recovered).await?;
        }
    }
    count_live_spans(&mut recovered);
    Ok(recovered)
}

/// Counts, for each segment, the extents that still have records there.
fn count_live_spans<R: Runtime>(recovered: &mut Recovered<R>) {
    for extent in recovered.table.iter_mut() {
        extent.take_dead_spans();
        for span in &extent.spans {
            if let Some(segment) = recovered.segments.get(&span.segment) {
                segment.live_spans.set(segment.live_spans.get() + 1);
            }
        }
    }
}

struct Checkpoint {
    /// Which of the segments found holds it.
    place: usize,
    table: ExtentTable,
}

async fn newest_checkpoint<R: Runtime>(found: &[Found<R>]) -> Result<Option<Checkpoint>, RecoveryError> {
    for (place, segment) in found.iter().enumerate().rev() {
        if let Some(table) = read_checkpoint(segment).await? {
            return Ok(Some(Checkpoint { place, table }));
        }
        tracing::warn!(segment = segment.id.0, "the segment has no whole checkpoint; the one before it is used");
    }
    Ok(None)
}

/// The extent table at a segment's start; none if its checkpoint is not whole.
async fn read_checkpoint<R: Runtime>(segment: &Found<R>) -> Result<Option<ExtentTable>, RecoveryError> {
    let mut scan = BlockScan::new(&segment.file, segment.identity, segment.size);
    let mut offset = DATA_START;
    let mut parts: Vec<CheckpointPart> = Vec::new();
    loop {
        let block = scan.block_at(offset).await.map_err(RecoveryError::io(&segment.path))?;
        let Some(block) = block.filter(|block| block.header().checkpoint) else { return Ok(None) };
        let records = block.runs().filter(|run| run.header().kind == RunKind::Checkpoint).flat_map(|run| run.records());
        for record in records {
            let whole = record.verify(log_format::ids::ExtentId(0)).is_ok() && record.seq.0 == parts.len() as u64;
            let Some(part) = whole.then(|| CheckpointPart::decode(record.payload).ok()).flatten() else { return Ok(None) };
            parts.push(part);
        }
        offset += u64::from(block.header().length);
        let Some(count) = parts.first().map(|part| part.part_count as usize) else { return Ok(None) };
        if parts.len() >= count {
            break;
        }
    }
    let next_number = parts[0].next_extent_number;
    let groups: Vec<_> = parts.iter().flat_map(|part| part.groups.iter().copied()).collect();
    let extents: Vec<_> = parts.iter().flat_map(|part| part.extents.iter().copied()).collect();
    ExtentTable::from_entries(next_number, &groups, &extents).map(Some).map_err(RecoveryError::contradiction(&segment.path))
}

impl<R: Runtime> Recovered<R> {
    /// Adds a segment that was read, with its index.
    pub(crate) fn add_segment(&mut self, found: &Found<R>, index: SegmentIndex, blocks: BlockRange) {
        let closed = matches!(index, SegmentIndex::Footer(FooterIndex { .. }));
        let segment = Rc::new(Segment {
            id: found.id,
            identity: found.identity,
            path: found.path.clone(),
            file: found.file.clone(),
            first_block: found.first_block,
            size: std::cell::Cell::new(found.size),
            live_spans: std::cell::Cell::new(0),
            index: std::cell::RefCell::new(index),
            closed: std::cell::Cell::new(closed),
            settled: std::cell::Cell::new(false),
        });
        if !closed {
            self.unclosed.push((segment.clone(), blocks));
        }
        self.segments.insert(found.id, segment);
    }
}
