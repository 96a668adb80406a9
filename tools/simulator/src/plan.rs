//! What a seed runs: the shard's settings, who does what to it, what goes wrong, and when the node is stopped.

use std::time::Duration;

use log_format::ids::{ExtentId, GroupId, Incarnation, NodeId, ShardIndex};
use node_io::sim::Faults;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use storage_node::ShardOptions;

/// A kind of simulation. Each seed runs all of them, unless one is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// All operations on a few extents; the node stops at any point, also while it starts and while it ends.
    Crash,
    /// Commits over three extents and more, and many crashes.
    Commit,
    /// Devices that fail while they work, and fill up.
    Faults,
    /// Readers at the tail, who must see each record once, in order and right after its ack.
    Tail,
    /// Short-lived extents: their space must come back.
    Recycle,
    /// Clients that speak the protocol, over a network that breaks.
    Wire,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 6] = [Self::Crash, Self::Commit, Self::Faults, Self::Tail, Self::Recycle, Self::Wire];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Commit => "commit",
            Self::Faults => "faults",
            Self::Tail => "tail",
            Self::Recycle => "recycle",
            Self::Wire => "wire",
        }
    }

    /// The scenario of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }
}

/// How often each operation is chosen, in shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) append: u32,
    pub(crate) commit: u32,
    pub(crate) create: u32,
    pub(crate) seal: u32,
    pub(crate) delete: u32,
    pub(crate) trim: u32,
    pub(crate) read: u32,
    pub(crate) describe: u32,
    pub(crate) list: u32,
    pub(crate) seq_at_time: u32,
}

/// All that a seed decides before it runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) options: ShardOptions,
    pub(crate) lives: usize,
    pub(crate) clients: usize,
    /// Operations that a client carries out in one life of the node, and how many of them may be unanswered.
    pub(crate) steps: usize,
    pub(crate) window: usize,
    /// The longest pause of a client between two operations; zero: none.
    pub(crate) pause: Duration,
    pub(crate) mix: Mix,
    /// Extents are chosen from so many ids, in so many shared groups.
    pub(crate) extents: u64,
    pub(crate) groups: u64,
    pub(crate) readers: usize,
    /// The greatest payload of a common record.
    pub(crate) payload: u32,
    /// Records in a batch, at most.
    pub(crate) batch: usize,
    /// One operation in so many has a record of the greatest size.
    pub(crate) large_one_in: u32,
}

impl Plan {
    pub(crate) fn new(scenario: Scenario, seed: u64) -> Self {
        let mut rng = rng(seed, 0);
        let rng = &mut rng;
        let segment_size = 4096 * rng.random_range(64..=256) * if rng.random_bool(0.1) { 2 } else { 1 };
        let options = ShardOptions {
            node: NodeId(u128::from(seed) << 1 | 1),
            incarnation: Incarnation(1),
            shard: ShardIndex(0),
            shard_count: 1,
            segment_size,
            prepared_segments: rng.random_range(1..=3),
            block_size: 4096 << rng.random_range(0..=4),
            commit_depth: rng.random_range(1..=4),
            record_size_max: rng.random_range(1..=(segment_size as usize) / 4),
            tail_cache_bytes: if rng.random_bool(0.3) { 0 } else { 4096 << rng.random_range(0..=6) },
            page_cache_bytes: if rng.random_bool(0.3) { 0 } else { 1024 << rng.random_range(0..=6) },
            ..ShardOptions::default()
        };
        let large = options.record_size_max as u32;
        let mut plan = Self {
            scenario,
            lives: rng.random_range(2..=6),
            clients: rng.random_range(1..=4),
            steps: rng.random_range(20..=120),
            window: rng.random_range(1..=12),
            pause: Duration::from_micros([0, 0, 100, 1000][rng.random_range(0..4usize)]),
            mix: Mix {
                append: 60,
                commit: 15,
                create: 6,
                seal: 2,
                delete: 2,
                trim: 5,
                read: 20,
                describe: 4,
                list: 1,
                seq_at_time: 3,
            },
            extents: rng.random_range(2..=16),
            groups: rng.random_range(1..=4),
            readers: rng.random_range(0..=2),
            payload: [50, 300, 3000, 9000][rng.random_range(0..4usize)].min(large),
            batch: [1, 4, 40][rng.random_range(0..3usize)],
            large_one_in: 60,
            options,
        };
        plan.specialise(rng);
        plan
    }

