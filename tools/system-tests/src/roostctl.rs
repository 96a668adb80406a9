//! `roostctl` as a child process.

use crate::binaries::roostctl_path;
use crate::bound;
use crate::node::{Node, read_lines};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A running `roostctl`; killed and reaped with the value.
#[derive(Debug)]
pub struct Roostctl {
    child: Child,
    is_reaped: bool,
    /// What it prints, a line at a time.
    pub lines: Receiver<String>,
}

/// How it ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit code.
    pub code: Option<i32>,
    /// The lines that had not been taken.
    pub lines: Vec<String>,
    /// What it wrote to stderr.
    pub errors: String,
}

impl Roostctl {
    /// The command, to the node at `address`.
    pub fn command(address: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(roostctl_path());
        command.args(["--node", address]).args(arguments).env_remove("ROOST_NODE").stdin(Stdio::null());
        command
    }

    /// Starts it.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn start(node: &Node, arguments: &[&str]) -> Self {
        let mut command = Self::command(node.address(), arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        bound::remember_child(child.id());
        let lines = read_lines(child.stdout.take().expect("it is piped"));
        Self { child, is_reaped: false, lines }
    }

    /// Waits for its end, taking all lines that it prints.
    ///
    /// # Panics
    /// If it does not end within `limit`.
    pub fn finish(mut self, limit: Duration) -> Finished {
        let deadline = Instant::now() + limit;
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("roostctl does not end within {limit:?}"),
            }
        }
        let mut errors = String::new();
        let mut stderr = self.child.stderr.take().expect("it is piped");
        std::io::Read::read_to_string(&mut stderr, &mut errors).unwrap();
        Finished { code: self.reap(), lines, errors }
    }

    fn reap(&mut self) -> Option<i32> {
        bound::forget_child(self.child.id());
        self.is_reaped = true;
        self.child.wait().unwrap().code()
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn output(node: &Node, arguments: &[&str]) -> Output {
        Self::command(node.address(), arguments).output().unwrap()
    }

    /// Runs it, which must succeed and say nothing on stderr: its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn good(node: &Node, arguments: &[&str]) -> Vec<u8> {
        let output = Self::output(node, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(0) && errors.is_empty(), "{arguments:?}: {} {errors}", output.status);
        output.stdout
    }

    /// The same as text.
    ///
    /// # Panics
    /// If it fails, or prints other than text.
    pub fn text(node: &Node, arguments: &[&str]) -> String {
        String::from_utf8(Self::good(node, arguments)).unwrap()
    }

    /// Runs it, which must fail with this exit code and an `error:` and a `hint:` line: its stderr.
    ///
    /// # Panics
    /// If it does not.
    pub fn bad(node: &Node, arguments: &[&str], code: i32) -> String {
        let output = Self::output(node, arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.starts_with("error: ") && errors.contains("\nhint: "), "{arguments:?}: {errors}");
        errors
    }
}

impl Drop for Roostctl {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _ = self.child.kill();
            self.reap();
        }
    }
}
