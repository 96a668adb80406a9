//! How the program ends that did not succeed: what is printed, and the exit code.

use std::fmt::Display;
use std::process::ExitCode;

/// `error: what: why`, a `hint:` line, and an exit code.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    what: String,
    why: String,
    hint: Option<String>,
    code: u8,
    is_consequence: bool,
}

impl Failure {
    /// The operation failed: exit code 1.
    pub(crate) fn new(what: impl Into<String>, why: impl Display) -> Self {
        Self { what: what.into(), why: why.to_string(), hint: None, code: 1, is_consequence: false }
    }

    /// The job file or the command line makes no sense: exit code 2.
    pub(crate) fn usage(what: impl Into<String>, why: impl Display) -> Self {
        Self { code: 2, ..Self::new(what, why) }
    }

    /// The operation could not be done because of another failure, which is the one to print.
    pub(crate) fn consequence(what: impl Into<String>, why: impl Display) -> Self {
        Self { is_consequence: true, ..Self::new(what, why) }
    }

    pub(crate) fn is_consequence(&self) -> bool {
        self.is_consequence
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn exit(&self) -> ExitCode {
        eprintln!("error: {}: {}", self.what, self.why);
        if let Some(hint) = &self.hint {
            eprintln!("hint: {hint}");
        }
        ExitCode::from(self.code)
    }
}

#[cfg(test)]
impl Failure {
    pub(crate) fn text(&self) -> String {
        format!("{}: {} [{}]", self.what, self.why, self.hint.as_deref().unwrap_or_default())
    }
}
