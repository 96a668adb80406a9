//! The I/O seam of a Roost node.
//!
//! Everything above this crate is generic over [`Runtime`], which gives files, directories, sockets, clocks, timers, tasks
//! and randomness. There are two backends: [`glommio`] for real machines and [`sim`] for simulation. One conformance
//! suite (`tests/conformance.rs`) holds for both.
//!
//! Contract of every backend:
//! - A runtime and all that comes from it stay on one thread; futures are not `Send`.
//! - Buffers are owned and allocated by the backend. A write takes the buffer and gives it back, on success and on error.
//! - A file's futures MUST be driven to their end: the caller spawns what it can't wait for. A backend MUST stay memory-safe if one
//!   is dropped all the same.
//! - A write is whole or an error: short writes are looped or reported, never taken for success.
//! - A write to a file opened with [`OpenOptions::durable`] is on the medium when it completes.
//! - A name made, renamed or removed is on the medium after [`Runtime::sync_dir`] of its directory, not before.
//!
//! Channels and events are `tokio::sync`'s: they need no tokio runtime, work over any executor and between
//! threads. Use `biased` selects only: `tokio::select!` is random otherwise and would break "same seed, same trace".

#[cfg(target_os = "linux")]
pub mod glommio;
pub mod sim;
mod task;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

pub use task::JoinHandle;

/// Bytes in a page: the unit of alignment of the log.
pub const PAGE_SIZE: usize = 4096;

/// A monotonic clock's reading, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The time from `earlier` to this reading; zero if `earlier` is later.
    pub fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Memory that a backend can read into and write from: page-aligned, of a fixed capacity.
pub trait IoBuf: 'static {
    /// All bytes of the buffer.
    fn as_slice(&self) -> &[u8];
    /// All bytes of the buffer, to change.
    fn as_mut_slice(&mut self) -> &mut [u8];
}

/// How a file is opened. All files are opened for reading, past the page cache where the backend has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Allow writes.
    pub write: bool,
    /// Create the file; it is an error if it exists. Implies `write`.
    pub create_new: bool,
    /// Each write is on the medium when it completes. Implies `write`.
    pub durable: bool,
}

/// What a device and its filesystem can do, for one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Offsets and lengths of I/O must be multiples of this many bytes.
    pub offset_alignment: u32,
    /// Buffers must be aligned to this many bytes.
    pub memory_alignment: u32,
    /// How writes to durable files reach the medium, for people and metrics: `o_dsync`, `simulated`, …
    pub durability: &'static str,
    /// The block device or filesystem below, for people: `vda ext4`, …
    pub device: String,
}

/// An open file. Clones share the same open file.
#[allow(async_fn_in_trait)]
pub trait File: Clone + 'static {
    /// The backend's buffers.
    type Buf: IoBuf;

    /// A buffer of exactly `length` bytes (a multiple of [`PAGE_SIZE`]) with arbitrary content.
    fn allocate(&self, length: usize) -> Self::Buf;

    /// Writes the first `length` bytes of `buf` at `offset` (both multiples of [`PAGE_SIZE`]). The buffer comes back, cut to `length`,
    /// with its content as it was. On an error any part of the range may have been written.
    async fn write_at(&self, buf: Self::Buf, length: usize, offset: u64) -> (io::Result<()>, Self::Buf);

    /// Reads up to `length` bytes at `offset` (both multiples of [`PAGE_SIZE`]). Gives fewer bytes only where the
    /// file ends; never an error for that. The second value is the count of bytes read, from the buffer's start.
    async fn read_at(&self, offset: u64, length: usize) -> io::Result<(Self::Buf, usize)>;

    /// Puts all completed writes and the file's size on the medium. A failed sync is never to be repeated in the hope that
    /// it succeeds: what was written before it must be taken as lost.
    async fn sync(&self) -> io::Result<()>;

    /// The file's size in bytes.
    async fn size(&self) -> io::Result<u64>;

    /// Cuts the file to `size` bytes, or extends it by zeros.
    async fn set_size(&self, size: u64) -> io::Result<()>;

    /// Closes the file. Other clones keep it open until the last is closed or dropped.
    async fn close(self) -> io::Result<()>;
}

