//! The daemon around the engine.
//!
//! The main thread is the control thread: a single-threaded tokio runtime that serves the admin endpoint, handles signals and watches
//! the shards. It shares nothing with them but their command channels ([`storage_node::status`]), so that nothing it does
//! can hold up an append.

mod admin;
mod cli;
mod config;
mod control;
mod health;
mod logging;
mod metrics;
mod process;
mod refusal;
mod report;
mod shards;
mod systemd;
#[cfg(test)]
mod test_shards;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Command, ConfigCommand};
use config::{Loaded, Sources};
use refusal::{Refusal, print_error};

/// Exit code for wrong usage and unreadable input, as clap's.
const EXIT_USAGE: u8 = 2;

/// Runs the command line; gives the exit code of the contract: 0 done, 1 failed, 2 usage or unreadable input.
pub(crate) fn run() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Completions { shell }) = cli.command {
        clap_complete::generate(shell, &mut Cli::command(), "roostd", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    let sources =
        Sources { file: cli.options.config.clone(), environment: std::env::vars_os().collect(), flags: cli.options.overrides() };
    let loaded = match config::load(&sources) {
        Ok(loaded) => loaded,
        Err(errors) => {
            for error in errors {
                print_error("configuration", &error.to_string(), &error.remedy());
            }
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match cli.command {
        Some(Command::Config { command }) => print_config(command, &loaded),
        Some(Command::Completions { .. }) => ExitCode::SUCCESS,
        None => serve(&loaded),
    }
}

fn print_config(command: ConfigCommand, loaded: &Loaded) -> ExitCode {
    for warning in &loaded.warnings {
        eprintln!("warning: {warning}");
    }
    let text = match command {
        ConfigCommand::Check => "configuration is valid\n".to_owned(),
        ConfigCommand::Dump => config::dump(loaded),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            print_error("standard output", &error.to_string(), "check where the output is redirected to");
            ExitCode::FAILURE
        }
    }
}

fn serve(loaded: &Loaded) -> ExitCode {
    logging::init(&loaded.config.logging);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    process::raise_open_files();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Refusal::new("control thread", error, "raise the limit of open files (ulimit -n)").print(),
    };
    match runtime.block_on(control::serve(&loaded.config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => refusal.print(),
    }
}
