//! All checks, one after the other; a failed one does not stop the others, and all are listed at the end with their times.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;

use crate::command::{Failure, cargo, run as run_command};
use crate::{codegen, sim, tidy};

/// What to run.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Seeds for the simulator
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The long variants of the tests, too: 500 rounds of SIGKILL instead of 50, and the like
    #[arg(long)]
    long: bool,
    /// Only the checks that need neither tests nor the simulator
    #[arg(long)]
    quick: bool,
}

type Check = Box<dyn Fn() -> Result<(), Failure>>;

/// Runs the checks.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), Failure> {
    let mut checks: Vec<(&str, Check)> = vec![
        ("format", command(root, &["fmt", "--all", "--", "--check"], &[])),
        ("tidy", at(root, tidy::run)),
        ("generated code", at(root, |root| codegen::run(root, true).map(|outcome| println!("{outcome}")))),
        ("clippy", command(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])),
        ("documentation", command(root, &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])),
    ];
    if !options.quick {
        let seeds = sim::Options::seeds(options.seeds);
        let variables: &[_] = if options.long { &[("ROOST_LONG", "1")] } else { &[] };
        checks.push(("tests", command(root, &["test", "--workspace", "--no-fail-fast"], variables)));
        checks.push(("simulator", at(root, move |root| sim::run(root, &seeds))));
        checks.push(("same seed, same trace", at(root, sim::same_seed_same_trace)));
    }
    let mut results = Vec::new();
    for (name, check) in checks {
        println!("\n== {name}");
        let started = Instant::now();
        let outcome = check();
        if let Err(failure) = &outcome {
            println!("FAILED: {failure}");
        }
        println!("== {name}: {:.1} s", started.elapsed().as_secs_f64());
        results.push((name, started.elapsed(), outcome.is_ok()));
    }
    summary(&results)
}

fn command(root: &Path, arguments: &'static [&'static str], variables: &'static [(&'static str, &'static str)]) -> Check {
    let root = root.to_owned();
    Box::new(move || run_command(cargo(&root, arguments).envs(variables.iter().copied())))
}

fn at(root: &Path, check: impl Fn(&Path) -> Result<(), Failure> + 'static) -> Check {
    let root = root.to_owned();
    Box::new(move || check(&root))
}

fn summary(results: &[(&str, Duration, bool)]) -> Result<(), Failure> {
    println!();
    for (name, took, passed) in results {
        println!("{:<24} {:>8.1} s  {}", name, took.as_secs_f64(), if *passed { "ok" } else { "FAILED" });
    }
    let total: Duration = results.iter().map(|(_, took, _)| *took).sum();
    println!("{:<24} {:>8.1} s", "all", total.as_secs_f64());
    let failed: Vec<&str> = results.iter().filter(|(_, _, passed)| !passed).map(|(name, _, _)| *name).collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure::Found(format!("failed: {}", failed.join(", ")))) }
}
