//! Fills extents, then reads them in order in a closed loop: each connection keeps `depth` requests in flight.
//!
//! A connection reads its extents one behind the other, cut into chunks of one request each; its requests take the chunks in order.
//! A request that is answered with less than its chunk is followed by another one for the rest.

use super::verify::Acked;
use super::{Connection, SharedRecorder, of_client};
use crate::engine::Plan;
use crate::failure::Failure;
use crate::measure::Window;
use crate::pattern::Origin;
use client::{AppendFuture, Client, ExtentId, Read, Seq};
use log_format::wire::READ_RECORDS_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes in flight while extents are filled.
const FILL_BYTES: usize = 8 << 20;
/// Records in flight while extents are filled.
const FILL_RECORDS: usize = 8_192;

/// Records in each extent of a job of so many.
fn share(records: u64, extents: u64, place: u64) -> u64 {
    records / extents + u64::from(place < records % extents)
}

/// What must be in a filled extent.
pub(super) fn filled(plan: &Plan, extents: usize) -> impl Iterator<Item = Acked> {
    let records = plan.job.records().expect("a job that reads has a size");
    (0..extents).map(move |place| Acked::all(place, place as u64, share(records, extents as u64, place as u64)))
}

/// Appends the job's size, spread evenly over the extents.
pub(super) async fn fill(client: &Client, plan: &Plan, extents: &[ExtentId]) -> Result<(), Failure> {
    let records = plan.job.records().expect("a job that reads has a size");
    let depth = (FILL_BYTES / plan.job.record_bytes).clamp(1, FILL_RECORDS);
    let mut in_flight: VecDeque<AppendFuture> = VecDeque::with_capacity(depth);
    for (place, extent) in extents.iter().enumerate() {
        let failed = |error| of_client(format!("fill extent {extent}"), &error);
        let mut appender = client.appender(*extent).await.map_err(failed)?;
        let writer = place as u64;
        for number in 0..share(records, extents.len() as u64, writer) {
            if in_flight.len() == depth {
                in_flight.pop_front().expect("it is full").await.map_err(failed)?;
            }
            in_flight.push_back(appender.send(plan.pattern.record(Origin { writer, number })).await.map_err(failed)?);
        }
        for ack in in_flight.drain(..) {
            ack.await.map_err(failed)?;
        }
    }
    Ok(())
}

/// One extent of a reader.
struct Part {
    extent: ExtentId,
    records: u64,
    /// Chunks of all parts before this one.
    chunks_before: u64,
}

/// A chunk: these records of this extent.
struct Chunk {
    extent: ExtentId,
    first: u64,
    last: u64,
}

/// One connection's load.
pub(super) struct Reader {
    plan: Plan,
    client: Client,
    parts: Vec<Part>,
    chunks: u64,
    chunk_records: u64,
    /// The chunk that comes next.
    next: AtomicU64,
}

impl Reader {
    pub(super) fn new(plan: &Plan, connection: Connection) -> Self {
        let job = &plan.job;
        let chunk_records = (u64::from(job.read_bytes) / job.record_bytes as u64).clamp(1, READ_RECORDS_MAX as u64);
        let (mut parts, mut chunks) = (Vec::new(), 0);
        for (place, extent) in connection.extents {
            let records = share(job.records().expect("a job that reads has a size"), job.extents as u64, place as u64);
            parts.push(Part { extent, records, chunks_before: chunks });
            chunks += records.div_ceil(chunk_records);
        }
        Self { plan: plan.clone(), client: connection.client, parts, chunks, chunk_records, next: AtomicU64::new(0) }
    }

    /// Requests in flight.
    pub(super) fn depth(&self) -> usize {
        self.plan.job.depth
    }

    /// `None` when everything was read. A job that runs by time starts anew.
    fn next_chunk(&self) -> Option<Chunk> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.chunks && !self.plan.job.is_time_based {
            return None;
        }
        let number = number % self.chunks;
        let part = &self.parts[self.parts.partition_point(|part| part.chunks_before <= number) - 1];
        let first = (number - part.chunks_before) * self.chunk_records + 1;
        let last = (first + self.chunk_records - 1).min(part.records);
        Some(Chunk { extent: part.extent, first, last })
    }

    /// One of the connection's requests in flight, again and again.
    pub(super) async fn run(self: Arc<Self>, window: Window, recorder: SharedRecorder) -> Result<Vec<Acked>, Failure> {
        while !window.is_over(Instant::now()) {
            let Some(Chunk { extent, mut first, last }) = self.next_chunk() else { break };
            while first <= last {
                let max_records = (last - first + 1) as u32;
                let read = Read { extent, from_seq: Seq(first), max_bytes: self.plan.job.read_bytes, max_records, wait_ms: 0 };
                let started = Instant::now();
                let page = self.client.read(read).await.map_err(|error| of_client(format!("read {extent}"), &error))?;
                let ended = Instant::now();
                if page.records.is_empty() {
                    let why = format!("it ends before record {first}, which was acked");
                    return Err(Failure::new(format!("read {extent}"), why));
                }
                let bytes = page.records.iter().map(|record| record.data.len() as u64).sum();
                let mut recorder = recorder.lock().expect("nothing panics under this lock");
                recorder.record(started, ended, page.records.len() as u64, bytes);
                drop(recorder);
                first = page.next_seq.0;
            }
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_extent_gets_its_share_of_the_size() {
        for (records, extents) in [(10, 3), (9, 3), (3, 3), (1_000_001, 64)] {
            let shares: Vec<u64> = (0..extents).map(|place| share(records, extents, place)).collect();
            assert_eq!(shares.iter().sum::<u64>(), records);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
