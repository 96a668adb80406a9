//! How an operation ends that did not succeed: what is printed, and the exit code.

use client::{ClientError, Refusal};
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// `error: what: why`, a `hint:` line, and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    why: String,
    hint: Option<String>,
    code: u8,
    is_quiet: bool,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, why: impl Display) -> Self {
        Self { what: what.into(), why: why.to_string(), hint: None, code: 1, is_quiet: false }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The input can't be read: exit code 2.
    pub(crate) fn input(what: impl Into<String>, why: impl Display) -> Self {
        Self { code: 2, ..Self::new(what, why) }
    }

    /// Stdout can't be written. That nobody reads it any more is no error of a command that only prints.
    pub(crate) fn output(error: &io::Error) -> Self {
        let is_quiet = error.kind() == io::ErrorKind::BrokenPipe;
        Self { is_quiet, code: u8::from(!is_quiet), ..Self::new("write to stdout", error) }
    }

    /// The same, for a command whose work is not done when stdout is closed.
    pub(crate) fn unfinished(self) -> Self {
        Self { code: 1, is_quiet: false, ..self }
    }

    pub(crate) fn of_client(what: impl Into<String>, error: ClientError) -> Self {
        let hint = hint(&error);
        // What was tried is said already, and with which node.
        let why = match &error {
            ClientError::Connect { source, .. } => source.to_string(),
            ClientError::Protocol { why, .. } => format!("the node broke the protocol: {why}"),
            error => error.to_string(),
        };
        Self { hint: hint.map(str::to_owned), ..Self::new(what, why) }
    }

    pub(crate) fn exit(self) -> ExitCode {
        if !self.is_quiet {
            eprintln!("error: {}: {}", self.what, self.why);
            if let Some(hint) = self.hint {
                eprintln!("hint: {hint}");
            }
        }
        ExitCode::from(self.code)
    }
}

fn hint(error: &ClientError) -> Option<&'static str> {
    let refusal = match error {
        ClientError::Connect { .. } => {
            return Some("is roostd running there? `--node HOST:PORT` or ROOST_NODE names another address");
        }
        ClientError::Protocol { .. } => {
            return Some("is it a Roost node of this version at that address, and not its admin port?");
        }
        ClientError::Disconnected { .. } => {
            return Some("look at the node's log; `roostctl extent describe ID` shows what is there");
        }
        ClientError::Damaged { .. } => {
            return Some("the bytes were damaged between the node and here: check memory and network, then try again");
        }
        ClientError::Refused(refusal) => refusal,
    };
    Some(match refusal {
        Refusal::NotFound => "`roostctl extent list` shows the extents that exist",
        Refusal::Sealed { .. } => "append to another extent: `roostctl extent create`",
        Refusal::Fenced { .. } => "another primary was chosen: ask the catalog which one",
        Refusal::Trimmed { .. } => "read from there: `--from SEQ`",
        Refusal::NotPrimary { .. } | Refusal::WrongShard { .. } => "send the request there",
        Refusal::TooLarge { .. } => "split the record, or raise record_size_max in the node's configuration",
        Refusal::SeqMismatch { .. } => "somebody else appends to this extent",
        Refusal::Overloaded { .. } => "try again later",
        Refusal::ReadOnly { .. } => "free space or replace the device; `/readyz` of the node's admin port says more",
        Refusal::Corrupt { .. } => "`roostctl read ID --from SEQ` behind the damaged record reads the rest",
        Refusal::BadChecksum { .. } => {
            "the bytes were damaged between here and the node: check memory and network, then try again"
        }
        Refusal::BadRequest { .. } => "check the arguments; if they are right, this is a bug",
        Refusal::Unsupported { .. } => "a later version of the node will serve it",
        Refusal::ShuttingDown => "try again when it is back",
        Refusal::AlreadyExists => "choose another id, or the same group and kind",
        Refusal::UnknownOutcome => {
            "`roostctl extent describe ID` shows what is there; look at the node's log for the device's error"
        }
        Refusal::VersionMismatch { .. } => "use a roostctl of the node's version",
    })
}
