//! Reads: from memory near the tail, else from the device past the page cache, always verified.
//!
//! Only committed records are in the index, so only committed records are found. Each record's check and checksum are verified before
//! it leaves. Device reads have a queue-depth budget of their own, so that backlog readers don't crowd out commits.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use log_format::PAGE_SIZE;
use log_format::block::{Run, RunKind};
use log_format::ids::{ExtentId, ExtentNumber, SegmentId, Seq, Timestamp};
use log_format::wire::Refusal;
use log_format::wire::reply::ReadEntry;
use node_io::{File, IoBuf, Runtime};

use crate::extents::Span;
use crate::index::{RunEntry, SegmentIndex};
use crate::segment::Segment;
use crate::shard::Inner;

/// Runs looked up at once.
const RUNS_AT_ONCE: usize = 512;
/// Runs on the device that are this close are fetched by one read.
const GAP_MAX: u64 = 64 << 10;
/// The greatest read of more than one run.
const FETCH_MAX: u64 = 1 << 20;

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// From this extent.
    pub extent: ExtentId,
    /// From this seq on; 0: from the first that is not trimmed.
    pub from: Seq,
    /// No more payload bytes than this, but one record at least.
    pub max_bytes: usize,
    /// No more records than this.
    pub max_records: usize,
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBatch {
    /// One for each record, in the order of seqs.
    pub entries: Vec<ReadEntry>,
    /// Their bytes, one behind the other.
    pub payload: Vec<u8>,
    /// Where the next read goes on.
    pub next: Seq,
    /// The extent's last committed seq.
    pub committed: Seq,
    /// The extent takes no more records.
    pub sealed: bool,
}

/// Whether a read has all that it may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Reached,
    NotReached,
}

/// A segment, and the records of an extent in it.
type Place<R> = (Rc<Segment<R>>, Span);

/// What a read needs to know of an extent.
struct Target {
    id: ExtentId,
    number: ExtentNumber,
    committed: Seq,
}

/// Why bytes of the log could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("the device failed: {0}")]
    Io(#[from] io::Error),
    #[error("damaged: {0}")]
    Damaged(String),
}

impl<R: Runtime> Inner<R> {
    /// Reads what is there now: nothing if the extent ends before `from`.
    pub(crate) async fn read(&self, request: &ReadRequest) -> Result<ReadBatch, Refusal> {
        let (target, mut batch) = self.look_up(request)?;
        let mut full = false;
        while batch.next <= target.committed && !full {
            let Some((segment, span)) = self.place_of(&target, batch.next)? else { break };
            let before = batch.next;
            let result = self.read_segment(&target, request, &segment, span, &mut batch).await;
            full = matches!(result, Ok(Limit::Reached));
            if let Err(error) = result {
                self.count_damage(&error);
                tracing::error!(extent = %target.id, seq = batch.next.0, segment = segment.id.0, %error, "a record can't be read");
                if batch.entries.is_empty() {
                    return Err(self.why_missing(&target, batch.next));
                }
                // What stands before the damage is given; the next read starts at the damage and says so.
                break;
            }
            if segment.live_spans.get() == 0 {
                // It may have died under this reader, who held it back.
                self.retire.notify_one();
            }
            if batch.next == before {
                break;
            }
        }
        if batch.entries.is_empty() && batch.next <= target.committed {
            return Err(self.why_missing(&target, batch.next));
        }
        let mut counters = self.counters.borrow_mut();
        counters.records_read += batch.entries.len() as u64;
        counters.payload_bytes_read += batch.payload.len() as u64;
        Ok(batch)
    }

