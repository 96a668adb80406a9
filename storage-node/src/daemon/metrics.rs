//! The text of /metrics, in Prometheus' exposition format 0.0.4: base units, one family after the other, a sample a shard.

use std::fmt::{Display, Write as _};

use storage_node::status::{Histogram, Phase, ShardStatus};

use super::health::ShardHealth;
use super::process::ProcessFigures;
use super::report::{About, VERSION, phase_name, refusal_name};

/// The content type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

type Figure = fn(&ShardStatus) -> u64;

/// (name, help, value): totals that only grow while the process lives.
const COUNTERS: &[(&str, &str, Figure)] = &[
    ("roost_records_appended_total", "Records acked.", |s| s.counters.records_appended),
    ("roost_payload_appended_bytes_total", "Payload bytes of the records acked.", |s| s.counters.payload_bytes_appended),
    ("roost_records_read_total", "Records given to readers.", |s| s.counters.records_read),
    ("roost_payload_read_bytes_total", "Payload bytes given to readers.", |s| s.counters.payload_bytes_read),
    ("roost_blocks_written_total", "Blocks on the device.", |s| s.counters.blocks_written),
    ("roost_block_written_bytes_total", "Bytes written to the device for blocks, with padding.", |s| {
        s.counters.block_bytes_written
    }),
    ("roost_prepare_written_bytes_total", "Bytes written to the device to prepare segments.", |s| {
        s.counters.prepare_bytes_written
    }),
    ("roost_footer_written_bytes_total", "Bytes written to the device for footers.", |s| s.counters.footer_bytes_written),
    ("roost_device_read_bytes_total", "Bytes read from the device.", |s| s.counters.device_bytes_read),
    ("roost_segments_closed_total", "Segments closed.", |s| s.counters.segments_closed),
    ("roost_segments_recycled_total", "Retired segments taken for reuse.", |s| s.counters.segments_recycled),
    ("roost_device_errors_total", "Failed device writes, flushes and reads.", |s| s.counters.device_errors),
    ("roost_checksum_failures_total", "Records, blocks and index pages whose checks failed.", |s| s.counters.checksum_failures),
];

/// (name, help, value): what is so now.
const GAUGES: &[(&str, &str, Figure)] = &[
    ("roost_open_segment", "The id of the segment that takes blocks.", |s| s.open_segment.0),
    ("roost_segments", "Segments in the log.", |s| s.segments),
    ("roost_segments_prepared", "Segments prepared and waiting.", |s| s.segments_prepared),
    ("roost_last_block", "The number of the last block handed to the device.", |s| s.last_block.0),
    ("roost_durable_block", "The number of the last block on the device with all before it.", |s| s.durable_block.0),
    ("roost_blocks_in_flight", "Blocks on their way to the device.", |s| s.blocks_in_flight),
    ("roost_records_live", "Records that can be read.", |s| s.records_live),
    ("roost_payload_held_bytes", "Payload bytes appended to the extents that are there, trimmed ones among them.", |s| {
        s.payload_bytes_held
    }),
    ("roost_connections", "Connections of clients.", |s| s.connections),
    ("roost_receive_buffer_bytes", "Bytes received and not yet durable.", |s| s.receive_buffer_bytes),
    ("roost_tail_cache_bytes", "Bytes of blocks kept in memory for readers near the tail.", |s| s.tail_cache_bytes),
    ("roost_index_bytes", "Bytes of index kept in memory.", |s| s.index_bytes),
    ("roost_recovery_blocks", "Blocks rolled forward at the start.", |s| s.recovery_blocks),
];

type Distribution = fn(&ShardStatus) -> &Histogram;

/// (name, help, scale from the unit kept to the base unit, value).
const HISTOGRAMS: &[(&str, &str, f64, Distribution)] = &[
    ("roost_device_write_seconds", "Time of a block's write to the device.", 1e9, |s| &s.counters.device_write_ns),
    ("roost_commit_seconds", "From a record's arrival in a block to its durability.", 1e9, |s| &s.counters.commit_ns),
    ("roost_block_size_bytes", "Lengths of blocks.", 1.0, |s| &s.counters.block_size_bytes),
];

