//! The simulated backend: machines with fake disks, clocks and a network, on one thread in virtual time.
//!
//! [`Sim`] owns all machines of a simulated world. [`Sim::node`] gives the [`SimRuntime`] of one; what it runs is the same code
//! that runs on a real machine. All choices come from the seed: which task runs next, how long each operation takes, which
//! faults happen, what a crash leaves. The same seed gives the same [`Sim::trace_hash`], provided that the code above asks
//! nothing but its runtime for time, randomness and I/O.
//!
//! ```
//! use node_io::{File, OpenOptions, Runtime, sim::Sim};
//! use std::path::Path;
//!
//! let sim = Sim::new(1);
//! let runtime = sim.node(1);
//! sim.block_on(1, async move {
//!     let options = OpenOptions { create_new: true, durable: true, ..OpenOptions::default() };
//!     let file = runtime.open(Path::new("log"), options).await.unwrap();
//!     let mut buf = file.allocate(4096);
//!     node_io::IoBuf::as_mut_slice(&mut buf).fill(7);
//!     file.write_at(buf, 4096, 0).await.0.unwrap();
//!     runtime.sync_dir(Path::new("")).await.unwrap();
//! });
//! sim.crash(1);
//! let _restarted = sim.node(1);
//! assert_eq!(sim.read_file(1, Path::new("log")).unwrap(), vec![7; 4096]);
//! ```
//!
//! A deadlock (nothing can run and no event is pending), too many turns and too much virtual time are panics that name the seed.

mod core;
mod disk;
mod faults;
mod file;
mod names;
mod net;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::{Rng, RngExt};

pub use self::core::Limits;
use self::core::{Core, Machine, Owner, Shared, Sleep, Turn};
pub use self::faults::{CrashMode, FaultKind, Faults, LatencyRange};
pub use self::file::{SimBuf, SimFile};
pub use self::net::{SimListener, SimReadHalf, SimSocket, SimStream, SimWriteHalf};
use crate::{Capabilities, Monotonic, OpenOptions, PAGE_SIZE, Runtime};

/// A simulated world. Clones are handles to the same one; tasks may hold them too.
#[derive(Clone)]
pub struct Sim {
    core: Shared,
    _world: Rc<World>,
}

/// Tears the tasks down with the last handle: they hold the core, and the core holds them.
struct World(Shared);

impl Drop for World {
    fn drop(&mut self) {
        let (tasks, events) = {
            let mut core = self.0.borrow_mut();
            (core.take_tasks(None), core.take_events(None))
        };
        drop((tasks, events));
    }
}

