//! What can be wrong with a configuration; each says where, what, and what is allowed.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody set it.
    Default,
    /// A line of the file, from 1.
    File { path: PathBuf, line: usize },
    /// An environment variable.
    Environment { variable: String },
    /// A flag.
    Flag { name: &'static str },
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => formatter.write_str("default"),
            Origin::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Origin::Environment { variable } => write!(formatter, "environment variable {variable}"),
            Origin::Flag { name } => write!(formatter, "flag {name}"),
        }
    }
}

/// A fault of the configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file can't be read.
    #[error("configuration file {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file is no TOML.
    #[error("{origin}: not valid TOML: {message}")]
    Syntax { origin: Origin, message: String },
    /// A table or a top-level key that does not exist.
    #[error("{origin}: unknown section `{section}`")]
    UnknownSection { origin: Origin, section: String },
    /// A section's name used for a plain value.
    #[error("{origin}: `{section}` must be a section")]
    NotASection { origin: Origin, section: String },
    /// A key that does not exist in its section.
    #[error("{origin}: unknown key `{section}.{name}`")]
    UnknownKey { origin: Origin, section: &'static str, name: String, known: String },
    /// A value of the wrong kind.
    #[error("{origin}: `{key}` can't be {value}")]
    BadValue { origin: Origin, key: String, value: String, allowed: &'static str },
    /// A value out of its range, or at odds with another.
    #[error("{origin}: `{key}` can't be {value}: it must be {rule}")]
    OutOfRange { origin: Origin, key: String, value: String, rule: String },
    /// Bytes that are no UTF-8 in the environment.
    #[error("environment variable {variable}: not valid UTF-8")]
    NotUnicode { variable: String },
}

impl ConfigError {
    /// What to do about it.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Unreadable { .. } => {
                "name an existing file that this user can read with --config, or leave it out to run with the defaults".to_owned()
            }
            Self::Syntax { .. } => "`roostd config dump` prints a valid file to start from".to_owned(),
            Self::UnknownSection { .. } => {
                let names: Vec<String> = super::keys::SECTIONS.iter().map(|(name, _)| format!("[{name}]")).collect();
                format!("allowed: {}", names.join(", "))
            }
            Self::NotASection { section, .. } => format!("write [{section}] on a line of its own and its keys below it"),
            Self::UnknownKey { section, known, .. } => format!("allowed in [{section}]: {known}"),
            Self::BadValue { key, allowed, .. } => format!("`{key}` takes {allowed}"),
            Self::OutOfRange { .. } => "change one of the values; `roostd config dump` shows all of them".to_owned(),
            Self::NotUnicode { variable } => format!("unset {variable}, or set it in the file"),
        }
    }
}
