//! Clients that change a shard at random, and check each answer against the model at the moment it is decided.
//!
//! The engine applies a change in the same turn in which its future ends, so the model, which is changed in that turn too, knows what
//! the answer must be. Refused or not, an answer counts only once its gate is durable.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use log_format::ids::{DeliverAt, Epoch, ExtentId, ExtentKind, GroupId, Op, Seq};
use log_format::wire::{Record, Refusal};
use node_io::Runtime;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use storage_node::{Appended, Gated, Operation};
use tokio::sync::Semaphore;

use crate::model::{Change, ModelOp, State};
use crate::payload::Payload;
use crate::world::{Life, Shard};

/// One client for one life of the node.
pub(crate) struct Client {
    pub(crate) life: Rc<Life>,
    pub(crate) shard: Shard,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) window: Arc<Semaphore>,
}

/// Records that are to be appended.
struct Batch {
    payloads: Vec<Payload>,
    bytes: Vec<Vec<u8>>,
}

impl Batch {
    fn records(&self) -> impl ExactSizeIterator<Item = Record<'_>> + Clone {
        self.bytes.iter().map(|bytes| record(bytes))
    }
}

fn record(bytes: &[u8]) -> Record<'_> {
    Record { payload: bytes, checksum: log_format::payload_checksum(bytes), deliver_at: DeliverAt(0) }
}

/// One operation of a commit that is to be made.
enum Part {
    Append { extent: ExtentId, expected: Option<Seq>, batch: Batch },
    Trim { extent: ExtentId, to: u64 },
}

impl Client {
    /// Carries out the plan's operations.
    pub(crate) async fn run(mut self) {
        let world = self.life.world.clone();
        for _ in 0..world.plan.steps {
            self.step().await;
            let pause = world.plan.pause.as_nanos() as u64;
            if pause > 0 && self.rng.random_bool(0.3) {
                self.life.runtime.sleep(std::time::Duration::from_nanos(self.rng.random_range(0..=pause))).await;
            }
        }
        let all = self.window.acquire_many(world.plan.window as u32).await.expect("never closed");
        drop(all);
        self.life.running.set(self.life.running.get() - 1);
    }

    async fn step(&mut self) {
        let mix = self.life.world.plan.mix;
        let choices = [
            mix.append,
            mix.commit,
            mix.create,
            mix.seal,
            mix.delete,
            mix.trim,
            mix.read,
            mix.describe,
            mix.list,
            mix.seq_at_time,
        ];
        let mut chosen = self.rng.random_range(0..choices.iter().sum());
        let place = choices.iter().position(|&share| {
            let here = chosen < share;
            chosen = chosen.saturating_sub(share);
            here
        });
        match place {
            Some(0) => self.append().await,
            Some(1) => self.commit().await,
            Some(2) => self.create().await,
            Some(3) => self.seal().await,
            Some(4) => self.delete().await,
            Some(5) => self.trim().await,
            Some(6) => self.read().await,
            Some(7) => self.describe().await,
            Some(8) => self.list().await,
            _ => self.seq_at_time().await,
        }
    }

    pub(crate) fn some_extent(&mut self) -> ExtentId {
        let world = &self.life.world;
        if self.rng.random_bool(0.95) {
            let model = world.model.borrow();
            let count = model.newest().extents.len();
            if count > 0 {
                let place = self.rng.random_range(0..count);
                return *model.newest().extents.keys().nth(place).expect("it is within the count");
            }
        }
        ExtentId(u128::from(self.rng.random_range(1..=world.plan.extents)))
    }

    /// Mostly one that is not sealed.
    fn extent_to_append_to(&mut self) -> ExtentId {
        if self.rng.random_bool(0.9) {
            let model = self.life.world.model.borrow();
            let open = model.newest().extents.iter().filter(|(_, extent)| !extent.sealed);
            let open: Vec<ExtentId> = open.map(|(id, _)| *id).collect();
            if !open.is_empty() {
                return open[self.rng.random_range(0..open.len())];
            }
        }
        self.some_extent()
    }

