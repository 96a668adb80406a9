use super::*;
use crate::engine::Verification;
use crate::measure::{Measured, Recorder, ThreadCpu, Window};
use crate::provenance::Provenance;
use crate::run::JobResult;
use serde_json::Value;
use std::time::Duration;

fn result(name: &str, text: &str) -> JobResult {
    let job = crate::job::parse("a.ini", &format!("[{name}]\nruntime=2\n{text}"), &[]).unwrap().remove(0);
    let window = Window::starting_now(Duration::ZERO, Some(Duration::from_secs(2)));
    let mut recorder = Recorder::new(window);
    let ended = window.counts_from + Duration::from_secs(1);
    for microseconds in 1..=1_000 {
        recorder.record(ended - Duration::from_micros(microseconds), ended, 1, 1_000);
    }
    let cpu = |user| ThreadCpu {
        user: Duration::from_millis(user),
        system: Duration::from_millis(500),
        elapsed: Duration::from_secs(2),
    };
    JobResult {
        job,
        target: vec![("address", "127.0.0.1:1".to_owned())],
        measured: Measured::sum(&[recorder], Duration::from_secs(2)),
        threads: vec![cpu(500), cpu(1_000)],
        node: None,
        verification: None,
    }
}

fn parsed(results: &[JobResult]) -> Value {
    serde_json::from_str(&json(&Provenance::read(), results)).unwrap()
}

#[test]
fn the_json_has_fios_names_and_shape() {
    let document = parsed(&[result("one", "bs=1000\ncpus_allowed=1\n"), result("two", "rw=read\nsize=1m\n")]);
    assert_eq!(document["jobs"].as_array().unwrap().len(), 2);
    let job = &document["jobs"][0];
    assert_eq!((&job["jobname"], &job["error"], &job["job options"]["bs"]), (&"one".into(), &0.into(), &"1000".into()));
    assert_eq!((&job["seed"], &job["cpus_allowed"][0], &job["jobfile"]), (&1.into(), &1.into(), &"a.ini".into()));
    let write = &job["write"];
    assert_eq!((&write["iops"], &write["bw_bytes"]), (&500.0.into(), &500_000.into()));
    assert_eq!((&write["total_ios"], &write["io_bytes"], &write["runtime"]), (&1_000.into(), &1_000_000.into(), &2_000.into()));
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() / expected - 1.0).abs() < 0.002;
    let latency = &write["lat_ns"];
    for (value, expected) in [
        (&latency["min"], 1_000.0),
        (&latency["max"], 1_000_000.0),
        (&latency["mean"], 500_500.0),
        (&latency["stddev"], 288_675.0),
        (&latency["percentile"]["50.000000"], 500_000.0),
        (&latency["percentile"]["99.000000"], 990_000.0),
        (&latency["percentile"]["99.990000"], 1_000_000.0),
    ] {
        assert!(near(value, expected), "{value} is not near {expected}");
    }
    assert_eq!(latency["N"], 1_000);
    assert!(job["read"].is_null() && document["jobs"][1]["write"].is_null());
    assert_eq!(document["jobs"][1]["read"]["total_ios"], 1_000);
    assert_eq!((&job["client"]["cores"], &job["client"]["is_saturated"]), (&1.25.into(), &false.into()));
    for name in ["version", "build", "kernel", "cpu", "cores", "command"] {
        assert!(!document["provenance"][name].is_null(), "{name}");
    }
}

#[test]
fn a_failed_verification_is_an_error_of_the_job() {
    let mut result = result("one", "");
    let mut verification = Verification { good: 5, ..Verification::default() };
    verification.missing(3, || "record 6 is not there".to_owned());
    result.verification = Some(verification);
    let text = normal(&Provenance::read(), std::slice::from_ref(&result));
    assert!(text.contains("FAILED: 5 good, 3 missing, 0 wrong; first: record 6 is not there"), "{text}");
    let document = parsed(&[result]);
    assert_eq!((&document["jobs"][0]["error"], &document["jobs"][0]["verify"]["missing"]), (&1.into(), &3.into()));
}

#[test]
fn the_summary_is_six_lines_a_job_and_comes_first() {
    let mut saturated = result("two", "numjobs=64\niodepth=16\n");
    saturated.threads[0].user = Duration::from_millis(1_450);
    let text = normal(&Provenance::read(), &[result("one", "bs=100\n"), saturated]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "one: append, records of 100 B, 1 connection x 1 in flight, 1 extent");
    assert!(lines[1].contains("500 records/s, 0.5 MB/s"), "{}", lines[1]);
    assert!(lines[2].contains("p50 500 us") && lines[2].contains("max 1.00 ms"), "{}", lines[2]);
    assert!(lines[3].contains("1.25 cores") && !lines[3].contains("SATURATED"), "{}", lines[3]);
    assert_eq!(lines[6], "");
    assert!(lines[7].starts_with("two: append") && lines[7].contains("64 connections x 16 in flight, 64 extents"));
    assert!(lines[10].contains("SATURATED"), "{}", lines[10]);
}

#[test]
fn a_distribution_rises_to_the_last_value_in_microseconds() {
    let files = distributions(&[result("a b/c", ""), result("a b/c", "")]);
    assert_eq!(files.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["a_b_c.hgrm", "a_b_c-2.hgrm"]);
    let rows: Vec<Vec<f64>> = files[0]
        .1
        .lines()
        .skip(2)
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(|number| number.parse().unwrap()).collect())
        .collect();
    assert!(rows.len() > 20);
    assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] < pair[1][1] && pair[0][2] <= pair[1][2]));
    let last = rows.last().unwrap();
    assert!((last[0] / 1_000.0 - 1.0).abs() < 0.002, "{last:?}");
    assert_eq!((last[1], last[2]), (1.0, 1_000.0));
    assert!(files[0].1.contains("#[Mean"));
}
