//! The contract of `roostctl` against a real node; `tools/roostctl/tests/` holds what needs a node that misbehaves.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;
use system_tests::{Bound, Node, Roostctl, roostctl_path, scratch, skipped};

const LIMIT: Duration = Duration::from_secs(30);
const MISSING: &str = "00000000-0000-0000-0000-00000000dead";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    std::str::from_utf8(bytes).unwrap().lines().map(json).collect()
}

fn create(node: &Node) -> String {
    Roostctl::text(node, &["extent", "create"]).trim().to_owned()
}

#[test]
fn extents_live_as_the_commands_say_over_a_restart() {
    let _bound = Bound::seconds("extents", 120);
    let scratch = scratch!("extents");
    let data = scratch.path("data");
    let node = Node::start(&data);
    assert_eq!(Roostctl::good(&node, &["extent", "list", "--json"]), b"");
    let id = create(&node);
    let named = "01234567-89ab-cdef-0011-223344556677";
    assert_eq!(Roostctl::text(&node, &["extent", "create", "--id", named]), format!("{named}\n"));
    let again = json(&Roostctl::text(&node, &["--json", "extent", "create", "--id", named]));
    assert_eq!((again["id"].as_str(), again["created"].as_bool()), (Some(named), Some(false)));
    // Of another extent's group, and so perhaps not on the shard that its own id names.
    let grouped = "00000000-0000-0000-0000-0000000000aa";
    Roostctl::text(&node, &["extent", "create", "--id", grouped, "--group", named]);
    let lines = scratch.file("lines", b"a\nbb\nccc\n");
    let lines = lines.to_str().unwrap();
    for extent in [id.as_str(), named, grouped] {
        assert_eq!(Roostctl::text(&node, &["append", extent, "--file", lines]), "1\n2\n3\n");
    }
    let acks = json_lines(&Roostctl::good(&node, &["append", &id, "--file", lines, "--json", "--window", "1"]));
    assert_eq!(acks, [r#"{"line":1,"seq":4}"#, r#"{"line":2,"seq":5}"#, r#"{"line":3,"seq":6}"#].map(json));
    assert_eq!(Roostctl::text(&node, &["extent", "trim", &id, "--to", "4"]), "5\n");
    assert_eq!(Roostctl::text(&node, &["extent", "seal", named]), "3\n");

    let check = |node: &Node| {
        let listed = json_lines(&Roostctl::good(node, &["extent", "list", "--json"]));
        let ids: Vec<&str> = listed.iter().map(|info| info["id"].as_str().unwrap()).collect();
        assert!(ids.is_sorted() && ids.len() == 3, "{ids:?}");
        let info = json(&Roostctl::text(node, &["extent", "describe", &id, "--json"]));
        assert_eq!((&info["first_seq"], &info["last_seq"], &info["records"]), (&5.into(), &6.into(), &2.into()));
        let info = json(&Roostctl::text(node, &["extent", "describe", grouped, "--json"]));
        assert_eq!((&info["group"], &info["state"], &info["records"]), (&named.into(), &"open".into(), &3.into()));
        assert_eq!(json(&Roostctl::text(node, &["extent", "describe", named, "--json"]))["state"], "sealed");
        assert_eq!(Roostctl::text(node, &["read", &id]), "bb\nccc\n");
        assert!(Roostctl::bad(node, &["read", &id, "--from", "4"], 1).contains("trimmed"));
        assert!(Roostctl::bad(node, &["append", named, "--file", lines], 1).contains("sealed"));
        let status = json(&Roostctl::text(node, &["status", "--json"]));
        let sum =
            |name: &str| status["shards"].as_array().unwrap().iter().map(|shard| shard[name].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("extents_open"), sum("extents_sealed"), sum("records")), (2, 1, 8));
    };
    check(&node);
    node.stop(LIMIT);
    let node = Node::start(&data);
    check(&node);
    assert_eq!(Roostctl::text(&node, &["extent", "delete", &id]), format!("deleted {id}\n"));
    for command in [&["extent", "describe", &id][..], &["extent", "delete", &id], &["extent", "seal", &id], &["read", &id]] {
        assert!(Roostctl::bad(&node, command, 1).contains("no such extent"), "{command:?}");
    }
    node.kill();
    let node = Node::start(&data);
    assert!(Roostctl::bad(&node, &["extent", "describe", &id], 1).contains("no such extent"), "a deleted extent stays away");
}

#[test]
fn read_prints_what_is_asked_for() {
    let _bound = Bound::seconds("read", 120);
    let scratch = scratch!("read");
    let node = Node::start(&scratch.path("data"));
    let id = create(&node);
    let lines = scratch.file("lines", b"one\n\ntwo \"quoted\"\n\xff\xfe\nlast\n");
    Roostctl::good(&node, &["append", &id, "--file", lines.to_str().unwrap()]);
    assert_eq!(Roostctl::good(&node, &["read", &id]), b"one\n\ntwo \"quoted\"\n\xff\xfe\nlast\n");
    assert_eq!(Roostctl::good(&node, &["read", &id, "--from", "2", "--limit", "2"]), b"\ntwo \"quoted\"\n");
    assert_eq!(Roostctl::good(&node, &["read", &id, "--from", "6"]), b"");
    let records = json_lines(&Roostctl::good(&node, &["read", &id, "--json"]));
    assert_eq!(records.iter().map(|record| record["seq"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!((&records[1]["data"], &records[2]["data"]), (&"".into(), &"two \"quoted\"".into()));
    assert_eq!((&records[3]["data"], &records[3]["data_base64"]), (&Value::Null, &"//4=".into()));
    assert!(records[0]["appended_at"].as_str().unwrap().ends_with('Z'), "{}", records[0]);

    // A follower prints each record when it comes, and ends with the extent.
    let following = Roostctl::start(&node, &["read", &id, "--follow", "--from", "5", "--json"]);
    assert_eq!(json(&following.lines.recv_timeout(LIMIT).unwrap())["data"], "last");
    for number in 6..10 {
        Roostctl::good(&node, &["append", &id, "--file", lines.to_str().unwrap()]);
        let seqs: Vec<u64> =
            (0..5).map(|_| json(&following.lines.recv_timeout(LIMIT).unwrap())["seq"].as_u64().unwrap()).collect();
        let first = (number - 6) * 5 + 6;
        assert_eq!(seqs, (first..first + 5).collect::<Vec<_>>());
    }
    Roostctl::good(&node, &["extent", "seal", &id]);
    let finished = following.finish(LIMIT);
    assert_eq!((finished.code, finished.lines.len(), finished.errors.as_str()), (Some(0), 0, ""));

    let limited = Roostctl::start(&node, &["read", &id, "--follow", "--limit", "3"]).finish(LIMIT);
    assert_eq!((limited.code, limited.lines.len()), (Some(0), 3));
}

#[test]
fn exit_codes_and_errors_are_those_of_the_contract() {
    let _bound = Bound::seconds("exit codes", 60);
    let scratch = scratch!("codes");
    let node = Node::start(&scratch.path("data"));
    for arguments in [
        &["append", MISSING, "--file", "/dev/null"][..],
        &["read", MISSING],
        &["extent", "trim", MISSING, "--to", "1"],
        &["extent", "create", "--kind", "timer"],
    ] {
        Roostctl::bad(&node, arguments, 1);
    }
    let id = create(&node);
    assert!(Roostctl::bad(&node, &["extent", "trim", &id, "--to", "5"], 1).contains("can't be trimmed"));
    assert!(Roostctl::bad(&node, &["append", &id, "--file", "/no/such/file"], 2).contains("/no/such/file"));
    for arguments in [&["append", "no-id"][..], &["frobnicate"], &["read", &id, "--from", "x"], &[]] {
        assert_eq!(Roostctl::output(&node, arguments).status.code(), Some(2), "{arguments:?}");
    }
    // The admin port is no place for clients, and says so.
    let admin = node.ready_value("admin");
    let output = Roostctl::command(admin, &["status"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("broke the protocol") && errors.contains("admin port"), "{errors}");
    let address = node.address().to_owned();
    node.stop(LIMIT);
    let output = Roostctl::command(&address, &["status"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.starts_with(&format!("error: connect to {address}: ")) && errors.contains("hint: is roostd running"),
        "{errors}"
    );
}

#[test]
fn a_node_that_goes_away_ends_append_and_follow_with_what_was_acked_printed() {
    let _bound = Bound::seconds("goes away", 120);
    let scratch = scratch!("goes-away");
    let data = scratch.path("data");
    for stops in [true, false] {
        let node = Node::start(&data);
        let id = create(&node);
        let mut command = Roostctl::command(node.address(), &["append", &id, "--window", "100"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // Endless input, until nobody takes it.
        let feeding = std::thread::spawn(move || while std::io::Write::write_all(&mut input, b"a line\n").is_ok() {});
        let acks = system_tests::read_lines(child.stdout.take().unwrap());
        let following = Roostctl::start(&node, &["read", &id, "--follow"]);
        for _ in 0..5000 {
            acks.recv_timeout(LIMIT).unwrap();
        }
        if stops {
            node.stop(LIMIT);
        } else {
            node.kill();
        }
        let mut printed = 5000;
        while let Ok(seq) = acks.recv_timeout(LIMIT) {
            printed += 1;
            assert_eq!(seq.parse(), Ok(printed));
        }
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.starts_with(&format!("error: append to {id}: line ")) && errors.contains("\nhint: "), "{errors}");
        feeding.join().unwrap();
        let followed = following.finish(LIMIT);
        assert_eq!(followed.code, Some(1), "{}", followed.errors);
        assert!(followed.errors.contains("\nhint: "), "{}", followed.errors);

        let node = Node::start(&data);
        let there = Roostctl::text(&node, &["read", &id]).lines().count() as u64;
        println!("{printed} printed, {there} there, {} followed", followed.lines.len());
        assert!(there >= printed && there >= followed.lines.len() as u64, "{printed} printed, {there} there");
        if stops {
            assert!(there <= printed + 100, "{printed} printed, {there} there: more than the window");
        }
        node.stop(LIMIT);
    }
}

#[test]
fn a_closed_pipe_ends_read_quietly() {
    let _bound = Bound::seconds("closed pipe", 60);
    let scratch = scratch!("pipe");
    let node = Node::start(&scratch.path("data"));
    let id = create(&node);
    let lines = scratch.file("lines", "0123456789\n".repeat(50_000).as_bytes());
    Roostctl::good(&node, &["append", &id, "--file", lines.to_str().unwrap()]);
    let mut command = Command::new("sh");
    let piped = command.args(["-c", "{ \"$0\" --node \"$1\" read \"$2\"; echo \"$?\" >&2; } | head -1"]);
    let output = piped.arg(roostctl_path()).args([node.address(), &id]).output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"0123456789\n"[..], &b"0\n"[..]));
}

#[test]
fn a_terminal_gets_a_progress_bar_that_leaves_no_trace() {
    let _bound = Bound::seconds("terminal", 60);
    if Command::new("script").arg("--version").output().is_err() {
        return skipped("`script`, which makes a terminal, is not installed (bsdutils)");
    }
    let scratch = scratch!("terminal");
    let node = Node::start(&scratch.path("data"));
    let id = create(&node);
    let text = "a line of some length, so that there is something to show\n".repeat(60_000);
    let lines = scratch.file("lines", text.as_bytes());
    let line = format!(
        "{} --node {} append {id} --file {} >{}",
        roostctl_path().display(),
        node.address(),
        lines.display(),
        scratch.path("acks").display()
    );
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("MiB/") && shown.contains("eta"), "a bar with bytes, speed and time left in {shown:?}");
    assert!(
        shown.ends_with("\u{1b}[2K") || shown.ends_with("\r"),
        "it is wiped out at the end: {:?}",
        &shown[shown.len().saturating_sub(80)..]
    );
    let acks = std::fs::read_to_string(scratch.path("acks")).unwrap();
    assert!(acks.lines().enumerate().all(|(line, seq)| seq.parse() == Ok(line + 1)) && acks.lines().count() == 60_000);
}
