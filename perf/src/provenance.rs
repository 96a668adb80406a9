//! Where figures come from: enough to repeat the run.

use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The program and the machine.
#[derive(Clone, Debug)]
pub(crate) struct Provenance {
    pub(crate) version: &'static str,
    /// From which commit the program was built.
    pub(crate) commit: Option<&'static str>,
    pub(crate) is_debug_build: bool,
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) started_at_seconds: u64,
    pub(crate) command: Vec<String>,
}

impl Provenance {
    pub(crate) fn read() -> Self {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = file("/proc/cpuinfo");
        let field = |name: &str| {
            cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name).map(|(_, value)| value)
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("ROOST_COMMIT"),
            is_debug_build: cfg!(debug_assertions),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: field("model name").unwrap_or("unknown").trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            started_at_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            command: std::env::args().collect(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "version": self.version,
            "commit": self.commit,
            "build": if self.is_debug_build { "debug" } else { "release" },
            "kernel": self.kernel,
            "cpu": self.cpu,
            "cores": self.cores,
            "started_at_seconds": self.started_at_seconds,
            "command": self.command,
        })
    }
}