    fn specialise(&mut self, rng: &mut ChaCha8Rng) {
        match self.scenario {
            // Now and then more extents than one part of a checkpoint holds.
            Scenario::Crash if rng.random_bool(0.02) => {
                self.options.segment_size = 2 << 20;
                self.extents = 1500;
                self.groups = 3;
                self.clients = 4;
                self.window = 100;
                self.steps = 700;
                self.mix = Mix { create: 200, append: 20, read: 5, trim: 0, ..self.mix };
            }
            Scenario::Crash => {}
            Scenario::Commit => {
                self.mix = Mix { append: 10, commit: 80, seal: 0, delete: 1, list: 0, seq_at_time: 0, read: 4, ..self.mix };
                self.groups = rng.random_range(1..=2);
                self.extents = self.groups * rng.random_range(4..=6);
                self.lives = rng.random_range(5..=10);
                self.steps = rng.random_range(10..=60);
                self.readers = 0;
            }
            Scenario::Faults => {
                self.lives = rng.random_range(3..=6);
                // The smaller a block, the likelier a write that fails leaves all of it in a cache.
                if rng.random_bool(0.5) {
                    (self.payload, self.batch, self.window) = (self.payload.min(50), 1, self.window.min(3));
                    self.options.commit_depth = rng.random_range(1..=2);
                }
            }
            Scenario::Tail => {
                self.mix = Mix { append: 80, delete: 0, seal: 1, trim: 1, read: 3, ..self.mix };
                self.readers = rng.random_range(2..=4);
                self.extents = rng.random_range(1..=3);
                self.pause = Duration::from_micros([0, 500, 4000][rng.random_range(0..3usize)]);
                self.lives = rng.random_range(1..=3);
            }
            Scenario::Recycle => {
                self.mix = Mix { append: 60, create: 12, delete: 6, trim: 14, seal: 1, read: 12, ..self.mix };
                self.payload = (self.options.segment_size as u32 / 40).min(self.options.record_size_max as u32);
                self.steps = rng.random_range(60..=150);
            }
            Scenario::Wire => {
                self.options.connection_in_flight = rng.random_range(1..=64);
                self.options.receive_budget_bytes = if rng.random_bool(0.5) { 0 } else { 1 << 20 };
                self.groups = rng.random_range(1..=3);
                self.window = rng.random_range(1..=32);
                self.options.record_size_max = self.options.record_size_max.max(100);
                self.batch = self.batch.min(10);
                // A commit of four full batches is not too large.
                let op = self.options.op_size_max() as u32;
                self.payload = self.payload.min(op / 50).min(self.options.record_size_max as u32 / 2);
            }
        }
    }

    /// The group that an extent is created in: one that is shared, or its own.
    pub(crate) fn group_of(&self, extent: ExtentId) -> GroupId {
        let alone = self.scenario != Scenario::Commit && extent.0.is_multiple_of(3);
        if alone { extent.into() } else { GroupId(1_000_000 + extent.0 % u128::from(self.groups)) }
    }

    /// What may go wrong in one life of the node while it works.
    pub(crate) fn faults(&self, rng: &mut ChaCha8Rng) -> Faults {
        let mut faults = Faults {
            torn_write: [0.0, 0.5, 0.9][rng.random_range(0..3usize)],
            lost_names: [0.0, 0.5, 0.9][rng.random_range(0..3usize)],
            ..Faults::default()
        };
        if self.scenario == Scenario::Wire && rng.random_bool(0.2) {
            faults.write_error = 0.004;
        }
        if self.scenario == Scenario::Faults {
            // The most dangerous of all: some of what fails can be read all the same.
            if rng.random_bool(0.3) {
                faults.write_error = [0.002, 0.02, 0.1][rng.random_range(0..3usize)];
            }
            for _ in 0..rng.random_range(0..=2) {
                let chance = [0.002, 0.02, 0.2][rng.random_range(0..3usize)];
                match rng.random_range(0..6) {
                    0 | 1 => faults.short_write = chance,
                    2 => faults.sync_error = chance * 2.0,
                    3 => faults.read_error = chance,
                    4 => faults.name_error = chance,
                    _ => faults.disk_bytes = self.options.segment_size * rng.random_range(3..=8),
                }
            }
        }
        faults
    }
}

/// Whether a node exposed to these may refuse changes, or not start.
pub(crate) fn is_harmless(faults: &Faults) -> bool {
    let chances = [faults.write_error, faults.short_write, faults.sync_error, faults.read_error, faults.name_error];
    chances.iter().all(|chance| *chance == 0.0) && faults.disk_bytes >= Faults::default().disk_bytes
}

/// Random numbers of a seed for one purpose.
pub(crate) fn rng(seed: u64, purpose: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(purpose + 1);
    rng
}
