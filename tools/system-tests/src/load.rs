//! Writers whose every record is known, and the check of what a node kept of them.

use crate::records::record;
use client::{
    AppendFuture, Appender, BatchFuture, Client, ClientError, Commit, Epoch, ExtentId, GroupId, NewExtent, Read, Refusal, Seq,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Changes of a writer in flight.
const WINDOW: usize = 400;

/// An extent as its only writer knows it.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Its id.
    pub id: ExtentId,
    group: GroupId,
    /// The numbers of its records, from seq 1 on: those acked, and those found without an ack.
    numbers: Vec<u64>,
    /// So many of them were read back.
    checked: usize,
    /// Records sent and not answered.
    in_flight: u64,
    /// All up to this is known to be trimmed; up to that it may be.
    trimmed: u64,
    maybe_trimmed: u64,
    /// A delete was sent and not answered.
    maybe_deleted: bool,
}

impl Extent {
    fn new(group: Option<GroupId>, random: &mut ChaCha8Rng) -> Self {
        let id = ExtentId(random.random());
        let group = group.unwrap_or(id.into());
        let numbers = Vec::new();
        Self { id, group, numbers, checked: 0, in_flight: 0, trimmed: 0, maybe_trimmed: 0, maybe_deleted: false }
    }

    fn next_seq(&self) -> Seq {
        Seq(self.numbers.len() as u64 + self.in_flight + 1)
    }

    fn bytes(&self, number: u64) -> Vec<u8> {
        record(self.id.0, number)
    }

    async fn create(&self, client: &Client) -> Result<(), ClientError> {
        client.create_extent(NewExtent::with_id(self.id).in_group(self.group)).await.map(drop)
    }
}

/// An atomic change: records by number, each to one of the writer's extents.
#[derive(Debug)]
struct Change(Vec<(usize, Vec<u64>)>);

/// A change under way.
enum Flying {
    Single(AppendFuture),
    Batch(BatchFuture),
}

/// Appends to extents of its own.
#[derive(Debug)]
pub struct Writer {
    /// They.
    pub extents: Vec<Extent>,
    /// The next record's number.
    next: u64,
    /// Changes sent and not acked, in the order in which they were sent.
    pending: Vec<Change>,
    /// Records acked.
    pub acked: u64,
    /// Records found that were not acked.
    pub unknown: u64,
}

impl Writer {
    /// A writer with so many extents: half of them are in groups of two.
    pub fn new(extents: usize, random: &mut ChaCha8Rng) -> Self {
        let groups: Vec<GroupId> = (0..extents / 4).map(|_| GroupId(random.random())).collect();
        let extents = (0..extents).map(|place| Extent::new(groups.get(place / 2).copied(), random)).collect();
        Self { extents, next: 1, pending: Vec::new(), acked: 0, unknown: 0 }
    }

    /// Makes its extents.
    ///
    /// # Panics
    /// If the node refuses.
    pub async fn create_all(&self, client: &Client) {
        for extent in &self.extents {
            extent.create(client).await.unwrap();
        }
    }

    /// Trims all but the newest records of each extent.
    ///
    /// # Panics
    /// If the node refuses.
    pub async fn trim_all(&mut self, client: &Client) {
        for extent in &mut self.extents {
            let to = (extent.numbers.len() as u64).saturating_sub(3);
            if to > extent.trimmed {
                assert_eq!(client.trim(extent.id, Seq(to), Epoch(0)).await.unwrap(), Seq(to));
                (extent.trimmed, extent.maybe_trimmed) = (to, extent.maybe_trimmed.max(to));
            }
        }
    }

    fn numbers(&mut self, count: usize) -> Vec<u64> {
        let first = self.next;
        self.next += count as u64;
        (first..self.next).collect()
    }

    /// Appends, commits, trims and deletes until the node is gone.
    ///
    /// # Panics
    /// If it gets another error than that, or acks out of order.
    pub async fn run_until_lost(mut self, client: Client, mut random: ChaCha8Rng) -> Self {
        let mut flight = Flight::default();
        let error = loop {
            if let Err(error) = self.step(&client, &mut flight, &mut random).await {
                break error;
            }
        };
        assert_is_loss(&error);
        while let Some((change, flying)) = flight.changes.pop_front() {
            match flying.answer().await {
                Ok(first) => self.acked(change, &[first]),
                Err(error) => {
                    assert_is_loss(&error);
                    self.pending.push(change);
                }
            }
        }
        // A commit whose answer did not come was sent after all that was in flight then.
        self.pending.extend(flight.lost_commit);
        for extent in &mut self.extents {
            extent.in_flight = 0;
        }
        self
    }

