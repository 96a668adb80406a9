//! `roost-perf run` from job file to report, against an in-memory node.
#![allow(clippy::unwrap_used)]

#[path = "../../client/tests/fake/mod.rs"]
mod fake;

use fake::{FakeNode, Reaction};
use log_format::wire::{Kind, Refusal};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of a test's own, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("roost-perf-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(node: &FakeNode, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roost-perf"));
    command.arg("run").args(arguments).arg(format!("--set=global.address={}", node.address));
    command.output().unwrap()
}

fn json(node: &FakeNode, arguments: &[&str]) -> Value {
    let output = run(node, &[arguments, &["--output-format", "json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn failed(output: &Output, code: i32) -> String {
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(errors.starts_with("error: "), "{errors}");
    errors
}

#[test]
fn appends_are_counted_to_the_last_record_and_read_back() {
    let (node, directory) = (FakeNode::start(2), Directory::new("append"));
    let text = "[global]\nbs=100\nsize=200k\nverify\n[deep]\niodepth=64\n[wide]\nstonewall\nnumjobs=7\nextents=20\nthreads=2\n\
                [shared]\nstonewall\nnumjobs=4\niodepth=3\nextents=2\n";
    let document = json(&node, &[&directory.file("a.ini", text)]);
    let jobs = document["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3);
    for job in jobs {
        let (write, records) = (&job["write"], 2_048);
        assert_eq!((&write["total_ios"], &write["io_bytes"]), (&records.into(), &(records * 100).into()), "{job:#}");
        assert_eq!((&write["lat_ns"]["N"], &job["verify"]["good"]), (&records.into(), &records.into()));
        assert_eq!((&job["verify"]["missing"], &job["verify"]["wrong"], &job["error"]), (&0.into(), &0.into(), &0.into()));
        let at = |percentile: &str| write["lat_ns"]["percentile"][percentile].as_u64().unwrap();
        assert!(0 < at("50.000000") && at("50.000000") <= at("99.000000"));
        assert!(job["client"]["cores"].as_f64().unwrap() > 0.0);
    }
    assert_eq!((&jobs[1]["extents"], &jobs[2]["extents"]), (&20.into(), &2.into()));
    assert!(node.state.lock().unwrap().extents.is_empty(), "the extents are removed at the end");
}

#[test]
fn a_job_that_runs_by_time_reports_a_rate_over_that_time() {
    let (node, directory) = (FakeNode::start(1), Directory::new("time"));
    let file = directory.file("a.ini", "[a]\nbs=10\nruntime=300ms\ntime_based\nramp_time=50ms\nnumjobs=2\nunlink=0\n");
    let document = json(&node, &[&file]);
    let write = &document["jobs"][0]["write"];
    assert_eq!(write["runtime"], 300);
    let (records, rate) = (write["total_ios"].as_f64().unwrap(), write["iops"].as_f64().unwrap());
    assert!(records > 0.0 && (rate / (records / 0.3) - 1.0).abs() < 0.01, "{write:#}");
    let appended: usize = node.state.lock().unwrap().extents.values().map(|extent| extent.records.len()).sum();
    assert!(appended as f64 > records, "what the ramp appended does not count");
    assert_eq!(node.state.lock().unwrap().extents.len(), 2, "with unlink=0 the extents stay");
}

#[test]
fn reads_fill_first_and_see_every_record_once() {
    let (node, directory) = (FakeNode::start(2), Directory::new("read"));
    let text = "[a]\nrw=read\nbs=100\nsize=300k\nnumjobs=2\nextents=3\niodepth=2\nread_bytes=10k\nverify\n";
    let document = json(&node, &[&directory.file("a.ini", text)]);
    let job = &document["jobs"][0];
    assert_eq!((&job["read"]["total_ios"], &job["verify"]["good"]), (&3_072.into(), &3_072.into()));
    // 1,024 records in each extent, 102 in a request.
    assert_eq!(job["read"]["requests"], 33);
    assert!(job["write"].is_null());
}

#[test]
fn files_outputs_and_distributions_are_written() {
    let (node, directory) = (FakeNode::start(1), Directory::new("files"));
    let file = directory.file("a.ini", "[one]\nsize=10k\n[two]\nsize=20k\n");
    let (report, distributions) = (directory.path("report.txt"), directory.path("hgrm"));
    let output = run(&node, &[&file, "--output", &report, "--hgrm", &distributions, "--set", "two.iodepth=4"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    let text = directory.text("report.txt");
    assert!(text.starts_with("one: append") && text.contains("\ntwo: append"), "{text}");
    assert!(text.contains("1 connection x 4 in flight") && text.contains("not asked for"), "{text}");
    for name in ["hgrm/one.hgrm", "hgrm/two.hgrm"] {
        assert!(directory.text(name).contains("#[Max"), "{name}");
    }
}

#[test]
fn acked_records_that_can_not_be_read_back_fail_the_run() {
    let (node, directory) = (FakeNode::start(1), Directory::new("lost"));
    let file = directory.file("a.ini", "[a]\nbs=100\nsize=10k\nverify\n");
    // That it is sealed tells the reader that nothing more comes: to a reader every record is lost.
    node.hook(|seen| match seen.kind {
        Kind::Read => Reaction::Refuse(Refusal::Sealed { last: log_format::ids::Seq(0) }),
        _ => Reaction::Serve,
    });
    let output = run(&node, &[&file]);
    let errors = failed(&output, 1);
    assert!(errors.contains("verify job \"a\": 103 records missing, 0 wrong"), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("FAILED: 0 good, 103 missing"), "the report is printed all the same: {text}");
}

#[test]
fn refused_appends_and_a_node_that_is_not_there_fail_the_run() {
    let (node, directory) = (FakeNode::start(1), Directory::new("refused"));
    let file = directory.file("a.ini", "[a]\nsize=100k\nnumjobs=3\n");
    node.hook(|seen| match seen.kind {
        Kind::Append => Reaction::Refuse(Refusal::ReadOnly { why: "the disk is full".to_owned() }),
        _ => Reaction::Serve,
    });
    let errors = failed(&run(&node, &[&file]), 1);
    assert!(errors.contains("the disk is full"), "{errors}");
    let gone = FakeNode::start(1);
    let address = gone.stop();
    let output = Command::new(env!("CARGO_BIN_EXE_roost-perf"))
        .args(["run", &file, &format!("--set=global.address={address}")])
        .output()
        .unwrap();
    let errors = failed(&output, 1);
    assert!(errors.contains("connect") && errors.contains("hint: is roostd running"), "{errors}");
}

#[test]
fn mistakes_in_files_and_on_the_command_line_are_usage_errors() {
    let (node, directory) = (FakeNode::start(1), Directory::new("usage"));
    let bad = directory.file("bad.ini", "[a]\nsize=1m\nblocksize=4k\n");
    let good = directory.file("good.ini", "[a]\nsize=1m\n");
    for (arguments, word) in [
        (vec![&*bad], "bad.ini:3"),
        (vec!["/nonexistent/job.ini"], "read /nonexistent/job.ini"),
        (vec![&*good, "--set", "b.bs=1k"], "no job is called"),
        (vec![&*good, "--set", "a.ioengine=device"], "this version has: node"),
        (vec![&*good, "--set", "nonsense"], "--set"),
        (vec![], "required"),
    ] {
        let errors = failed(&run(&node, &arguments), 2);
        assert!(errors.contains(word), "{arguments:?}: {errors}");
    }
    assert!(node.seen(Kind::Append).is_empty());
}
