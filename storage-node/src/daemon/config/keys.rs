//! The one list of settings: name, meaning, kind, how to read and how to print each.

use super::Config;
use super::value::{Setting, Value};

/// A setting.
pub(crate) struct Key {
    /// The TOML table it stands in.
    pub(crate) section: &'static str,
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// What it does, for people; one or more lines.
    pub(crate) help: &'static str,
    /// What kinds of values it takes, for people.
    pub(crate) allowed: &'static str,
    /// Its value as TOML.
    pub(crate) get: fn(&Config) -> String,
    /// Reads a value into the configuration; false if it is not of the key's kind.
    pub(crate) set: fn(&mut Config, &Value) -> bool,
}

impl Key {
    /// `section.name`, by which messages call it.
    pub(crate) fn full_name(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("ROOST_{}_{}", self.section, self.name).to_ascii_uppercase()
    }
}

/// The sections in the order in which they are printed.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    ("node", "The process: where it keeps its data, where it listens, what it runs on."),
    ("log", "The log of each shard."),
    ("memory", "Bounds of memory."),
    ("logging", "What the daemon itself writes to stderr."),
];

const fn allowed<T: Setting>(_field: fn(&Config) -> &T) -> &'static str {
    T::ALLOWED
}

macro_rules! key {
    ($section:ident . $name:ident, $help:literal) => {
        Key {
            section: stringify!($section),
            name: stringify!($name),
            help: $help,
            allowed: allowed(|config| &config.$section.$name),
            get: |config| config.$section.$name.to_toml(),
            set: |config, value| match Setting::from_value(value) {
                Some(read) => {
                    config.$section.$name = read;
                    true
                }
                None => false,
            },
        }
    };
}

/// Every setting, by section.
pub(crate) static KEYS: &[Key] = &[
    key!(node.data_dir, "The directory of the node's data, on a filesystem with direct I/O. Made if it is missing."),
    key!(node.listen, "Where clients and other nodes connect. Port 0 takes a free one."),
    key!(node.admin, "Where /metrics, /status and the probes are served by HTTP, without authentication: keep it private."),
    key!(node.shards, "Partitions of the node, a thread each; 1 to 1024, 0: one a CPU. Fixed once the data directory exists."),
    key!(node.pin, "Pin each shard's thread to a CPU of its own (when there are enough)."),
    key!(node.cpus, "The CPUs for the shards, one each in this order; empty: those that the process may run on."),
    key!(node.shutdown_timeout, "How long SIGTERM waits for what is in flight, before the process ends with exit code 1."),
    key!(log.segment_size, "Size of a segment file: a multiple of 4k, 1M to 4G."),
    key!(log.prepared_segments, "Segments kept ready ahead of use by each shard, 1 to 64."),
    key!(
        log.block_size,
        "A block is written when it has reached this size, even while others are in flight: a multiple of 4k, 4k to 1M."
    ),
    key!(log.commit_depth, "Blocks on their way to the device at a time, 1 to 4. At more, senders wait."),
    key!(
        log.record_size_max,
        "The greatest record that is taken, 1 to 16M and at most a quarter of a segment (and that, if not set, where it is less than 1M)."
    ),
    key!(memory.tail_cache, "Newest blocks kept in memory for readers near the tail, in each shard."),
    key!(memory.page_cache, "Pages of closed segments' indexes kept in memory, in each shard."),
    key!(
        memory.receive_budget,
        "Received but not yet durable bytes that a shard holds at most; then it stops reading from sockets. At least 4 greatest records."
    ),
    key!(
        memory.connection_in_flight,
        "Requests of one connection that may be unanswered; then the node stops reading from it. 1 to 1048576."
    ),
    key!(logging.level, "The least level that is written: error, warn, info, debug, trace or off; or levels by target."),
    key!(logging.format, "\"text\" for people, \"json\" for one JSON object a line."),
];

/// The key of a section by its name.
pub(crate) fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

/// The names of a section's keys.
pub(crate) fn names(section: &str) -> Vec<&'static str> {
    KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect()
}
