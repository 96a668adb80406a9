//! The simulator: Roost's storage engine on a simulated machine, under random load, faults and crashes, against a model.
//!
//! A seed decides everything: the shard's settings, what its clients do and when, which faults the device has, when the node is
//! stopped, what the crash leaves, and the order of all turns. The engine runs unmodified; only what stands below `node_io` is
//! simulated. [`run_seed`] runs one scenario of one seed; a failure names the command that runs it again.
//!
//! What is checked, after each answer and each restart (the model says why that is all there can be):
//! - all acked ops are there, with their records' bytes and seqs; what is not acked is there in whole or not at all, and only if all
//!   before it is; nothing is there that nobody sent;
//! - every answer is the one that the state at its moment asks for, and rests on durable changes only;
//! - readers see contiguous seqs, each record once and in order, none before it is durable, and those that wait see it right
//!   after its ack;
//! - a shard on a working device refuses nothing but what must be refused, opens, and gets done;
//! - the space of deleted extents comes back.

mod client;
mod coverage;
mod life;
mod look;
mod model;
mod panics;
mod payload;
mod plan;
mod reader;
mod wire;
mod world;

pub use coverage::Coverage;
pub use plan::Scenario;

/// What one scenario of one seed came to.
#[derive(Debug)]
pub struct Outcome {
    /// What it reached.
    pub coverage: Coverage,
    /// A hash over all that happened.
    pub trace: u64,
}

/// Runs one scenario of one seed.
///
/// # Errors
/// The first thing that must not be: a check that failed or a panic of the engine, with its place.
pub fn run_seed(scenario: Scenario, seed: u64) -> Result<Outcome, String> {
    panics::catch(scenario, seed, || {
        let (coverage, trace) = match scenario {
            Scenario::Wire => wire::Run::new(seed).run(),
            _ => life::Run::new(scenario, seed).run(),
        };
        Outcome { coverage, trace }
    })
}

/// The command that runs one scenario of one seed again.
pub fn reproduction(scenario: Scenario, seed: u64) -> String {
    format!("cargo run -p simulator -- --seeds 1 --seed {seed} --scenario {}", scenario.name())
}

/// Seeds that once found something: each is run first, for ever.
pub fn known_seeds() -> Vec<(Scenario, u64)> {
    let lines = include_str!("../seeds.txt").lines().map(|line| line.split('#').next().unwrap_or("").trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (scenario, seed) = line.split_once(' ').expect("a line of seeds.txt is a scenario and a seed");
            let scenario = Scenario::named(scenario).expect("seeds.txt names scenarios");
            (scenario, seed.trim().parse().expect("seeds are numbers"))
        })
        .collect()
}
