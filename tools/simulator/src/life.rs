//! The lives of a node: it starts, is held against the model, works, and is stopped; again and again, on the same disk.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log_format::ids::ExtentId;
use node_io::Runtime;
use node_io::sim::{Faults, Limits, Sim};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::sync::Semaphore;

use crate::client::Client;
use crate::plan::{Plan, Scenario, is_harmless, rng};
use crate::reader;
use crate::world::{Life, Shard, World};

const NODE: u32 = 0;
const DIR: &str = "/data/shard-0000";
/// A working node has carried out the plan of one life within this time.
const LIFE_MAX: Duration = Duration::from_secs(600);
/// Segments that a shard without any record may still hold: the open one, those that wait for the next checkpoint or its readers.
const EMPTY_SEGMENTS_MAX: u64 = 3;

/// Tasks of a shard that live as long as it does: the committer, the preparer, the retirer.
const SHARD_TASKS: usize = 3;
/// The greatest step of the wall clock.
const CLOCK_STEP_NANOS: i64 = 3_600_000_000_000;

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Within this time of its start.
    Soon(Duration),
    /// Within this time of its shard's opening, when what recovery left for later is still to be done.
    JustOpen(Duration),
    /// Shortly after the log moved to another segment, or while it moves.
    AtRoll(Duration),
    /// Shortly after a write failed, before the log has moved on or while it does.
    AtFailure(Duration),
    /// While it drains, after so much work.
    InDrain(Duration, Duration),
    /// When all is done and drained.
    Drained,
}

/// One simulation.
pub(crate) struct Run {
    sim: Sim,
    world: Rc<World>,
    rng: ChaCha8Rng,
    seed: u64,
    /// The process died after its device had failed: what is read now may be in a cache alone.
    in_cache: bool,
}

impl Run {
    pub(crate) fn new(scenario: Scenario, seed: u64) -> Self {
        let sim = Sim::new(seed ^ (scenario as u64) << 56);
        sim.set_limits(Limits { turns: 5_000_000, time: Duration::from_secs(24 * 3600) });
        Self { sim, world: Rc::new(World::new(Plan::new(scenario, seed))), rng: rng(seed, 1), seed, in_cache: false }
    }

    /// Runs all lives and the last checks. Gives the counters and the hash of all that happened.
    pub(crate) fn run(mut self) -> (crate::Coverage, u64) {
        for number in 0..self.world.plan.lives {
            self.live(number as u64);
        }
        self.last_life();
        let mut coverage = self.world.coverage.borrow().clone();
        for (kind, count) in self.sim.all_reached(NODE) {
            coverage.add(&format!("disk: {kind:?}"), count);
        }
        (coverage, self.sim.trace_hash())
    }

    /// Starts the node. It opens its shard and compares it with the model by itself.
    fn start(&mut self, faults: Faults, harmless: bool) -> Rc<Life> {
        let runtime = self.sim.node(NODE);
        self.sim.set_faults(NODE, faults);
        let life = Rc::new(Life {
            world: self.world.clone(),
            runtime: runtime.clone(),
            harmless,
            shard: RefCell::new(None),
            open_failed: Cell::new(false),
            has_failed: Cell::new(false),
            in_cache: std::mem::take(&mut self.in_cache),
            draining: Cell::new(false),
            running: Cell::new(0),
        });
        runtime.spawn_detached(Box::pin(open(life.clone())));
        life
    }

    fn live(&mut self, number: u64) {
        let mut faults = self.world.plan.faults(&mut self.rng);
        if self.in_cache && self.rng.random_bool(0.8) {
            // It works again, and has not forgotten yet.
            faults = Faults::default();
        }
        let end = self.end(faults.write_error > 0.0);
        let quiet = self.rng.random_bool(0.3);
        if number > 0 && self.rng.random_bool(0.3) {
            self.sim.step_clock(NODE, self.rng.random_range(-CLOCK_STEP_NANOS..=CLOCK_STEP_NANOS));
        }
        let harmless = is_harmless(&faults);
        // A device that fails from the start on mostly fails the start.
        let at_start = if self.rng.random_bool(0.7) { Faults { write_error: 0.0, ..faults.clone() } } else { faults.clone() };
        let life = self.start(at_start, harmless);
        if let End::Soon(within) = end {
            self.sim.run_for(within);
        }
        if life.shard.borrow().is_none() && matches!(end, End::Soon(_)) {
            return self.stop(&life, "crash in a recovery");
        }
        self.wait(|| life.shard.borrow().is_some() || life.open_failed.get());
        let Some(shard) = life.shard.borrow().clone() else {
            self.world.count("recovery failed");
            return self.stop(&life, "crash after a failed recovery");
        };
        if let End::JustOpen(within) = end {
            self.sim.run_for(within);
            return self.stop(&life, "crash just after a recovery");
        }
        if quiet {
            self.audit(&life, &shard);
        }
        self.sim.set_faults(NODE, faults);
        self.start_load(&life, &shard, number);
        match end {
            End::Soon(within) | End::JustOpen(within) => self.sim.run_for(within),
            End::AtRoll(after) => {
                let before = shard.status().open_segment;
                self.wait(|| shard.status().open_segment != before || life.running.get() == 0 || is_stuck(&shard));
                self.sim.run_for(after);
            }
            End::AtFailure(after) => {
                self.wait(|| life.notice_failure(&shard) || life.running.get() == 0 || is_stuck(&shard));
                self.sim.run_for(after);
            }
            End::InDrain(work, drain) => {
                self.sim.run_for(work);
                self.start_drain(&life, &shard);
                self.sim.run_for(drain);
            }
            End::Drained => {
                self.wait(|| life.running.get() == 0 || is_stuck(&shard));
                let done = self.start_drain(&life, &shard);
                self.wait(|| done.get() || is_stuck(&shard));
                self.world.count("drained");
            }
        }
        let what = match end {
            _ if life.has_failed.get() => "crash after the shard failed",
            End::Soon(_) | End::JustOpen(_) => "crash under load",
            End::AtRoll(_) => "crash at a roll",
            End::AtFailure(_) => "crash under load",
            End::InDrain(..) => "crash in a drain",
            End::Drained => "crash after a drain",
        };
        self.stop(&life, what);
    }

