//! Runs other programs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A program could not be started.
    #[error("`{command}` can't be run: {source}")]
    Start { command: String, source: io::Error },
    /// A program ended with an error.
    #[error("`{command}` failed ({status})")]
    Ended { command: String, status: std::process::ExitStatus },
    /// A file can't be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A check found something.
    #[error("{0}")]
    Found(String),
}

/// The root of the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("xtask lies two levels below the root").to_owned()
}

/// A cargo command in the workspace: the cargo that runs this program.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    command
}

/// The command as a person would type it.
pub(crate) fn typed(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs it with this program's output; an exit code other than 0 is a failure.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).status().map_err(|source| Failure::Start { command: typed(command), source })?;
    if status.success() { Ok(()) } else { Err(Failure::Ended { command: typed(command), status }) }
}

/// Runs it and gives what it wrote to stdout.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| Failure::Start { command: typed(command), source })?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Failure::Ended { command: typed(command), status: output.status })
    }
}
