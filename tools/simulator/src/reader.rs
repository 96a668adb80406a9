//! Readers: each batch of records is held against the model; those that stay at the tail see each record once and in order.

use std::rc::Rc;
use std::time::Duration;

use log_format::ids::{ExtentId, Seq, Timestamp};
use log_format::wire::Refusal;
use node_io::Runtime;
use node_io::sim::SimRuntime;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use storage_node::{ReadBatch, ReadRequest};

use crate::plan::Scenario;
use crate::world::{Life, Shard, Sighting};

/// A record that was acked reaches a reader who waits for it within this time, if the device works.
const LATENESS_MAX: Duration = Duration::from_millis(50);

/// Where a reader at the tail stands. It outlives the node's crashes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    extent: ExtentId,
    incarnation: u64,
    /// The seq of the next record.
    pub(crate) next: u64,
    pub(crate) seen: u64,
}

impl Position {
    /// What the reader has not seen yet of what is committed, if its extent is still there.
    pub(crate) fn behind(&self, life: &Life, shard: &Shard) -> u64 {
        let model = life.world.model.borrow();
        let there = model.newest().extent(self.extent).filter(|extent| extent.incarnation == self.incarnation);
        let committed = there.and_then(|_| shard.describe(self.extent).ok()).map(|info| info.value.last_seq.0);
        committed.map_or(0, |last| (last + 1).saturating_sub(self.next))
    }
}

/// A read that makes sense more often than not.
pub(crate) fn random_request(life: &Life, extent: ExtentId, rng: &mut ChaCha8Rng) -> ReadRequest {
    let model = life.world.model.borrow();
    let (floor, last) = model.newest().extent(extent).map_or((0, 0), |extent| (extent.floor, extent.last));
    let from = match rng.random_range(0..10) {
        0 | 1 => 0,
        2 => rng.random_range(1..=last + 2),
        _ => rng.random_range(floor + 1..=last.max(floor) + 1),
    };
    let max_bytes = match rng.random_range(0..4) {
        0 => 0,
        1 => rng.random_range(0..5000),
        _ => rng.random_range(0..200_000),
    };
    let max_records = if rng.random_bool(0.5) { rng.random_range(1..=5) } else { rng.random_range(1..=1000) };
    ReadRequest { extent, from: Seq(from), max_bytes, max_records }
}

/// Reads, and checks the answer. Gives the batch, if there is one.
pub(crate) async fn read(life: &Life, shard: &Shard, request: &ReadRequest, wait: Duration) -> Option<ReadBatch> {
    let id = request.extent;
    let before = Before::of(life, shard, id);
    let outcome = shard.read(request, wait).await;
    life.notice_failure(shard);
    let batch = match outcome {
        Ok(batch) => batch,
        Err(refusal) => {
            check_refusal(life, shard, request, &before, &refusal).await;
            return None;
        }
    };
    let now = Before::of(life, shard, id);
    if before.incarnation.is_none() || before.incarnation != now.incarnation {
        // The extent went while it was read; or it came while the read waited for its turn.
        return None;
    }
    life.world.count("read");
    check_limits(request, &batch);
    check_records(life, shard, request, &before, &batch);
    if batch.entries.is_empty() {
        assert!(
            batch.next.0 > before.committed,
            "{id}: nothing from {} on, though {} was committed",
            batch.next,
            before.committed
        );
        assert!(batch.next.0 > now.committed, "{id}: nothing from {} on, though {} is committed", batch.next, now.committed);
        if batch.sealed {
            life.world.count("read of a sealed end");
        }
    }
    assert!(
        batch.committed.0 >= before.committed && batch.committed.0 <= now.committed.max(now.floor),
        "{id}: committed_seq is {}",
        batch.committed
    );
    if batch.sealed {
        let mut model = life.world.model.borrow_mut();
        let extent = model.newest().extent(id).filter(|extent| extent.sealed);
        let rests_on = extent.unwrap_or_else(|| panic!("{id} is not sealed")).sealed_gate;
        assert!(matches!(shard.decided(rests_on), Some(Ok(()))), "{id}: a seal is told before it is durable");
        model.answered(rests_on);
    }
    Some(batch)
}

