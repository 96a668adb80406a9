//! The whole path: clients that speak the protocol over a simulated network, to a server in front of a shard on a simulated disk.
//!
//! Connections are cut at random, also in the middle of a frame; the node is stopped at random and started again. Between two
//! rounds all stands still, and everything that is there is held against the ledger of what was sent and answered.

mod client;
mod connection;
mod ledger;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use log_format::ids::{ExtentId, Incarnation, NodeId, Seq};
use log_format::wire::Refusal;
use log_format::wire::reply::ExtentState;
use node_io::Runtime;
use node_io::sim::{Faults, Limits, Sim, SimRuntime};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use storage_node::server::{NodeInfo, accept};
use storage_node::{ReadRequest, Server};
use tokio::sync::{Notify, mpsc};

use self::client::WireClient;
use self::ledger::{Found, Ledger};
use crate::coverage::Coverage;
use crate::payload::Payload;
use crate::plan::{Plan, Scenario, is_harmless, rng};
use crate::world::Shard;

const NODE: u32 = 0;
const DIR: &str = "/data/shard-0000";
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7440);
/// Everything stops within this time once nobody asks for more.
const STILL_WITHIN: Duration = Duration::from_secs(120);

/// What all clients and the checks share.
pub(crate) struct World {
    plan: Plan,
    ledger: RefCell<Ledger>,
    coverage: RefCell<Coverage>,
    /// Where each client reads on.
    positions: RefCell<Vec<(ExtentId, u64)>>,
    paused: Cell<bool>,
    resumed: Notify,
    /// Which round it is.
    round: Cell<u64>,
    /// Which clients stand still.
    idle: RefCell<Vec<bool>>,
    payloads: Cell<u64>,
    connections: Cell<u64>,
}

impl World {
    fn count(&self, what: &str) {
        self.coverage.borrow_mut().count(what);
    }

    fn new_payload(&self, length: u32) -> Payload {
        self.payloads.set(self.payloads.get() + 1);
        Payload { id: self.payloads.get(), length }
    }

    fn next_connection(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        self.connections.get()
    }
}

/// One life of the node.
struct Node {
    shard: RefCell<Option<(Shard, Rc<Server<SimRuntime>>)>>,
    failed_to_open: Cell<bool>,
    runtime: SimRuntime,
}

