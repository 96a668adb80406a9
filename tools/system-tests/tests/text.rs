//! A real text through the command line: in by `roostctl append`, out by `roostctl read`, over restarts and crashes.

#![allow(clippy::unwrap_used)]

use rand::RngExt;
use std::path::Path;
use std::time::Duration;
use system_tests::{Bound, Node, Roostctl, Scratch, scratch, seeded, skipped};

const LINES_MIN: usize = 200_000;
/// How long one pass over the text may take in a debug build on a busy machine.
const PASS: Duration = Duration::from_secs(120);

/// The largest word list that is installed.
fn text() -> Option<(&'static str, Vec<u8>)> {
    let places = ["/usr/share/dict/american-english-insane", "/usr/share/dict/american-english-huge", "/usr/share/dict/words"];
    let found = places.into_iter().find_map(|path| {
        let text = std::fs::read(path).ok()?;
        (count_lines(&text) >= LINES_MIN).then_some((path, text))
    });
    if found.is_none() {
        skipped("no text of 200,000 lines is installed: install wamerican-huge");
    }
    found
}

fn count_lines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

fn create(node: &Node) -> String {
    Roostctl::text(node, &["extent", "create"]).trim().to_owned()
}

/// Fails without printing megabytes.
fn assert_same(what: &str, actual: &[u8], expected: &[u8]) {
    let place = actual.iter().zip(expected).position(|(actual, expected)| actual != expected);
    assert!(actual == expected, "{what}: {} bytes, {} expected, first difference at {place:?}", actual.len(), expected.len());
}

fn start(scratch: &Scratch) -> Node {
    Node::start(&scratch.path("data"))
}

#[test]
fn a_text_comes_back_as_it_was_before_and_after_a_restart() {
    let Some((path, text)) = text() else { return };
    let _bound = Bound::seconds("text", 300);
    let scratch = scratch!("text");
    let node = start(&scratch);
    let id = create(&node);
    let acked = Roostctl::start(&node, &["append", &id, "--file", path]).finish(PASS);
    assert_eq!((acked.code, acked.errors.as_str()), (Some(0), ""));
    let seqs: Vec<u64> = acked.lines.iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!(seqs.len(), count_lines(&text));
    assert!(seqs.iter().copied().eq(1..=seqs.len() as u64), "the seqs are 1, 2, 3, …");
    assert_same("before the restart", &Roostctl::good(&node, &["read", &id]), &text);
    node.stop(Duration::from_secs(20));

    let node = start(&scratch);
    assert_same("after the restart", &Roostctl::good(&node, &["read", &id]), &text);
    let tail = Roostctl::good(&node, &["read", &id, "--from", &(seqs.len() - 1).to_string()]);
    assert!(text.ends_with(&tail) && count_lines(&tail) == 2, "{tail:?}");
}

#[test]
fn what_roostctl_printed_before_a_sigkill_is_there_and_what_is_there_is_a_prefix() {
    let Some((path, text)) = text() else { return };
    let _bound = Bound::seconds("text, killed", 300);
    let mut random = seeded("text");
    let scratch = scratch!("text-killed");
    let lines = count_lines(&text);
    let mut node = start(&scratch);
    for round in 0..4 {
        let id = create(&node);
        let kill_at = random.random_range(1..lines);
        let appending = Roostctl::start(&node, &["append", &id, "--file", path]);
        for _ in 0..kill_at {
            appending.lines.recv_timeout(PASS).unwrap();
        }
        node.kill();
        let rest = appending.finish(PASS);
        let acked = kill_at + rest.lines.len();
        if acked < lines {
            assert_eq!(rest.code, Some(1), "{}", rest.errors);
            assert!(rest.errors.starts_with("error: append to ") && rest.errors.contains("\nhint: "), "{}", rest.errors);
        }
        if let Some(last) = rest.lines.last() {
            assert_eq!(last.parse::<usize>().unwrap(), acked);
        }
        node = start(&scratch);
        let there = Roostctl::good(&node, &["read", &id]);
        assert_same("a prefix", &there, &text[..there.len().min(text.len())]);
        let found = count_lines(&there);
        println!("round {round}: {acked} acked, {found} there, of {lines}");
        assert!(found >= acked, "lost: {acked} lines were acked, {found} are there");
    }
}

#[test]
fn the_input_may_be_a_pipe_and_any_bytes() {
    let _bound = Bound::seconds("any bytes", 60);
    let scratch = scratch!("bytes");
    let node = start(&scratch);
    let id = create(&node);
    let bytes: Vec<u8> = [&b"\r\n\n\x00\xff\xfe\n"[..], &vec![b'x'; 1 << 20], b"\nlast without its end"].concat();
    let file = scratch.file("bytes", &bytes);
    let mut piped = Roostctl::command(node.address(), &["append", &id]);
    let output = piped.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n2\n3\n4\n5\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_same("the records", &Roostctl::good(&node, &["read", &id]), &[&bytes[..], b"\n"].concat());
    assert!(!Path::new("roost-data").exists(), "the node keeps to its directory");
}
