//! The backend for real machines: io_uring through the glommio crate, one executor a thread, files past the page cache.
//!
//! [`spawn_shard_thread`] starts an executor on a thread of its own and hands its [`GlommioRuntime`] to the code that runs there.
//! [`preflight()`] says beforehand whether the machine lets it: call it first, since glommio ends the process on
//! kernels that it finds too old.
//!
//! Invariants: whatever may block for long (names, directories, sizes) runs on the executor's helper thread; what was
//! handed to that thread is waited for before the executor is torn down. No type of the glommio crate shows in this module's API.
//!
//! Limits that come from glommio 0.9: at most 32,767 wakers of one task may exist at a time. Wakers may be used from other
//! threads, so channels of `tokio::sync` work between executors and with tokio.

mod device;
mod file;
mod lock;
mod net;
mod preflight;
mod shard_thread;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use self::file::{GlommioBuf, GlommioFile};
pub use self::lock::GlommioLock;
pub use self::net::{GlommioListener, GlommioReadHalf, GlommioSocket, GlommioStream, GlommioWriteHalf};
pub use self::preflight::{StartRefusal, preflight};
pub use self::shard_thread::{ShardThread, ShardThreadSettings, registered_bytes_within_limit, spawn_shard_thread};
use crate::{Capabilities, Monotonic, OpenOptions, Runtime, SocketOf, task};

/// The runtime of the glommio executor that runs on this thread.
#[derive(Clone)]
pub struct GlommioRuntime {
    shared: Rc<Shared>,
}

struct Shared {
    random: RefCell<ChaCha8Rng>,
    /// Operations that the kernel or the helper thread has not finished.
    outstanding: Cell<usize>,
    /// Whether an operation's future was dropped before its end: the kernel may use its buffer still.
    abandoned: Cell<bool>,
    /// Devices for which glommio knows whether they can be polled.
    probed_devices: RefCell<BTreeSet<u64>>,
}

/// Counts an operation as outstanding until it is finished. Dropped before, it was abandoned.
struct Outstanding {
    shared: Rc<Shared>,
    finished: bool,
}

impl Outstanding {
    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.shared.outstanding.set(self.shared.outstanding.get() - 1);
        if !self.finished {
            self.shared.abandoned.set(true);
        }
    }
}

impl GlommioRuntime {
    /// The runtime of the executor that this is called on. One of it is made for an executor; then it is cloned.
    ///
    /// # Errors
    /// Where the kernel gives no random numbers.
    ///
    /// # Panics
    /// Off an executor's thread.
    pub(crate) fn new() -> io::Result<Self> {
        // Panics off an executor.
        let _ = ::glommio::executor().id();
        let mut seed = [0; 32];
        fill_random(&mut seed)?;
        let random = RefCell::new(ChaCha8Rng::from_seed(seed));
        Ok(Self {
            shared: Rc::new(Shared {
                random,
                outstanding: Cell::new(0),
                abandoned: Cell::new(false),
                probed_devices: RefCell::default(),
            }),
        })
    }

    fn outstanding(&self) -> Outstanding {
        self.shared.outstanding.set(self.shared.outstanding.get() + 1);
        Outstanding { shared: self.shared.clone(), finished: false }
    }

    /// Waits until nothing is outstanding, within a bound. Whether the executor may be torn down then: not while the kernel may use
    /// its memory.
    pub(crate) async fn quiesce(&self) -> bool {
        const STEP: Duration = Duration::from_millis(1);
        const STEPS_MAX: u32 = 5_000;
        for _ in 0..STEPS_MAX {
            if self.shared.outstanding.get() == 0 {
                break;
            }
            ::glommio::timer::sleep(STEP).await;
        }
        self.shared.outstanding.get() == 0 && !self.shared.abandoned.get()
    }

    /// Runs `work` on the helper thread. It runs to its end even if the future is dropped; `kept` lives until then.
    async fn blocking<T: Send + 'static>(
        &self,
        kept: impl Sized + 'static,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let outstanding = self.outstanding();
        let (handle, task) = task::join_pair(async move {
            let result = ::glommio::executor().spawn_blocking(work).await;
            outstanding.finish();
            drop(kept);
            result
        });
        ::glommio::spawn_local(task).detach();
        handle.await
    }
}

fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: the pointer and the length are those of a slice that is borrowed mutably for the call.
        #[expect(unsafe_code)]
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => filled += count,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// Makes the names in a directory durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::fs::File::open(path)?.sync_all()
}

fn create_directories(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    create_directories(parent)?;
    match std::fs::create_dir(path) {
        // Another process was first, which need not have synced it yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        result => result?,
    }
    sync_directory(parent)
}

fn list_directory(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = std::fs::read_dir(path)?
        .map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

impl Runtime for GlommioRuntime {
    type Buf = GlommioBuf;
    type File = GlommioFile;
    type Stream = GlommioStream;
    type Listener = GlommioListener;
    type Lock = GlommioLock;

    fn spawn_detached(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        ::glommio::spawn_local(future).detach();
    }

    fn monotonic(&self) -> Monotonic {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has a monotonic clock");
        Monotonic(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
    }

    fn wall_clock(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn random_u64(&self) -> u64 {
        self.shared.random.borrow_mut().next_u64()
    }

    async fn sleep(&self, duration: Duration) {
        ::glommio::timer::sleep(duration).await;
    }

    async fn yield_now(&self) {
        ::glommio::executor().yield_task_queue_now().await;
    }

    async fn open(&self, path: &Path, options: OpenOptions) -> io::Result<GlommioFile> {
        file::open(self, path, options).await
    }

    async fn list_dir(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let path = path.to_owned();
        self.blocking((), move || list_directory(&path)).await
    }

    async fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.blocking((), move || create_directories(&path)).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.blocking((), move || std::fs::rename(from, to)).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.blocking((), move || std::fs::remove_file(path)).await
    }

    async fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.blocking((), move || sync_directory(&path)).await
    }

    async fn lock(&self, path: &Path) -> io::Result<GlommioLock> {
        let path = path.to_owned();
        self.blocking((), move || GlommioLock::take(&path)).await
    }

    fn space(&self, path: &Path) -> io::Result<(u64, u64)> {
        let stat = nix::sys::statvfs::statvfs(path)?;
        let unit = stat.fragment_size();
        Ok((stat.blocks_available() * unit, stat.blocks() * unit))
    }

    fn capabilities(&self, path: &Path) -> io::Result<Capabilities> {
        device::capabilities(path)
    }

    async fn listen(&self, address: SocketAddr) -> io::Result<GlommioListener> {
        net::listen(address)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<GlommioStream> {
        net::connect(address).await
    }

    fn adopt(&self, socket: SocketOf<Self>) -> io::Result<GlommioStream> {
        net::adopt(socket)
    }
}