    fn end(&mut self, writes_fail: bool) -> End {
        let rng = &mut self.rng;
        if self.in_cache && rng.random_bool(0.8) {
            return End::JustOpen(Duration::from_micros(rng.random_range(0..=600)));
        }
        if writes_fail && rng.random_bool(0.6) {
            return End::AtFailure(Duration::from_micros(rng.random_range(0..=1_500)));
        }
        let micros = |rng: &mut ChaCha8Rng, most| Duration::from_micros(rng.random_range(0..=most));
        match rng.random_range(0..10) {
            0 | 1 => End::Soon(micros(rng, 4_000)),
            2 => End::JustOpen(micros(rng, 1_500)),
            3 | 4 => End::Soon(micros(rng, 60_000)),
            5 | 6 => End::AtRoll(micros(rng, 2_500)),
            7 => End::InDrain(micros(rng, 20_000), micros(rng, 3_000)),
            _ => End::Drained,
        }
    }

    fn wait(&self, condition: impl Fn() -> bool) {
        let limit = self.sim.elapsed() + LIFE_MAX;
        self.sim.run_until(|| condition() || self.sim.elapsed() > limit);
        assert!(condition(), "the node did not get on within {LIFE_MAX:?}");
    }

    fn start_load(&mut self, life: &Rc<Life>, shard: &Shard, number: u64) {
        let seed = self.seed;
        let purpose = move |kind: u64, index: usize| rng(seed, kind << 32 | number << 16 | index as u64);
        let plan = &self.world.plan;
        life.running.set(plan.clients);
        for index in 0..plan.clients {
            let client = Client {
                life: life.clone(),
                shard: shard.clone(),
                rng: purpose(1, index),
                window: Arc::new(Semaphore::new(plan.window)),
            };
            life.runtime.spawn_detached(Box::pin(client.run()));
        }
        reader::start_readers(life, shard, |index| purpose(2, index));
    }

    fn start_drain(&self, life: &Rc<Life>, shard: &Shard) -> Rc<Cell<bool>> {
        life.draining.set(true);
        let done = Rc::new(Cell::new(false));
        let (shard, set) = (shard.clone(), done.clone());
        life.runtime.spawn_detached(Box::pin(async move {
            shard.drain().await;
            set.set(true);
        }));
        done
    }

    fn audit(&self, life: &Rc<Life>, shard: &Shard) {
        let outcome: Rc<RefCell<Option<Result<(), String>>>> = Rc::default();
        let (task_life, shard, set) = (life.clone(), shard.clone(), outcome.clone());
        life.runtime.spawn_detached(Box::pin(async move {
            let result = reader::audit(&task_life, &shard).await;
            *set.borrow_mut() = Some(result);
        }));
        self.wait(|| outcome.borrow().is_some());
        if let Some(Err(what)) = outcome.borrow_mut().take() {
            assert!(!life.harmless, "{what}");
        }
    }

    /// The node stops: mostly by a power cut, else by the death of its process.
    fn stop(&mut self, life: &Rc<Life>, what: &str) {
        let shard = life.shard.borrow_mut().take();
        if let Some(shard) = &shard {
            life.notice_failure(shard);
            let status = shard.status();
            self.world.model.borrow_mut().crashed(status.durable_block);
            let counters = &status.counters;
            let mut coverage = self.world.coverage.borrow_mut();
            coverage.add("segments recycled", counters.segments_recycled);
            coverage.add("footers written", counters.segments_closed);
            coverage.add("device reads", u64::from(counters.device_bytes_read > 0));
            coverage.add("blocks written", counters.blocks_written);
        }
        self.world.count(what);
        if self.sim.reached(NODE, node_io::sim::FaultKind::NoSpace) > 0 {
            self.world.count("disk full");
        }
        let failed = life.has_failed.get();
        drop(shard);
        if self.rng.random_bool(if failed { 0.7 } else { 0.25 }) {
            self.in_cache = failed;
            self.sim.kill(NODE);
        } else {
            self.sim.crash(NODE);
        }
    }

