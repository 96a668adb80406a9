//! A job's latencies as HdrHistogram's percentile distribution, which its plotters read. Values are microseconds.

use crate::run::JobResult;
use hdrhistogram::Histogram;
use std::fmt::Write;

/// Steps for each halving of the distance to 100 %, as HdrHistogram's own writers take.
const STEPS_PER_HALF: u32 = 5;
const NS_PER_US: f64 = 1_000.0;

/// A file's name and text for each job. Jobs of one name get numbers.
pub(crate) fn distributions(results: &[JobResult]) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = Vec::new();
    for result in results {
        let stem: String =
            result.job.name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
        let mut name = format!("{stem}.hgrm");
        let mut number = 2;
        while files.iter().any(|(taken, _)| *taken == name) {
            name = format!("{stem}-{number}.hgrm");
            number += 1;
        }
        files.push((name, distribution(&result.measured.latency_ns)));
    }
    files
}

fn distribution(latency_ns: &Histogram<u64>) -> String {
    let mut text = format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    write_rows(latency_ns, &mut text).expect("writing to a string can't fail");
    text
}

fn write_rows(latency_ns: &Histogram<u64>, text: &mut String) -> std::fmt::Result {
    let mut seen = 0;
    for step in latency_ns.iter_quantiles(STEPS_PER_HALF) {
        seen += step.count_since_last_iteration();
        let (value, quantile) = (step.value_iterated_to() as f64 / NS_PER_US, step.quantile_iterated_to());
        write!(text, "{value:>12.3} {quantile:>14.12} {seen:>10}")?;
        match quantile < 1.0 {
            true => writeln!(text, " {:>14.2}", 1.0 / (1.0 - quantile))?,
            false => writeln!(text)?,
        }
    }
    let scaled = |value: f64| value / NS_PER_US;
    let (mean, deviation, most) = (scaled(latency_ns.mean()), scaled(latency_ns.stdev()), scaled(latency_ns.max() as f64));
    writeln!(text, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]")?;
    writeln!(text, "#[Max     = {most:>12.3}, Total count    = {:>12}]", latency_ns.len())?;
    let (buckets, halves) = (latency_ns.buckets(), latency_ns.distinct_values());
    writeln!(text, "#[Buckets = {buckets:>12}, SubBuckets     = {halves:>12}]")
}