    fn epoch_for(&mut self, group: Option<GroupId>) -> Epoch {
        let model = self.life.world.model.borrow();
        let current = group.and_then(|group| model.newest().groups.get(&group)).map_or(0, |group| group.epoch);
        match self.rng.random_range(0..40) {
            0 => Epoch(current.saturating_sub(1)),
            1 => Epoch(current + 1),
            _ => Epoch(current),
        }
    }

    fn epoch_of(&mut self, extent: ExtentId) -> Epoch {
        let group = self.life.world.model.borrow().newest().extent(extent).map(|extent| extent.group);
        self.epoch_for(group)
    }

    fn batch(&mut self) -> Batch {
        let world = &self.life.world;
        let plan = &world.plan;
        let large = plan.options.record_size_max as u32;
        let payloads: Vec<Payload> = if self.rng.random_ratio(1, plan.large_one_in) {
            world.count("record of the greatest size");
            vec![world.new_payload(large)]
        } else {
            let count = self.rng.random_range(1..=plan.batch);
            let budget = plan.options.op_size_max() as u32 / count as u32;
            (0..count)
                .map(|_| match self.rng.random_range(0..12) {
                    0 => {
                        world.count("record of 0 bytes");
                        world.new_payload(0)
                    }
                    _ => world.new_payload(self.rng.random_range(0..=plan.payload.min(budget))),
                })
                .collect()
        };
        let bytes = payloads.iter().map(|payload| payload.bytes()).collect();
        Batch { payloads, bytes }
    }

    fn expected_seq(&mut self, extent: ExtentId) -> Option<Seq> {
        let last = self.life.world.model.borrow().newest().extent(extent).map_or(0, |extent| extent.last);
        match self.rng.random_range(0..10) {
            0..=6 => None,
            7 | 8 => Some(Seq(last + 1)),
            _ => Some(Seq(self.rng.random_range(0..=last + 3))),
        }
    }

    async fn append(&mut self) {
        let extent = self.extent_to_append_to();
        let epoch = self.epoch_of(extent);
        if self.rng.random_ratio(1, 50) {
            return self.append_what_is_refused(extent, epoch).await;
        }
        let batch = self.batch();
        let expected = self.expected_seq(extent);
        let outcome = self.shard.append(extent, epoch, expected, batch.records()).await;
        self.life.notice_failure(&self.shard);
        let must_be = expect_append(self.life.world.model.borrow().newest(), extent, epoch, expected, batch.payloads.len());
        match outcome {
            Ok(gated) => {
                assert_eq!(Ok(gated.value), must_be, "append to {extent} at {epoch:?}, expecting {expected:?}");
                let payloads = batch.payloads;
                let group = self.group_of(extent);
                let op = ModelOp { gate: gated.gate, group, changes: vec![Change::Append { extent, payloads }] };
                self.applied("append acked", op, vec![(extent, gated.value)]).await;
            }
            Err(refusal) => self.refused("append refused", extent, refusal, must_be.err()).await,
        }
    }

    async fn append_what_is_refused(&mut self, extent: ExtentId, epoch: Epoch) {
        let limit = self.life.world.plan.options.record_size_max;
        let (bytes, checksum, must_be) = if self.rng.random_bool(0.5) {
            let bytes = vec![1; limit + 1];
            let checksum = log_format::payload_checksum(&bytes);
            (bytes, checksum, Refusal::TooLarge { limit_bytes: limit as u64 })
        } else {
            (vec![1], 1, Refusal::BadChecksum { index: 0 })
        };
        let records = [Record { payload: &bytes, checksum, deliver_at: DeliverAt(0) }];
        let outcome = self.shard.append(extent, epoch, None, records.into_iter()).await;
        assert_eq!(outcome.map(|_| ()), Err(must_be));
    }

