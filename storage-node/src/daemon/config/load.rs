//! Puts the configuration together: defaults, then the file, then the environment, then flags; the later one wins.
//!
//! All faults are reported, not just the first.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::Config;
use super::error::{ConfigError, Origin};
use super::keys::{self, Key};
use super::validate::validate;
use super::value::{ByteSize, Value};

/// Where settings come from, besides the defaults.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The TOML file.
    pub(crate) file: Option<PathBuf>,
    /// The environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Flags: the flag's name, the section and the key it sets, the text given.
    pub(crate) flags: Vec<(&'static str, &'static str, &'static str, String)>,
}

/// A valid configuration.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The values.
    pub(crate) config: Config,
    /// Where each came from.
    pub(crate) origins: Origins,
    /// What is allowed but probably not meant.
    pub(crate) warnings: Vec<String>,
}

/// Where each setting that has not its default came from.
#[derive(Debug, Default)]
pub(crate) struct Origins(BTreeMap<(&'static str, &'static str), Origin>);

impl Origins {
    /// Where a setting came from.
    pub(crate) fn of(&self, section: &str, name: &str) -> Origin {
        self.0.get(&(section, name)).cloned().unwrap_or(Origin::Default)
    }
}

/// Loads and checks everything.
///
/// # Errors
/// All faults found, at least one.
pub(crate) fn load(sources: &Sources) -> Result<Loaded, Vec<ConfigError>> {
    let mut loading =
        Loading { config: Config::default(), origins: Origins::default(), warnings: Vec::new(), errors: Vec::new() };
    if let Some(path) = &sources.file {
        loading.read_file(path);
    }
    loading.read_environment(&sources.environment);
    for (flag, section, name, text) in &sources.flags {
        let key = keys::find(section, name).expect("flags set keys of the list");
        loading.set(key, &Value::Text(text.clone()), Origin::Flag { name: flag });
    }
    if loading.origins.of("log", "record_size_max") == Origin::Default {
        // Who asks for small segments only should not have to ask for small records too.
        let log = &mut loading.config.log;
        log.record_size_max = log.record_size_max.min(ByteSize(log.segment_size.0 / 4));
    }
    if loading.errors.is_empty() {
        validate(&loading.config, &loading.origins, &mut loading.warnings, &mut loading.errors);
    }
    if loading.errors.is_empty() {
        Ok(Loaded { config: loading.config, origins: loading.origins, warnings: loading.warnings })
    } else {
        Err(loading.errors)
    }
}

struct Loading {
    config: Config,
    origins: Origins,
    warnings: Vec<String>,
    errors: Vec<ConfigError>,
}

impl Loading {
    fn set(&mut self, key: &'static Key, value: &Value, origin: Origin) {
        if (key.set)(&mut self.config, value) {
            self.origins.0.insert((key.section, key.name), origin);
        } else {
            self.errors.push(ConfigError::BadValue {
                origin,
                key: key.full_name(),
                value: value.to_string(),
                allowed: key.allowed,
            });
        }
    }

    fn read_file(&mut self, path: &Path) {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(source) => return self.errors.push(ConfigError::Unreadable { path: path.to_owned(), source }),
        };
        let at = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(&text, offset) };
        let (document, faults) = DeTable::parse_recoverable(&text);
        if !faults.is_empty() {
            for fault in faults {
                let origin = at(fault.span().map_or(0, |span| span.start));
                self.errors.push(ConfigError::Syntax { origin, message: fault.message().replace('\n', "; ") });
            }
            return;
        }
        for (section_name, section) in document.get_ref() {
            let origin = at(section_name.span().start);
            let Some((known, _)) = keys::SECTIONS.iter().find(|(known, _)| *known == section_name.get_ref().as_ref()) else {
                self.errors.push(ConfigError::UnknownSection { origin, section: section_name.get_ref().to_string() });
                continue;
            };
            let DeValue::Table(table) = section.get_ref() else {
                self.errors.push(ConfigError::NotASection { origin, section: (*known).to_owned() });
                continue;
            };
            for (name, value) in table {
                match keys::find(known, name.get_ref()) {
                    Some(key) => self.set(key, &plain(value.get_ref(), &text[value.span()]), at(name.span().start)),
                    None => self.errors.push(ConfigError::UnknownKey {
                        origin: at(name.span().start),
                        section: known,
                        name: name.get_ref().to_string(),
                        known: keys::names(known).join(", "),
                    }),
                }
            }
        }
    }

    fn read_environment(&mut self, environment: &[(OsString, OsString)]) {
        let mut variables: Vec<&(OsString, OsString)> = environment.iter().collect();
        variables.sort();
        for (name, text) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with("ROOST_")) else { continue };
            match keys::KEYS.iter().find(|key| key.variable() == name) {
                Some(key) => match text.to_str() {
                    Some(text) => {
                        self.set(key, &Value::Text(text.to_owned()), Origin::Environment { variable: name.to_owned() });
                    }
                    None => self.errors.push(ConfigError::NotUnicode { variable: name.to_owned() }),
                },
                // Not an error: service managers and containers set variables of their own that may start so.
                None if keys::SECTIONS
                    .iter()
                    .any(|(section, _)| name[6..].starts_with(&format!("{}_", section.to_ascii_uppercase()))) =>
                {
                    self.warnings.push(format!("environment variable {name} names no setting and is ignored"));
                }
                None => {}
            }
        }
    }
}

fn plain(value: &DeValue<'_>, source: &str) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Other(source.to_owned()),
        },
        DeValue::Array(values) => Value::List(values.iter().map(|value| plain(value.get_ref(), source)).collect()),
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => Value::Other(source.to_owned()),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests;