/// What is known of an extent at a moment.
struct Before {
    incarnation: Option<u64>,
    floor: u64,
    committed: u64,
}

impl Before {
    fn of(life: &Life, shard: &Shard, id: ExtentId) -> Self {
        let model = life.world.model.borrow();
        let extent = model.newest().extent(id);
        let committed = extent.map_or(0, |extent| {
            let mut newest_first = extent.records.iter().rev();
            let last = newest_first.find(|(_, record)| matches!(shard.decided(record.gate), Some(Ok(()))));
            last.map_or(0, |(seq, _)| *seq)
        });
        Self { incarnation: extent.map(|extent| extent.incarnation), floor: extent.map_or(0, |extent| extent.floor), committed }
    }
}

async fn check_refusal(life: &Life, shard: &Shard, request: &ReadRequest, before: &Before, refusal: &Refusal) {
    let id = request.extent;
    let now = Before::of(life, shard, id);
    match refusal {
        Refusal::NotFound => {
            let was_there = before.incarnation.is_some() && before.incarnation == now.incarnation;
            assert!(!was_there, "{id} is there and was not found");
            life.answer_refusal(shard, id).await;
        }
        Refusal::Trimmed { floor } => {
            if before.incarnation == now.incarnation {
                assert!(
                    floor.0 > request.from.0 && floor.0 <= now.floor + 1,
                    "{id} is trimmed up to {}, read from {}, refused with {floor}",
                    now.floor,
                    request.from
                );
            }
            life.answer_refusal(shard, id).await;
        }
        Refusal::Corrupt { seq } => {
            assert!(!life.harmless, "record {seq} of {id} can't be read although the device works");
            life.world.count("read failed");
        }
        other => panic!("a read of {id} was refused with {other:?}"),
    }
}

fn check_limits(request: &ReadRequest, batch: &ReadBatch) {
    let count = batch.entries.len();
    assert!(count <= request.max_records.max(1), "{count} records, {} were asked for", request.max_records);
    assert!(
        count <= 1 || batch.payload.len() <= request.max_bytes,
        "{} bytes, {} were asked for",
        batch.payload.len(),
        request.max_bytes
    );
}

fn check_records(life: &Life, shard: &Shard, request: &ReadRequest, before: &Before, batch: &ReadBatch) {
    let id = request.extent;
    let mut model = life.world.model.borrow_mut();
    let extent = model.newest().extent(id).expect("looked up before");
    let Some(first) = batch.entries.first() else { return };
    let floor = extent.floor;
    if request.from.0 > 0 {
        assert_eq!(first.seq, request.from, "{id}: the read starts where it was asked to");
    } else {
        assert!(first.seq.0 <= floor + 1 && first.seq.0 >= 1, "{id}: from {}, with the floor at {floor}", first.seq);
    }
    let mut rest = &batch.payload[..];
    let mut last_time = 0;
    let mut gate = Default::default();
    for (seq, entry) in (first.seq.0..).zip(&batch.entries) {
        assert_eq!(entry.seq.0, seq, "{id}: seqs are contiguous");
        let (bytes, behind) = rest.split_at(entry.length as usize);
        rest = behind;
        assert!(entry.append_time.0 >= last_time, "{id}: append times never go back");
        last_time = entry.append_time.0;
        if seq <= floor {
            // Trimmed meanwhile.
            continue;
        }
        let stored = extent.records.get(&seq).unwrap_or_else(|| panic!("{id}: record {seq} was read, which nobody appended"));
        assert_eq!(bytes.len(), stored.payload.length as usize, "{id}: record {seq} has another length");
        assert!(bytes == stored.payload.bytes(), "{id}: record {seq} has other bytes than were appended");
        assert_eq!(entry.checksum, log_format::payload_checksum(bytes), "{id}: record {seq} has another checksum");
        gate = stored.gate.max(gate);
    }
    assert!(rest.is_empty(), "{id}: {} bytes more than the entries name", rest.len());
    assert!(matches!(shard.decided(gate), Some(Ok(()))), "{id}: a record of block {gate} is read, which is not durable");
    let last = batch.entries.last().expect("there is a first");
    assert_eq!(batch.next.0, last.seq.0 + 1, "{id}: the next read goes on behind the last record");
    if last.seq.0 >= before.committed {
        life.world.count("read at the tail");
    }
    let incarnation = extent.incarnation;
    let mut sightings = life.world.sightings.borrow_mut();
    if sightings.len() < 200 {
        let sighting = Sighting { extent: id, incarnation, seq: last.seq.0, append_time: last_time };
        sightings.push(sighting);
    }
    model.answered(gate);
}

