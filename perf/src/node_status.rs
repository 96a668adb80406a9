//! What a node says about itself on its admin endpoint, and how that changed over a run.

use crate::failure::Failure;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than any answer of a node.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The counters of all shards together, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeStatus {
    totals: Totals,
    cpu_seconds: Option<f64>,
    config: Value,
    device: Value,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Totals {
    records: u64,
    payload_bytes: u64,
    blocks: u64,
    block_bytes: u64,
    prepare_bytes: u64,
    footer_bytes: u64,
    device_read_bytes: u64,
    device_write_ns: Distribution,
    commit_ns: Distribution,
    block_size_bytes: Distribution,
}

/// A histogram with fixed bounds, as the node keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Distribution {
    bounds: Vec<u64>,
    counts: Vec<u64>,
    sum: u64,
}

/// What changed between two moments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Delta {
    totals: Totals,
    cpu_seconds: Option<f64>,
    config: Value,
    device: Value,
}

impl NodeStatus {
    /// Asks the admin endpoint, HOST:PORT.
    pub(crate) fn ask(admin: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(format!("ask the node's admin endpoint {admin}"), error)
                .hint("the key `admin` names it; without the key nobody asks")
        };
        let status = get(admin, "/status").map_err(failed)?;
        let metrics = get(admin, "/metrics").map_err(failed)?;
        let status: Value = serde_json::from_str(&status).map_err(|error| failed(io::Error::other(error)))?;
        Ok(Self::from_answers(&status, &metrics))
    }

    fn from_answers(status: &Value, metrics: &str) -> Self {
        let mut totals = Totals::default();
        for shard in status["shards"].as_array().into_iter().flatten() {
            totals.add(&shard["counters"]);
        }
        let cpu_seconds = metrics
            .lines()
            .find_map(|line| line.strip_prefix("process_cpu_seconds_total "))
            .and_then(|seconds| seconds.trim().parse().ok());
        let device = json!({
            "device": status["device"], "durability": status["durability"], "alignment_bytes": status["alignment_bytes"],
            "version": status["version"],
        });
        Self { totals, cpu_seconds, config: status["config"].clone(), device }
    }

    pub(crate) fn since(&self, before: &Self) -> Delta {
        Delta {
            totals: self.totals.since(&before.totals),
            cpu_seconds: self.cpu_seconds.zip(before.cpu_seconds).map(|(after, before)| after - before),
            config: self.config.clone(),
            device: self.device.clone(),
        }
    }
}

impl Totals {
    /// Adds a shard's counters. One that is not there, as in a shard that does not answer, counts 0.
    fn add(&mut self, counters: &Value) {
        let number = |name: &str| counters[name].as_u64().unwrap_or(0);
        self.records += number("records_appended");
        self.payload_bytes += number("payload_bytes_appended");
        self.blocks += number("blocks_written");
        self.block_bytes += number("block_bytes_written");
        self.prepare_bytes += number("prepare_bytes_written");
        self.footer_bytes += number("footer_bytes_written");
        self.device_read_bytes += number("device_bytes_read");
        self.device_write_ns.add(&counters["device_write_ns"]);
        self.commit_ns.add(&counters["commit_ns"]);
        self.block_size_bytes.add(&counters["block_size_bytes"]);
    }

    fn since(&self, before: &Self) -> Self {
        // A node that was started anew meanwhile counts from 0.
        Self {
            records: self.records.saturating_sub(before.records),
            payload_bytes: self.payload_bytes.saturating_sub(before.payload_bytes),
            blocks: self.blocks.saturating_sub(before.blocks),
            block_bytes: self.block_bytes.saturating_sub(before.block_bytes),
            prepare_bytes: self.prepare_bytes.saturating_sub(before.prepare_bytes),
            footer_bytes: self.footer_bytes.saturating_sub(before.footer_bytes),
            device_read_bytes: self.device_read_bytes.saturating_sub(before.device_read_bytes),
            device_write_ns: self.device_write_ns.since(&before.device_write_ns),
            commit_ns: self.commit_ns.since(&before.commit_ns),
            block_size_bytes: self.block_size_bytes.since(&before.block_size_bytes),
        }
    }
}

impl Distribution {
    fn add(&mut self, json: &Value) {
        let numbers = |name: &str| json[name].as_array().into_iter().flatten().filter_map(Value::as_u64).collect::<Vec<_>>();
        let counts = numbers("counts");
        if self.counts.is_empty() {
            *self = Self { bounds: numbers("bounds"), counts: vec![0; counts.len()], sum: 0 };
        }
        self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        self.sum += json["sum"].as_u64().unwrap_or(0);
    }

    fn since(&self, before: &Self) -> Self {
        let earlier = before.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(earlier).map(|(after, before)| after.saturating_sub(before)).collect();
        Self { bounds: self.bounds.clone(), counts, sum: self.sum.saturating_sub(before.sum) }
    }

    fn mean(&self) -> Option<f64> {
        ratio(self.sum, self.counts.iter().sum())
    }

