//! Takes stock of a shard's directory: segments with blocks, space to reuse, and what is set aside.
//!
//! A file that can't be read is an error, never an empty file. Nothing is removed here but spares that were never finished,
//! which hold nothing by their name.

use std::path::{Path, PathBuf};

use log_format::PAGE_SIZE;
use log_format::block::LogIdentity;
use log_format::checkpoint::CheckpointPart;
use log_format::footer::Trailer;
use log_format::ids::{BlockNumber, ExtentId, SegmentId};
use log_format::segment::SegmentHeader;
use node_io::{File, IoBuf, OpenOptions, Runtime};

use crate::options::ShardOptions;
use crate::recovery::RecoveryError;
use crate::scan::BlockScan;
use crate::segment::{DATA_START, FileName, new_header, parse_name, spare_name};

/// A segment with blocks.
pub(crate) struct Found<R: Runtime> {
    pub(crate) id: SegmentId,
    pub(crate) path: PathBuf,
    pub(crate) file: R::File,
    pub(crate) size: u64,
    pub(crate) identity: LogIdentity,
    pub(crate) first_block: BlockNumber,
    /// The last block of the log before this segment: all blocks up to it are durable, and no other is part of the log.
    pub(crate) log_end_before: BlockNumber,
    /// The segment with that block, as this one's checkpoint says; 0: unknown, or there is none.
    pub(crate) previous: SegmentId,
    /// Its footer's trailer, if it was closed.
    pub(crate) trailer: Option<Trailer>,
}

/// What is in the directory.
pub(crate) struct Inventory<R: Runtime> {
    /// In the order of their ids, which is that of their blocks.
    pub(crate) found: Vec<Found<R>>,
    pub(crate) spares: Vec<PathBuf>,
    /// Greater than any id that was ever seen here.
    pub(crate) next_segment: SegmentId,
}

impl<R: Runtime> Inventory<R> {
    pub(crate) async fn take(runtime: &R, dir: &Path, options: &ShardOptions) -> Result<Self, RecoveryError> {
        let names = runtime.list_dir(dir).await.map_err(RecoveryError::io(dir))?;
        let mut inventory = Self { found: Vec::new(), spares: Vec::new(), next_segment: SegmentId(1) };
        // The first segment without blocks is the only one that may have been entered: they are taken in order.
        let mut seen_empty = false;
        let mut empty = Vec::new();
        for name in names {
            let name = Path::new(name.file_name().unwrap_or(name.as_os_str())).to_owned();
            let path = dir.join(&name);
            let id = match parse_name(&name) {
                FileName::Segment(id) => id,
                FileName::Spare(id) => {
                    inventory.see(id);
                    inventory.take_spare(runtime, path, options).await?;
                    continue;
                }
                FileName::Other => {
                    tracing::warn!(path = %path.display(), "not a file of the log: left alone");
                    continue;
                }
            };
            inventory.see(id);
            match open(runtime, &path, id, options, !seen_empty).await? {
                Opened::Used(found) => inventory.found.push(found),
                Opened::Empty => {
                    seen_empty = true;
                    empty.push((path, id));
                }
                Opened::Foreign(why) => tracing::warn!(path = %path.display(), why, "set aside: not a segment of this log"),
            }
        }
        empty.extend(inventory.take_superseded());
        for (path, id) in empty {
            // It takes a new name now and a new id with its next header: no block that was torn in it can come back.
            let spare = dir.join(spare_name(id));
            runtime.rename(&path, &spare).await.map_err(RecoveryError::io(&path))?;
            inventory.take_spare(runtime, spare, options).await?;
        }
        runtime.sync_dir(dir).await.map_err(RecoveryError::io(dir))?;
        Ok(inventory)
    }

    /// Takes off the segments that a later one has left out of the log: the device failed under their first blocks.
    fn take_superseded(&mut self) -> Vec<(PathBuf, SegmentId)> {
        let mut log_end = BlockNumber(u64::MAX);
        let mut superseded = Vec::new();
        for segment in std::mem::take(&mut self.found).into_iter().rev() {
            if segment.first_block > log_end {
                superseded.push((segment.path, segment.id));
            } else {
                log_end = log_end.min(segment.log_end_before);
                self.found.push(segment);
            }
        }
        self.found.reverse();
        superseded
    }

    fn see(&mut self, id: SegmentId) {
        self.next_segment = self.next_segment.max(id.next());
    }

