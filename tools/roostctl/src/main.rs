//! `roostctl`: administers a running node and moves records in and out of it, over the wire protocol.
//!
//! Exit codes: 0 done, 1 the operation failed, 2 usage or unreadable input. Errors go to stderr as `error: what: why` with a
//! `hint:` line. A closed stdout ends the reading commands quietly.

mod append;
mod cli;
mod extent;
mod failure;
mod output;
mod read;
mod status;

use clap::{CommandFactory, Parser};
use cli::{Arguments, Command};
use client::{Client, ClientOptions};
use failure::Failure;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Command::Completions { shell } = arguments.command {
        clap_complete::generate(shell, &mut Arguments::command(), "roostctl", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::new("start", error).exit(),
    };
    match runtime.block_on(run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let connect = Connect { node: arguments.node, json: arguments.json };
    match arguments.command {
        Command::Status => status::run(&connect).await,
        Command::Extent { command } => extent::run(&connect, command).await,
        Command::Append(append) => append::run(&connect, append).await,
        Command::Read(read) => read::run(&connect, read).await,
        Command::Completions { .. } => unreachable!("main() has seen to it"),
    }
}

/// Which node, and how to print what it says.
struct Connect {
    node: String,
    json: bool,
}

impl Connect {
    fn options() -> ClientOptions {
        ClientOptions {
            name: concat!("roostctl/", env!("CARGO_PKG_VERSION")).to_owned(),
            reconnect_for: Duration::from_secs(2),
            ..ClientOptions::default()
        }
    }

    async fn client(&self, options: ClientOptions) -> Result<Client, Failure> {
        Client::connect(&self.node, options).await.map_err(|error| Failure::of_client(format!("connect to {}", self.node), error))
    }
}