    fn to_json(&self) -> Value {
        json!({ "bounds": self.bounds, "counts": self.counts, "mean": self.mean() })
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Delta {
    pub(crate) fn commits(&self) -> u64 {
        self.totals.blocks
    }

    pub(crate) fn device_read_bytes(&self) -> u64 {
        self.totals.device_read_bytes
    }

    pub(crate) fn records_per_commit(&self) -> Option<f64> {
        ratio(self.totals.records, self.totals.blocks)
    }

    pub(crate) fn bytes_per_commit(&self) -> Option<f64> {
        ratio(self.totals.block_bytes, self.totals.blocks)
    }

    /// Bytes of blocks and footers per payload byte.
    pub(crate) fn device_bytes_per_payload_byte(&self) -> Option<f64> {
        ratio(self.totals.block_bytes + self.totals.footer_bytes, self.totals.payload_bytes)
    }

    /// Bytes written to prepare segments per payload byte: paid once for space that is recycled.
    pub(crate) fn prepare_bytes_per_payload_byte(&self) -> Option<f64> {
        ratio(self.totals.prepare_bytes, self.totals.payload_bytes)
    }

    pub(crate) fn device_write_ns_mean(&self) -> Option<f64> {
        self.totals.device_write_ns.mean()
    }

    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        self.cpu_seconds
    }

    pub(crate) fn to_json(&self) -> Value {
        let Totals { records, payload_bytes, blocks, block_bytes, prepare_bytes, footer_bytes, device_read_bytes, .. } =
            &self.totals;
        json!({
            "records_appended": records,
            "payload_bytes_appended": payload_bytes,
            "commits": blocks,
            "block_bytes_written": block_bytes,
            "prepare_bytes_written": prepare_bytes,
            "footer_bytes_written": footer_bytes,
            "device_bytes_read": device_read_bytes,
            "records_per_commit": self.records_per_commit(),
            "bytes_per_commit": self.bytes_per_commit(),
            "device_bytes_per_payload_byte": self.device_bytes_per_payload_byte(),
            "prepare_bytes_per_payload_byte": self.prepare_bytes_per_payload_byte(),
            "device_write_ns": self.totals.device_write_ns.to_json(),
            "commit_ns": self.totals.commit_ns.to_json(),
            "block_size_bytes": self.totals.block_size_bytes.to_json(),
            "cpu_seconds": self.cpu_seconds,
            "medium": self.device,
            "config": self.config,
        })
    }
}

/// One HTTP/1.0 request; the body of its answer.
fn get(address: &str, path: &str) -> io::Result<String> {
    let address = address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("the name has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("the answer is no HTTP"))?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        return Err(io::Error::other(format!("{path} is answered with status {status}")));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn shard(records: u64, blocks: u64) -> Value {
        json!({ "state": "serving", "counters": {
            "records_appended": records, "payload_bytes_appended": records * 1000, "blocks_written": blocks,
            "block_bytes_written": records * 1100, "prepare_bytes_written": 5000, "footer_bytes_written": records,
            "device_bytes_read": 1,
            "device_write_ns": { "bounds": [10, 20], "counts": [blocks, 0, 0], "sum": blocks * 7, "count": blocks },
        }})
    }

    fn status(shards: &[Value], cpu: f64) -> NodeStatus {
        let json = json!({ "device": "vda", "config": { "shards": 2 }, "shards": shards });
        NodeStatus::from_answers(&json, &format!("# TYPE x gauge\nprocess_cpu_seconds_total {cpu}\n"))
    }

    #[test]
    fn deltas_are_over_all_shards() {
        let before = status(&[shard(10, 1), shard(20, 2), json!({ "state": "silent" })], 1.5);
        let after = status(&[shard(110, 11), shard(220, 22), json!({ "state": "silent" })], 4.0);
        let delta = after.since(&before);
        assert_eq!((delta.totals.records, delta.commits()), (300, 30));
        assert_eq!(delta.records_per_commit(), Some(10.0));
        assert_eq!(delta.bytes_per_commit(), Some(11_000.0));
        assert_eq!(delta.device_bytes_per_payload_byte(), Some(1.101));
        assert_eq!(delta.prepare_bytes_per_payload_byte(), Some(0.0));
        assert_eq!((delta.device_write_ns_mean(), delta.cpu_seconds()), (Some(7.0), Some(2.5)));
        assert_eq!(delta.to_json()["config"]["shards"], 2);
    }

    #[test]
    fn nothing_written_gives_no_ratio() {
        let one = status(&[shard(10, 1)], 1.0);
        let delta = one.since(&one);
        assert_eq!((delta.records_per_commit(), delta.device_write_ns_mean()), (None, None));
        assert!(delta.to_json()["records_per_commit"].is_null());
    }

    /// Serves one request with these bytes.
    fn serve(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn answers_that_are_no_status_are_errors() {
        assert_eq!(get(&serve("HTTP/1.0 200 OK\r\nA: b\r\n\r\nbody"), "/status").unwrap(), "body");
        for answer in ["HTTP/1.0 503 No\r\n\r\nbody", "nonsense", ""] {
            assert!(get(&serve(answer), "/status").is_err(), "{answer:?}");
        }
        assert!(NodeStatus::ask(&serve("HTTP/1.0 404 No\r\n\r\n")).unwrap_err().text().contains("404"));
    }
}
