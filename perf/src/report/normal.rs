//! The report for people: six lines a job, then the percentiles of each, then where the figures come from.

use super::numbers::{bytes, count, grouped, time};
use crate::job::{Job, Workload};
use crate::measure::ThreadCpu;
use crate::provenance::Provenance;
use crate::run::JobResult;
use std::fmt::Write;

const PERCENTILES: [f64; 12] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// The whole report.
pub(crate) fn normal(provenance: &Provenance, results: &[JobResult]) -> String {
    let mut text = String::new();
    for result in results {
        summary(result, &mut text).expect("writing to a string can't fail");
        text.push('\n');
    }
    for result in results {
        percentiles(result, &mut text).expect("writing to a string can't fail");
    }
    footer(provenance, results, &mut text).expect("writing to a string can't fail");
    text
}

fn summary(result: &JobResult, text: &mut String) -> std::fmt::Result {
    let JobResult { job, measured, .. } = result;
    writeln!(text, "{}: {}", job.name, load(job))?;
    let (rate, megabytes) = (measured.records_per_second().round() as u64, measured.bytes_per_second() / 1e6);
    let (records, seconds) = (grouped(measured.records), measured.elapsed.as_secs_f64());
    writeln!(text, "  rate     {} records/s, {megabytes:.1} MB/s ({records} records in {seconds:.2} s)", grouped(rate))?;
    let at = |percentile| measured.percentile_ns(percentile).map_or("-".to_owned(), |ns| time(ns as f64));
    let (p50, p99, p999, most) = (at(50.0), at(99.0), at(99.9), at(100.0));
    let of = if job.workload == Workload::Read { " (of requests)" } else { "" };
    writeln!(text, "  latency  p50 {p50}, p99 {p99}, p99.9 {p999}, max {most}{of}")?;
    writeln!(text, "  client   {}", client(result))?;
    writeln!(text, "  node     {}", node(result))?;
    writeln!(text, "  verify   {}", verify(result))
}

fn load(job: &Job) -> String {
    let (connections, extents) = (count(job.connections as u64, "connection"), count(job.extents as u64, "extent"));
    let (records, depth) = (bytes(job.record_bytes as f64), grouped(job.depth as u64));
    match job.workload {
        Workload::Append => format!("append, records of {records}, {connections} x {depth} in flight, {extents}"),
        Workload::Read => {
            let request = bytes(f64::from(job.read_bytes));
            format!("read, records of {records}, {connections} x {depth} requests of up to {request} in flight, {extents}")
        }
    }
}

/// The client's CPU: what bounds the rate if it is saturated.
fn client(result: &JobResult) -> String {
    let cores: f64 = result.threads.iter().map(ThreadCpu::cores).sum();
    let seconds: f64 = result.threads.iter().map(|cpu| (cpu.user + cpu.system).as_secs_f64()).sum();
    let each = time(seconds * 1e9 / result.measured.records as f64);
    let threads = count(result.threads.len() as u64, "load thread");
    let flag = if result.threads.iter().any(ThreadCpu::is_saturated) {
        "; SATURATED: the client, not the node, may bound the rate"
    } else {
        ""
    };
    format!("{cores:.2} cores of {threads}, {each} a record{flag}")
}

fn node(result: &JobResult) -> String {
    let Some(delta) = &result.node else { return "not asked: no admin address was given".to_owned() };
    let mut parts = Vec::new();
    let seconds = result.measured.elapsed.as_secs_f64();
    if let Some((records, size)) = delta.records_per_commit().zip(delta.bytes_per_commit()) {
        let commits = grouped((delta.commits() as f64 / seconds).round() as u64);
        parts.push(format!("{commits} commits/s of {records:.1} records and {}", bytes(size)));
    }
    if let Some(write) = delta.device_write_ns_mean() {
        parts.push(format!("write {}", time(write)));
    }
    if let Some(ratio) = delta.device_bytes_per_payload_byte() {
        let prepare = delta.prepare_bytes_per_payload_byte().unwrap_or(0.0);
        parts.push(format!("{ratio:.3} device bytes a payload byte (+ {prepare:.3} to prepare)"));
    }
    if delta.device_read_bytes() > 0 {
        parts.push(format!("{}/s read from the device", bytes(delta.device_read_bytes() as f64 / seconds)));
    }
    if let Some(cpu) = delta.cpu_seconds() {
        parts.push(format!("{:.2} cores", cpu / seconds));
    }
    parts.join("; ")
}

fn verify(result: &JobResult) -> String {
    match &result.verification {
        None => "not asked for (verify=1)".to_owned(),
        Some(verification) if verification.is_good() => {
            format!("{} records read back, all as they were sent", grouped(verification.good))
        }
        Some(verification) => format!(
            "FAILED: {} good, {} missing, {} wrong; first: {}",
            grouped(verification.good),
            grouped(verification.missing),
            grouped(verification.wrong),
            verification.first_problem.as_deref().unwrap_or_default()
        ),
    }
}

fn percentiles(result: &JobResult, text: &mut String) -> std::fmt::Result {
    let latency = &result.measured.latency_ns;
    let (least, mean, deviation) = (time(latency.min() as f64), time(latency.mean()), time(latency.stdev()));
    writeln!(text, "{} latency: min {least}, mean {mean}, stddev {deviation}, n {}", result.job.name, grouped(latency.len()))?;
    for row in PERCENTILES.chunks(4) {
        for percentile in row {
            let value = result.measured.percentile_ns(*percentile).unwrap_or(0) as f64;
            write!(text, "  {:>8}", format!("p{percentile}"))?;
            write!(text, " {:>10}", time(value))?;
        }
        text.push('\n');
    }
    Ok(())
}

fn footer(provenance: &Provenance, results: &[JobResult], text: &mut String) -> std::fmt::Result {
    let build = if provenance.is_debug_build { "DEBUG BUILD: these figures say nothing about speed, " } else { "" };
    let commit = provenance.commit.unwrap_or("unknown");
    writeln!(text, "{build}roost-perf {} (commit {commit})", provenance.version)?;
    writeln!(text, "on Linux {}, {}, {}", provenance.kernel, provenance.cpu, count(provenance.cores as u64, "core"))?;
    for result in results {
        let cores: Vec<String> = result.job.cores.iter().map(ToString::to_string).collect();
        let pinned = if cores.is_empty() { "not pinned".to_owned() } else { format!("pinned to {}", cores.join(",")) };
        let target: Vec<String> = result.target.iter().map(|(name, value)| format!("{name} {value}")).collect();
        writeln!(text, "{}: {}, load {pinned}, seed {}", result.job.name, target.join(", "), result.job.seed)?;
    }
    Ok(())
}
