//! Where the programs under test are, and that they are there.
//!
//! `cargo test --workspace` builds them. `cargo test -p system-tests` does not: then they are built here, once, if they are missing or
//! older than one of their sources.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// A program of the workspace, current.
///
/// # Panics
/// If it can't be built.
pub fn binary(name: &str) -> PathBuf {
    prepared().join(name)
}

/// The directory of the programs, which are current from then on.
pub(crate) fn prepared() -> &'static Path {
    DIRECTORY.get_or_init(prepare)
}

/// The daemon.
pub fn roostd_path() -> PathBuf {
    binary("roostd")
}

/// The command-line tool.
pub fn roostctl_path() -> PathBuf {
    binary("roostctl")
}

/// The directory of the programs, where both are current.
fn prepare() -> PathBuf {
    let test = std::env::current_exe().expect("a process can find its own program");
    // target/debug/deps/test-0123 -> target/debug
    let directory = test.ancestors().nth(2).expect("tests lie in deps/").to_owned();
    let lock = File::create(directory.join(".system-tests.lock")).expect("the target directory can be written");
    lock.lock().expect("a file can be locked");
    if !["roostd", "roostctl"].iter().all(|name| is_current(&directory.join(name))) {
        build(&directory);
    }
    directory
}

/// The sources of the programs, from the workspace's root.
const SOURCES: [&str; 6] =
    ["log-format/src", "replicator/src", "storage-node/src", "storage-node/io/src", "client/src", "tools/roostctl/src"];

/// Whether a program is there and as new as all that it is made of. Cargo's own list of that is not there after `cargo test`.
fn is_current(program: &Path) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package lies two below the root");
    let Some(built) = modified(program) else { return false };
    SOURCES.iter().all(|sources| newest(&root.join(sources)).is_some_and(|changed| changed <= built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// When the newest file in a directory, or below it, was changed.
fn newest(directory: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(directory).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    entries.filter_map(|path| if path.is_dir() { newest(&path) } else { modified(&path) }).max()
}

fn build(directory: &Path) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "storage-node", "--package", "roostctl", "--target-dir"]);
    command.arg(directory.parent().expect("the profile's directory lies in the target directory"));
    if directory.ends_with("release") {
        command.arg("--release");
    }
    let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo can be run");
    assert!(status.success(), "roostd and roostctl can't be built");
}