    /// Waits up to `wait` until a read would find a record, or will never find one.
    pub(crate) async fn wait_readable(&self, request: &ReadRequest, wait: Duration) -> Result<(), Refusal> {
        let deadline = self.runtime.monotonic().0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let (target, batch) = self.look_up(request)?;
            let left = deadline.saturating_sub(self.runtime.monotonic().0);
            let draining = self.head.borrow().draining;
            if batch.next <= target.committed || batch.sealed || left == 0 || draining {
                return Ok(());
            }
            let Some(arrival) = self.table.borrow_mut().find_mut(request.extent).map(|extent| extent.arrival()) else {
                return Err(Refusal::NotFound);
            };
            // No await since the extent was looked up: what comes from now on is not missed.
            tokio::select! {
                biased;
                () = arrival.notified() => {}
                () = self.runtime.sleep(Duration::from_nanos(left)) => {}
            }
        }
    }

    fn look_up(&self, request: &ReadRequest) -> Result<(Target, ReadBatch), Refusal> {
        let table = self.table.borrow();
        let extent = table.find(request.extent).ok_or(Refusal::NotFound)?;
        let first = extent.committed_floor.next();
        let next = if request.from == Seq(0) { first } else { request.from };
        if next < first {
            return Err(Refusal::Trimmed { floor: first });
        }
        let target = Target { id: extent.id, number: extent.number, committed: extent.committed_seq };
        // Sealed is told when the seal is durable, not before.
        let sealed = extent.sealed && extent.gate <= self.head.borrow().durable();
        let batch = ReadBatch { entries: Vec::new(), payload: Vec::new(), next, committed: extent.committed_seq, sealed };
        Ok((target, batch))
    }

    /// The segment that holds a record, and the extent's records there.
    fn place_of(&self, target: &Target, seq: Seq) -> Result<Option<Place<R>>, Refusal> {
        let table = self.table.borrow();
        let extent = table.get(target.number).ok_or(Refusal::NotFound)?;
        let Some(span) = extent.span_of(seq) else { return Ok(None) };
        Ok(self.segments.borrow().get(&span.segment).map(|segment| (segment.clone(), span)))
    }

    /// A record that must exist is not in the index: trimmed or deleted while the read was under way, or lost to damage.
    fn why_missing(&self, target: &Target, seq: Seq) -> Refusal {
        let table = self.table.borrow();
        match table.get(target.number) {
            None => Refusal::NotFound,
            Some(extent) if seq <= extent.committed_floor => Refusal::Trimmed { floor: extent.committed_floor.next() },
            Some(_) => Refusal::Corrupt { seq },
        }
    }

    pub(crate) fn count_damage(&self, error: &FetchError) {
        let mut counters = self.counters.borrow_mut();
        match error {
            FetchError::Io(_) => counters.device_errors += 1,
            FetchError::Damaged(_) => counters.checksum_failures += 1,
        }
    }

    /// Reads on within one segment, until the segment's records or the request's limits end. What was read before an error stays
    /// in the batch, but only whole records.
    async fn read_segment(
        &self,
        target: &Target,
        request: &ReadRequest,
        segment: &Segment<R>,
        span: Span,
        batch: &mut ReadBatch,
    ) -> Result<Limit, FetchError> {
        while batch.next <= span.last {
            let runs = self.runs_from(segment, target.number, batch.next, RUNS_AT_ONCE).await?;
            if runs.is_empty() {
                return Ok(Limit::NotReached);
            }
            let mut rest = &runs[..];
            while let Some(run) = rest.first() {
                let cached = self.tail.borrow().find(segment.id, run.offset);
                if let Some((block, start)) = cached {
                    let bytes = &block.as_slice()[(run.offset - start) as usize..];
                    if take_run(target, request, run, bytes, batch)? == Limit::Reached {
                        return Ok(Limit::Reached);
                    }
                    rest = &rest[1..];
                    continue;
                }
                let wanted = request.max_bytes.saturating_sub(batch.payload.len()) as u64;
                let together = fetch_together(rest, wanted, |run| self.tail.borrow().find(segment.id, run.offset).is_some());
                let (group, behind) = rest.split_at(together);
                let start = group[0].offset;
                let end = group.last().map_or(start, |run| run.offset + u64::from(run.length));
                let (bytes, skip) = self.fetch(segment, start, end).await?;
                for run in group {
                    let at = skip + (run.offset - start) as usize;
                    let bytes = bytes.as_slice().get(at..).unwrap_or_default();
                    if take_run(target, request, run, bytes, batch)? == Limit::Reached {
                        return Ok(Limit::Reached);
                    }
                }
                rest = behind;
            }
        }
        Ok(Limit::NotReached)
    }

    /// Up to `limit` runs of an extent in a segment, from the one that holds `from`.
    pub(crate) async fn runs_from(
        &self,
        segment: &Segment<R>,
        number: ExtentNumber,
        from: Seq,
        limit: usize,
    ) -> Result<Vec<RunEntry>, FetchError> {
        let footer = match &*segment.index.borrow() {
            SegmentIndex::Memory(memory) => return Ok(memory.runs(number, from, limit)),
            SegmentIndex::Footer(footer) => footer.clone(),
        };
        match self.footer_runs(segment, &footer, number, from, limit).await {
            Err(damage @ FetchError::Damaged(_)) => {
                self.rebuild_index(segment, &footer, &damage, |memory| memory.runs(number, from, limit)).await
            }
            result => result,
        }
    }

    /// Reads the bytes from `start` to `end` of a segment. Gives whole pages, and where in them `start` is.
    pub(crate) async fn fetch(&self, segment: &Segment<R>, start: u64, end: u64) -> Result<(R::Buf, usize), FetchError> {
        let page = PAGE_SIZE as u64;
        let from = start / page * page;
        let length = (end - from).next_multiple_of(page) as usize;
        let _permit = self.read_depth.acquire().await.expect("never closed");
        let (bytes, count) = segment.file.read_at(from, length).await?;
        self.counters.borrow_mut().device_bytes_read += count as u64;
        if count < length {
            return Err(FetchError::Damaged(format!(
                "segment {} ends at {}, within its records",
                segment.id,
                from + count as u64
            )));
        }
        Ok((bytes, (start - from) as usize))
    }

    /// The first committed record appended at or after `time`, that is not trimmed: its seq and append time. None if there is none yet.
    pub(crate) async fn seq_at_time(&self, id: ExtentId, time: Timestamp) -> Result<Option<(Seq, Timestamp)>, Refusal> {
        let (number, first, spans) = {
            let table = self.table.borrow();
            let extent = table.find(id).ok_or(Refusal::NotFound)?;
            (extent.number, extent.committed_floor.next(), extent.spans.iter().copied().collect::<Vec<_>>())
        };
        // Append times never go back within an extent: a binary search over its spans, then within one.
        let (mut low, mut high) = (0, spans.len());
        while low < high {
            let middle = (low + high) / 2;
            let found = self.run_at_time(number, spans[middle].segment, time).await?;
            if found.is_some() { high = middle } else { low = middle + 1 }
        }
        let Some(span) = spans.get(low) else { return Ok(None) };
        let Some(run) = self.run_at_time(number, span.segment, time).await? else { return Ok(None) };
        if run.first_seq >= first {
            return Ok(Some((run.first_seq, run.append_time)));
        }
        // It is trimmed: the first that is left was appended later.
        let request = ReadRequest { extent: id, from: Seq(0), max_bytes: 0, max_records: 1 };
        let batch = self.read(&request).await?;
        Ok(batch.entries.first().map(|entry| (entry.seq, entry.append_time)))
    }

    async fn run_at_time(&self, number: ExtentNumber, segment: SegmentId, time: Timestamp) -> Result<Option<RunEntry>, Refusal> {
        let Some(segment) = self.segments.borrow().get(&segment).cloned() else { return Ok(None) };
        let footer = match &*segment.index.borrow() {
            SegmentIndex::Memory(memory) => return Ok(memory.run_at_time(number, time)),
            SegmentIndex::Footer(footer) => footer.clone(),
        };
        let mut found = self.footer_run_at_time(&segment, &footer, number, time).await;
        if let Err(damage @ FetchError::Damaged(_)) = &found {
            found = self.rebuild_index(&segment, &footer, damage, |memory| memory.run_at_time(number, time)).await;
        }
        found.map_err(|error| {
            self.count_damage(&error);
            tracing::error!(segment = segment.id.0, %error, "an index page can't be read");
            Refusal::Corrupt { seq: Seq(0) }
        })
    }
}