impl Sim {
    /// A world where all is decided by `seed`.
    pub fn new(seed: u64) -> Self {
        let core = Rc::new(RefCell::new(Core::new(seed)));
        Self { core: core.clone(), _world: Rc::new(World(core)) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.core.borrow().seed
    }

    /// The runtime of a machine, which is made or started again if need be. Its disk outlives crashes.
    pub fn node(&self, node: u32) -> SimRuntime {
        let mut core = self.core.borrow_mut();
        let machine = core.machines.entry(node).or_insert_with(Machine::new);
        if !machine.up {
            machine.up = true;
            machine.life += 1;
        }
        let owner = Owner { node, life: machine.life };
        core.record("node", node, u64::from(owner.life), 0);
        SimRuntime { core: self.core.clone(), owner }
    }

    /// Runs until `future` is done, which belongs to no node: it may crash nodes and start them.
    ///
    /// # Panics
    /// At a deadlock and past the [`Limits`].
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = self.core.borrow().main_waker();
        waker.wake_by_ref();
        let mut result = None;
        self.drive(&mut |main| {
            if main && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                result = Some(value);
            }
            result.is_some()
        });
        result.expect("drive returns when there is a result")
    }

    /// Runs until `future`, which belongs to `node`, is done.
    ///
    /// # Panics
    /// Like [`Sim::run`]; and if the node is down or crashes meanwhile.
    pub fn block_on<T>(&self, node: u32, future: impl Future<Output = T>) -> T {
        let life = |core: &Core| core.machines.get(&node).filter(|machine| machine.up).map(|machine| machine.life);
        let before = life(&self.core.borrow());
        assert!(before.is_some(), "node {node} is down");
        let mut future = pin!(future);
        self.run(std::future::poll_fn(|context| {
            assert_eq!(life(&self.core.borrow()), before, "node {node} crashed under the future that it runs");
            future.as_mut().poll(context)
        }))
    }

    /// Runs for `duration` of virtual time.
    pub fn run_for(&self, duration: Duration) {
        self.run(Sleep::new(&self.core, None, duration));
    }

    /// Runs until `condition`, which is asked after each turn of a task, holds.
    ///
    /// # Panics
    /// Like [`Sim::run`].
    pub fn run_until(&self, mut condition: impl FnMut() -> bool) {
        if !condition() {
            self.drive(&mut |_| condition());
        }
    }

    /// Runs turns until `done`, which is told whether it is the main future's turn.
    fn drive(&self, done: &mut dyn FnMut(bool) -> bool) {
        let (limits, start) = {
            let core = self.core.borrow();
            (core.limits, core.now)
        };
        for _ in 0..limits.turns {
            let turn = self.core.borrow_mut().next_turn();
            match turn {
                Turn::Main => {
                    if done(true) {
                        return;
                    }
                }
                Turn::Task(id, future, waker) => {
                    self.run_task(id, future, &waker);
                    if done(false) {
                        return;
                    }
                }
                Turn::Deadlock => self.fail("deadlock: nothing can run and no event is pending"),
            }
            let passed = self.core.borrow().now - start;
            if u128::from(passed) > limits.time.as_nanos() {
                self.fail("no end within the limit of virtual time");
            }
        }
        self.fail("no end within the limit of turns");
    }

    fn run_task(&self, id: u64, mut future: Pin<Box<dyn Future<Output = ()>>>, waker: &Waker) {
        if future.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            self.core.borrow_mut().end_task(id);
        } else {
            let dead = self.core.borrow_mut().put_back(id, future);
            drop(dead);
        }
    }

    fn fail(&self, what: &str) -> ! {
        let core = self.core.borrow();
        let (seed, now, tasks) = (core.seed, Duration::from_nanos(core.now), core.task_count());
        drop(core);
        panic!("simulation with seed {seed} after {now:?}, {tasks} tasks waiting: {what}");
    }

    /// Stops a machine as a power cut does: its tasks end where they stand, its connections break, and its disk keeps of the
    /// unflushed writes what the seed chooses. [`Sim::node`] starts it again.
    pub fn crash(&self, node: u32) -> CrashMode {
        let mode = match self.core.borrow_mut().rng.random_range(0..4u8) {
            0 => CrashMode::KeepNone,
            1 => CrashMode::KeepPrefix,
            _ => CrashMode::KeepSubset,
        };
        self.crash_with(node, mode);
        mode
    }

    /// Stops a machine; `mode` says what its disk keeps.
    pub fn crash_with(&self, node: u32, mode: CrashMode) {
        let (tasks, events) = {
            let core = &mut *self.core.borrow_mut();
            let Some(machine) = core.machines.get_mut(&node).filter(|machine| machine.up) else { return };
            machine.up = false;
            machine.reach(match mode {
                CrashMode::KeepNone => FaultKind::CrashKeptNone,
                CrashMode::KeepPrefix => FaultKind::CrashKeptPrefix,
                CrashMode::KeepSubset => FaultKind::CrashKeptSubset,
                CrashMode::KeepAll => FaultKind::CrashKeptAll,
            });
            let (torn, lost) = (machine.faults.torn_write, machine.faults.lost_names);
            for kind in machine.disk.crash(mode, torn, lost, &mut core.rng) {
                machine.reach(kind);
            }
            let owner = Owner { node, life: machine.life };
            core.record("crash", node, u64::from(owner.life), mode as u64);
            let cut = core.cut_network(owner);
            *core.machines.entry(node).or_insert_with(Machine::new).reached.entry(FaultKind::ConnectionCut).or_default() += cut;
            (core.take_tasks(Some(owner)), core.take_events(Some(owner)))
        };
        // Dropping them calls back into the core.
        drop((tasks, events));
    }

    /// Kills a node's process: like a crash, but the machine goes on and its disk loses nothing, nor flushes anything.
    pub fn kill(&self, node: u32) {
        self.crash_with(node, CrashMode::KeepAll);
    }

    /// Breaks all connections of a node, which goes on.
    pub fn cut_connections(&self, node: u32) {
        let mut core = self.core.borrow_mut();
        let Some(machine) = core.machines.get(&node) else { return };
        let owner = Owner { node, life: machine.life };
        let count = core.cut_connections(owner, false);
        core.record("cut", node, count, 0);
        if let Some(machine) = core.machine(owner) {
            *machine.reached.entry(FaultKind::ConnectionCut).or_default() += count;
        }
    }

    fn with_machine<T>(&self, node: u32, change: impl FnOnce(&mut Machine) -> T) -> T {
        let mut core = self.core.borrow_mut();
        change(core.machines.get_mut(&node).unwrap_or_else(|| panic!("node {node} was never started")))
    }

    /// The faults that a node is exposed to.
    pub fn faults(&self, node: u32) -> Faults {
        self.with_machine(node, |machine| machine.faults.clone())
    }

    /// Exposes a node to `faults` from now on.
    pub fn set_faults(&self, node: u32, faults: Faults) {
        self.with_machine(node, |machine| machine.faults = faults);
    }

    /// How often a node reached a fault.
    pub fn reached(&self, node: u32, kind: FaultKind) -> u64 {
        self.with_machine(node, |machine| machine.reached.get(&kind).copied().unwrap_or(0))
    }

    /// All faults that a node reached, with their counts.
    pub fn all_reached(&self, node: u32) -> BTreeMap<FaultKind, u64> {
        self.with_machine(node, |machine| machine.reached.clone())
    }

    /// Steps a node's wall clock by `nanos`.
    pub fn step_clock(&self, node: u32, nanos: i64) {
        self.core.borrow_mut().record("clock_step", node, nanos as u64, 0);
        self.with_machine(node, |machine| {
            machine.clock_step += nanos;
            machine.reach(FaultKind::ClockStep);
        });
    }

    /// Flips a bit (0 to 7) of the byte at `offset` of a file, as rot does. False if there is no such byte.
    pub fn corrupt(&self, node: u32, path: &Path, offset: u64, bit: u8) -> bool {
        self.with_machine(node, |machine| {
            let done = machine.disk.flip_bit(path, offset, bit);
            if done {
                machine.reach(FaultKind::BitFlip);
            }
            done
        })
    }

    /// Replaces bytes of a file on the medium. False if there is no such file.
    pub fn overwrite(&self, node: u32, path: &Path, offset: u64, bytes: &[u8]) -> bool {
        self.with_machine(node, |machine| machine.disk.overwrite(path, offset, bytes))
    }

    /// The whole content of a file as reads see it.
    pub fn read_file(&self, node: u32, path: &Path) -> Option<Vec<u8>> {
        self.with_machine(node, |machine| machine.disk.content(path))
    }

    /// The names in a directory, sorted; empty if there is none.
    pub fn list_dir(&self, node: u32, path: &Path) -> Vec<PathBuf> {
        self.with_machine(node, |machine| machine.disk.names.list(path).unwrap_or_default())
    }

    /// Tasks of a node that have not ended.
    pub fn task_count(&self, node: u32) -> usize {
        self.core.borrow().tasks_of(node)
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.core.borrow().now)
    }

    /// A random number from the seed.
    pub fn random_u64(&self) -> u64 {
        self.core.borrow_mut().rng.next_u64()
    }

    /// A hash over all that happened so far: turns, I/O, messages, crashes.
    pub fn trace_hash(&self) -> u64 {
        self.core.borrow().trace.hash
    }

    /// Prints each event of the trace to stderr from now on: two runs of a seed that differ show where.
    pub fn print_trace(&self) {
        self.core.borrow_mut().trace.print = true;
    }

    /// Bounds the calls that run the simulation.
    pub fn set_limits(&self, limits: Limits) {
        self.core.borrow_mut().limits = limits;
    }
}

