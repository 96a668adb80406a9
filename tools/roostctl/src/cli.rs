//! The command line. Users script against these names: they are a contract.

use clap::{Args, Parser, Subcommand, ValueEnum};
use client::{ExtentId, GroupId, Seq};
use std::path::PathBuf;

/// Administers a running Roost node and moves records in and out of it.
#[derive(Debug, Parser)]
#[command(name = "roostctl", version, arg_required_else_help = true, subcommand_required = true)]
pub(crate) struct Arguments {
    /// The node's address.
    #[arg(long, global = true, value_name = "HOST:PORT", default_value = "127.0.0.1:7440", env = "ROOST_NODE", value_parser = node)]
    pub(crate) node: String,
    /// Print one JSON object a line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What the node is, and how much it holds.
    Status,
    /// Make, list, describe, seal, trim and delete extents.
    Extent {
        #[command(subcommand)]
        command: ExtentCommand,
    },
    /// Append one record a line; print each record's seq, in order, as soon as it is durable.
    Append(Append),
    /// Print an extent's records in order, one a line.
    Read(Read),
    /// Print a shell's completion script.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExtentCommand {
    /// Make an extent and print its id. It is no error if it exists already with the same group and kind.
    Create {
        /// Its id; a random one by default.
        #[arg(long, value_name = "UUID", value_parser = extent)]
        id: Option<ExtentId>,
        /// Its group: extents of one group are on one shard and can be changed together. By default a group of its own.
        #[arg(long, value_name = "UUID", value_parser = group)]
        group: Option<GroupId>,
        /// How it is read.
        #[arg(long, value_enum, default_value_t = Kind::Sequence)]
        kind: Kind,
    },
    /// List all extents, ordered by id.
    List,
    /// Show what the node knows of an extent.
    Describe {
        /// The extent.
        #[arg(value_name = "ID", value_parser = extent)]
        id: ExtentId,
    },
    /// End an extent: it takes no more records. Prints its last seq.
    Seal {
        /// The extent.
        #[arg(value_name = "ID", value_parser = extent)]
        id: ExtentId,
    },
    /// Remove an extent with all its records.
    Delete {
        /// The extent.
        #[arg(value_name = "ID", value_parser = extent)]
        id: ExtentId,
    },
    /// Declare all records up to and including a key dead. Prints the first seq that is left.
    Trim {
        /// The extent.
        #[arg(value_name = "ID", value_parser = extent)]
        id: ExtentId,
        /// The last key that is dead: a seq.
        #[arg(long, value_name = "KEY", value_parser = seq)]
        to: Seq,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// In the order of seqs.
    Sequence,
    /// Also in the order of delivery times, when due.
    Timer,
}

#[derive(Debug, Args)]
pub(crate) struct Append {
    /// The extent.
    #[arg(value_name = "ID", value_parser = extent)]
    pub(crate) id: ExtentId,
    /// Where the lines come from; `-` is stdin. A record is a line without its newline, any bytes.
    #[arg(long, value_name = "PATH", default_value = "-")]
    pub(crate) file: PathBuf,
    /// How many records may be in flight.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) window: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Read {
    /// The extent.
    #[arg(value_name = "ID", value_parser = extent)]
    pub(crate) id: ExtentId,
    /// The first record; by default the first that is not trimmed.
    #[arg(long, value_name = "SEQ", value_parser = seq)]
    pub(crate) from: Option<Seq>,
    /// At most this many records.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Wait for more at the end, until the extent is sealed.
    #[arg(long)]
    pub(crate) follow: bool,
}

fn extent(text: &str) -> Result<ExtentId, String> {
    match text.parse::<ExtentId>().map_err(|error| error.to_string())? {
        ExtentId(0) => Err("zero is no id".to_owned()),
        id => Ok(id),
    }
}

fn group(text: &str) -> Result<GroupId, String> {
    extent(text).map(GroupId::from)
}

fn seq(text: &str) -> Result<Seq, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a seq is a number from 1 on".to_owned()),
        Ok(seq) => Ok(Seq(seq)),
    }
}

fn node(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        _ => Err("an address is HOST:PORT, for example 127.0.0.1:7440".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn addresses_and_keys_are_checked() {
        for good in ["127.0.0.1:7440", "localhost:1", "[::1]:7440"] {
            assert!(node(good).is_ok(), "{good}");
        }
        for bad in ["localhost", ":7440", "localhost:", "localhost:0", "localhost:70000"] {
            assert!(node(bad).is_err(), "{bad}");
        }
        assert_eq!(seq("1"), Ok(Seq(1)));
        assert!(seq("0").is_err() && seq("1,2").is_err() && seq("-1").is_err());
        assert!(extent("00000000-0000-0000-0000-000000000000").is_err());
    }
}
