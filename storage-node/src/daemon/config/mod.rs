//! The daemon's configuration: one TOML file, overridden by the environment, overridden by flags.
//!
//! [`keys`] is the one list of settings: the file's parser, the environment, `config dump` and the sample in deploy/ all
//! follow it. A value is checked alone when it is read ([`value`]) and against the others when all are there ([`validate`]).

mod dump;
mod error;
mod keys;
mod load;
mod validate;
mod value;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use dump::dump;
pub(crate) use load::{Loaded, Sources, load};
pub(crate) use value::{ByteSize, CpuList, LogFilter, LogFormat, Span};

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// Section `[node]`.
    pub(crate) node: Node,
    /// Section `[log]`.
    pub(crate) log: Log,
    /// Section `[memory]`.
    pub(crate) memory: Memory,
    /// Section `[logging]`.
    pub(crate) logging: Logging,
}

/// The process: where it keeps its data, where it listens, what it runs on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) data_dir: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// 0: one a CPU.
    pub(crate) shards: u32,
    pub(crate) pin: bool,
    /// Empty: those that the process may run on.
    pub(crate) cpus: CpuList,
    pub(crate) shutdown_timeout: Span,
}

/// The log of each shard.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Log {
    pub(crate) segment_size: ByteSize,
    pub(crate) prepared_segments: u32,
    pub(crate) block_size: ByteSize,
    pub(crate) commit_depth: u32,
    pub(crate) record_size_max: ByteSize,
}

/// Bounds of memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Memory {
    pub(crate) tail_cache: ByteSize,
    pub(crate) page_cache: ByteSize,
    pub(crate) receive_budget: ByteSize,
    pub(crate) connection_in_flight: u32,
}

/// The daemon's own log lines.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Logging {
    pub(crate) level: LogFilter,
    pub(crate) format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: Node {
                data_dir: "./roost-data".into(),
                listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7440)),
                admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 7441)),
                shards: 0,
                pin: true,
                cpus: CpuList::default(),
                shutdown_timeout: Span(Duration::from_secs(30)),
            },
            log: Log {
                segment_size: ByteSize::mib(256),
                prepared_segments: 2,
                block_size: ByteSize::kib(256),
                commit_depth: 2,
                record_size_max: ByteSize::mib(1),
            },
            memory: Memory {
                tail_cache: ByteSize::mib(64),
                page_cache: ByteSize::mib(16),
                receive_budget: ByteSize::mib(256),
                connection_in_flight: 16_384,
            },
            logging: Logging { level: LogFilter("info".to_owned()), format: LogFormat::Text },
        }
    }
}

impl Config {
    /// The CPU of each of `shards` shards, where it is to be pinned.
    pub(crate) fn placement(&self, shards: u32) -> Vec<Option<u32>> {
        place(shards, self.node.pin, &self.cpus())
    }

    /// How many shards a new data directory gets: as configured, or one a CPU.
    pub(crate) fn default_shards(&self) -> u32 {
        if self.node.shards == 0 { self.cpus().len().max(1) as u32 } else { self.node.shards }
    }

    fn cpus(&self) -> Vec<u32> {
        if self.node.cpus.0.is_empty() { allowed_cpus() } else { self.node.cpus.0.clone() }
    }
}

/// With fewer CPUs than shards nothing is pinned: two shards on one CPU would be worse than
/// what the kernel does on its own.
fn place(shards: u32, pin: bool, cpus: &[u32]) -> Vec<Option<u32>> {
    let count = shards as usize;
    (0..count).map(|shard| cpus.get(shard).copied().filter(|_| pin && cpus.len() >= count)).collect()
}

/// The CPUs that this process may run on.
fn allowed_cpus() -> Vec<u32> {
    let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return Vec::new() };
    (0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).map(|cpu| cpu as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn shards_are_pinned_one_a_cpu_or_not_at_all() {
        assert_eq!(place(2, true, &[4, 6]), [Some(4), Some(6)]);
        assert_eq!(place(1, true, &[4, 6]), [Some(4)]);
        assert_eq!(place(3, true, &[4, 6]), [None; 3]);
        assert_eq!(place(2, false, &[4, 6]), [None; 2]);
        assert_eq!(place(1, true, &[]), [None]);
    }
}
