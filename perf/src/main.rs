//! `roost-perf`: puts load on a node, as job files in fio's INI describe it, and reports what it measured.
//!
//! Data flows one way: job files -> jobs -> engine and load threads -> what they measured -> report. What the figures mean is in
//! `docs/performance.md`. Exit codes: 0 done, 1 the run failed or what was read back is not what was acked, 2 usage or
//! unreadable input. Errors go to stderr as `error: what: why`.

mod cli;
mod engine;
mod failure;
mod job;
mod measure;
mod node_status;
mod pattern;
mod provenance;
mod report;
mod run;

use clap::Parser;
use cli::{Arguments, Command, Format, Run};
use failure::Failure;
use provenance::Provenance;
use run::JobResult;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Command::Run(arguments) = Arguments::parse().command;
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn run(arguments: &Run) -> Result<(), Failure> {
    let jobs = job::read(&arguments.files, &arguments.set)?;
    let provenance = Provenance::read();
    let (results, failure) = run::run(jobs);
    if !results.is_empty() {
        let text = match arguments.output_format {
            Format::Normal => report::normal(&provenance, &results),
            Format::Json => report::json(&provenance, &results),
        };
        print(arguments, &text)?;
        write_distributions(arguments, &results)?;
    }
    match failure.or_else(|| results.iter().find_map(unverified)) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

fn print(arguments: &Run, text: &str) -> Result<(), Failure> {
    match &arguments.output {
        Some(path) => std::fs::write(path, text).map_err(|error| Failure::new(format!("write {}", path.display()), error)),
        None => std::io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::new("write to stdout", error)),
    }
}

fn write_distributions(arguments: &Run, results: &[JobResult]) -> Result<(), Failure> {
    let Some(directory) = &arguments.hgrm else { return Ok(()) };
    let failed = |error| Failure::new(format!("write into {}", directory.display()), error);
    std::fs::create_dir_all(directory).map_err(failed)?;
    for (name, text) in report::distributions(results) {
        std::fs::write(directory.join(name), text).map_err(failed)?;
    }
    Ok(())
}

/// What a job's reading back has shown, if it is not what was acked.
fn unverified(result: &JobResult) -> Option<Failure> {
    let verification = result.verification.as_ref().filter(|verification| !verification.is_good())?;
    let first = verification.first_problem.as_deref().unwrap_or_default();
    let why = format!("{} records missing, {} wrong; first: {first}", verification.missing, verification.wrong);
    Some(Failure::new(format!("verify job {:?}", result.job.name), why))
}
