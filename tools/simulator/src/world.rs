//! What the tasks of one simulation share: the plan, the model, the counters, and the checks on what a shard answers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use log_format::ids::{BlockNumber, ExtentId};
use log_format::wire::Refusal;
use node_io::Runtime;
use node_io::sim::SimRuntime;

use crate::coverage::Coverage;
use crate::model::Model;
use crate::payload::Payload;
use crate::plan::Plan;
use crate::reader::Position;

pub(crate) type Shard = storage_node::Shard<SimRuntime>;

/// A record that was read: where it was and when it was appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub(crate) extent: ExtentId,
    pub(crate) incarnation: u64,
    pub(crate) seq: u64,
    pub(crate) append_time: u64,
}

/// The state of one simulation, which outlives the node's crashes.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) model: RefCell<Model>,
    pub(crate) coverage: RefCell<Coverage>,
    pub(crate) sightings: RefCell<Vec<Sighting>>,
    pub(crate) readers: Vec<RefCell<Position>>,
    records: Cell<u64>,
}

/// One life of the node, from its start to the moment it stops.
pub(crate) struct Life {
    pub(crate) world: Rc<World>,
    pub(crate) runtime: SimRuntime,
    /// Nothing goes wrong in this life while it works.
    pub(crate) harmless: bool,
    /// Set when the shard is open and was compared with the model.
    pub(crate) shard: RefCell<Option<Shard>>,
    pub(crate) open_failed: Cell<bool>,
    /// The shard has failed in this life; it may have moved on since.
    pub(crate) has_failed: Cell<bool>,
    /// The process died after its device had failed: what is read now may be in a cache alone.
    pub(crate) in_cache: bool,
    pub(crate) draining: Cell<bool>,
    /// Tasks of clients that have not ended.
    pub(crate) running: Cell<usize>,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let readers = (0..plan.readers).map(|_| RefCell::new(Position::default())).collect();
        Self {
            plan,
            model: RefCell::default(),
            coverage: RefCell::default(),
            sightings: RefCell::default(),
            readers,
            records: Cell::new(0),
        }
    }

    pub(crate) fn count(&self, what: &str) {
        self.coverage.borrow_mut().count(what);
    }

    /// A payload like no other.
    pub(crate) fn new_payload(&self, length: u32) -> Payload {
        self.records.set(self.records.get() + 1);
        Payload { id: self.records.get(), length }
    }
}

impl Life {
    /// Notices that the shard has failed, so that the model stops where the shard stopped. To be called before the two are compared.
    pub(crate) fn notice_failure(&self, shard: &Shard) -> bool {
        let is_lost = |gate| matches!(shard.decided(gate), Some(Err(_)));
        let mut model = self.world.model.borrow_mut();
        // Until the next segment's first block is durable, a crash can still bring a lost block back.
        let undecided = model.newest_pending(is_lost).is_some_and(|gate| gate > shard.status().durable_block);
        if is_lost(BlockNumber(u64::MAX)) || undecided {
            assert!(!self.harmless, "the shard failed although the device did not: {:?}", shard.status().phase);
            model.freeze(shard.status().durable_block);
            self.has_failed.set(true);
        } else if model.moved_on(is_lost) {
            assert!(!self.harmless, "the shard moved on although the device did not fail");
            self.world.count("moved on");
            self.has_failed.set(true);
        }
        self.has_failed.get()
    }

    /// Whether a refusal says nothing of the extent but of the node, and the node has a reason.
    pub(crate) fn is_node_refusal(&self, refusal: &Refusal) -> bool {
        match refusal {
            Refusal::ReadOnly { why } => {
                assert!(!self.harmless, "refused as read-only although the device works: {why}");
                self.world.count("refused as read-only");
                true
            }
            Refusal::ShuttingDown => {
                assert!(self.draining.get(), "refused as shutting down although nobody asked for it");
                true
            }
            _ => false,
        }
    }

    /// Waits until the answer behind `gate` may leave, which rests on the changes up to `rests_on`. Says whether it left.
    pub(crate) async fn answer(&self, shard: &Shard, gate: BlockNumber, rests_on: BlockNumber) -> bool {
        assert!(rests_on <= gate, "an answer behind block {gate} reveals what block {rests_on} has not yet decided");
        match shard.durable(gate).await {
            Ok(()) => {
                self.world.model.borrow_mut().answered(rests_on);
                true
            }
            Err(Refusal::UnknownOutcome) => {
                assert!(self.notice_failure(shard), "the outcome is unknown although the shard has not failed");
                self.world.count("outcome unknown");
                false
            }
            Err(refusal) => panic!("waiting for block {gate} ended in {refusal:?}"),
        }
    }

    /// A refusal about an extent: it may rest on changes of it.
    pub(crate) async fn answer_refusal(&self, shard: &Shard, extent: ExtentId) {
        let rests_on = self.world.model.borrow().rests_on(extent);
        self.answer(shard, shard.newest(), rests_on).await;
    }

    pub(crate) fn now(&self) -> u64 {
        self.runtime.monotonic().0
    }
}