    async fn step(&mut self, client: &Client, flight: &mut Flight, random: &mut ChaCha8Rng) -> Result<(), ClientError> {
        while flight.changes.len() >= WINDOW {
            self.settle(flight).await?;
        }
        let place = random.random_range(0..self.extents.len());
        match random.random_range(0..1000) {
            0..900 => {
                let numbers = self.numbers(1);
                let bytes = self.extents[place].bytes(numbers[0]);
                let sent = flight.appender(client, &self.extents[place]).await?.send(bytes).await?;
                self.fly(flight, place, numbers, Flying::Single(sent));
            }
            900..950 => {
                let numbers = self.numbers(random.random_range(2..20));
                let extent = &self.extents[place];
                let records: Vec<_> = numbers.iter().map(|number| extent.bytes(*number)).collect();
                let expected = random.random::<bool>().then(|| extent.next_seq());
                let sent = flight.appender(client, extent).await?.send_batch(&records, expected).await?;
                self.fly(flight, place, numbers, Flying::Batch(sent));
            }
            950..985 => self.commit(client, flight, place, random).await?,
            985..997 => {
                let extent = &mut self.extents[place];
                if let Some(to) = (extent.numbers.len() as u64).checked_sub(1).filter(|to| *to > extent.maybe_trimmed) {
                    let to = random.random_range(extent.maybe_trimmed + 1..=to);
                    extent.maybe_trimmed = to;
                    assert_eq!(client.trim(extent.id, Seq(to), Epoch(0)).await?, Seq(to));
                    extent.trimmed = to;
                }
            }
            _ => {
                while !flight.changes.is_empty() {
                    self.settle(flight).await?;
                }
                flight.appenders.remove(&self.extents[place].id);
                self.extents[place].maybe_deleted = true;
                client.delete(self.extents[place].id, Epoch(0)).await?;
                let group = self.extents[place].group;
                let is_shared = group != self.extents[place].id.into();
                self.extents[place] = Extent::new(is_shared.then_some(group), random);
                self.extents[place].create(client).await?;
            }
        }
        Ok(())
    }

    fn fly(&mut self, flight: &mut Flight, place: usize, numbers: Vec<u64>, flying: Flying) {
        self.extents[place].in_flight += numbers.len() as u64;
        flight.changes.push_back((Change(vec![(place, numbers)]), flying));
    }

    /// A commit on all the writer's extents of a group.
    async fn commit(
        &mut self,
        client: &Client,
        flight: &mut Flight,
        place: usize,
        random: &mut ChaCha8Rng,
    ) -> Result<(), ClientError> {
        let group = self.extents[place].group;
        let places: Vec<usize> = (0..self.extents.len()).filter(|place| self.extents[*place].group == group).collect();
        let mut commit = Commit::new(group);
        let mut change = Change(Vec::new());
        for place in places {
            let numbers = self.numbers(random.random_range(1..5));
            let extent = &mut self.extents[place];
            let expected = random.random::<bool>().then(|| extent.next_seq());
            commit = commit.append(extent.id, expected, numbers.iter().map(|number| extent.bytes(*number)));
            extent.in_flight += numbers.len() as u64;
            change.0.push((place, numbers));
        }
        match client.commit(&commit).await {
            Ok(committed) => {
                // Its seqs are behind those of all that was sent before it. What was sent to another shard may have failed.
                let mut settled = Ok(());
                while !flight.changes.is_empty() {
                    settled = settled.and(self.settle(flight).await);
                }
                let firsts: Vec<Seq> = committed.results.iter().map(|result| result.first_seq).collect();
                self.acked(change, &firsts);
                settled
            }
            Err(error) => {
                if error.is_outcome_unknown() {
                    flight.lost_commit = Some(change);
                }
                Err(error)
            }
        }
    }

    /// Waits for the answer to the oldest change in flight.
    async fn settle(&mut self, flight: &mut Flight) -> Result<(), ClientError> {
        let Some((change, flying)) = flight.changes.pop_front() else { return Ok(()) };
        match flying.answer().await {
            Ok(first) => {
                self.acked(change, &[first]);
                Ok(())
            }
            Err(error) => {
                self.pending.push(change);
                Err(error)
            }
        }
    }

    /// The change is done: its records are at these seqs.
    fn acked(&mut self, change: Change, firsts: &[Seq]) {
        for ((place, numbers), first) in change.0.into_iter().zip(firsts) {
            let extent = &mut self.extents[place];
            assert_eq!(first.0, extent.numbers.len() as u64 + 1, "acks come in order");
            extent.in_flight = extent.in_flight.saturating_sub(numbers.len() as u64);
            self.acked += numbers.len() as u64;
            extent.numbers.extend(numbers);
        }
    }
}

/// What a writer has in flight.
#[derive(Default)]
struct Flight {
    changes: VecDeque<(Change, Flying)>,
    lost_commit: Option<Change>,
    appenders: BTreeMap<ExtentId, Appender>,
}

