//! Builds and runs the simulator.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;

use crate::command::{self, Failure, cargo};

/// Which seeds.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// How many seeds to run, or to run at a time with --minutes
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed; else it comes from the commit, so that each commit runs others and a re-run runs the same
    #[arg(long)]
    seed: Option<u64>,
    /// Go on with further seeds for so many minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Build with optimisation: worth it for more than a few thousand seeds
    #[arg(long)]
    release: bool,
}

impl Options {
    /// So many seeds, from the commit's.
    pub(crate) fn seeds(seeds: u64) -> Self {
        Self { seeds, seed: None, minutes: None, release: false }
    }
}

/// Runs the seeds; the simulator says which one failed, and how to run it again.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), Failure> {
    let mut first = options.seed.map_or_else(|| commit_seed(root), Ok)?;
    let deadline = options.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    loop {
        println!("simulator: seeds {first}..{}", first.saturating_add(options.seeds));
        simulator(root, options.release, &["--seeds", &options.seeds.to_string(), "--seed", &first.to_string()])?;
        first = first.wrapping_add(options.seeds);
        if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
            return Ok(());
        }
    }
}

/// Runs the same seeds twice and compares what happened.
pub(crate) fn same_seed_same_trace(root: &Path) -> Result<(), Failure> {
    simulator(root, false, &["--trace-check", "--seed", &commit_seed(root)?.to_string()])
}

fn simulator(root: &Path, release: bool, arguments: &[&str]) -> Result<(), Failure> {
    let mut words = vec!["run", "--quiet", "--package", "simulator"];
    if release {
        words.push("--release");
    }
    words.push("--");
    words.extend(arguments);
    command::run(&mut cargo(root, &words))
}

/// A seed from the commit's hash.
fn commit_seed(root: &Path) -> Result<u64, Failure> {
    let hash = command::output(std::process::Command::new("git").current_dir(root).args(["rev-parse", "--short=8", "HEAD"]))?;
    u64::from_str_radix(&hash.trim()[..8], 16)
        .map_err(|error| Failure::Found(format!("the commit's hash {hash:?} gives no seed: {error}")))
}
