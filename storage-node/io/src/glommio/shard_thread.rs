//! Starts an executor on a thread of its own, pinned to a processor where that can be had.

use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::glommio::{LocalExecutor, LocalExecutorBuilder, Placement};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::{GlommioRuntime, StartRefusal};

/// glommio registers the same memory with its three rings, and each counts against the limit of locked memory.
const RINGS: usize = 3;
/// The most that is registered for a shard: blocks and reads in flight fit well.
const REGISTERED_BYTES_MAX: usize = 16 << 20;
/// The least that glommio registers.
const REGISTERED_BYTES_MIN: usize = 64 << 10;

/// How a shard's thread is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardThreadSettings {
    /// The processor to pin the thread to.
    pub cpu: Option<usize>,
    /// Bytes of I/O memory registered with the kernel. Buffers beyond it are allocated; only speed depends on it.
    pub registered_bytes: usize,
    /// Entries of each submission ring.
    pub ring_depth: usize,
    /// How long an idle executor looks for work before it sleeps. Only a pinned one does.
    pub spin: Duration,
}

impl ShardThreadSettings {
    /// Settings for one of `shard_count` shards, within the limit of locked memory.
    pub fn for_shards(shard_count: usize, cpu: Option<usize>) -> Self {
        Self { cpu, registered_bytes: registered_bytes_within_limit(shard_count), ring_depth: 128, spin: Duration::ZERO }
    }
}

/// How much I/O memory each of `shard_count` shards may register within half of this process's limit of locked memory.
pub fn registered_bytes_within_limit(shard_count: usize) -> usize {
    let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => return REGISTERED_BYTES_MAX,
        Ok((limit, _)) => usize::try_from(limit).unwrap_or(usize::MAX),
        Err(_) => 0,
    };
    let share = limit / 2 / RINGS / shard_count.max(1);
    (share / REGISTERED_BYTES_MIN * REGISTERED_BYTES_MIN).clamp(REGISTERED_BYTES_MIN, REGISTERED_BYTES_MAX)
}

/// A running shard thread.
pub struct ShardThread<T> {
    thread: JoinHandle<Option<T>>,
    /// Why the thread is not pinned, if it was to be.
    pub pinning_failure: Option<String>,
}

impl<T> ShardThread<T> {
    /// Waits for the thread's future to end, and gives its result.
    ///
    /// # Panics
    /// As the thread did.
    pub fn join(self) -> T {
        let result = self.thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        result.expect("a thread whose start was refused is given to nobody")
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

fn make_executor(settings: &ShardThreadSettings, placement: Placement) -> Result<LocalExecutor, String> {
    LocalExecutorBuilder::new(placement)
        .io_memory(settings.registered_bytes)
        .ring_depth(settings.ring_depth)
        .spin_before_park(settings.spin)
        .make()
        .map_err(|error| error.to_string())
}

fn make_placed_executor(settings: &ShardThreadSettings) -> Result<(LocalExecutor, Option<String>), String> {
    let Some(cpu) = settings.cpu else { return Ok((make_executor(settings, Placement::Unbound)?, None)) };
    match make_executor(settings, Placement::Fixed(cpu)) {
        Ok(executor) => Ok((executor, None)),
        Err(failure) => {
            let executor = make_executor(settings, Placement::Unbound)?;
            Ok((executor, Some(format!("the thread can't be pinned to processor {cpu}: {failure}"))))
        }
    }
}

/// Starts a thread called `name` with an executor of its own, and runs there the future that `make_future` makes. Returns when the
/// executor runs, or with the reason why it can't.
///
/// When the future ends, the thread waits a few seconds for the I/O that is outstanding, then drops what else runs on the executor. An
/// executor on which an I/O future was dropped before its end, or never came to an end, is left behind in memory.
pub fn spawn_shard_thread<T, F>(
    name: &str,
    settings: ShardThreadSettings,
    make_future: impl FnOnce(GlommioRuntime) -> F + Send + 'static,
) -> Result<ShardThread<T>, StartRefusal>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (started, start) = mpsc::sync_channel(1);
    let body = move || -> Option<T> {
        let (executor, pinning_failure) = match make_placed_executor(&settings) {
            Ok(made) => made,
            Err(reason) => {
                let _ = started.send(Err(StartRefusal::Executor { reason }));
                return None;
            }
        };
        let (result, quiet) = executor.run(async move {
            let runtime = match GlommioRuntime::new() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = started.send(Err(StartRefusal::Executor { reason: error.to_string() }));
                    return (None, true);
                }
            };
            let _ = started.send(Ok(pinning_failure));
            let result = make_future(runtime.clone()).await;
            (Some(result), runtime.quiesce().await)
        });
        if !quiet {
            // Its rings and buffers stay, rather than be freed while the kernel writes to them.
            std::mem::forget(executor);
        }
        result
    };
    let refusal = |error: io::Error| StartRefusal::Executor { reason: error.to_string() };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(body).map_err(refusal)?;
    match start.recv() {
        Ok(Ok(pinning_failure)) => Ok(ShardThread { thread, pinning_failure }),
        Ok(Err(refused)) => Err(refused),
        Err(_) => Err(StartRefusal::Executor { reason: "the thread ended while it set up its executor".to_owned() }),
    }
}