/// Everything, as one text.
pub(crate) fn render(about: &About, shards: &[ShardHealth], process: &ProcessFigures) -> String {
    let mut text = Exposition::default();
    let node = about.node.to_string();
    text.family("roost_node_info", "gauge", "What this node is; always 1.");
    let alignment = about.medium.alignment.to_string();
    let labels = [
        ("version", VERSION),
        ("node", &node),
        ("durability", &about.medium.durability),
        ("device", &about.medium.device),
        ("alignment", &alignment),
    ];
    text.sample("roost_node_info", &labels, 1);
    states(&mut text, shards);
    let reports: Vec<(String, &ShardStatus)> = shards
        .iter()
        .filter_map(|health| match health {
            ShardHealth::Reported(status) => Some((status.shard.to_string(), status.as_ref())),
            ShardHealth::Silent | ShardHealth::Ended => None,
        })
        .collect();
    for (kind, figures) in [("counter", COUNTERS), ("gauge", GAUGES)] {
        for (name, help, value) in figures {
            text.family(name, kind, help);
            for (shard, status) in &reports {
                text.sample(name, &[("shard", shard)], value(status));
            }
        }
    }
    text.family("roost_recovery_seconds", "gauge", "How long reading the log back took at the start.");
    for (shard, status) in &reports {
        text.sample("roost_recovery_seconds", &[("shard", shard)], status.recovery_ns as f64 / 1e9);
    }
    text.family("roost_extents", "gauge", "Extents by their state.");
    for (shard, status) in &reports {
        text.sample("roost_extents", &[("shard", shard), ("state", "open")], status.extents_open);
        text.sample("roost_extents", &[("shard", shard), ("state", "sealed")], status.extents_sealed);
    }
    text.family("roost_refusals_total", "counter", "Requests refused, by the error code of the protocol.");
    for (shard, status) in &reports {
        // All codes from the start: a counter that appears with its first increment hides that increment from rate().
        for (code, count) in status.counters.refusals.iter().enumerate().skip(1) {
            let name = refusal_name(code);
            if *count > 0 || !name.starts_with("code_") {
                text.sample("roost_refusals_total", &[("shard", shard), ("code", &name)], count);
            }
        }
    }
    for (name, help, scale, value) in HISTOGRAMS {
        text.family(name, "histogram", help);
        for (shard, status) in &reports {
            text.histogram(name, shard, value(status), *scale);
        }
    }
    process_figures(&mut text, about, process);
    text.0
}

fn states(text: &mut Exposition, shards: &[ShardHealth]) {
    text.family("roost_shard_state", "gauge", "1 for the state that the shard is in, 0 for the others.");
    for (index, health) in shards.iter().enumerate() {
        let now = match health {
            ShardHealth::Reported(status) => phase_name(&status.phase),
            ShardHealth::Silent => "silent",
            ShardHealth::Ended => "ended",
        };
        let phases = [Phase::Recovering, Phase::Serving, Phase::ReadOnly(String::new()), Phase::Draining];
        for state in phases.iter().map(phase_name).chain(["silent", "ended"]) {
            text.sample("roost_shard_state", &[("shard", &index.to_string()), ("state", state)], u8::from(state == now));
        }
    }
}

fn process_figures(text: &mut Exposition, about: &About, process: &ProcessFigures) {
    let mut gauge = |name, help, value: Option<u64>| {
        if let Some(value) = value {
            text.family(name, "gauge", help);
            text.sample(name, &[], value);
        }
    };
    gauge("process_resident_memory_bytes", "Resident memory.", process.resident_bytes);
    gauge("process_virtual_memory_bytes", "Virtual memory.", process.virtual_bytes);
    gauge("process_locked_memory_bytes", "Locked memory.", process.locked_bytes);
    gauge("process_threads", "Threads.", process.threads);
    gauge("process_open_fds", "Open file descriptors.", process.open_files);
    gauge("process_max_fds", "The limit of open file descriptors.", process.open_files_max);
    if let Some(seconds) = process.cpu_seconds {
        text.family("process_cpu_seconds_total", "counter", "User and system CPU time.");
        text.sample("process_cpu_seconds_total", &[], seconds);
    }
    text.family("process_start_time_seconds", "gauge", "When the process started, since the Unix epoch.");
    text.sample("process_start_time_seconds", &[], about.started_at_seconds());
}

#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n").expect("writing to a string can't fail");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (place, (label, text)) in labels.iter().enumerate() {
            let opening = if place == 0 { '{' } else { ',' };
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(self.0, "{opening}{label}=\"{escaped}\"").expect("writing to a string can't fail");
        }
        let closing = if labels.is_empty() { "" } else { "}" };
        writeln!(self.0, "{closing} {value}").expect("writing to a string can't fail");
    }

    fn histogram(&mut self, name: &str, shard: &str, histogram: &Histogram, scale: f64) {
        let bucket = format!("{name}_bucket");
        let mut seen = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            seen += count;
            self.sample(&bucket, &[("shard", shard), ("le", &(*bound as f64 / scale).to_string())], seen);
        }
        self.sample(&bucket, &[("shard", shard), ("le", "+Inf")], histogram.count());
        self.sample(&format!("{name}_sum"), &[("shard", shard)], histogram.sum as f64 / scale);
        self.sample(&format!("{name}_count"), &[("shard", shard)], histogram.count());
    }
}

#[cfg(test)]
mod tests;
