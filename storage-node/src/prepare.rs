//! Prepares segments off the commit path: written space, a header, and a durable name, a few ahead.
//!
//! While commits go on, zeros are written no faster than the open segment fills, unless the stock is empty: a refill that runs ahead would
//! take the device from the commits. A segment id is given once: a file that an older life left behind is taken again under a new id, so none of its blocks
//! is ever current. Space that was written before is taken first; new space is zeros written at low priority.
//! When the device refuses, the preparer says so and tries again each second: appends are refused until there is room.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use log_format::PAGE_SIZE;
use log_format::ids::SegmentId;
use node_io::{File, IoBuf, OpenOptions, Runtime};
use tokio::sync::Notify;

use crate::options::ShardOptions;
use crate::segment::{DURABLE, PreparedSegment, new_header, segment_name, spare_name, write_pages};
use crate::shard::Inner;
use crate::status::Counters;

/// Zeros are written in pieces of this many bytes, so that commits get between them.
const ZERO_CHUNK: usize = 1 << 20;
/// How long a shard must have written nothing before zeros are written at full speed.
const QUIET: Duration = Duration::from_millis(5);
/// How often a preparation that runs ahead looks again.
const PACE: Duration = Duration::from_millis(1);
/// How long to wait after the device refused.
const RETRY: Duration = Duration::from_secs(1);

/// The stock of prepared segments, and of written space to make more from.
pub(crate) struct Preparer<R: Runtime> {
    ready: RefCell<VecDeque<PreparedSegment<R>>>,
    /// Files of full size without live data.
    spares: RefCell<VecDeque<PathBuf>>,
    next_id: Cell<SegmentId>,
    trouble: RefCell<Option<String>>,
    /// The stock shrank, or a spare came in.
    pub(crate) wanted: Notify,
    /// The stock grew, or trouble began.
    pub(crate) arrived: Notify,
}

impl<R: Runtime> Preparer<R> {
    pub(crate) fn new(next_id: SegmentId, spares: Vec<PathBuf>) -> Self {
        Self {
            ready: RefCell::new(VecDeque::new()),
            spares: RefCell::new(spares.into()),
            next_id: Cell::new(next_id),
            trouble: RefCell::new(None),
            wanted: Notify::new(),
            arrived: Notify::new(),
        }
    }

    /// Why no segment can be prepared now.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    pub(crate) fn ready_count(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Takes a prepared segment, if there is one.
    pub(crate) fn take(&self) -> Option<PreparedSegment<R>> {
        let segment = self.ready.borrow_mut().pop_front();
        self.wanted.notify_one();
        segment
    }

    /// Adds written space to make segments from.
    pub(crate) fn add_spare(&self, path: PathBuf) {
        self.spares.borrow_mut().push_back(path);
        self.wanted.notify_one();
    }

    fn take_id(&self) -> SegmentId {
        let id = self.next_id.get();
        self.next_id.set(id.next());
        id
    }
}

impl<R: Runtime> Inner<R> {
    /// The preparer's task: keeps the stock full until the shard ends.
    pub(crate) async fn run_preparer(self: Rc<Self>) {
        loop {
            while self.preparer.ready_count() < self.options.prepared_segments.max(1) {
                if self.may_stop_preparing() {
                    return;
                }
                match self.prepare_one().await {
                    Ok(()) => {
                        if self.preparer.trouble.borrow_mut().take().is_some() {
                            tracing::info!(shard = self.options.shard.0, "segments can be prepared again");
                        }
                        self.preparer.arrived.notify_waiters();
                    }
                    Err(error) => {
                        let why = format!("no segment can be prepared in {}: {error}", self.dir.display());
                        let first = self.preparer.trouble.borrow_mut().replace(why.clone()).is_none();
                        if first {
                            tracing::error!(shard = self.options.shard.0, why);
                        }
                        self.counters.borrow_mut().device_errors += 1;
                        self.preparer.arrived.notify_waiters();
                        self.room.notify_waiters();
                        self.runtime.sleep(RETRY).await;
                    }
                }
            }
            self.preparer.wanted.notified().await;
            if self.may_stop_preparing() {
                return;
            }
        }
    }