impl Flight {
    async fn appender(&mut self, client: &Client, extent: &Extent) -> Result<&mut Appender, ClientError> {
        match self.appenders.entry(extent.id) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => Ok(entry.insert(client.appender(extent.id).await?)),
        }
    }
}

impl Flying {
    /// The seq of its first record.
    async fn answer(self) -> Result<Seq, ClientError> {
        match self {
            Self::Single(sent) => Ok(sent.await?.seq),
            Self::Batch(sent) => Ok(sent.await?.first_seq),
        }
    }
}

fn assert_is_loss(error: &ClientError) {
    let is_loss = matches!(
        error,
        ClientError::Disconnected { .. } | ClientError::Connect { .. } | ClientError::Refused(Refusal::ShuttingDown)
    );
    assert!(is_loss, "a writer failed by other than the loss of its node: {error}");
}

/// Reads what the node has of a writer's extents and compares: all that was acked is there, with its bytes and seq; behind it there are
/// only changes that were sent, whole, in their order. With `in_full` everything is read, else what was not read before.
///
/// # Panics
/// If anything is not so.
pub async fn check(client: &Client, writer: &mut Writer, in_full: bool) {
    let mut found: Vec<VecDeque<Vec<u8>>> = Vec::new();
    for extent in &mut writer.extents {
        found.push(check_known(client, extent, in_full).await);
    }
    // The client keeps the order of appends to one extent, and that of a commit to all appends before it; a commit is on all extents of its
    // group.
    let mut ended = BTreeSet::new();
    for Change(parts) in std::mem::take(&mut writer.pending) {
        let is_there = parts.iter().all(|(place, numbers)| !ended.contains(place) && found[*place].len() >= numbers.len());
        if !is_there {
            ended.extend(parts.iter().map(|(place, _)| *place));
            continue;
        }
        for (place, numbers) in parts {
            let extent = &mut writer.extents[place];
            for number in numbers {
                let bytes = found[place].pop_front().expect("it was counted");
                assert!(bytes == extent.bytes(number), "{} at {}: not what was sent", extent.id, extent.next_seq());
                extent.numbers.push(number);
                writer.unknown += 1;
            }
        }
    }
    for (extent, found) in writer.extents.iter_mut().zip(found) {
        assert!(found.is_empty(), "{}: {} records that nobody sent, or a part of an atomic change", extent.id, found.len());
        extent.checked = extent.numbers.len();
    }
}

/// Compares an extent with what is known; gives the records behind that.
async fn check_known(client: &Client, extent: &mut Extent, in_full: bool) -> VecDeque<Vec<u8>> {
    let info = match client.describe(extent.id).await {
        Ok(info) => info,
        Err(ClientError::Refused(Refusal::NotFound)) if extent.maybe_deleted || extent.numbers.is_empty() => {
            // Its creation, too, may not have been answered.
            *extent =
                Extent { numbers: Vec::new(), checked: 0, trimmed: 0, maybe_trimmed: 0, maybe_deleted: false, ..extent.clone() };
            extent.create(client).await.unwrap();
            return VecDeque::new();
        }
        Err(error) => panic!("{}: {error}", extent.id),
    };
    extent.maybe_deleted = false;
    let (first, last) = (info.first_seq.0, info.last_seq.0);
    let trimmed = extent.trimmed..=extent.maybe_trimmed;
    assert!(trimmed.contains(&(first - 1)), "{}: the first seq is {first}, trimmed is {trimmed:?}", extent.id);
    (extent.trimmed, extent.maybe_trimmed) = (first - 1, first - 1);
    let known = extent.numbers.len() as u64;
    assert!(last >= known, "{}: lost: {known} records are known, {last} are there", extent.id);
    let from = if in_full { first } else { first.max(extent.checked as u64 + 1) };
    let (records, committed) = read_from(client, extent.id, from).await;
    assert_eq!((from + records.len() as u64, committed), (last.max(from - 1) + 1, last), "{}: what can be read", extent.id);
    let mut behind = VecDeque::new();
    for (seq, bytes) in (from..).zip(records) {
        match extent.numbers.get(seq as usize - 1) {
            Some(number) => assert!(bytes == extent.bytes(*number), "{} at {seq}: not what was acked", extent.id),
            None => behind.push_back(bytes),
        }
    }
    behind
}

/// All records from a seq on, and the last committed seq.
async fn read_from(client: &Client, extent: ExtentId, from: u64) -> (Vec<Vec<u8>>, u64) {
    let mut records = Vec::new();
    let mut from_seq = Seq(from);
    loop {
        let read = Read { extent, from_seq, max_bytes: 1 << 20, max_records: 0, wait_ms: 0 };
        let page = client.read(read).await.unwrap();
        // The client has checked that the seqs follow one another.
        from_seq = page.next_seq;
        if page.records.is_empty() {
            return (records, page.committed_seq.0);
        }
        records.extend(page.records.into_iter().map(|record| record.data.to_vec()));
    }
}
