//! `roostd`, the daemon of a Roost node: configuration, shard threads, admin endpoint, signals. The engine is the library `storage_node`.

mod daemon;

use std::process::ExitCode;

fn main() -> ExitCode {
    daemon::run()
}
