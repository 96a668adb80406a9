//! Rules on the text of Rust sources. Comments and strings do not count, nor does test code, where a rule is about the data path.

use super::SourceFile;

/// The longest file, without its tests.
const LINES_MAX: usize = 600;
/// How far above an `unsafe` its reason may stand.
const SAFETY_LINES: usize = 8;

/// Files that the rules about the engine hold for: what runs in simulation must take time, files, threads and chance from the seam.
fn is_engine(path: &str) -> bool {
    let inside = ["log-format/src/", "replicator/src/", "storage-node/src/"].iter().any(|prefix| path.starts_with(prefix));
    inside && !is_daemon(path) && !is_generated(path)
}

fn is_daemon(path: &str) -> bool {
    path == "storage-node/src/main.rs" || path.starts_with("storage-node/src/daemon/")
}

fn is_generated(path: &str) -> bool {
    path.starts_with("log-format/src/generated/")
}

fn is_test(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name == "tests.rs"
        || name.starts_with("test_")
        || path.split('/').any(|part| part == "tests" || part == "benches" || part == "fuzz")
}

/// (text, where it is forbidden, why).
type Forbidden = (&'static str, fn(&str) -> bool, &'static str);

const FORBIDDEN: &[Forbidden] = &[
    (
        "glommio",
        |path| {
            !path.starts_with("storage-node/io/")
                && path != "storage-node/src/daemon/shards.rs"
                && !path.starts_with("tools/xtask/")
        },
        "glommio stays behind node-io; only the daemon's thread start may name its backend",
    ),
    ("unsafe", |path| !path.starts_with("storage-node/io/") && !is_generated(path), "unsafe code lives in storage-node/io only"),
    ("std::fs", is_engine, "files come from the runtime"),
    ("std::thread", is_engine, "tasks come from the runtime"),
    ("thread::spawn", is_engine, "tasks come from the runtime"),
    ("Instant", is_engine, "time comes from the runtime"),
    ("SystemTime", is_engine, "time comes from the runtime"),
    ("std::env", is_engine, "settings come as options"),
    ("TcpStream", is_engine, "connections come from the runtime"),
    ("TcpListener", is_engine, "connections come from the runtime"),
    ("tokio::time", is_engine, "time comes from the runtime"),
    ("tokio::spawn", is_engine, "tasks come from the runtime"),
    ("tokio::task", is_engine, "tasks come from the runtime"),
    ("tokio::net", is_engine, "connections come from the runtime"),
    ("tokio::fs", is_engine, "files come from the runtime"),
    ("rand::", is_engine, "randomness comes from the runtime"),
    ("HashMap", is_engine, "the iteration order of std's maps is random; use a BTreeMap or a map of ordered keys"),
    ("HashSet", is_engine, "the iteration order of std's sets is random; use a BTreeSet"),
];

