//! The heart of the simulation: virtual time, events, tasks, the seed's random numbers and the trace.
//!
//! Invariants: everything that happens is decided by the seed; time never goes back; an event of a node's former life never
//! fires. Nothing that could call back into the simulation is dropped while it is borrowed: tasks are taken out first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::disk::Disk;
use super::faults::{FaultKind, Faults, LatencyRange};
use super::net::Network;

pub(super) type Shared = Rc<RefCell<Core>>;
pub(super) type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// 2026-01-01T00:00:00Z: where the wall clocks of all nodes start, in nanoseconds since the Unix epoch.
const WALL_CLOCK_START: u64 = 1_767_225_600_000_000_000;
/// A task's turn takes this much virtual time, so that tasks that spin do not stop the clock.
const TURN_NANOS: std::ops::RangeInclusive<u64> = 100..=2_000;
const MAIN_TASK: u64 = 0;

/// One life of one node: what belongs to an earlier life is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) node: u32,
    pub(super) life: u32,
}

/// Bounds on one call that runs the simulation; passing one is a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Turns of tasks.
    pub turns: u64,
    /// Virtual time.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: 100_000_000, time: Duration::from_secs(24 * 3600) }
    }
}

/// A machine: it outlives the node's crashes.
pub(super) struct Machine {
    pub(super) life: u32,
    pub(super) up: bool,
    pub(super) disk: Disk,
    pub(super) faults: Faults,
    pub(super) clock_step: i64,
    pub(super) reached: BTreeMap<FaultKind, u64>,
}

impl Machine {
    pub(super) fn new() -> Self {
        Self { life: 0, up: false, disk: Disk::new(), faults: Faults::default(), clock_step: 0, reached: BTreeMap::new() }
    }

    pub(super) fn reach(&mut self, kind: FaultKind) {
        *self.reached.entry(kind).or_default() += 1;
    }
}

struct Task {
    owner: Owner,
    /// Empty while its turn runs.
    future: Option<TaskFuture>,
}

/// Tasks that were woken. Shared with wakers, which must be `Send`; there is only one thread all the same.
#[derive(Default)]
struct ReadyList(Mutex<Vec<Arc<TaskWaker>>>);

impl ReadyList {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<TaskWaker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    task: u64,
    queued: AtomicBool,
    ready: Arc<ReadyList>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let ready = self.ready.clone();
            ready.lock().push(self);
        }
    }
}

pub(super) type Action = Box<dyn FnOnce(&mut Core)>;

struct Event {
    owner: Option<Owner>,
    action: Action,
}

/// Names an event that has not fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventKey {
    at: u64,
    number: u64,
}

/// What the loop does next.
pub(super) enum Turn {
    Main,
    Task(u64, TaskFuture, Waker),
    Deadlock,
}

pub(super) struct Core {
    pub(super) seed: u64,
    pub(super) rng: ChaCha8Rng,
    pub(super) now: u64,
    pub(super) trace: Trace,
    pub(super) machines: BTreeMap<u32, Machine>,
    pub(super) network: Network,
    pub(super) limits: Limits,
    events: BTreeMap<EventKey, Event>,
    event_count: u64,
    tasks: BTreeMap<u64, Task>,
    task_count: u64,
    ready: Arc<ReadyList>,
    main_waker: Arc<TaskWaker>,
}

impl Core {
    pub(super) fn new(seed: u64) -> Self {
        let ready = Arc::new(ReadyList::default());
        let main_waker = Arc::new(TaskWaker { task: MAIN_TASK, queued: AtomicBool::new(false), ready: ready.clone() });
        Self {
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: 0,
            trace: Trace { hash: 0xcbf2_9ce4_8422_2325, print: false },
            machines: BTreeMap::new(),
            network: Network::default(),
            limits: Limits::default(),
            events: BTreeMap::new(),
            event_count: 0,
            tasks: BTreeMap::new(),
            task_count: MAIN_TASK,
            ready,
            main_waker,
        }
    }

    /// The machine of `owner`, unless it crashed since.
    pub(super) fn machine(&mut self, owner: Owner) -> Option<&mut Machine> {
        self.machines.get_mut(&owner.node).filter(|machine| machine.up && machine.life == owner.life)
    }

    /// The disk of `owner`, for an event of it, and the seed's random numbers.
    pub(super) fn disk(&mut self, owner: Owner) -> (&mut Disk, &mut ChaCha8Rng) {
        let machine = self.machines.get_mut(&owner.node).expect("an event's node exists");
        debug_assert!(machine.up && machine.life == owner.life, "events of a crashed node do not fire");
        (&mut machine.disk, &mut self.rng)
    }

    pub(super) fn wall_clock(&self, node: u32) -> u64 {
        let step = self.machines.get(&node).map_or(0, |machine| machine.clock_step);
        (WALL_CLOCK_START + self.now).saturating_add_signed(step)
    }

    pub(super) fn record(&mut self, what: &'static str, node: u32, a: u64, b: u64) {
        self.trace.record(self.now, what, node, a, b);
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random_bool(probability.min(1.0))
    }

    pub(super) fn latency(&mut self, range: LatencyRange) -> u64 {
        self.rng.random_range(range.nanos())
    }

