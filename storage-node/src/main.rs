//! `roostd`, the daemon of a Roost node: configuration, shard threads, admin endpoint, signals. The engine is the library `storage_node`.

// The daemon runs on the machine itself, not in simulation.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod daemon;

use std::process::ExitCode;

fn main() -> ExitCode {
    daemon::run()
}