    async fn commit(&mut self) {
        let extent = self.some_extent();
        let group = self.life.world.model.borrow().newest().extent(extent).map_or(GroupId(extent.0), |extent| extent.group);
        let epoch = self.epoch_for(Some(group));
        let parts = self.parts(group);
        let operations: Vec<_> = parts
            .iter()
            .map(|part| match part {
                Part::Append { extent, expected, batch } => {
                    Operation::Append { extent: *extent, expected: *expected, records: batch.records() }
                }
                Part::Trim { extent, to } => Operation::Trim { extent: *extent, to: Seq(*to) },
            })
            .collect();
        let outcome = self.shard.commit(group, epoch, &operations).await;
        drop(operations);
        self.life.notice_failure(&self.shard);
        let must_be = expect_commit(self.life.world.model.borrow().newest(), group, epoch, &parts);
        match outcome {
            Ok(Gated { value, gate }) => {
                assert_eq!(Ok(&value), must_be.as_ref(), "commit to group {group} at {epoch:?}");
                let done = parts.iter().zip(value).filter_map(|(part, done)| match part {
                    Part::Append { extent, .. } => Some((*extent, done)),
                    Part::Trim { .. } => None,
                });
                let done = done.collect();
                let changes = parts.into_iter().map(|part| match part {
                    Part::Append { extent, batch, .. } => Change::Append { extent, payloads: batch.payloads },
                    Part::Trim { extent, to } => Change::Trim { extent, to },
                });
                self.applied("commit acked", ModelOp { gate, group, changes: changes.collect() }, done).await;
            }
            Err(refusal) => {
                // It may rest on any of the group's extents.
                let extents = parts.iter().map(|part| match part {
                    Part::Append { extent, .. } | Part::Trim { extent, .. } => *extent,
                });
                let newest = {
                    let model = self.life.world.model.borrow();
                    extents.max_by_key(|extent| model.rests_on(*extent)).unwrap_or(extent)
                };
                self.refused("commit refused", newest, refusal, must_be.err()).await;
            }
        }
    }

    /// Operations on up to six extents of a group, now and then on one of another.
    fn parts(&mut self, group: GroupId) -> Vec<Part> {
        let members: Vec<(ExtentId, u64)> = {
            let model = self.life.world.model.borrow();
            let extents = model.newest().extents.iter();
            let sealed_too = self.rng.random_ratio(1, 20);
            let members = extents.filter(|(_, extent)| extent.group == group && (sealed_too || !extent.sealed));
            members.map(|(id, extent)| (*id, extent.last)).collect()
        };
        let count = self.rng.random_range(1..=6);
        let mut space = self.life.world.plan.options.op_size_max();
        let mut parts = Vec::new();
        let mut lasts: BTreeMap<ExtentId, u64> = members.iter().copied().collect();
        for _ in 0..count {
            let stranger = members.is_empty() || self.rng.random_ratio(1, 60);
            let extent = if stranger { self.some_extent() } else { members[self.rng.random_range(0..members.len())].0 };
            let last = lasts.entry(extent).or_default();
            if self.rng.random_bool(0.15) {
                let to = if *last > 0 { self.rng.random_range(0..=*last) } else { 0 };
                parts.push(Part::Trim { extent, to });
                continue;
            }
            let expected = match self.rng.random_range(0..20) {
                0..=13 => None,
                14..=18 => Some(Seq(*last + 1)),
                _ => Some(Seq(*last)),
            };
            let batch = self.batch();
            let size: usize = batch.bytes.iter().map(Vec::len).sum();
            let Some(left) = space.checked_sub(size) else { continue };
            let last = lasts.entry(extent).or_default();
            *last += batch.payloads.len() as u64;
            space = left;
            parts.push(Part::Append { extent, expected, batch });
        }
        if parts.is_empty() {
            parts.push(Part::Trim { extent: self.some_extent(), to: 0 });
        }
        parts
    }

