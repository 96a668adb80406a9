//! Checks values against their ranges and against each other.

use super::Config;
use super::error::ConfigError;
use super::load::Origins;
use super::value::{ByteSize, Setting};

const PAGE: u64 = 4096;

/// The most shards: their directories have four digits, and no machine has more cores to give.
const SHARDS_MAX: u32 = 1024;

/// Appends what is wrong to `errors`, what is odd to `warnings`.
pub(super) fn validate(config: &Config, origins: &Origins, warnings: &mut Vec<String>, errors: &mut Vec<ConfigError>) {
    let mut check = |section: &'static str, name: &'static str, holds: bool, value: String, rule: String| {
        if !holds {
            let key = super::keys::find(section, name).expect("rules are about keys of the list");
            errors.push(ConfigError::OutOfRange { origin: origins.of(section, name), key: key.full_name(), value, rule });
        }
    };
    let Config { node, log, memory, .. } = config;
    let pages = |size: ByteSize| size.0.is_multiple_of(PAGE);
    let within = |size: ByteSize, least: ByteSize, most: ByteSize| (least..=most).contains(&size);

    check("node", "shards", node.shards <= SHARDS_MAX, node.shards.to_toml(), format!("at most {SHARDS_MAX}"));
    let same_port = node.listen == node.admin && node.listen.port() != 0;
    check("node", "admin", !same_port, node.admin.to_toml(), "another address than node.listen".to_owned());
    let mut cpus = node.cpus.0.clone();
    cpus.sort_unstable();
    let distinct = cpus.windows(2).all(|pair| pair[0] != pair[1]);
    check("node", "cpus", distinct, node.cpus.to_toml(), "a list that names no CPU twice".to_owned());
    let enough = cpus.is_empty() || cpus.len() >= node.shards as usize;
    check(
        "node",
        "cpus",
        enough,
        node.cpus.to_toml(),
        format!("a list of at least as many CPUs as node.shards ({})", node.shards),
    );

    let segment_size_rule = "a multiple of 4k from 1M to 4G".to_owned();
    let segment_size_holds = pages(log.segment_size) && within(log.segment_size, ByteSize::mib(1), ByteSize::mib(4096));
    check("log", "segment_size", segment_size_holds, log.segment_size.to_toml(), segment_size_rule);
    let prepared = (1..=64).contains(&log.prepared_segments);
    check("log", "prepared_segments", prepared, log.prepared_segments.to_toml(), "1 to 64".to_owned());
    let block_size_holds = pages(log.block_size) && within(log.block_size, ByteSize::kib(4), ByteSize::mib(1));
    check("log", "block_size", block_size_holds, log.block_size.to_toml(), "a multiple of 4k from 4k to 1M".to_owned());
    check("log", "commit_depth", (1..=4).contains(&log.commit_depth), log.commit_depth.to_toml(), "1 to 4".to_owned());
    let record_size_limit = ByteSize(log.segment_size.0 / 4).min(ByteSize::mib(16));
    check(
        "log",
        "record_size_max",
        within(log.record_size_max, ByteSize(1), record_size_limit),
        log.record_size_max.to_toml(),
        format!("1 byte to {record_size_limit} (16M, or a quarter of log.segment_size, whichever is less)"),
    );

    let receive_least = ByteSize(4 * log.record_size_max.0.min(ByteSize::mib(16).0));
    check(
        "memory",
        "receive_budget",
        memory.receive_budget >= receive_least,
        memory.receive_budget.to_toml(),
        format!("at least {receive_least} (four times log.record_size_max)"),
    );
    let in_flight = (1..=1 << 20).contains(&memory.connection_in_flight);
    check("memory", "connection_in_flight", in_flight, memory.connection_in_flight.to_toml(), "1 to 1048576".to_owned());

    if !node.pin && !node.cpus.0.is_empty() {
        warnings.push("node.cpus is ignored: node.pin is false".to_owned());
    }
    if !node.admin.ip().is_loopback() {
        warnings.push(format!("node.admin {} can be reached from other machines, and has no authentication", node.admin));
    }
}