/// What breaks the rules in one file.
pub(super) fn check(file: &SourceFile) -> Vec<String> {
    let path = file.path.as_str();
    let lines: Vec<&str> = file.text.lines().collect();
    let product = if is_test(path) { 0 } else { product_lines(&lines) };
    let mut findings = Vec::new();
    let mut report = |index: usize, what: &str| findings.push(format!("{path}:{}: {what}", index + 1));
    for (index, line) in lines[..product].iter().enumerate() {
        let code = code_of(line);
        for (word, forbidden, why) in FORBIDDEN {
            if forbidden(path) && has_word(&code, word) {
                report(index, &format!("`{word}`: {why}"));
            }
        }
        if is_engine(path) && has_word(&code, "select!") && !lines[index..].iter().take(2).any(|line| line.contains("biased")) {
            report(index, "a select without `biased` is random, which would break \"same seed, same trace\"");
        }
        if path.starts_with("storage-node/io/") && has_word(&code, "unsafe") && !has_reason(&lines, index) {
            report(index, "an `unsafe` without a `// SAFETY:` above it");
        }
    }
    for (index, line) in lines.iter().enumerate() {
        // Written so that this file passes its own rule.
        if !is_generated(path)
            && [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")].iter().any(|mark| has_word(line, mark))
        {
            report(index, "unfinished work: finish it, or file it");
        }
    }
    if product > LINES_MAX && !is_generated(path) {
        findings.push(format!("{path}: {product} lines without its tests; at most {LINES_MAX}, one job a file"));
    }
    findings
}

/// How many lines come before the file's own test module.
fn product_lines(lines: &[&str]) -> usize {
    let test_module = |pair: &[&str]| pair[0].trim() == "#[cfg(test)]" && pair[1].trim_start().starts_with("mod tests");
    lines.windows(2).position(test_module).unwrap_or(lines.len())
}

/// The line without strings and comments. A raw string over several lines is taken for code: none of the rules' words belongs there either.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let mut characters = line.chars().peekable();
    let mut in_string = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => drop(characters.next()),
            '"' => in_string = !in_string,
            '\'' if !in_string && characters.peek() == Some(&'"') => drop(characters.next()),
            '/' if !in_string && characters.peek() == Some(&'/') => break,
            _ if in_string => {}
            _ => code.push(character),
        }
    }
    code
}

/// Whether the word stands in the text, not as a part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(word).any(|(place, _)| {
        let before = text[..place].chars().next_back();
        let after = text[place + word.len()..].chars().next();
        let open_end = word.ends_with(|character: char| !part(character));
        !before.is_some_and(part) && (open_end || !after.is_some_and(part))
    })
}

fn has_reason(lines: &[&str], index: usize) -> bool {
    lines[index.saturating_sub(SAFETY_LINES)..=index].iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&SourceFile { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn each_rule_finds_what_breaks_it() {
        for (path, text) in [
            ("storage-node/src/commit.rs", "use glommio::Task;"),
            ("client/src/lib.rs", "fn f() { unsafe { g() } }"),
            ("storage-node/src/commit.rs", "let now = std::time::Instant::now();"),
            ("replicator/src/group.rs", "use std::collections::{BTreeMap, HashMap};"),
            ("storage-node/src/read.rs", "tokio::select! {\n    _ = a => {}\n}"),
            ("storage-node/io/src/glommio.rs", "let x = unsafe { f() };"),
            ("perf/src/main.rs", concat!("// TO", "DO: later")),
            ("log-format/src/block.rs", "let x = rand::random();"),
        ] {
            assert_eq!(findings(path, text).len(), 1, "{path}: {text}");
        }
        assert_eq!(findings("client/src/lib.rs", &"\n".repeat(LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn what_is_allowed_is_not_found() {
        for (path, text) in [
            ("storage-node/src/daemon/shards.rs", "use node_io::glommio::spawn;"),
            ("storage-node/src/commit.rs", "// glommio and Instant in a comment\nlet x = \"std::fs unsafe\"; // Instant"),
            (
                "storage-node/src/commit.rs",
                "let c = '\"'; let unsafe_name = InstantLike;\n#[cfg(test)]\nmod tests {\n use std::fs;\n}",
            ),
            ("storage-node/src/read.rs", "tokio::select! {\n    biased;\n    _ = a => {}\n}"),
            ("storage-node/tests/kill.rs", "std::thread::spawn(f); std::time::Instant::now();"),
            ("storage-node/io/src/glommio.rs", "// SAFETY: f has no preconditions here\nlet x = unsafe { f() };"),
            ("client/src/lib.rs", "use std::collections::HashMap; use std::time::Instant;"),
        ] {
            assert_eq!(findings(path, text), Vec::<String>::new(), "{path}: {text}");
        }
        let text = format!("{}#[cfg(test)]\nmod tests {{\n{}", "\n".repeat(10), "\n".repeat(LINES_MAX));
        assert_eq!(findings("client/src/lib.rs", &text), Vec::<String>::new());
    }
}
