use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use log_format::ids::{Incarnation, NodeId};

use super::super::config::Config;
use super::super::shards::Medium;
use super::super::test_shards::report;
use super::*;

fn text(shards: &[ShardHealth]) -> String {
    let about = About {
        node: NodeId(7),
        incarnation: Incarnation(3),
        medium: Medium { durability: "o_dsync".to_owned(), device: "a \"b\" \\ c".to_owned(), alignment: 512 },
        admin: ([127, 0, 0, 1], 7441).into(),
        config: Config::default(),
        started: Instant::now(),
        started_at: SystemTime::now(),
    };
    render(&about, shards, &ProcessFigures { resident_bytes: Some(4096), cpu_seconds: Some(1.5), ..ProcessFigures::default() })
}

fn two_shards() -> String {
    text(&[
        ShardHealth::Reported(Box::new(report(0, Phase::Serving))),
        ShardHealth::Reported(Box::new(report(1, Phase::Draining))),
    ])
}

#[test]
fn every_sample_belongs_to_the_family_announced_before_it_and_none_is_there_twice() {
    let text = two_shards();
    let (mut families, mut samples, mut current, mut kind) = (BTreeSet::new(), BTreeSet::new(), "", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            current = rest.split(' ').next().unwrap();
            assert!(families.insert(current), "{current} twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, of_kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current);
            kind = of_kind;
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{current}{suffix}")), "{line} under {current}");
            assert!(samples.insert(series), "{series} twice");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(families.len() > 30, "{families:?}");
}

#[test]
fn histograms_are_cumulative_and_in_seconds() {
    let text = two_shards();
    for line in [
        "roost_commit_seconds_bucket{shard=\"1\",le=\"0.00005\"} 0",
        "roost_commit_seconds_bucket{shard=\"1\",le=\"0.0001\"} 1",
        "roost_commit_seconds_bucket{shard=\"1\",le=\"0.0016\"} 2",
        "roost_commit_seconds_bucket{shard=\"1\",le=\"10\"} 2",
        "roost_commit_seconds_bucket{shard=\"1\",le=\"+Inf\"} 3",
        "roost_commit_seconds_sum{shard=\"1\"} 20.00156",
        "roost_commit_seconds_count{shard=\"1\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[test]
fn label_values_are_escaped() {
    assert!(two_shards().contains("device=\"a \\\"b\\\" \\\\ c\""));
}

#[test]
fn refusals_known_to_the_protocol_are_there_from_the_start_unknown_ones_once_counted() {
    let text = two_shards();
    for line in [
        "roost_refusals_total{shard=\"0\",code=\"sealed\"} 5",
        "roost_refusals_total{shard=\"0\",code=\"not_found\"} 0",
        "roost_refusals_total{shard=\"0\",code=\"code_31\"} 6",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    assert!(!text.contains("code_30"));
}

#[test]
fn a_shard_that_does_not_report_has_a_state_and_no_figures() {
    let text = text(&[ShardHealth::Silent, ShardHealth::Ended]);
    assert!(text.contains("roost_shard_state{shard=\"0\",state=\"silent\"} 1\n"));
    assert!(text.contains("roost_shard_state{shard=\"0\",state=\"serving\"} 0\n"));
    assert!(text.contains("roost_shard_state{shard=\"1\",state=\"ended\"} 1\n"));
    assert!(!text.contains("roost_records_appended_total{"));
}
