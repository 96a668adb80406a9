//! What the simulated backend promises beyond the contract of all backends: its fault model, and that a seed decides everything.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod disk;
mod world;

use std::io;
use std::path::Path;

use node_io::sim::{Sim, SimFile, SimRuntime};
use node_io::{File, IoBuf, OpenOptions, PAGE_SIZE, Runtime};

const SECTOR: usize = 512;
const NODE: u32 = 1;
const CREATE: OpenOptions = OpenOptions { write: true, create_new: true, durable: false };
const CREATE_DURABLE: OpenOptions = OpenOptions { write: true, create_new: true, durable: true };
const WRITE: OpenOptions = OpenOptions { write: true, create_new: false, durable: false };

/// Runs `body` for each seed, saying which.
fn seeds(count: u64, body: impl Fn(u64)) {
    for seed in 0..count {
        eprintln!("seed {seed}");
        body(seed);
    }
}

async fn write(file: &SimFile, page: usize, count: usize, byte: u8) -> io::Result<()> {
    let mut buf = file.allocate(count * PAGE_SIZE);
    buf.as_mut_slice().fill(byte);
    file.write_at(buf, count * PAGE_SIZE, (page * PAGE_SIZE) as u64).await.0
}

/// A file of a synced name, with `pages` pages of zeros on the medium.
async fn prepared(runtime: &SimRuntime, name: &str, pages: usize, options: OpenOptions) -> SimFile {
    let file = runtime.open(Path::new(name), options).await.unwrap();
    write(&file, 0, pages, 0).await.unwrap();
    file.sync().await.unwrap();
    runtime.sync_dir(Path::new("")).await.unwrap();
    file
}

fn content(sim: &Sim, name: &str) -> Vec<u8> {
    sim.read_file(NODE, Path::new(name)).unwrap()
}