/// The reading side of a connection.
#[allow(async_fn_in_trait)]
pub trait ReadHalf: 'static {
    /// Reads at least one byte into `buf`; 0 when the peer will send no more.
    async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;
}

/// The writing side of a connection.
#[allow(async_fn_in_trait)]
pub trait WriteHalf: 'static {
    /// Writes all of `bytes`.
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Ends both directions of the connection: the peer reads to its end, a read pending on this side returns.
    async fn shutdown(&mut self) -> io::Result<()>;
}

/// A connection between two peers.
pub trait Stream: 'static {
    /// Its reading side.
    type Read: ReadHalf;
    /// Its writing side.
    type Write: WriteHalf;
    /// A handle by which the connection moves to the runtime of another shard.
    type Socket: 'static;
    /// Splits it into two sides, which may be used by two tasks.
    fn into_split(self) -> (Self::Read, Self::Write);
    /// Puts two sides of the same connection together again.
    fn reunite(read: Self::Read, write: Self::Write) -> Self;
    /// Takes it off this runtime, to be adopted by another. No byte is read but those that were asked for.
    fn into_socket(self) -> Self::Socket;
    /// Who is on the other side.
    fn peer(&self) -> SocketAddr;
}

/// Waits for connections.
#[allow(async_fn_in_trait)]
pub trait Listener: 'static {
    /// The connections that it gives.
    type Stream: Stream;
    /// The next connection.
    async fn accept(&self) -> io::Result<Self::Stream>;
    /// The address that it is bound to; names the real port where 0 was asked for.
    fn local_address(&self) -> SocketAddr;
}

/// The socket type of a runtime's streams.
pub type SocketOf<R> = <<R as Runtime>::Stream as Stream>::Socket;

/// All that the code above the seam may ask of the machine. Clones are handles to the same executor.
#[allow(async_fn_in_trait)]
pub trait Runtime: Clone + 'static {
    /// Buffers for file I/O.
    type Buf: IoBuf;
    /// Open files.
    type File: File<Buf = Self::Buf>;
    /// Connections.
    type Stream: Stream;
    /// Accepts connections.
    type Listener: Listener<Stream = Self::Stream>;
    /// Holds a data directory against a second owner until dropped.
    type Lock: 'static;

    /// Runs `future` to its end on this executor, whether anybody waits for it or not.
    fn spawn_detached(&self, future: Pin<Box<dyn Future<Output = ()>>>);

    /// Runs `future` on this executor; its result can be awaited. Dropping the handle does not stop the task.
    fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (handle, task) = task::join_pair(future);
        self.spawn_detached(Box::pin(task));
        handle
    }

    /// The monotonic clock.
    fn monotonic(&self) -> Monotonic;
    /// The wall clock: nanoseconds since the Unix epoch. May step in both directions.
    fn wall_clock(&self) -> u64;
    /// A random number; in simulation it comes from the seed.
    fn random_u64(&self) -> u64;
    /// Waits for `duration` on the monotonic clock.
    async fn sleep(&self, duration: Duration);
    /// Lets other tasks run.
    async fn yield_now(&self);

    /// Opens or creates a file.
    async fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Self::File>;
    /// The names in a directory, sorted. Only used outside the data path: it may block.
    async fn list_dir(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes a directory and those above it that are missing, and makes their names durable.
    async fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Renames a file inside its directory, over an existing one of that name.
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    async fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names of a directory durable.
    async fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes the lock file of a data directory, making it if missing. Fails with [`io::ErrorKind::WouldBlock`], naming the holder, if it is held.
    async fn lock(&self, path: &Path) -> io::Result<Self::Lock>;
    /// Bytes free and bytes in all on the filesystem of `path`.
    fn space(&self, path: &Path) -> io::Result<(u64, u64)>;
    /// What the device below the directory `path` can do.
    fn capabilities(&self, path: &Path) -> io::Result<Capabilities>;

    /// Binds a listening socket.
    async fn listen(&self, address: SocketAddr) -> io::Result<Self::Listener>;
    /// Connects to a peer.
    async fn connect(&self, address: SocketAddr) -> io::Result<Self::Stream>;
    /// Takes over a connection from another shard's runtime.
    fn adopt(&self, socket: SocketOf<Self>) -> io::Result<Self::Stream>;
}
