//! The report for programs: one document, with fio's names where they mean the same.

use crate::job::Workload;
use crate::measure::{Measured, ThreadCpu};
use crate::provenance::Provenance;
use crate::run::JobResult;
use serde_json::{Map, Value, json};

/// Those of fio, and 99.999.
const PERCENTILES: [f64; 18] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.999];

/// The whole document.
pub(crate) fn json(provenance: &Provenance, results: &[JobResult]) -> String {
    let document = json!({
        "roost-perf version": provenance.version,
        "timestamp": provenance.started_at_seconds,
        "provenance": provenance.to_json(),
        "jobs": results.iter().map(job).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn job(result: &JobResult) -> Value {
    let JobResult { job, measured, threads, node, verification, target } = result;
    let options: Map<String, Value> = job.given.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let target: Map<String, Value> = target.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let direction = match job.workload {
        Workload::Append => "write",
        Workload::Read => "read",
    };
    json!({
        "jobname": job.name,
        "jobfile": job.file,
        "error": i32::from(verification.as_ref().is_some_and(|verification| !verification.is_good())),
        "job options": options,
        "record_bytes": job.record_bytes,
        "connections": job.connections,
        "iodepth": job.depth,
        "extents": job.extents,
        "seed": job.seed,
        "cpus_allowed": job.cores,
        "job_runtime": measured.elapsed.as_millis() as u64,
        direction: io(measured),
        "client": client(threads, measured),
        "node": node.as_ref().map(|delta| delta.to_json()),
        "verify": verification.as_ref().map(|seen| json!({
            "good": seen.good, "missing": seen.missing, "wrong": seen.wrong, "first_problem": seen.first_problem,
        })),
        "target": target,
    })
}

/// fio's object of one direction.
fn io(measured: &Measured) -> Value {
    let latency = &measured.latency_ns;
    let percentiles: Map<String, Value> = PERCENTILES
        .iter()
        .filter_map(|percentile| Some((format!("{percentile:.6}"), json!(measured.percentile_ns(*percentile)?))))
        .collect();
    json!({
        "io_bytes": measured.bytes,
        "io_kbytes": measured.bytes / 1024,
        "bw_bytes": measured.bytes_per_second().round() as u64,
        "bw": (measured.bytes_per_second() / 1024.0).round() as u64,
        "iops": measured.records_per_second(),
        "runtime": measured.elapsed.as_millis() as u64,
        "total_ios": measured.records,
        "requests": latency.len(),
        "lat_ns": {
            "min": latency.min(),
            "max": latency.max(),
            "mean": latency.mean(),
            "stddev": latency.stdev(),
            "N": latency.len(),
            "percentile": percentiles,
        },
    })
}

fn client(threads: &[ThreadCpu], measured: &Measured) -> Value {
    let user: f64 = threads.iter().map(|cpu| cpu.user.as_secs_f64()).sum();
    let system: f64 = threads.iter().map(|cpu| cpu.system.as_secs_f64()).sum();
    json!({
        "threads": threads.len(),
        "cores": threads.iter().map(ThreadCpu::cores).sum::<f64>(),
        "user_seconds": user,
        "system_seconds": system,
        "ns_per_record": (user + system) * 1e9 / measured.records as f64,
        "is_saturated": threads.iter().any(ThreadCpu::is_saturated),
    })
}
