//! The command-line contract of `roostctl`, against an in-memory node.
#![allow(clippy::unwrap_used)]

#[path = "../../../client/tests/fake/mod.rs"]
mod fake;

use fake::{FakeNode, Reaction};
use log_format::ids::{ExtentId, GroupId};
use log_format::wire::{Kind, Refusal};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const ID: &str = "00000000-0000-0000-0000-000000000007";
const EXTENT: ExtentId = ExtentId(7);

fn roostctl(node: &FakeNode) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roostctl"));
    command.args(["--node", &node.address]).stdin(Stdio::null()).env_remove("ROOST_NODE");
    command
}

fn run(node: &FakeNode, arguments: &[&str]) -> Output {
    roostctl(node).args(arguments).output().unwrap()
}

/// Runs it, which must succeed, and gives its stdout.
fn good(node: &FakeNode, arguments: &[&str]) -> String {
    let output = run(node, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

/// Runs it, which must fail with this code, and gives its stderr.
fn bad(node: &FakeNode, arguments: &[&str], code: i32) -> String {
    let output = run(node, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(errors.starts_with("error: "), "{errors}");
    errors
}

fn has_hint(errors: &str) -> bool {
    errors.lines().any(|line| line.starts_with("hint: "))
}

fn node_with_extent() -> FakeNode {
    let node = FakeNode::start(2);
    assert_eq!(good(&node, &["extent", "create", "--id", ID]), format!("{ID}\n"));
    node
}

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("roostctl-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap()
}

#[test]
fn extents_are_made_listed_described_sealed_trimmed_and_deleted() {
    let node = node_with_extent();
    let random = good(&node, &["extent", "create"]);
    assert!(random.trim().parse::<ExtentId>().is_ok());
    let made = json(&good(&node, &["--json", "extent", "create", "--id", ID]));
    assert_eq!(made, serde_json::json!({"id": ID, "group": ID, "created": false}));
    let group = "00000000-0000-0000-0000-0000000000aa";
    good(&node, &["extent", "create", "--group", group]);
    assert!(node.state.lock().unwrap().extents.values().any(|extent| extent.group == GroupId(0xaa)));

    let file = TempFile::new("extents", b"a\nbb\nccc\n");
    good(&node, &["append", ID, "--file", file.path()]);
    let list = good(&node, &["extent", "list"]);
    let mut lines = list.lines();
    assert_eq!(lines.next().unwrap().split_whitespace().next(), Some("id"));
    assert_eq!(lines.next().unwrap().split_whitespace().collect::<Vec<_>>()[..3], [ID, "sequence", "open"]);
    assert_eq!(lines.count(), 2);
    let listed: Vec<_> = good(&node, &["extent", "list", "--json"]).lines().map(json).collect();
    assert_eq!((listed.len(), &listed[0]["id"], &listed[0]["records"]), (3, &ID.into(), &3.into()));

    assert_eq!(good(&node, &["extent", "trim", ID, "--to", "1"]), "2\n");
    let info = json(&good(&node, &["extent", "describe", ID, "--json"]));
    assert_eq!(
        (&info["first_seq"], &info["last_seq"], &info["records"], &info["payload_bytes"]),
        (&2.into(), &3.into(), &2.into(), &5.into())
    );
    assert!(good(&node, &["extent", "describe", ID]).contains("payload bytes  5\n"));
    assert_eq!(good(&node, &["extent", "seal", ID]), "3\n");
    assert_eq!(json(&good(&node, &["extent", "describe", ID, "--json"]))["state"], "sealed");
    assert!(has_hint(&bad(&node, &["append", ID, "--file", file.path()], 1)));
    assert_eq!(good(&node, &["extent", "delete", ID]), format!("deleted {ID}\n"));
    let errors = bad(&node, &["extent", "describe", ID], 1);
    assert!(errors.starts_with(&format!("error: describe extent {ID}: no such extent")) && has_hint(&errors), "{errors}");
    assert!(bad(&node, &["extent", "create", "--kind", "timer"], 1).contains("not supported"));
}

#[test]
fn status_sums_up_each_shard() {
    let node = node_with_extent();
    let file = TempFile::new("status", b"12345\n\n");
    good(&node, &["append", ID, "--file", file.path()]);
    let status = json(&good(&node, &["status", "--json"]));
    let shards = status["shards"].as_array().unwrap();
    assert_eq!((shards.len(), &status["software"]), (2, &"fake node".into()));
    let sum = |field: &str| shards.iter().map(|shard| shard[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("extents_open"), sum("records"), sum("payload_bytes")), (1, 2, 5));
    assert!(good(&node, &["status"]).starts_with("node 00000000-0000-0000-0000-00000000fa4e (fake node)"));
}

/// Lines of any bytes, empty ones, very long ones, and none at the end.
#[test]
fn a_file_comes_back_as_it_went() {
    let node = node_with_extent();
    let mut bytes = b"text\n\n\xff\xfe\x00binary\r\n".to_vec();
    for number in 0..20_000u32 {
        bytes.extend_from_slice(format!("line {number} {}\n", "x".repeat(number as usize % 97)).as_bytes());
    }
    bytes.extend_from_slice(&vec![b'l'; 700_000]);
    bytes.extend_from_slice(b"\n\n\nno newline at the end");
    let file = TempFile::new("round-trip", &bytes);
    let seqs = good(&node, &["append", ID, "--file", file.path(), "--window", "100"]);
    let count = bytes.split(|&byte| byte == b'\n').count();
    assert!(seqs.lines().map(|line| line.parse::<usize>().unwrap()).eq(1..=count));
    let output = run(&node, &["read", ID]);
    assert_eq!(output.status.code(), Some(0));
    bytes.push(b'\n');
    assert!(output.stdout == bytes, "read gives what append took, and ends its last line");
    assert!(node.seen(Kind::Append).len() < count / 10, "records share requests");
}

#[test]
fn nothing_to_append_is_no_error() {
    let node = node_with_extent();
    let file = TempFile::new("empty", b"");
    assert_eq!(good(&node, &["append", ID, "--file", file.path()]), "");
    assert_eq!(good(&node, &["append", ID]), "");
    assert_eq!(good(&node, &["read", ID]), "");
}

#[test]
fn each_line_of_a_pipe_is_appended_and_its_seq_shown_at_once() {
    let node = node_with_extent();
    let mut child = roostctl(&node).args(["append", ID, "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for number in 1..=5u64 {
        writeln!(input, "line {number}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{{\"line\":{number},\"seq\":{number}}}\n"));
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn when_the_node_goes_away_exactly_what_was_acked_is_printed() {
    let node = node_with_extent();
    let lines: String = (0..5_000).map(|number| format!("line {number}\n")).collect();
    let file = TempFile::new("cut", lines.as_bytes());
    let mut records = 0;
    node.hook(move |seen| {
        if seen.kind != Kind::Append {
            return Reaction::Serve;
        }
        records += seen.records;
        if records < 1_000 { Reaction::Serve } else { Reaction::ServeAndCut }
    });
    let output = run(&node, &["append", ID, "--file", file.path(), "--window", "100"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.starts_with(&format!("error: append to {ID}: line ")) && has_hint(&errors), "{errors}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let acked = printed.lines().count();
    assert!(printed.lines().map(|line| line.parse::<usize>().unwrap()).eq(1..=acked));
    // The request that was cut off was done and not acked; nothing was sent behind it, on any connection.
    let unacked = node.seen(Kind::Append).last().unwrap().records;
    assert_eq!(node.records(EXTENT).len(), acked + unacked);
    assert!(errors.contains(&format!("line {}:", acked + 1)), "{errors}");
}

#[test]
fn a_line_that_is_refused_stops_it_and_the_others_in_flight_are_printed() {
    let node = node_with_extent();
    let mut bytes = b"one\ntwo\n".to_vec();
    bytes.extend_from_slice(&vec![b'x'; (1 << 20) + 1]);
    bytes.extend_from_slice(b"\nfour\n");
    let file = TempFile::new("large", &bytes);
    let output = run(&node, &["append", ID, "--file", file.path()]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"1\n2\n"[..]));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("line 3: too large: the limit is 1048576 bytes") && has_hint(&errors), "{errors}");
}

#[test]
fn read_takes_a_range_and_json_tells_text_from_bytes() {
    let node = node_with_extent();
    let file = TempFile::new("range", b"one\ntwo\n\xff\xfe\nfour \"quoted\"\nfive\n");
    good(&node, &["append", ID, "--file", file.path()]);
    assert_eq!(good(&node, &["read", ID, "--from", "4"]), "four \"quoted\"\nfive\n");
    assert_eq!(good(&node, &["read", ID, "--limit", "2"]), "one\ntwo\n");
    assert_eq!(good(&node, &["read", ID, "--limit", "0"]), "");
    assert_eq!(good(&node, &["read", ID, "--from", "9"]), "");
    let output = good(&node, &["read", ID, "--json", "--from", "2", "--limit", "3"]);
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines[0], r#"{"seq":2,"appended_at":"1970-01-01T00:00:02.000000000Z","data":"two"}"#);
    assert_eq!(lines[1], r#"{"seq":3,"appended_at":"1970-01-01T00:00:03.000000000Z","data_base64":"//4="}"#);
    assert_eq!(json(lines[2])["data"], "four \"quoted\"");
    // Trimmed: by default it starts with what is left, asked for what is gone it says so.
    good(&node, &["extent", "trim", ID, "--to", "3"]);
    assert_eq!(good(&node, &["read", ID, "--limit", "1"]), "four \"quoted\"\n");
    let errors = bad(&node, &["read", ID, "--from", "1"], 1);
    assert!(errors.contains("the first record that can be read is 4") && has_hint(&errors), "{errors}");
}

#[test]
fn following_shows_each_record_at_once_and_ends_with_the_seal() {
    let node = node_with_extent();
    let mut child = roostctl(&node).args(["read", ID, "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for number in 0..3 {
        let file = TempFile::new(&format!("follow-{number}"), format!("record {number}\n").as_bytes());
        good(&node, &["append", ID, "--file", file.path()]);
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("record {number}\n"));
    }
    good(&node, &["extent", "seal", ID]);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("", Some(0)));
}

#[test]
fn a_reader_that_closes_stdout_ends_it_quietly() {
    let node = node_with_extent();
    let file = TempFile::new("pipe", "a line that is read by nobody\n".repeat(50_000).as_bytes());
    good(&node, &["append", ID, "--file", file.path()]);
    let mut child = roostctl(&node).args(["read", ID]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{}", String::from_utf8_lossy(&output.stderr));
    // An append whose seqs nobody reads has not done what it was asked to.
    let mut child = roostctl(&node)
        .args(["append", ID, "--file", file.path()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: write to stdout: "));
}

#[test]
fn usage_and_unreadable_input_exit_2_and_failures_exit_1_with_a_hint() {
    let node = node_with_extent();
    for arguments in [
        &["extent", "describe", "not-a-uuid"][..],
        &["extent", "trim", ID, "--to", "0"],
        &["extent", "trim", ID],
        &["read", ID, "--from", "x"],
        &["append", ID, "--window", "0"],
        &["--node", "nowhere", "status"],
        &["unheard-of"],
    ] {
        assert_eq!(run(&node, arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert!(has_hint(&bad(&node, &["append", ID, "--file", "/no/such/file"], 2)));
    assert!(has_hint(&bad(&node, &["append", ID, "--file", env!("CARGO_TARGET_TMPDIR")], 2)));
    let unknown = "00000000-0000-0000-0000-000000000008";
    assert!(has_hint(&bad(&node, &["read", unknown], 1)));
    assert!(has_hint(&bad(&node, &["append", unknown], 1)));
    node.hook(|_| Reaction::Refuse(Refusal::ReadOnly { why: "the disk is full".to_owned() }));
    assert!(bad(&node, &["status"], 1).contains("read-only: the disk is full"));
    let address = node.stop().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_roostctl")).args(["--node", &address, "status"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.starts_with(&format!("error: connect to {address}: ")) && has_hint(&errors), "{errors}");
}

#[test]
fn version_help_and_completions() {
    let node = FakeNode::start(1);
    assert_eq!(good(&node, &["--version"]), format!("roostctl {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish"] {
        assert!(good(&node, &["completions", shell]).contains("roostctl"));
    }
    let help = good(&node, &["--help"]);
    for command in ["status", "extent", "append", "read", "completions"] {
        assert!(help.contains(command), "{help}");
    }
    assert_eq!(node.state.lock().unwrap().connections, 0);
}
