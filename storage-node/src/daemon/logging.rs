//! The daemon's own log lines: to stderr, for people or as JSON.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::config::{LogFormat, Logging};

/// Sets up logging for the whole process; once.
pub(crate) fn init(settings: &Logging) {
    let builder = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(&settings.level.0)).with_writer(std::io::stderr);
    match settings.format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
