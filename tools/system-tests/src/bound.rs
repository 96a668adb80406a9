//! Bounds a test in time. A test that hangs would otherwise leave its node running and its files behind.

use crate::binaries;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Children that run, and directories that exist: what an exit in haste must not leave.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn with<T>(list: &Mutex<Vec<T>>, change: impl FnOnce(&mut Vec<T>)) {
    change(&mut list.lock().unwrap_or_else(PoisonError::into_inner));
}

pub(crate) fn remember_child(id: u32) {
    with(&CHILDREN, |list| list.push(id));
}

/// Must come before the child is reaped: its id may be another process's then.
pub(crate) fn forget_child(id: u32) {
    with(&CHILDREN, |list| list.retain(|child| *child != id));
}

pub(crate) fn remember_directory(path: &Path) {
    with(&DIRECTORIES, |list| list.push(path.to_owned()));
}

pub(crate) fn forget_directory(path: &Path) {
    with(&DIRECTORIES, |list| list.retain(|directory| directory != path));
}

fn end(child: u32) {
    // It may have ended by itself.
    let _ = kill(Pid::from_raw(child as i32), Signal::SIGKILL);
}

/// Ends the whole test process, its children and its files if it is not dropped in time.
#[derive(Debug)]
#[must_use = "the bound holds as long as the value lives"]
pub struct Bound {
    /// Dropping it tells the watching thread that the test has ended.
    _ended: Sender<()>,
}

impl Bound {
    /// Bounds `test` to so many seconds, from when the programs under test are built.
    ///
    /// # Panics
    /// If they can't be built.
    pub fn seconds(test: &'static str, seconds: u64) -> Self {
        binaries::prepared();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            if receiver.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test}: not done after {seconds} s: ends the test process");
                with(&CHILDREN, |list| list.iter().for_each(|id| end(*id)));
                with(&DIRECTORIES, |list| list.iter().for_each(|path| drop(std::fs::remove_dir_all(path))));
                std::process::exit(101);
            }
        });
        Self { _ended: sender }
    }
}