    /// Does `action` when `delay` nanoseconds have passed, if `owner` still lives then.
    pub(super) fn after(&mut self, delay: u64, owner: Option<Owner>, action: impl FnOnce(&mut Core) + 'static) -> EventKey {
        self.event_count += 1;
        let key = EventKey { at: self.now.saturating_add(delay), number: self.event_count };
        self.events.insert(key, Event { owner, action: Box::new(action) });
        key
    }

    pub(super) fn cancel(&mut self, key: EventKey) {
        self.events.remove(&key);
    }

    pub(super) fn spawn(&mut self, owner: Owner, future: TaskFuture) {
        self.task_count += 1;
        let task = self.task_count;
        let waker = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), ready: self.ready.clone() });
        self.tasks.insert(task, Task { owner, future: Some(future) });
        waker.wake();
    }

    /// Takes the tasks of `owner` off, for the caller to drop once nothing is borrowed.
    pub(super) fn take_tasks(&mut self, owner: Option<Owner>) -> Vec<TaskFuture> {
        let chosen: Vec<u64> =
            self.tasks.iter().filter(|(_, task)| owner.is_none_or(|owner| task.owner == owner)).map(|(&id, _)| id).collect();
        chosen.into_iter().filter_map(|id| self.tasks.remove(&id)?.future).collect()
    }

    /// Takes the events of `owner` off, for the caller to drop once nothing is borrowed.
    pub(super) fn take_events(&mut self, owner: Option<Owner>) -> Vec<Action> {
        let chosen: Vec<EventKey> =
            self.events.iter().filter(|(_, event)| owner.is_none() || event.owner == owner).map(|(&key, _)| key).collect();
        chosen.into_iter().filter_map(|key| self.events.remove(&key)).map(|event| event.action).collect()
    }

    pub(super) fn main_waker(&self) -> Waker {
        self.main_waker.clone().into()
    }

    /// Fires what is due, then chooses the next task to run.
    pub(super) fn next_turn(&mut self) -> Turn {
        loop {
            while let Some(entry) = self.events.first_entry() {
                if entry.key().at > self.now {
                    break;
                }
                (entry.remove().action)(self);
            }
            let woken = {
                let mut ready = self.ready.lock();
                match ready.len() {
                    0 => None,
                    count => Some(ready.swap_remove(self.rng.random_range(0..count))),
                }
            };
            if let Some(woken) = woken {
                woken.queued.store(false, Ordering::Release);
                self.now += self.rng.random_range(TURN_NANOS);
                if woken.task == MAIN_TASK {
                    return Turn::Main;
                }
                let Some(task) = self.tasks.get_mut(&woken.task) else { continue };
                let Some(future) = task.future.take() else { continue };
                let node = task.owner.node;
                self.record("turn", node, woken.task, 0);
                return Turn::Task(woken.task, future, woken.into());
            }
            match self.events.first_key_value() {
                Some((key, _)) => self.now = key.at,
                None => return Turn::Deadlock,
            }
        }
    }

    /// Puts a task back after its turn. Gives it back where its node crashed meanwhile, to be dropped by the caller.
    pub(super) fn put_back(&mut self, id: u64, future: TaskFuture) -> Option<TaskFuture> {
        match self.tasks.get_mut(&id) {
            Some(task) => {
                task.future = Some(future);
                None
            }
            None => Some(future),
        }
    }

    pub(super) fn end_task(&mut self, id: u64) {
        self.tasks.remove(&id);
    }

    pub(super) fn task_count(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn tasks_of(&self, node: u32) -> usize {
        self.tasks.values().filter(|task| task.owner.node == node).count()
    }
}

/// A hash over all that happened, to compare two runs by.
pub(super) struct Trace {
    pub(super) hash: u64,
    pub(super) print: bool,
}

impl Trace {
    fn record(&mut self, now: u64, what: &'static str, node: u32, a: u64, b: u64) {
        let mut mix = |value: u64| {
            self.hash = (self.hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.hash ^= self.hash >> 29;
        };
        for byte in what.bytes() {
            mix(u64::from(byte));
        }
        mix(now);
        mix(u64::from(node));
        mix(a);
        mix(b);
        if self.print {
            eprintln!("{now:>14} node {node} {what} {a} {b} {:016x}", self.hash);
        }
    }
}

/// Where an event leaves its result for the task that waits for it.
pub(super) struct Slot<T>(Rc<RefCell<SlotState<T>>>);

struct SlotState<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Slot<T> {
    pub(super) fn new() -> Self {
        Self(Rc::new(RefCell::new(SlotState { result: None, waker: None })))
    }

    pub(super) fn fill(&self, result: T) {
        let mut state = self.0.borrow_mut();
        state.result = Some(result);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Slot<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Waits for a moment of virtual time.
pub(super) struct Sleep {
    core: Shared,
    key: EventKey,
    slot: Slot<()>,
}

impl Sleep {
    pub(super) fn new(core: &Shared, owner: Option<Owner>, duration: Duration) -> Self {
        let slot = Slot::new();
        let filled = slot.clone();
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let key = core.borrow_mut().after(nanos, owner, move |_| filled.fill(()));
        Self { core: core.clone(), key, slot }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.slot).poll(context)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.core.borrow_mut().cancel(self.key);
    }
}
