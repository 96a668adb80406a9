//! The daemon's contract on the command line: exit codes, the two lines of an error, the ready line, probes, signals.

// These tests run a real process on the real machine.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A directory of one test, gone with the value.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("roostd-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `roostd` without any setting from this test's own environment.
fn roostd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roostd"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ROOST_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    roostd(arguments).output().unwrap()
}

/// Runs a daemon that is to refuse its start. One that serves all the same is ended, and fails the test.
fn run_refused(data: &Path, arguments: &[&str]) -> Output {
    let mut command = roostd(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--segment-size", "1M"]);
    let mut child =
        command.arg("--data-dir").arg(data).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    if !ready.is_empty() {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("it serves: {ready}");
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A running daemon; killed if the test ends before it does.
struct Daemon {
    child: Child,
    ready: String,
}

impl Daemon {
    /// Starts it on free ports with small segments, and waits for the ready line.
    fn start(data: &Path) -> Self {
        let mut child = roostd(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "2", "--segment-size", "1M"])
            .arg("--data-dir")
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        Self { child, ready }
    }

    /// The value of a word `name=value` of the ready line.
    fn ready_value(&self, name: &str) -> &str {
        let prefix = format!("{name}=");
        self.ready
            .split_whitespace()
            .find_map(|word| word.strip_prefix(&prefix))
            .unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.ready_value("admin")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_when_it_is_ready_and_drains_on_sigterm_and_sigint() {
    let directory = TestDirectory::new("ready");
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = Daemon::start(&directory.0.join("data"));
        assert!(daemon.ready.starts_with("roostd ready listen=127.0.0.1:"), "{:?}", daemon.ready);
        let names: Vec<&str> = daemon.ready.split_whitespace().skip(2).filter_map(|word| word.split('=').next()).collect();
        assert_eq!(names, ["listen", "admin", "shards", "durability", "device", "alignment"]);
        assert_eq!(daemon.ready_value("shards"), "2");
        assert_ne!(daemon.ready_value("listen"), "127.0.0.1:0");
        for path in ["/startupz", "/livez", "/readyz"] {
            assert_eq!(daemon.get(path), (200, "ok\n".to_owned()), "{path}");
        }
        assert!(daemon.get("/metrics").1.contains("\nroost_shard_state{shard=\"1\",state=\"serving\"} 1\n"));
        assert!(daemon.get("/status").1.contains("\"stage\": \"serving\""));
        assert_eq!(daemon.end(signal).code(), Some(0));
    }
}

#[test]
fn wrong_usage_and_a_wrong_file_exit_with_2_and_say_what_is_allowed() {
    let directory = TestDirectory::new("usage");
    assert_eq!(run(&["--shards", "many"]).status.code(), Some(2));
    assert_eq!(run(&["--segment-size", "1T"]).status.code(), Some(2));
    assert_eq!(run(&["--no-such-flag"]).status.code(), Some(2));

    let file = directory.0.join("roost.toml");
    fs::write(&file, "[node]\nshards = 2\n[log]\nsegmentsize = \"1M\"\n").unwrap();
    let output = run(&["config", "check", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let expected = format!(
        "error: configuration: {}:4: unknown key `log.segmentsize`\nhint: allowed in [log]: segment_size, ",
        file.display()
    );
    assert!(text(&output.stderr).starts_with(&expected), "{}", text(&output.stderr));
    // Serving refuses the same file in the same words.
    assert_eq!(run(&["--config", file.to_str().unwrap()]).stderr, output.stderr);
}

#[test]
fn the_sample_configuration_is_the_defaults() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/roost.toml");
    let of_sample = run(&["config", "dump", "--config", sample.to_str().unwrap()]);
    assert_eq!(of_sample.status.code(), Some(0), "{}", text(&of_sample.stderr));
    let of_defaults = run(&["config", "dump"]);
    // The sample keeps its data where the unit file has it; all else is the defaults.
    let values = |output: &Output| -> Vec<String> {
        let lines = text(&output.stdout).lines().filter(|line| !line.starts_with('#') && !line.starts_with("data_dir"));
        lines.map(|line| line.split("  #").next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(values(&of_sample), values(&of_defaults));
    assert!(text(&of_sample.stdout).contains("data_dir = \"/var/lib/roost\""));
}

#[test]
fn a_dump_is_a_file_that_dumps_the_same() {
    let directory = TestDirectory::new("dump");
    let file = directory.0.join("roost.toml");
    let mut command = roostd(&["config", "dump", "--segment-size", "64M"]);
    let first = command.env("ROOST_LOG_COMMIT_DEPTH", "3").output().unwrap();
    fs::write(&file, &first.stdout).unwrap();
    let second = run(&["config", "dump", "--config", file.to_str().unwrap()]);
    let values = |output: &Output| -> Vec<String> {
        text(&output.stdout).lines().map(|line| line.split("  #").next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(values(&first), values(&second));
    assert!(text(&second.stdout).contains("commit_depth = 3"));
    assert!(text(&second.stdout).contains("segment_size = \"64M\""));
}

#[test]
fn an_address_in_use_is_a_refusal_with_cause_and_remedy() {
    let directory = TestDirectory::new("address");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = directory.0.join("data");
    let output = run(&["--admin", &address, "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains(&format!("error: admin endpoint {address}: Address already in use")), "{stderr}");
    assert!(stderr.contains("\nhint: "), "{stderr}");
}

#[test]
fn a_place_that_can_not_hold_data_is_refused_with_cause_and_remedy() {
    let directory = TestDirectory::new("place");
    let file = directory.0.join("a-file");
    fs::write(&file, "in the way").unwrap();
    let missing = directory.0.join("missing/data");
    for (data, why) in
        [(&file, "is not a directory"), (&missing, "missing does not exist"), (&PathBuf::from("/dev/shm/roost"), "keeps nothing")]
    {
        let output = run_refused(data, &[]);
        assert_eq!(output.status.code(), Some(1), "{data:?}");
        let lines: Vec<&str> = text(&output.stderr).lines().collect();
        let error = lines.iter().position(|line| line.starts_with("error: ") && line.contains(why));
        let error = error.unwrap_or_else(|| panic!("{why:?} in {lines:?}"));
        assert!(lines[error + 1].starts_with("hint: "), "{lines:?}");
    }
}

#[test]
fn a_data_directory_has_one_owner() {
    let directory = TestDirectory::new("owner");
    let data = directory.0.join("data");
    let first = Daemon::start(&data);
    let output = run_refused(&data, &[]);
    assert_eq!(output.status.code(), Some(1));
    let holder = format!("process {}", first.child.id());
    assert!(text(&output.stderr).contains(&holder), "{holder} in {}", text(&output.stderr));
}
