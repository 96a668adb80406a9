//! The simulator's command line.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use simulator::{Coverage, Outcome, Scenario, known_seeds, reproduction, run_seed};

/// Runs the storage engine on simulated machines, with crashes and faults that a seed decides, against a model
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// How many seeds to run: 1000, or 50 with --trace-check
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Go on with further seeds for so many minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Run each seed twice: the same must happen
    #[arg(long)]
    trace_check: bool,
    /// Run this scenario alone: crash, commit, faults, tail, recycle or wire
    #[arg(long, value_parser = scenario)]
    scenario: Option<Scenario>,
    /// Threads
    #[arg(long)]
    jobs: Option<usize>,
}

fn scenario(name: &str) -> Result<Scenario, String> {
    Scenario::named(name).ok_or_else(|| {
        let names: Vec<&str> = Scenario::ALL.iter().map(|scenario| scenario.name()).collect();
        format!("there is no such scenario; there are {}", names.join(", "))
    })
}

/// What all threads share.
struct Shared {
    options: Options,
    known: Vec<(Scenario, u64)>,
    scenarios: Vec<Scenario>,
    next: AtomicU64,
    stop: AtomicBool,
    deadline: Option<Instant>,
    total: Mutex<(Coverage, u64)>,
    failure: Mutex<Option<(u64, Scenario, u64, String)>>,
}

impl Shared {
    /// The simulation with a running number: the known seeds first, then all scenarios of one seed after the other.
    fn simulation(&self, number: u64) -> Option<(Scenario, u64)> {
        if let Some(known) = self.known.get(number as usize) {
            return Some(*known);
        }
        let number = number - self.known.len() as u64;
        let seeds = self.options.seeds.unwrap_or(if self.options.trace_check { 50 } else { 1000 });
        let index = number / self.scenarios.len() as u64;
        let more = index < seeds || self.deadline.is_some_and(|deadline| Instant::now() < deadline);
        let scenario = self.scenarios[(number % self.scenarios.len() as u64) as usize];
        more.then_some((scenario, self.options.seed.wrapping_add(index)))
    }

    fn work(&self) {
        let mut coverage = Coverage::default();
        let mut count = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((scenario, seed)) = self.simulation(number) else { break };
            match self.simulate(scenario, seed) {
                Ok(outcome) => coverage.merge(&outcome.coverage),
                Err(message) => self.fail(number, scenario, seed, message),
            }
            count += 1;
        }
        let mut total = self.total.lock().expect("no thread panics while it holds it");
        total.0.merge(&coverage);
        total.1 += count;
    }

    fn simulate(&self, scenario: Scenario, seed: u64) -> Result<Outcome, String> {
        let outcome = run_seed(scenario, seed)?;
        if self.options.trace_check {
            let again = run_seed(scenario, seed)?;
            if outcome.trace != again.trace {
                return Err(format!("the same seed gave two traces, {:016x} and {:016x}", outcome.trace, again.trace));
            }
        }
        Ok(outcome)
    }

    fn fail(&self, number: u64, scenario: Scenario, seed: u64, message: String) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failure = self.failure.lock().expect("no thread panics while it holds it");
        if failure.as_ref().is_none_or(|(first, ..)| number < *first) {
            *failure = Some((number, scenario, seed, message));
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let started = Instant::now();
    let jobs = options.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let shared = Shared {
        known: if options.scenario.is_none() { known_seeds() } else { Vec::new() },
        scenarios: options.scenario.map_or(Scenario::ALL.to_vec(), |scenario| vec![scenario]),
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        deadline: options.minutes.map(|minutes| started + Duration::from_secs(60 * minutes)),
        total: Mutex::default(),
        failure: Mutex::default(),
        options,
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| shared.work());
        }
    });
    report(&shared, started.elapsed())
}

fn report(shared: &Shared, took: Duration) -> ExitCode {
    let (coverage, count) = shared.total.lock().expect("all threads have ended").clone();
    print!("{coverage}");
    println!("{count} simulations in {:.1} s", took.as_secs_f64());
    if let Some((_, scenario, seed, message)) = &*shared.failure.lock().expect("all threads have ended") {
        eprintln!("error: scenario {}, seed {seed}: {message}", scenario.name());
        eprintln!("hint: {}", reproduction(*scenario, *seed));
        return ExitCode::FAILURE;
    }
    let missing = coverage.missing();
    let long = shared.options.scenario.is_none() && count >= Coverage::ENOUGH_SEEDS * shared.scenarios.len() as u64;
    if long && !missing.is_empty() {
        eprintln!("error: the run never reached: {}", missing.join(", "));
        eprintln!("hint: a change has made the simulator blind to it; see tools/simulator/src/plan.rs");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