    async fn create(&mut self) {
        let world = self.life.world.clone();
        let extent = ExtentId(u128::from(self.rng.random_range(1..=world.plan.extents)));
        // An id whose deletion is in doubt is left alone: two lives of it in doubt could not be told apart.
        let known = world.model.borrow().newest().extent(extent).is_some();
        if !known && !world.model.borrow().is_free(extent) {
            return;
        }
        let group = if self.rng.random_ratio(1, 30) { GroupId(77) } else { world.plan.group_of(extent) };
        let epoch = if self.rng.random_bool(0.2) { Epoch(self.rng.random_range(0..3)) } else { self.epoch_for(Some(group)) };
        let outcome = self.shard.create(extent, group, ExtentKind::Sequence, epoch).await;
        self.life.notice_failure(&self.shard);
        let must_be = expect_create(world.model.borrow().newest(), extent, group, epoch);
        match outcome {
            Ok(Gated { value, gate }) => {
                assert_eq!(Ok(value), must_be, "create {extent} in {group}");
                if value {
                    let incarnation = world.model.borrow_mut().next_incarnation();
                    let changes = vec![Change::Create { extent, incarnation, epoch: epoch.0 }];
                    self.applied("create acked", ModelOp { gate, group, changes }, Vec::new()).await;
                } else {
                    world.count("extent created again");
                    let rests_on = world.model.borrow().rests_on(extent);
                    self.life.answer(&self.shard, gate, rests_on).await;
                }
            }
            Err(Refusal::BadRequest { why }) if why.contains("as many extents") => world.count("create refused for room"),
            Err(refusal) => self.refused("create refused", extent, refusal, must_be.err()).await,
        }
    }

    async fn seal(&mut self) {
        let extent = self.some_extent();
        let epoch = self.epoch_of(extent);
        let outcome = self.shard.seal(extent, epoch).await;
        self.life.notice_failure(&self.shard);
        let must_be = self.expect(extent, epoch, |extent| Ok((!extent.sealed, Seq(extent.last))));
        let group = self.group_of(extent);
        self.state_changed("seal acked", extent, group, outcome, must_be, Change::Seal { extent }).await;
    }

    async fn trim(&mut self) {
        let extent = self.some_extent();
        let epoch = self.epoch_of(extent);
        let (floor, last) =
            self.life.world.model.borrow().newest().extent(extent).map_or((0, 0), |extent| (extent.floor, extent.last));
        let to = match self.rng.random_range(0..12) {
            0 => self.rng.random_range(0..=last + 3),
            1 | 2 => last,
            _ => self.rng.random_range(floor..=last.max(floor)),
        };
        let outcome = self.shard.trim(extent, epoch, Seq(to)).await;
        self.life.notice_failure(&self.shard);
        let must_be = self.expect(extent, epoch, |extent| match to > extent.last {
            true => Err(Refusal::BadRequest { why: String::new() }),
            false => Ok((to > extent.floor, Seq(extent.floor.max(to)))),
        });
        let group = self.group_of(extent);
        self.state_changed("trim acked", extent, group, outcome, must_be, Change::Trim { extent, to }).await;
    }

    async fn delete(&mut self) {
        let extent = self.some_extent();
        let epoch = self.epoch_of(extent);
        let outcome =
            self.shard.delete(extent, epoch).await.map(|gated| Gated { value: (gated.value.0, Seq(0)), gate: gated.gate });
        self.life.notice_failure(&self.shard);
        let must_be = self.expect(extent, epoch, |_| Ok((true, Seq(0))));
        let group = self.group_of(extent);
        self.state_changed("delete acked", extent, group, outcome, must_be, Change::Delete { extent }).await;
    }

    /// The outcome that a change of an extent's state must have: whether it changes anything, and the value of its answer.
    fn expect(
        &self,
        extent: ExtentId,
        epoch: Epoch,
        change: impl FnOnce(&crate::model::ExtentModel) -> Result<(bool, Seq), Refusal>,
    ) -> Result<(bool, Op, Seq), Refusal> {
        let model = self.life.world.model.borrow();
        let state = model.newest();
        let found = state.extent(extent).ok_or(Refusal::NotFound)?;
        admit(state, found.group, epoch)?;
        let (changes, value) = change(found)?;
        let next = state.next_op(found.group);
        Ok((changes, Op(if changes { next } else { next - 1 }), value))
    }

