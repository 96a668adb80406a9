//! A segment of the log as the engine holds it: its file, its identity, its index, and how much of it is still alive.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use log_format::PAGE_SIZE;
use log_format::block::LogIdentity;
use log_format::ids::{BlockNumber, SegmentId};
use log_format::segment::SegmentHeader;
use node_io::{File, IoBuf, OpenOptions, Runtime};

use crate::index::SegmentIndex;
use crate::options::ShardOptions;

/// Where the blocks start.
pub(crate) const DATA_START: u64 = PAGE_SIZE as u64;

/// The name of a segment's file.
pub(crate) fn segment_name(id: SegmentId) -> String {
    format!("segment-{:016x}.seg", id.0)
}

/// The name of written space without live data, which was segment `id` before.
pub(crate) fn spare_name(id: SegmentId) -> String {
    format!("spare-{:016x}.seg", id.0)
}

/// What a file name in a shard's directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileName {
    Segment(SegmentId),
    Spare(SegmentId),
    Other,
}

/// Reads a file name.
pub(crate) fn parse_name(name: &Path) -> FileName {
    let parse = |prefix: &str| {
        let digits = name.to_str()?.strip_prefix(prefix)?.strip_suffix(".seg")?;
        (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten().map(SegmentId)
    };
    match (parse("segment-"), parse("spare-")) {
        (Some(id), _) => FileName::Segment(id),
        (_, Some(id)) => FileName::Spare(id),
        _ => FileName::Other,
    }
}

/// The header of a new segment of this shard.
pub(crate) fn new_header(options: &ShardOptions, id: SegmentId, prepared_at: u64) -> SegmentHeader {
    SegmentHeader {
        segment: id,
        node: options.node,
        incarnation: options.incarnation,
        shard: options.shard,
        segment_size: options.segment_size,
        prepared_at: log_format::ids::Timestamp(prepared_at),
    }
}

/// A segment with blocks in it.
pub(crate) struct Segment<R: Runtime> {
    pub(crate) id: SegmentId,
    pub(crate) identity: LogIdentity,
    pub(crate) path: PathBuf,
    /// For reading, and for the footer.
    pub(crate) file: R::File,
    pub(crate) first_block: BlockNumber,
    /// The file's size now.
    pub(crate) size: Cell<u64>,
    /// Extents with records here that are neither deleted nor wholly trimmed.
    pub(crate) live_spans: Cell<usize>,
    pub(crate) index: RefCell<SegmentIndex>,
    /// It takes no more blocks, and its footer is on the device.
    pub(crate) closed: Cell<bool>,
    /// Its footer is on the medium for sure. One that was found at the start may be in a cache alone.
    pub(crate) settled: Cell<bool>,
}

impl<R: Runtime> Segment<R> {
    /// Whether nothing in it is needed any more, given the segment that holds the newest durable checkpoint.
    pub(crate) fn is_dead(&self, newest_checkpoint: SegmentId) -> bool {
        self.closed.get() && self.live_spans.get() == 0 && self.id < newest_checkpoint
    }
}

/// A segment that waits to be written: its header and its zeros are on the device.
pub(crate) struct PreparedSegment<R: Runtime> {
    pub(crate) id: SegmentId,
    pub(crate) path: PathBuf,
    pub(crate) log_id: u32,
    /// Each write to it is durable when it completes.
    pub(crate) file: R::File,
}

impl<R: Runtime> PreparedSegment<R> {
    /// The segment that it becomes when it is opened for blocks from `first_block` on.
    pub(crate) fn into_segment(self, size: u64, first_block: BlockNumber) -> Rc<Segment<R>> {
        Rc::new(Segment {
            id: self.id,
            identity: LogIdentity { segment: self.id, log_id: self.log_id },
            path: self.path,
            file: self.file,
            first_block,
            size: Cell::new(size),
            live_spans: Cell::new(0),
            index: RefCell::new(SegmentIndex::memory()),
            closed: Cell::new(false),
            settled: Cell::new(false),
        })
    }
}

/// Writes `bytes` (whole pages) at `offset`, through a buffer of the backend.
pub(crate) async fn write_pages<F: File>(file: &F, bytes: &[u8], offset: u64) -> io::Result<()> {
    assert_eq!(bytes.len() % PAGE_SIZE, 0, "only whole pages are written");
    const CHUNK: usize = 1 << 20;
    for (index, chunk) in bytes.chunks(CHUNK).enumerate() {
        let mut buffer = file.allocate(chunk.len());
        buffer.as_mut_slice().copy_from_slice(chunk);
        file.write_at(buffer, chunk.len(), offset + (index * CHUNK) as u64).await.0?;
    }
    Ok(())
}

/// How a prepared segment is opened for its blocks.
pub(crate) const DURABLE: OpenOptions = OpenOptions { write: true, create_new: false, durable: true };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_file_is() {
        let id = SegmentId(0x2a);
        assert_eq!(segment_name(id), "segment-000000000000002a.seg");
        assert_eq!(parse_name(Path::new(&segment_name(id))), FileName::Segment(id));
        assert_eq!(parse_name(Path::new(&spare_name(id))), FileName::Spare(id));
        for other in ["segment-2a.seg", "segment-000000000000002a", "segment-000000000000002g.seg", "lost+found", ""] {
            assert_eq!(parse_name(Path::new(other)), FileName::Other, "{other}");
        }
    }
}
