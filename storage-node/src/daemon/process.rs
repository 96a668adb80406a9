//! This process in the eyes of the kernel: its limits, and figures for the metrics that every Prometheus client has.

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};

/// Takes as many open files as the process may have: each connection is one, and the soft limit is 1024 in many places. What is
/// refused stays as it was.
pub(crate) fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(soft, hard)| if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// Figures of the process; what can't be read is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProcessFigures {
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) virtual_bytes: Option<u64>,
    pub(crate) locked_bytes: Option<u64>,
    pub(crate) threads: Option<u64>,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) open_files: Option<u64>,
    pub(crate) open_files_max: Option<u64>,
}

impl ProcessFigures {
    /// Reads them now.
    pub(crate) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kilobytes = |name| field(&status, name).map(|value| value * 1024);
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Self {
            resident_bytes: kilobytes("VmRSS"),
            virtual_bytes: kilobytes("VmSize"),
            locked_bytes: kilobytes("VmLck"),
            threads: field(&status, "Threads"),
            cpu_seconds: usage.map(|usage| seconds(usage.user_time()) + seconds(usage.system_time())),
            // The directory's own handle is one of them.
            open_files: std::fs::read_dir("/proc/self/fd").ok().map(|names| names.count().saturating_sub(1) as u64),
            open_files_max: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
        }
    }
}

/// The number in a line `Name:   123 kB`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_figures() {
        let figures = ProcessFigures::read();
        assert!(figures.resident_bytes.is_some_and(|bytes| bytes > 4096), "{figures:?}");
        assert!(figures.resident_bytes < figures.virtual_bytes, "{figures:?}");
        assert!(figures.open_files.is_some_and(|count| count >= 3 && Some(count) <= figures.open_files_max), "{figures:?}");
        assert!(
            figures.threads.is_some_and(|count| count >= 1) && figures.cpu_seconds.is_some() && figures.locked_bytes.is_some()
        );
    }
}
