//! The contract of the I/O seam, a clause a function, held against both backends: the simulated one under several seeds, and the
//! real one on a directory of the build's.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod files;
mod names;
mod network;
mod tasks;

use std::future::Future;
use std::path::{Path, PathBuf};

use node_io::glommio::{GlommioRuntime, ShardThreadSettings, spawn_shard_thread};
use node_io::sim::{Sim, SimRuntime};
use node_io::{File, IoBuf, OpenOptions, PAGE_SIZE, Runtime};

const SEEDS: std::ops::Range<u64> = 0..20;

/// Holds a clause against the simulated backend.
fn on_sim<F: Future<Output = ()>>(clause: impl Fn(SimRuntime, PathBuf) -> F) {
    for seed in SEEDS {
        eprintln!("seed {seed}");
        let sim = Sim::new(seed);
        let runtime = sim.node(1);
        let directory = PathBuf::from("data");
        let world = async {
            runtime.create_dir_all(&directory).await.unwrap();
            clause(runtime.clone(), directory.clone()).await;
        };
        sim.block_on(1, world);
    }
}

/// A directory for one test, removed at its end.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Holds a clause against the real backend.
fn on_glommio<F: Future<Output = ()> + 'static>(name: &str, clause: impl FnOnce(GlommioRuntime, PathBuf) -> F + Send + 'static) {
    let directory = TestDirectory::new(name);
    let path = directory.0.clone();
    let settings = ShardThreadSettings::for_shards(4, None);
    spawn_shard_thread(name, settings, move |runtime| clause(runtime, path)).unwrap().join();
}

/// Makes a test for each clause and backend.
macro_rules! clauses {
    ($($clause:ident),* $(,)?) => {
        mod sim {
            $(#[test] fn $clause() { crate::on_sim(super::$clause); })*
        }
        mod glommio {
            $(#[test] fn $clause() { crate::on_glommio(stringify!($clause), super::$clause); })*
        }
    };
}
pub(crate) use clauses;

const WRITE: OpenOptions = OpenOptions { write: true, create_new: false, durable: false };
const CREATE: OpenOptions = OpenOptions { write: true, create_new: true, durable: false };
const READ: OpenOptions = OpenOptions { write: false, create_new: false, durable: false };

/// A buffer of whole pages, each filled with its own byte, from `first` on.
fn pages<F: File>(file: &F, count: usize, first: u8) -> F::Buf {
    let mut buf = file.allocate(count * PAGE_SIZE);
    for (place, page) in buf.as_mut_slice().chunks_mut(PAGE_SIZE).enumerate() {
        page.fill(first.wrapping_add(place as u8));
    }
    buf
}

async fn write_pages<F: File>(file: &F, count: usize, first: u8, offset: u64) {
    file.write_at(pages(file, count, first), count * PAGE_SIZE, offset).await.0.unwrap();
}

async fn read_all<F: File>(file: &F) -> Vec<u8> {
    let length = (file.size().await.unwrap() as usize).next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
    let (buf, count) = file.read_at(0, length).await.unwrap();
    buf.as_slice()[..count].to_vec()
}