    async fn state_changed(
        &mut self,
        what: &str,
        extent: ExtentId,
        group: GroupId,
        outcome: Result<Gated<(Op, Seq)>, Refusal>,
        must_be: Result<(bool, Op, Seq), Refusal>,
        change: Change,
    ) {
        match outcome {
            Ok(Gated { value: (op, value), gate }) => {
                let changes = matches!(must_be, Ok((true, ..)));
                assert_eq!(Ok((changes, op, value)), must_be, "{change:?}");
                if changes {
                    self.applied(what, ModelOp { gate, group, changes: vec![change] }, Vec::new()).await;
                } else {
                    let rests_on = self.life.world.model.borrow().rests_on(extent);
                    self.life.answer(&self.shard, gate, rests_on).await;
                }
            }
            Err(refusal) => self.refused(what.trim_end_matches(" acked"), extent, refusal, must_be.err()).await,
        }
    }

    fn group_of(&self, extent: ExtentId) -> GroupId {
        let model = self.life.world.model.borrow();
        model.newest().extent(extent).map_or(GroupId(0), |extent| extent.group)
    }

    /// The engine took an op: the model takes it in the same turn. Its ack is waited for behind the client's window.
    async fn applied(&mut self, what: &str, op: ModelOp, done: Vec<(ExtentId, Appended)>) {
        let gate = op.gate;
        self.life.world.model.borrow_mut().applied(op);
        let permit = self.window.clone().acquire_owned().await.expect("never closed");
        let (life, shard, what) = (self.life.clone(), self.shard.clone(), what.to_owned());
        self.life.runtime.spawn_detached(Box::pin(async move {
            if life.answer(&shard, gate, gate).await {
                life.world.count(&what);
                let now = life.now();
                for (extent, done) in done {
                    life.world.model.borrow_mut().acked(extent, done.first_seq.0, u64::from(done.count), now);
                }
            }
            drop(permit);
        }));
    }

    async fn refused(&mut self, what: &str, extent: ExtentId, refusal: Refusal, must_be: Option<Refusal>) {
        self.life.world.count(what);
        if self.life.is_node_refusal(&refusal) {
            // A client that is told so comes back later.
            self.life.runtime.sleep(std::time::Duration::from_millis(self.rng.random_range(1..50))).await;
            return;
        }
        assert_eq!(Some(without_words(refusal)), must_be.map(without_words), "{what} about {extent}");
        self.life.answer_refusal(&self.shard, extent).await;
    }
}

/// The texts of refusals are for people.
fn without_words(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::BadRequest { .. } => Refusal::BadRequest { why: String::new() },
        other => other,
    }
}

fn admit(state: &State, group: GroupId, epoch: Epoch) -> Result<(), Refusal> {
    match state.groups.get(&group) {
        Some(group) if epoch.0 < group.epoch => Err(Refusal::Fenced { epoch: Epoch(group.epoch) }),
        _ => Ok(()),
    }
}

fn expect_create(state: &State, extent: ExtentId, group: GroupId, epoch: Epoch) -> Result<bool, Refusal> {
    if let Some(extent) = state.extent(extent) {
        return if extent.group == group { Ok(false) } else { Err(Refusal::AlreadyExists) };
    }
    admit(state, group, epoch).map(|()| true)
}

fn expect_append(
    state: &State,
    extent: ExtentId,
    epoch: Epoch,
    expected: Option<Seq>,
    count: usize,
) -> Result<Appended, Refusal> {
    let found = state.extent(extent).ok_or(Refusal::NotFound)?;
    admit(state, found.group, epoch)?;
    if found.sealed {
        return Err(Refusal::Sealed { last: Seq(found.last) });
    }
    let next = Seq(found.last + 1);
    if expected.is_some_and(|expected| expected != next) {
        return Err(Refusal::SeqMismatch { next });
    }
    Ok(Appended { first_seq: next, count: count as u32, op: Op(state.next_op(found.group)) })
}