/// Asks where a time is that a record was appended at.
pub(crate) async fn seq_at_time(life: &Life, shard: &Shard, sighting: Sighting) {
    let id = sighting.extent;
    let before = Before::of(life, shard, id);
    let outcome = shard.seq_at_time(id, Timestamp(sighting.append_time)).await;
    life.notice_failure(shard);
    let now = Before::of(life, shard, id);
    let same = before.incarnation == Some(sighting.incarnation) && now.incarnation == before.incarnation;
    match outcome {
        Ok(found) if same && sighting.seq > now.floor => {
            let (seq, time) = found.unwrap_or_else(|| panic!("{id}: no record at the time of {}", sighting.seq));
            assert!(seq.0 <= sighting.seq, "{id}: {seq} is the first at the time of {}", sighting.seq);
            assert_eq!(time.0, sighting.append_time, "{id}: {seq} is at another time than {}", sighting.seq);
            let sightings = life.world.sightings.borrow();
            let earlier = sightings.iter().filter(|other| (other.extent, other.incarnation) == (id, sighting.incarnation));
            for other in earlier.filter(|other| other.append_time < sighting.append_time) {
                assert!(other.seq < seq.0, "{id}: {seq} is not behind {}, which was appended before", other.seq);
            }
            life.world.count("seq at time");
        }
        Ok(_) => {}
        Err(Refusal::NotFound) => assert!(!same, "{id} is there and was not found"),
        Err(Refusal::Trimmed { .. }) => assert!(now.floor > 0 || !same, "{id}: trimmed, but nobody trims"),
        Err(Refusal::Corrupt { seq }) => {
            assert!(!life.harmless, "{id}: record {seq} is said to be damaged, though the device works")
        }
        Err(other) => panic!("seq_at_time of {id} was refused with {other:?}"),
    }
}

/// Reads one extent from its start, or from where it stood before the node's last crash, and stays at its tail.
pub(crate) async fn follow(life: Rc<Life>, shard: Shard, reader: usize, mut rng: ChaCha8Rng) {
    loop {
        let position = *life.world.readers[reader].borrow();
        let there = position.next > 0 && is_there(&life, &position);
        if !there && !choose(&life, reader, &mut rng) {
            life.runtime.sleep(Duration::from_millis(1)).await;
            continue;
        }
        let position = *life.world.readers[reader].borrow();
        let request = ReadRequest {
            extent: position.extent,
            from: Seq(position.next),
            max_bytes: rng.random_range(0..50_000),
            max_records: rng.random_range(1..100),
        };
        // The first waits at the tail, the others look again now and then.
        let polls = reader == 0 || rng.random_bool(0.5);
        let wait = if polls { Duration::from_millis(rng.random_range(1..20_000)) } else { Duration::ZERO };
        let asked_at = life.now();
        let batch = read(&life, &shard, &request, wait).await;
        let (mut advanced, mut sealed) = (false, false);
        if let Some(batch) = batch {
            sealed = batch.sealed;
            advanced = !batch.entries.is_empty();
            check_lateness(&life, &position, &batch, asked_at, polls);
            let mut stored = life.world.readers[reader].borrow_mut();
            stored.next = batch.next.0;
            stored.seen += batch.entries.len() as u64;
            if advanced && polls && life.now() - asked_at > 1_000_000 {
                life.world.count("waited for an append");
            }
        } else {
            let model = life.world.model.borrow();
            let mut stored = life.world.readers[reader].borrow_mut();
            if let Some(extent) = model.newest().extent(position.extent) {
                // What was trimmed will not be seen; what may have been trimmed is asked for again.
                stored.next = stored.next.max(if position.next <= extent.floor { extent.floor + 1 } else { 0 });
            }
        }
        if sealed && !advanced && life.running.get() > 0 {
            // There is nothing more to come here.
            choose(&life, reader, &mut rng);
        }
        if !advanced {
            let most = if sealed { 20_000 } else { 500 };
            life.runtime.sleep(Duration::from_micros(rng.random_range(1..most))).await;
        }
    }
}