/// How many of `runs`, from the first on, one device read should fetch for about `wanted` payload bytes.
fn fetch_together(runs: &[RunEntry], wanted: u64, cached: impl Fn(&RunEntry) -> bool) -> usize {
    let first = &runs[0];
    let mut end = first.offset + u64::from(first.length);
    let mut gained = u64::from(first.length);
    let mut count = 1;
    for run in &runs[1..] {
        let near = run.offset >= end && run.offset - end <= GAP_MAX;
        let small = run.offset + u64::from(run.length) - first.offset <= FETCH_MAX;
        if gained >= wanted || !near || !small || cached(run) {
            break;
        }
        end = run.offset + u64::from(run.length);
        gained += u64::from(run.length);
        count += 1;
    }
    count
}

/// Verifies the records of a run and adds those that the request wants.
fn take_run(
    target: &Target,
    request: &ReadRequest,
    entry: &RunEntry,
    bytes: &[u8],
    batch: &mut ReadBatch,
) -> Result<Limit, FetchError> {
    if entry.first_seq > batch.next {
        // Records between two runs are lost: what is before them is given, the next read says Corrupt.
        return Ok(Limit::Reached);
    }
    let run = Run::decode(bytes).map_err(|error| FetchError::Damaged(error.to_string()))?;
    let header = run.header();
    let expected = (target.number, RunKind::Sequence, entry.first_seq, entry.count);
    if (header.extent_number, header.kind, header.first_seq, u32::from(header.count)) != expected {
        return Err(FetchError::Damaged("another run lies where the index points".to_owned()));
    }
    for record in run.records() {
        if record.seq < batch.next {
            continue;
        }
        let full = batch.entries.len() >= request.max_records || batch.payload.len() + record.payload.len() > request.max_bytes;
        // One record is given at least, however large it is.
        if full && !batch.entries.is_empty() || record.seq > target.committed {
            return Ok(Limit::Reached);
        }
        record.verify(target.id).map_err(|damage| FetchError::Damaged(damage.to_string()))?;
        batch.entries.push(ReadEntry {
            seq: record.seq,
            append_time: header.append_time,
            deliver_at: record.deliver_at,
            length: record.payload.len() as u32,
            checksum: record.payload_checksum,
        });
        batch.payload.extend_from_slice(record.payload);
        batch.next = record.seq.next();
    }
    Ok(Limit::NotReached)
}