    /// Waits until a preparation that has written so many bytes may go on.
    async fn pace_preparation(&self, written: u64) {
        while self.preparation_runs_ahead(written) {
            self.runtime.sleep(PACE).await;
        }
    }

    fn preparation_runs_ahead(&self, written: u64) -> bool {
        let head = self.head.borrow();
        // A quarter faster than the open segment fills, so that the stock is full again before the next one is needed.
        let ahead = written > head.next_offset / 4 * 5;
        ahead && self.preparer.ready_count() > 0 && !head.draining && !head.is_quiet(self.runtime.monotonic(), QUIET)
    }

    /// When the shard ends, unless what is still to be finished needs a segment.
    fn may_stop_preparing(&self) -> bool {
        let head = self.head.borrow();
        head.draining && !(head.rolling && head.failed.is_none() && self.preparer.ready_count() == 0)
    }

    async fn prepare_one(&self) -> io::Result<()> {
        let spare = self.preparer.spares.borrow_mut().pop_front();
        let id = self.preparer.take_id();
        let recycled = spare.is_some();
        let pace = async |written| self.pace_preparation(written).await;
        let prepared = prepare(&self.runtime, &self.dir, &self.options, spare, id, &self.counters, pace).await?;
        self.preparer.ready.borrow_mut().push_back(prepared);
        if recycled {
            self.counters.borrow_mut().segments_recycled += 1;
        }
        Ok(())
    }
}

/// Makes segment `id` ready, from `spare` (a file of full, written size) or from new space. `pace` waits until more zeros may be written,
/// given how many bytes there are.
pub(crate) async fn prepare<R: Runtime>(
    runtime: &R,
    dir: &Path,
    options: &ShardOptions,
    spare: Option<PathBuf>,
    id: SegmentId,
    counters: &RefCell<Counters>,
    pace: impl AsyncFn(u64),
) -> io::Result<PreparedSegment<R>> {
    let (spare, file) = match spare {
        Some(path) => {
            let file = runtime.open(&path, OpenOptions { write: true, ..OpenOptions::default() }).await?;
            (path, file)
        }
        None => {
            let path = dir.join(spare_name(id));
            let file = runtime.open(&path, OpenOptions { create_new: true, write: true, durable: false }).await?;
            if let Err(error) = write_zeros(runtime, &file, options.segment_size, counters, pace).await {
                // Half a spare is of no use, and its space may be what is missing.
                runtime.remove(&path).await?;
                return Err(error);
            }
            (path, file)
        }
    };
    let header = new_header(options, id, runtime.wall_clock());
    let mut page = vec![0; PAGE_SIZE];
    header.encode(&mut page);
    write_pages(&file, &page, 0).await?;
    counters.borrow_mut().prepare_bytes_written += PAGE_SIZE as u64;
    file.sync().await?;
    file.close().await?;
    let path = dir.join(segment_name(id));
    runtime.rename(&spare, &path).await?;
    runtime.sync_dir(dir).await?;
    let file = runtime.open(&path, DURABLE).await?;
    Ok(PreparedSegment { id, path, log_id: header.log_id(), file })
}

async fn write_zeros<R: Runtime>(
    runtime: &R,
    file: &R::File,
    size: u64,
    counters: &RefCell<Counters>,
    pace: impl AsyncFn(u64),
) -> io::Result<()> {
    let mut offset = 0;
    let mut buffer = None;
    while offset < size {
        let length = usize::try_from(size - offset).map_or(ZERO_CHUNK, |left| left.min(ZERO_CHUNK));
        let zeros = match buffer.take() {
            Some(zeros) if length == ZERO_CHUNK => zeros,
            _ => {
                let mut zeros = file.allocate(length);
                zeros.as_mut_slice().fill(0);
                zeros
            }
        };
        let (result, zeros) = file.write_at(zeros, length, offset).await;
        result?;
        counters.borrow_mut().prepare_bytes_written += length as u64;
        buffer = Some(zeros);
        offset += length as u64;
        runtime.yield_now().await;
        pace(offset).await;
    }
    Ok(())
}