    /// On a working device: everything is there and can be read, readers catch up, the space of the dead comes back.
    fn last_life(&mut self) {
        let life = self.start(Faults::default(), true);
        self.wait(|| life.shard.borrow().is_some() || life.open_failed.get());
        let shard = life.shard.borrow().clone().expect("the shard opens on a working device");
        self.audit(&life, &shard);
        self.start_load(&life, &shard, 1 << 15);
        self.wait(|| life.running.get() == 0);
        // What is acked now reaches the readers without further changes.
        self.sim.run_for(Duration::from_secs(1));
        for (index, position) in self.world.readers.iter().enumerate() {
            let behind = position.borrow().behind(&life, &shard);
            assert_eq!(behind, 0, "reader {index} is {behind} records behind, at {:?}", position.borrow());
        }
        self.settled(&shard);
        let (tasks, expected) = (self.sim.task_count(NODE), SHARD_TASKS + self.world.readers.len());
        assert!(tasks <= expected, "{tasks} tasks are left where nothing is under way, {expected} are accounted for");
        if matches!(self.world.plan.scenario, Scenario::Recycle | Scenario::Faults) {
            self.delete_all(&life, &shard);
        }
        let done = self.start_drain(&life, &shard);
        self.wait(|| done.get());
        drop(shard);
        self.stop(&life, "last stop");
        let life = self.start(Faults::default(), true);
        self.wait(|| life.shard.borrow().is_some() || life.open_failed.get());
        let shard = life.shard.borrow().clone().expect("the shard opens after its drain");
        self.audit(&life, &shard);
        drop(shard);
        life.shard.borrow_mut().take();
    }

    /// With nothing under way, all that the shard lists is what the model says.
    fn settled(&self, shard: &Shard) {
        let listed = shard.list(None, usize::MAX).value.0;
        if let Err(difference) = self.world.model.borrow().newest().compare(&listed) {
            panic!("with nothing under way: {difference}");
        }
    }

    /// Deletes everything and lets the log roll on: what is left must be small, whatever was there.
    fn delete_all(&self, life: &Rc<Life>, shard: &Shard) {
        let extents: Vec<ExtentId> = self.world.model.borrow().newest().extents.keys().copied().collect();
        let done = Rc::new(Cell::new(false));
        let (task_life, task_shard, set) = (life.clone(), shard.clone(), done.clone());
        life.runtime.spawn_detached(Box::pin(async move {
            let client = crate::client::Deleter { life: task_life, shard: task_shard };
            client.delete_and_roll(&extents).await;
            set.set(true);
        }));
        self.wait(|| done.get());
        self.sim.run_for(Duration::from_secs(5));
        let status = shard.status();
        assert!(
            status.segments <= EMPTY_SEGMENTS_MAX,
            "{} segments are left of deleted extents; open is {}",
            status.segments,
            status.open_segment
        );
        let names = self.sim.list_dir(NODE, Path::new(DIR)).len() as u64;
        let spares =
            self.sim.list_dir(NODE, Path::new(DIR)).iter().filter(|name| name.to_string_lossy().starts_with("spare")).count();
        let expected = status.segments + status.segments_prepared + spares as u64;
        assert!(names <= expected, "{names} files are there, {expected} are accounted for");
        self.world.count("space given back");
    }
}

/// Whether a shard makes no progress for a reason that lasts: it failed, or its disk is full.
fn is_stuck(shard: &Shard) -> bool {
    matches!(shard.status().phase, storage_node::status::Phase::ReadOnly(_))
}

async fn open(life: Rc<Life>) {
    let world = &life.world;
    let shard = match Shard::open(life.runtime.clone(), Path::new(DIR), world.plan.options.clone()).await {
        Ok(shard) => shard,
        Err(error) => {
            assert!(!life.harmless, "the shard does not open although the device works: {error}");
            life.open_failed.set(true);
            return;
        }
    };
    assert!(shard.damage().is_empty(), "damage was found where there is none: {:?}", shard.damage());
    let listed = shard.list(None, usize::MAX).value.0;
    let recovered = world.model.borrow_mut().recovered(&listed);
    match recovered {
        Ok(doubt) => {
            let mut coverage = world.coverage.borrow_mut();
            coverage.count("recovery");
            coverage.add("a failed block found after a restart", u64::from(life.in_cache && doubt.survived > 0));
            coverage.add("in doubt: op survived", doubt.survived);
            coverage.add("in doubt: op vanished", doubt.vanished);
            coverage.add("in doubt: commit survived", doubt.commits_survived);
            coverage.add("in doubt: commit vanished", doubt.commits_vanished);
            coverage.add("recovery from several segments", u64::from(shard.status().segments > 2));
        }
        Err(differences) => panic!("the recovered shard is none of what it may be:\n  {differences}"),
    }
    if life.notice_failure(&shard) {
        world.count("shard failed");
    }
    *life.shard.borrow_mut() = Some(shard);
}
