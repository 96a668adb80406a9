//! How the daemon says that it can't go on: `error: what: why`, then `hint:` and the remedy, then an exit code.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// A reason to end, with what a person can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    what: String,
    why: String,
    remedy: String,
}

impl Refusal {
    /// `what` can't go on, `why`, and the remedy.
    pub(crate) fn new(what: impl fmt::Display, why: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { what: what.to_string(), why: why.to_string(), remedy: remedy.to_string() }
    }

    /// Tells the person at the terminal; gives the exit code of a failure.
    pub(crate) fn print(&self) -> ExitCode {
        print_error(&self.what, &self.why, &self.remedy);
        ExitCode::FAILURE
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.what, self.why)
    }
}

/// Writes the two lines of an error to stderr.
pub(crate) fn print_error(what: &str, why: &str, remedy: &str) {
    // A closed stderr leaves nobody to tell.
    let _ = write!(std::io::stderr(), "error: {what}: {why}\nhint: {remedy}\n");
}
