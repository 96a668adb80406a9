//! The command line. Users script against these names: they are a contract.

use crate::job::Override;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Puts load on a Roost node, as fio does on a device, and measures it.
#[derive(Debug, Parser)]
#[command(name = "roost-perf", version, arg_required_else_help = true, subcommand_required = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the jobs of job files: files one after the other, the jobs of a file at the same time.
    Run(Run),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Job files, in fio's INI.
    #[arg(value_name = "JOB.ini", required = true)]
    pub(crate) files: Vec<String>,
    /// Set a key of one job, or with section `global` of all jobs that do not set it themselves.
    #[arg(long, value_name = "SECTION.KEY=VALUE", value_parser = Override::parse)]
    pub(crate) set: Vec<Override>,
    /// How to print what was measured.
    #[arg(long, value_enum, default_value_t = Format::Normal, value_name = "FORMAT")]
    pub(crate) output_format: Format,
    /// Print it into this file instead of to stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write the distribution of each job's latencies into this directory, as JOB.hgrm.
    #[arg(long, value_name = "DIR")]
    pub(crate) hgrm: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: a summary of six lines a job, then percentiles.
    Normal,
    /// For programs: one JSON document, with fio's names where they mean the same.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
