//! A node: `roostd` as a child process.

use crate::binaries::roostd_path;
use crate::bound;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long a start may take: the machine may be busy with other tests.
const START_MAX: Duration = Duration::from_secs(30);

/// How a node is started.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its shards.
    pub shards: u32,
    /// The size of its segments, as on the command line.
    pub segment_size: &'static str,
    /// Settings by environment variable.
    pub settings: Vec<(&'static str, String)>,
    /// Where it listens for clients.
    pub listen: String,
    /// What starts it: a program and its first arguments, behind which the node's command line comes.
    pub wrapper: Vec<String>,
    /// The user and group that it runs as, if others than the test's.
    pub user: Option<(u32, u32)>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        let listen = "127.0.0.1:0".to_owned();
        Self { shards: 2, segment_size: "8M", settings: Vec::new(), listen, wrapper: Vec::new(), user: None }
    }
}

impl NodeOptions {
    /// The same with a setting.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.push((name, value.to_string()));
        self
    }

    /// The command of a node, its log going to `log`.
    ///
    /// # Panics
    /// If the log can't be opened.
    pub fn command(&self, data: &Path, log: &Path) -> Command {
        let mut words = self.wrapper.iter().map(Into::into).chain([roostd_path().into_os_string()]);
        let mut command = Command::new(words.next().expect("there is a program"));
        command.args(words).args(["--listen", &self.listen, "--admin", "127.0.0.1:0"]);
        command.args(["--shards", &self.shards.to_string(), "--segment-size", self.segment_size]).arg("--data-dir").arg(data);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ROOST_")) {
            command.env_remove(name);
        }
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        if let Some((user, group)) = self.user {
            use std::os::unix::process::CommandExt as _;
            command.uid(user).gid(group);
        }
        command
    }
}

/// A running node; killed and reaped with the value, its log printed if the test fails.
#[derive(Debug)]
pub struct Node {
    child: Child,
    is_reaped: bool,
    log: PathBuf,
    lines: Receiver<String>,
    ready: String,
}

impl Node {
    /// Starts it with two shards and small segments, and waits until it serves.
    ///
    /// # Panics
    /// If it does not.
    pub fn start(data: &Path) -> Self {
        Self::start_with(data, &NodeOptions::default())
    }

    /// The same at an address, which another node had before.
    ///
    /// # Panics
    /// If it does not.
    pub fn start_at(data: &Path, address: &str) -> Self {
        Self::start_with(data, &NodeOptions { listen: address.to_owned(), ..NodeOptions::default() })
    }

    /// Starts it and waits until it serves.
    ///
    /// # Panics
    /// If it does not.
    pub fn start_with(data: &Path, options: &NodeOptions) -> Self {
        let mut node = Self::launch(data, options);
        match node.lines.recv_timeout(START_MAX) {
            Ok(line) => node.ready = line,
            Err(error) => panic!("the node does not get ready: {error}"),
        }
        assert!(node.ready.starts_with("roostd ready "), "{:?}", node.ready);
        node
    }

    /// Starts it and does not wait.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn launch(data: &Path, options: &NodeOptions) -> Self {
        let log = data.with_extension("log");
        let mut child = options.command(data, &log).spawn().unwrap();
        bound::remember_child(child.id());
        let lines = read_lines(child.stdout.take().expect("it is piped"));
        Self { child, is_reaped: false, log, lines, ready: String::new() }
    }

    /// The value of a word `name=value` of the ready line.
    ///
    /// # Panics
    /// If there is none.
    pub fn ready_value(&self, name: &str) -> &str {
        let value = self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    /// Where clients connect.
    pub fn address(&self) -> &str {
        self.ready_value("listen")
    }

    /// The same as a socket's address.
    ///
    /// # Panics
    /// If it is none.
    pub fn socket_address(&self) -> SocketAddr {
        self.address().parse().unwrap()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Kills it as a crash would.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.reap();
    }

    /// Asks it to end, which must be done within `limit`, with exit code 0.
    ///
    /// # Panics
    /// If it is not.
    pub fn stop(mut self, limit: Duration) {
        self.signal(Signal::SIGTERM);
        let status = self.wait(limit);
        assert_eq!(status.code(), Some(0), "{status}");
    }

    /// Waits for its end, by itself or after a signal.
    ///
    /// # Panics
    /// If it does not come within `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        // Its stdout ends with it.
        let mut left = limit;
        let started = std::time::Instant::now();
        loop {
            match self.lines.recv_timeout(left) {
                Ok(_) => left = limit.saturating_sub(started.elapsed()),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return self.reap(),
                Err(error) => panic!("the node does not end within {limit:?}: {error}"),
            }
        }
    }

    fn reap(&mut self) -> ExitStatus {
        bound::forget_child(self.child.id());
        self.is_reaped = true;
        self.child.wait().unwrap()
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Asks its admin endpoint: status code and body.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.ready_value("admin")).unwrap();
        stream.set_read_timeout(Some(START_MAX)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The sum of a metric over the shards, of the samples that have all of `labels`, written `name="value"`.
    ///
    /// # Panics
    /// If there is none.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let (code, text) = self.get("/metrics");
        assert_eq!(code, 200);
        let samples: Vec<f64> = text
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .filter(|rest| rest.starts_with(['{', ' ']) && labels.iter().all(|label| rest.contains(label)))
            .map(|rest| rest.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(!samples.is_empty(), "no sample of {name} {labels:?} in\n{text}");
        samples.iter().sum()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _ = self.child.kill();
            self.reap();
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("the end of the node's log:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// The lines of a child's output as they come, without their newlines; the channel ends with the output.
pub fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