fn expect_commit(state: &State, group: GroupId, epoch: Epoch, parts: &[Part]) -> Result<Vec<Appended>, Refusal> {
    if !state.groups.contains_key(&group) {
        return Err(Refusal::NotFound);
    }
    admit(state, group, epoch)?;
    let op = Op(state.next_op(group));
    let mut lasts: BTreeMap<ExtentId, (u64, u64)> = BTreeMap::new();
    let mut done = Vec::new();
    for part in parts {
        let (Part::Append { extent: id, .. } | Part::Trim { extent: id, .. }) = part;
        let extent = state.extent(*id).ok_or(Refusal::NotFound)?;
        let bad_request = Err(Refusal::BadRequest { why: String::new() });
        if extent.group != group {
            return bad_request;
        }
        let (last, floor) = lasts.entry(*id).or_insert((extent.last, extent.floor));
        match part {
            Part::Append { expected, batch, .. } => {
                let next = Seq(*last + 1);
                if extent.sealed {
                    return Err(Refusal::Sealed { last: Seq(extent.last) });
                }
                if expected.is_some_and(|expected| expected != next) {
                    return Err(Refusal::SeqMismatch { next });
                }
                *last += batch.payloads.len() as u64;
                done.push(Appended { first_seq: next, count: batch.payloads.len() as u32, op });
            }
            Part::Trim { to, .. } if to > last => return bad_request,
            Part::Trim { to, .. } => {
                *floor = (*floor).max(*to);
                done.push(Appended { first_seq: Seq(*floor), count: 0, op });
            }
        }
    }
    Ok(done)
}

/// Deletes extents and makes the log roll on, so that their space comes back.
pub(crate) struct Deleter {
    pub(crate) life: Rc<Life>,
    pub(crate) shard: Shard,
}

impl Deleter {
    pub(crate) async fn delete_and_roll(&self, extents: &[ExtentId]) {
        for &extent in extents {
            self.delete(extent).await;
        }
        // The checkpoint of a later segment frees the one that holds the deletions; so does that of the next one for it.
        for _ in 0..2 {
            let extent = ExtentId(1 << 40);
            let before = self.shard.status().open_segment;
            let group = GroupId(extent.0);
            let created = self.shard.create(extent, group, ExtentKind::Sequence, Epoch(0)).await.expect("the device works");
            let incarnation = self.life.world.model.borrow_mut().next_incarnation();
            let changes = vec![Change::Create { extent, incarnation, epoch: 0 }];
            self.took(ModelOp { gate: created.gate, group, changes }).await;
            while self.shard.status().open_segment == before {
                let payload = self.life.world.new_payload(self.life.world.plan.options.record_size_max.min(50_000) as u32);
                let bytes = payload.bytes();
                let appended =
                    self.shard.append(extent, Epoch(0), None, [record(&bytes)].into_iter()).await.expect("the device works");
                let changes = vec![Change::Append { extent, payloads: vec![payload] }];
                self.took(ModelOp { gate: appended.gate, group, changes }).await;
            }
            self.delete(extent).await;
        }
    }

    async fn delete(&self, extent: ExtentId) {
        let (group, epoch) = {
            let model = self.life.world.model.borrow();
            let group = model.newest().extent(extent).expect("listed before").group;
            (group, model.newest().groups[&group].epoch)
        };
        let deleted = self.shard.delete(extent, Epoch(epoch)).await.expect("the device works");
        self.took(ModelOp { gate: deleted.gate, group, changes: vec![Change::Delete { extent }] }).await;
    }

    async fn took(&self, op: ModelOp) {
        let gate = op.gate;
        self.life.world.model.borrow_mut().applied(op);
        assert!(self.life.answer(&self.shard, gate, gate).await, "the device works");
    }
}