/// The runtime of one simulated machine, for one life of it: a crash ends it.
#[derive(Clone)]
pub struct SimRuntime {
    core: Shared,
    owner: Owner,
}

impl SimRuntime {
    /// Which node it is.
    pub fn node(&self) -> u32 {
        self.owner.node
    }
}

/// Holds a data directory of a simulated node.
pub struct SimLock {
    core: Shared,
    owner: Owner,
    path: PathBuf,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Some(machine) = self.core.borrow_mut().machine(self.owner) {
            machine.disk.unlock(&self.path);
        }
    }
}

impl Runtime for SimRuntime {
    type Buf = SimBuf;
    type File = SimFile;
    type Stream = SimStream;
    type Listener = SimListener;
    type Lock = SimLock;

    fn spawn_detached(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        let dead = {
            let mut core = self.core.borrow_mut();
            if core.machine(self.owner).is_some() {
                core.spawn(self.owner, future);
                None
            } else {
                Some(future)
            }
        };
        drop(dead);
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic(self.core.borrow().now)
    }

    fn wall_clock(&self) -> u64 {
        self.core.borrow().wall_clock(self.owner.node)
    }

    fn random_u64(&self) -> u64 {
        self.core.borrow_mut().rng.next_u64()
    }

    async fn sleep(&self, duration: Duration) {
        Sleep::new(&self.core, Some(self.owner), duration).await;
    }