fn is_there(life: &Life, position: &Position) -> bool {
    let model = life.world.model.borrow();
    model.newest().extent(position.extent).is_some_and(|extent| extent.incarnation == position.incarnation)
}

/// Puts a reader at the start of some extent that goes on, if there is one; false if there is none at all.
fn choose(life: &Life, reader: usize, rng: &mut ChaCha8Rng) -> bool {
    let model = life.world.model.borrow();
    let extents = &model.newest().extents;
    let open = extents.values().filter(|extent| !extent.sealed).count();
    let chosen = if open > 0 {
        extents.iter().filter(|(_, extent)| !extent.sealed).nth(rng.random_range(0..open))
    } else {
        extents.iter().nth(rng.random_range(0..extents.len().max(1)))
    };
    let Some((id, extent)) = chosen else { return false };
    let position = Position { extent: *id, incarnation: extent.incarnation, next: extent.floor + 1, seen: 0 };
    *life.world.readers[reader].borrow_mut() = position;
    true
}

fn check_lateness(life: &Life, position: &Position, batch: &ReadBatch, asked_at: u64, polls: bool) {
    if !polls || !life.harmless || life.world.plan.scenario != Scenario::Tail {
        return;
    }
    let model = life.world.model.borrow();
    let Some(extent) = model.newest().extent(position.extent) else { return };
    for entry in &batch.entries {
        let acked_at = extent.records.get(&entry.seq.0).map_or(0, |record| record.acked_at);
        if acked_at > 0 {
            let late = Duration::from_nanos(life.now() - acked_at.max(asked_at));
            assert!(late < LATENESS_MAX, "record {} of {} came {late:?} after its ack", entry.seq, position.extent);
        }
    }
}

/// Reads all records of all extents and holds them against the model. To be run while nothing changes.
pub(crate) async fn audit(life: &Life, shard: &Shard) -> Result<(), String> {
    let extents: Vec<(ExtentId, u64, u64)> = {
        let model = life.world.model.borrow();
        model.newest().extents.iter().map(|(id, extent)| (*id, extent.floor, extent.last)).collect()
    };
    for (extent, floor, last) in extents {
        let mut next = floor + 1;
        while next <= last {
            let request = ReadRequest { extent, from: Seq(next), max_bytes: 1 << 20, max_records: 10_000 };
            let before = next;
            if let Some(batch) = read(life, shard, &request, Duration::ZERO).await {
                next = batch.next.0;
            }
            if next == before {
                return Err(format!("{extent}: record {next} of {last} can't be read"));
            }
        }
    }
    Ok(())
}

/// The node that the readers of a life run on.
pub(crate) fn start_readers(life: &Rc<Life>, shard: &Shard, rng: impl Fn(usize) -> ChaCha8Rng) {
    for reader in 0..life.world.readers.len() {
        let runtime: &SimRuntime = &life.runtime;
        runtime.spawn_detached(Box::pin(follow(life.clone(), shard.clone(), reader, rng(reader))));
    }
}
