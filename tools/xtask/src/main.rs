//! The repository's own checks and chores; `cargo xtask --help` lists them.

mod ci;
mod codegen;
mod command;
mod sim;
mod tidy;

use std::process::ExitCode;

use clap::Parser;
use command::workspace_root;

/// Checks and chores of the Roost repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
enum Task {
    /// Run every check that a change must pass, with a timing for each
    Ci(ci::Options),
    /// Check what compilers and clippy do not: directions, seams, sizes, links
    Tidy,
    /// Run the simulator over many seeds
    Sim(sim::Options),
    /// Generate the flatbuffers code in log-format/src/generated from its schemas
    Gen {
        /// Change nothing; fail if the code is not what the schemas give
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let task = Task::parse();
    let root = workspace_root();
    let outcome = match &task {
        Task::Ci(options) => ci::run(&root, options),
        Task::Tidy => tidy::run(&root),
        Task::Sim(options) => sim::run(&root, options),
        Task::Gen { check } => codegen::run(&root, *check).map(|outcome| println!("{outcome}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}