    async fn take_spare(&mut self, runtime: &R, path: PathBuf, options: &ShardOptions) -> Result<(), RecoveryError> {
        let file = runtime.open(&path, OpenOptions::default()).await.map_err(RecoveryError::io(&path))?;
        let size = file.size().await.map_err(RecoveryError::io(&path))?;
        if size == options.segment_size {
            self.spares.push(path);
        } else {
            tracing::info!(path = %path.display(), size, "removed: a spare of another size");
            runtime.remove(&path).await.map_err(RecoveryError::io(&path))?;
        }
        Ok(())
    }
}

enum Opened<R: Runtime> {
    Used(Found<R>),
    /// No block was ever durable in it.
    Empty,
    Foreign(String),
}

async fn open<R: Runtime>(
    runtime: &R,
    path: &Path,
    id: SegmentId,
    options: &ShardOptions,
    may_be_entered: bool,
) -> Result<Opened<R>, RecoveryError> {
    let io = || RecoveryError::io(path);
    let file = runtime.open(path, OpenOptions { write: true, ..OpenOptions::default() }).await.map_err(io())?;
    let size = file.size().await.map_err(io())?;
    // What the header must be, were it lost: the name and the manifest say it all.
    let identity = new_header(options, id, 0).identity();
    if size >= PAGE_SIZE as u64 {
        let (page, count) = file.read_at(0, PAGE_SIZE).await.map_err(io())?;
        match SegmentHeader::decode(&page.as_slice()[..count]) {
            Ok(header) if header.identity() != identity => {
                return Ok(Opened::Foreign(format!("its header names segment {} of node {}", header.segment, header.node)));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the segment's header can't be read; its name stands in for it")
            }
        }
    }
    let trailer = read_trailer(&file, size, &identity).await.map_err(io())?;
    let mut scan = BlockScan::new(&file, identity, size);
    let first = scan.block_at(DATA_START).await.map_err(io())?.map(|block| {
        // A segment's first block is of its checkpoint, whose records are bound to no extent.
        let whole = block.runs().flat_map(|run| run.records()).all(|record| record.verify(ExtentId(0)).is_ok());
        let checkpoint = block.runs().next().and_then(|run| CheckpointPart::decode(run.records().next()?.payload).ok());
        let previous = checkpoint.filter(|_| whole).map_or(SegmentId(0), |part| part.previous_segment);
        (*block.header(), DATA_START + u64::from(block.header().length), whole, previous)
    });
    // A segment's first block is written when all of the log before it is durable, and names the end of that.
    let named_end = first.map(|(header, ..)| header.committed);
    let previous = first.map_or(SegmentId(0), |(.., previous)| previous);
    let first = match (first, &trailer) {
        (Some((header, _, whole, _)), trailer) if whole || trailer.is_some() => Some(header.number),
        (Some((header, behind, ..)), _) => {
            // Its frame holds and a record does not: it was cut off by a crash, unless a later block says that it was durable.
            let evidence = scan.evidence(behind, header.number).await.map_err(io())?;
            (evidence.committed >= header.number).then_some(header.number)
        }
        (None, Some(trailer)) => Some(trailer.first_block),
        (None, None) if may_be_entered => {
            let evidence = scan.evidence(DATA_START, BlockNumber(0)).await.map_err(io())?;
            // Blocks behind a first one that is gone: it was durable if one of them says so.
            evidence.next.map(|(_, number)| number).filter(|&number| evidence.committed.next() >= number && number.0 > 1)
        }
        (None, None) => None,
    };
    let Some(first_block) = first.filter(|number| number.0 > 0) else { return Ok(Opened::Empty) };
    let log_end_before = named_end.unwrap_or(BlockNumber(first_block.0 - 1));
    Ok(Opened::Used(Found { id, path: path.to_owned(), file, size, identity, first_block, log_end_before, previous, trailer }))
}

async fn read_trailer<F: File>(file: &F, size: u64, identity: &LogIdentity) -> std::io::Result<Option<Trailer>> {
    let page = PAGE_SIZE as u64;
    if size < 2 * page || !size.is_multiple_of(page) {
        return Ok(None);
    }
    let (bytes, count) = file.read_at(size - page, PAGE_SIZE).await?;
    Ok(Trailer::decode(&bytes.as_slice()[..count], identity).ok().filter(|trailer| trailer.end() == size))
}