    async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    async fn open(&self, path: &Path, options: OpenOptions) -> io::Result<SimFile> {
        file::open(self, path, options).await
    }

    async fn list_dir(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let path = path.to_owned();
        file::name_operation(&self.core, self.owner, "list_dir", move |disk| disk.names.list(&path)).await
    }

    async fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        file::name_operation(&self.core, self.owner, "create_dir_all", move |disk| disk.names.create_directories(&path)).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        file::name_operation(&self.core, self.owner, "rename", move |disk| disk.names.rename(&from, &to)).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        file::name_operation(&self.core, self.owner, "remove", move |disk| disk.names.remove(&path)).await
    }

    async fn sync_dir(&self, path: &Path) -> io::Result<()> {
        file::sync_dir(self, path).await
    }

    async fn lock(&self, path: &Path) -> io::Result<SimLock> {
        let (locked, node) = (path.to_owned(), self.owner.node);
        file::name_operation(&self.core, self.owner, "lock", move |disk| disk.lock(&locked, node)).await?;
        Ok(SimLock { core: self.core.clone(), owner: self.owner, path: path.to_owned() })
    }

    fn space(&self, _path: &Path) -> io::Result<(u64, u64)> {
        let mut core = self.core.borrow_mut();
        let machine = core.machine(self.owner).ok_or_else(file::crashed)?;
        let total = machine.faults.disk_bytes;
        Ok((total.saturating_sub(machine.disk.used_bytes()), total))
    }

    fn capabilities(&self, _path: &Path) -> io::Result<Capabilities> {
        Ok(Capabilities {
            offset_alignment: PAGE_SIZE as u32,
            memory_alignment: PAGE_SIZE as u32,
            durability: "simulated",
            device: "simulated".to_owned(),
        })
    }

    async fn listen(&self, address: SocketAddr) -> io::Result<SimListener> {
        net::listen(&self.core, self.owner, address)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<SimStream> {
        net::connect(&self.core, self.owner, address).await
    }

    fn adopt(&self, socket: SimSocket) -> io::Result<SimStream> {
        Ok(net::adopt(&self.core, self.owner, socket))
    }
}