/// A simulation of this scenario.
pub(crate) struct Run {
    sim: Sim,
    world: Rc<World>,
    rng: ChaCha8Rng,
    seed: u64,
}

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        let sim = Sim::new(seed ^ (Scenario::Wire as u64) << 56);
        sim.set_limits(Limits { turns: 20_000_000, time: Duration::from_secs(24 * 3600) });
        let plan = Plan::new(Scenario::Wire, seed);
        let world = World {
            ledger: RefCell::default(),
            coverage: RefCell::default(),
            positions: RefCell::new(vec![(ExtentId(0), 0); plan.clients]),
            paused: Cell::new(true),
            resumed: Notify::new(),
            round: Cell::new(0),
            idle: RefCell::new(vec![false; plan.clients]),
            payloads: Cell::new(0),
            connections: Cell::new(0),
            plan,
        };
        Self { sim, world: Rc::new(world), rng: rng(seed, 1), seed }
    }

    /// Runs all rounds. Gives the counters and the hash of all that happened.
    pub(crate) fn run(mut self) -> (Coverage, u64) {
        for index in 0..self.world.plan.clients {
            let client = WireClient {
                world: self.world.clone(),
                runtime: self.sim.node(client_node(index)),
                rng: rng(self.seed, 100 + index as u64),
                index,
                address: SocketAddr::from(ADDRESS),
                sent: (0, 0),
            };
            client.runtime.clone().spawn_detached(Box::pin(client.run()));
        }
        let mut node = None;
        for _ in 0..self.world.plan.lives {
            let faults = self.world.plan.faults(&mut self.rng);
            let started = node.take().unwrap_or_else(|| self.start(faults));
            node = self.round(started);
            self.stand_still();
            let mut still = node.take().unwrap_or_else(|| self.start(Faults::default()));
            self.sim.set_faults(NODE, Faults::default());
            self.wait(|| still.shard.borrow().is_some() || still.failed_to_open.get());
            if still.shard.borrow().is_none() {
                // Its device failed while it started; it works now.
                self.sim.crash(NODE);
                still = self.start(Faults::default());
                self.wait(|| still.shard.borrow().is_some());
            }
            // What was sent on connections that are gone may still be carried out.
            self.sim.run_for(Duration::from_secs(2));
            self.audit(&still);
            let failed = still.shard.borrow().as_ref().is_some_and(|(shard, _)| is_read_only(shard));
            if failed || self.rng.random_bool(0.3) {
                drop(still);
                self.sim.crash(NODE);
            } else {
                node = Some(still);
            }
        }
        let mut coverage = self.world.coverage.borrow().clone();
        for (kind, count) in self.sim.all_reached(NODE) {
            coverage.add(&format!("disk: {kind:?}"), count);
        }
        (coverage, self.sim.trace_hash())
    }

    /// Clients work; connections are cut; the node is stopped in one way or another, or goes on.
    fn round(&mut self, node: Rc<Node>) -> Option<Rc<Node>> {
        self.world.paused.set(false);
        self.world.round.set(self.world.round.get() + 1);
        self.world.resumed.notify_waiters();
        for _ in 0..self.rng.random_range(1..=6) {
            let time = Duration::from_micros(self.rng.random_range(100..15_000));
            self.sim.run_for(time);
            match self.rng.random_range(0..6) {
                0 => self.sim.cut_connections(NODE),
                1 | 2 => self.sim.cut_connections(client_node(self.rng.random_range(0..self.world.plan.clients))),
                _ => {}
            }
        }
        let end = self.rng.random_range(0..10);
        if end < 2 {
            return Some(node);
        }
        if end < 5 {
            let server = node.shard.borrow().as_ref().map(|(_, server)| server.clone());
            if let Some(server) = server {
                self.world.count("wire: stop in a drain");
                let done = Rc::new(Cell::new(false));
                let set = done.clone();
                node.runtime.spawn_detached(Box::pin(async move {
                    server.drain().await;
                    set.set(true);
                }));
                let short = Duration::from_micros(self.rng.random_range(0..4_000));
                if end == 2 { self.wait(|| done.get()) } else { self.sim.run_for(short) }
            }
        } else {
            self.world.count("wire: stop under load");
        }
        drop(node);
        if self.rng.random_bool(0.25) {
            self.sim.kill(NODE);
        } else {
            self.sim.crash(NODE);
        }
        None
    }

    fn start(&self, faults: Faults) -> Rc<Node> {
        let harmless = is_harmless(&faults);
        let runtime = self.sim.node(NODE);
        self.sim.set_faults(NODE, faults);
        let node = Rc::new(Node { shard: RefCell::new(None), failed_to_open: Cell::new(false), runtime: runtime.clone() });
        let (started, options) = (node.clone(), self.world.plan.options.clone());
        runtime.clone().spawn_detached(Box::pin(async move {
            let shard = match Shard::open(runtime.clone(), Path::new(DIR), options).await {
                Ok(shard) => shard,
                Err(error) => {
                    assert!(!harmless, "the shard does not open although the device works: {error}");
                    started.failed_to_open.set(true);
                    return;
                }
            };
            assert!(shard.damage().is_empty(), "damage was found where there is none: {:?}", shard.damage());
            let info = NodeInfo {
                node: NodeId(1),
                incarnation: Incarnation(1),
                durability: "simulated".to_owned(),
                software: "simulator".to_owned(),
            };
            let server = Server::new(shard.clone(), info);
            let (sender, handovers) = mpsc::channel(16);
            runtime.spawn_detached(Box::pin(server.clone().serve(handovers)));
            *started.shard.borrow_mut() = Some((shard, server));
            let listener = runtime.listen(SocketAddr::from(ADDRESS)).await.expect("the address is free");
            accept(runtime.clone(), listener, vec![sender]).await;
        }));
        node
    }

    fn wait(&self, condition: impl Fn() -> bool) {
        let limit = self.sim.elapsed() + STILL_WITHIN;
        self.sim.run_until(|| condition() || self.sim.elapsed() > limit);
        assert!(condition(), "no progress within {STILL_WITHIN:?}");
    }

    /// Has all clients wait for their answers and stop.
    fn stand_still(&self) {
        self.world.paused.set(true);
        // Who waits to be connected looks again.
        self.world.resumed.notify_waiters();
        self.wait(|| self.world.idle.borrow().iter().all(|idle| *idle));
    }

    /// Reads all that is there and holds it against the ledger.
    fn audit(&self, node: &Node) {
        let shard = node.shard.borrow().as_ref().map(|(shard, _)| shard.clone()).expect("the node is open");
        let found: Rc<RefCell<Option<BTreeMap<ExtentId, Found>>>> = Rc::default();
        let set = found.clone();
        node.runtime.spawn_detached(Box::pin(async move {
            let all = read_all(&shard).await;
            *set.borrow_mut() = Some(all);
        }));
        self.wait(|| found.borrow().is_some());
        let found = found.borrow_mut().take().expect("waited for");
        let resolved = self.world.ledger.borrow_mut().audit(&found);
        let mut coverage = self.world.coverage.borrow_mut();
        coverage.count("wire: audit");
        coverage.add("wire: in doubt, done", resolved.done);
        coverage.add("wire: in doubt, not done", resolved.not_done);
    }
}

fn client_node(index: usize) -> u32 {
    index as u32 + 1
}

fn is_read_only(shard: &Shard) -> bool {
    matches!(shard.status().phase, storage_node::status::Phase::ReadOnly(_))
}

async fn read_all(shard: &Shard) -> BTreeMap<ExtentId, Found> {
    let mut found = BTreeMap::new();
    for info in shard.list(None, usize::MAX).value.0 {
        let mut records = Vec::new();
        let mut next = info.first_seq;
        while next <= info.last_seq {
            let request = ReadRequest { extent: info.extent, from: next, max_bytes: 1 << 20, max_records: 10_000 };
            let batch = match shard.read(&request, Duration::ZERO).await {
                Ok(batch) => batch,
                Err(refusal @ Refusal::Corrupt { .. }) => panic!("{}: {refusal}, though the device works", info.extent),
                Err(refusal) => panic!("{}: {refusal:?}", info.extent),
            };
            let mut rest = &batch.payload[..];
            for entry in &batch.entries {
                let (bytes, behind) = rest.split_at(entry.length as usize);
                assert_eq!(entry.seq, next, "seqs are contiguous");
                records.push(bytes.to_vec());
                (rest, next) = (behind, Seq(next.0 + 1));
            }
        }
        let sealed = info.state == ExtentState::Sealed;
        found.insert(info.extent, Found { floor: info.first_seq.0 - 1, last: info.last_seq.0, sealed, records });
    }
    found
}
