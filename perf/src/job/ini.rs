//! The syntax of job files: fio's INI. Sections of `key=value` lines; a key alone means `key=1`; `;` and `#` start a comment line.
//!
//! Knows nothing of what keys mean. Every entry keeps its line, so that whoever does can name it.

use std::fmt;

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a file.
    Line {
        /// The file's name as it was given.
        file: String,
        /// Counted from 1.
        line: usize,
    },
    /// On the command line.
    Option(String),
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(formatter, "{file}:{line}"),
            Self::Option(text) => write!(formatter, "--set {text}"),
        }
    }
}

/// `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) place: Place,
}

/// `[name]` and the entries under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) entries: Vec<Entry>,
}

/// A line that is none of this syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) place: Place,
    pub(crate) why: String,
}

/// Reads a job file.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Section>, SyntaxError> {
    let mut sections: Vec<Section> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let place = Place::Line { file: file.to_owned(), line: index + 1 };
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty());
            let Some(name) = name else {
                return Err(SyntaxError { place, why: format!("{line:?} is no section: write `[name]`") });
            };
            sections.push(Section { name: name.to_owned(), place, entries: Vec::new() });
            continue;
        }
        let entry = entry(line, place)?;
        match sections.last_mut() {
            Some(section) => section.entries.push(entry),
            None => {
                let why = format!("`{}` stands before the first section: write `[global]` or `[name]` above it", entry.key);
                return Err(SyntaxError { place: entry.place, why });
            }
        }
    }
    Ok(sections)
}

/// Reads `key=value`, or `key` alone.
pub(crate) fn entry(text: &str, place: Place) -> Result<Entry, SyntaxError> {
    let (key, value) = text.split_once('=').unwrap_or((text, "1"));
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(SyntaxError { place, why: format!("{text:?} is no `key=value`") });
    }
    Ok(Entry { key: key.to_owned(), value: value.to_owned(), place })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(section: &Section) -> Vec<(&str, &str, String)> {
        section.entries.iter().map(|entry| (&*entry.key, &*entry.value, entry.place.to_string())).collect()
    }

    #[test]
    fn sections_comments_flags_and_lines_are_read() {
        let sections = parse("a.ini", "; one\n[global]\n bs = 1k \n\n# two\ntime_based\n[ first ]\nsize=1g\n").unwrap();
        assert_eq!(sections.iter().map(|section| &*section.name).collect::<Vec<_>>(), ["global", "first"]);
        assert_eq!(pairs(&sections[0]), [("bs", "1k", "a.ini:3".into()), ("time_based", "1", "a.ini:6".into())]);
        assert_eq!(pairs(&sections[1]), [("size", "1g", "a.ini:8".into())]);
        assert_eq!(sections[1].place.to_string(), "a.ini:7");
    }

    #[test]
    fn what_is_no_ini_is_refused_with_its_line() {
        for (text, line) in [("bs=1k", 1), ("[a]\n[]", 2), ("[a]\n[b", 2), ("[a]\n\n=3", 3), ("[a]\ntwo words=3", 2)] {
            let error = parse("a.ini", text).unwrap_err();
            assert_eq!(error.place.to_string(), format!("a.ini:{line}"), "{text:?}: {}", error.why);
        }
    }
}
