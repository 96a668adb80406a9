//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::config::ByteSize;

/// The storage node of Roost: keeps the messages of queue frontends durably.
///
/// Without a command it serves until SIGTERM or SIGINT, drains, and exits 0. When it serves it prints one line to stdout; logs go
/// to stderr. Settings come from the flags, else the environment (such as ROOST_LOG_SEGMENT_SIZE), else the file, else the defaults:
/// `roostd config dump` shows them all.
#[derive(Debug, Parser)]
#[command(name = "roostd", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The settings that have flags.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Configuration file (TOML)
    #[arg(long, global = true, value_name = "FILE", env = "ROOST_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of the node's data [default: ./roost-data]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// Address for clients [default: 127.0.0.1:7440]
    #[arg(long, global = true, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address for metrics, status and probes [default: 127.0.0.1:7441]
    #[arg(long, global = true, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Partitions, a thread each; 0: one a CPU [default: 0]
    #[arg(long, global = true, value_name = "N")]
    shards: Option<u32>,
    /// Size of a log segment, such as 256M [default: 256M]
    #[arg(long, global = true, value_name = "SIZE", value_parser = size)]
    segment_size: Option<ByteSize>,
}

fn size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|()| "a size is a whole number, with k, M or G behind it for 1024, 1024^2, 1024^3 bytes".to_owned())
}

impl Options {
    /// The flags given: flag, section, key, value.
    pub(crate) fn overrides(&self) -> Vec<(&'static str, &'static str, &'static str, String)> {
        let given = [
            ("--data-dir", "node", "data_dir", self.data_dir.clone()),
            ("--listen", "node", "listen", self.listen.map(|address| address.to_string())),
            ("--admin", "node", "admin", self.admin.map(|address| address.to_string())),
            ("--shards", "node", "shards", self.shards.map(|count| count.to_string())),
            ("--segment-size", "log", "segment_size", self.segment_size.map(|size| size.to_string())),
        ];
        given.into_iter().filter_map(|(flag, section, key, value)| value.map(|value| (flag, section, key, value))).collect()
    }
}

/// What else it can do.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Command {
    /// Check or print the configuration
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// About the configuration.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether the configuration is valid; exit 2 with every fault if not
    Check,
    /// Print the effective configuration as a commented TOML file
    Dump,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_taken_before_and_behind_a_command() {
        for line in [["roostd", "--shards", "2", "config", "dump"], ["roostd", "config", "dump", "--shards", "2"]] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!(cli.options.overrides(), [("--shards", "node", "shards", "2".to_owned())]);
        }
    }
}
