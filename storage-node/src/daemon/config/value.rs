//! The kinds of values a setting can have: each reads itself from TOML or text and prints itself as TOML.
//!
//! Contract: what [`Setting::to_toml`] prints, [`Setting::from_value`] reads back as the same value.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A value as it was found: in a TOML file, or as text in the environment or on the command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A string.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// True or false.
    Boolean(bool),
    /// An array.
    List(Vec<Value>),
    /// A kind that no setting takes, as it stands in the file.
    Other(String),
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(formatter, "{text:?}"),
            Value::Integer(number) => write!(formatter, "{number}"),
            Value::Boolean(boolean) => write!(formatter, "{boolean}"),
            Value::Other(text) => formatter.write_str(text),
            Value::List(values) => {
                let texts: Vec<String> = values.iter().map(Value::to_string).collect();
                write!(formatter, "[{}]", texts.join(", "))
            }
        }
    }
}

/// A type of setting.
pub(crate) trait Setting: Sized {
    /// What is allowed, for people.
    const ALLOWED: &'static str;
    /// Reads a value; `None` if it is not of this kind.
    fn from_value(value: &Value) -> Option<Self>;
    /// Prints it as a TOML value.
    fn to_toml(&self) -> String;
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

impl ByteSize {
    const UNITS: [(char, u64); 3] = [('G', 1 << 30), ('M', 1 << 20), ('k', 1 << 10)];

    /// So many KiB.
    pub(crate) const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// So many MiB.
    pub(crate) const fn mib(count: u64) -> Self {
        Self(count << 20)
    }
}

impl FromStr for ByteSize {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (digits, unit) = match Self::UNITS.iter().find(|(letter, _)| text.ends_with(*letter)) {
            Some((_, unit)) => (&text[..text.len() - 1], *unit),
            None => (text, 1),
        };
        decimal(digits).and_then(|count| count.checked_mul(unit)).map(Self).ok_or(())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((letter, unit)) => write!(formatter, "{}{letter}", self.0 / unit),
            None => write!(formatter, "{}", self.0),
        }
    }
}

impl Setting for ByteSize {
    const ALLOWED: &'static str =
        "a size: a whole number of bytes, or one with k, M or G behind it (1024, 1024^2, 1024^3), such as \"256M\"";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => text.parse().ok(),
            Value::Integer(bytes) => u64::try_from(*bytes).ok().map(Self),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        format!("\"{self}\"")
    }
}

/// A span of time in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    const UNITS_MS: [(&'static str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
}

impl FromStr for Span {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (suffix, unit) = Self::UNITS_MS.iter().find(|(suffix, _)| text.ends_with(suffix)).ok_or(())?;
        let count = decimal(&text[..text.len() - suffix.len()]).ok_or(())?;
        count.checked_mul(*unit).map(|milliseconds| Self(Duration::from_millis(milliseconds))).ok_or(())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let exact = Self::UNITS_MS.iter().rev().find(|(_, unit)| milliseconds >= *unit && milliseconds.is_multiple_of(*unit));
        let (suffix, unit) = exact.copied().unwrap_or(("ms", 1));
        write!(formatter, "{}{suffix}", milliseconds / unit)
    }
}

impl Setting for Span {
    const ALLOWED: &'static str = "a duration: a whole number with ms, s, m, h or d behind it, such as \"30s\"";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        format!("\"{self}\"")
    }
}

/// Decimal digits only: no sign, no blanks.
fn decimal(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

impl Setting for u32 {
    const ALLOWED: &'static str = "a whole number";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => decimal(text).and_then(|number| number.try_into().ok()),
            Value::Integer(number) => (*number).try_into().ok(),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for bool {
    const ALLOWED: &'static str = "true or false";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => text.parse().ok(),
            Value::Boolean(boolean) => Some(*boolean),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for SocketAddr {
    const ALLOWED: &'static str = "an IP address and a port, such as \"127.0.0.1:7440\" or \"[::1]:7440\"";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        format!("\"{self}\"")
    }
}

impl Setting for PathBuf {
    const ALLOWED: &'static str = "a path that is not empty";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) if !text.is_empty() => Some(text.into()),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        toml::Value::String(self.to_string_lossy().into_owned()).to_string()
    }
}

/// Numbers of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<u32>);

impl CpuList {
    /// Reads the kernel's notation: `0,2-5`.
    fn parse(text: &str) -> Option<Self> {
        let mut cpus = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (decimal(first)?, decimal(last)?);
            if first > last || last > u64::from(CPU_MAX) {
                return None;
            }
            cpus.extend((first..=last).map(|cpu| cpu as u32));
        }
        Some(Self(cpus))
    }
}

/// The greatest CPU number that makes sense: bounds what a range in a list may expand to.
const CPU_MAX: u32 = 65_535;

impl Setting for CpuList {
    const ALLOWED: &'static str = "a list of CPU numbers, such as [0, 2] or \"0,2-5\"";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => Self::parse(text),
            Value::List(values) => {
                let cpus: Option<Vec<u32>> = values.iter().map(u32::from_value).collect();
                cpus.filter(|cpus| cpus.iter().all(|cpu| *cpu <= CPU_MAX)).map(Self)
            }
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        let texts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        format!("[{}]", texts.join(", "))
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Setting for LogFormat {
    const ALLOWED: &'static str = "\"text\" or \"json\"";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) if text == "text" => Some(Self::Text),
            Value::Text(text) if text == "json" => Some(Self::Json),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Text => "\"text\"".to_owned(),
            Self::Json => "\"json\"".to_owned(),
        }
    }
}

/// Which log lines are written: a level, or levels by target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(pub(crate) String);

impl Setting for LogFilter {
    const ALLOWED: &'static str =
        "\"error\", \"warn\", \"info\", \"debug\", \"trace\" or \"off\", or levels by target such as \"info,storage_node=debug\"";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => is_filter(text).then(|| Self(text.clone())),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

/// `EnvFilter` takes any bare word for a target; here a bare word must be a level, so that a mistyped level is an error.
fn is_filter(text: &str) -> bool {
    let level = |word: &str| matches!(word, "error" | "warn" | "info" | "debug" | "trace" | "off");
    let target = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:-".contains(&byte));
    text.split(',').map(str::trim).all(|directive| match directive.split_once('=') {
        Some((name, word)) => target(name) && level(word),
        None => level(directive),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn sizes_take_binary_units_and_print_back_exactly() {
        for (input, bytes, printed) in [
            ("0", 0, "0"),
            ("4096", 4096, "4k"),
            ("256k", 262_144, "256k"),
            ("1G", 1 << 30, "1G"),
            ("1536M", 1536 << 20, "1536M"),
            ("1025", 1025, "1025"),
        ] {
            let size = ByteSize::from_value(&text(input)).unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, printed), "{input}");
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        assert_eq!(ByteSize::from_value(&Value::Integer(8192)), Some(ByteSize::kib(8)));
        for bad in ["", "k", "1K", "1MB", "-1", "+1", "1.5G", " 1", "99999999999999999999", "18446744073709551615G"] {
            assert_eq!(ByteSize::from_value(&text(bad)), None, "{bad:?}");
        }
        assert_eq!(ByteSize::from_value(&Value::Integer(-1)), None);
    }

    #[test]
    fn durations_need_a_unit_and_print_back_exactly() {
        for (input, milliseconds, printed) in [
            ("0s", 0, "0ms"),
            ("1500ms", 1500, "1500ms"),
            ("90s", 90_000, "90s"),
            ("60s", 60_000, "1m"),
            ("2h", 7_200_000, "2h"),
            ("1d", 86_400_000, "1d"),
        ] {
            let span = Span::from_value(&text(input)).unwrap();
            assert_eq!((span.0.as_millis(), span.to_string().as_str()), (milliseconds, printed), "{input}");
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        for bad in ["", "s", "30", "1.5s", "-1s", "1w", "18446744073709551615d"] {
            assert_eq!(Span::from_value(&text(bad)), None, "{bad:?}");
        }
        assert_eq!(Span::from_value(&Value::Integer(30)), None, "a number without a unit is ambiguous");
    }

    #[test]
    fn cpu_lists_take_arrays_and_the_kernels_notation() {
        assert_eq!(CpuList::from_value(&text("0,2-4")), Some(CpuList(vec![0, 2, 3, 4])));
        assert_eq!(CpuList::from_value(&text("")), Some(CpuList(vec![])));
        assert_eq!(CpuList::from_value(&Value::List(vec![Value::Integer(3)])), Some(CpuList(vec![3])));
        for bad in ["4-2", "a", "1-", "0-4294967295"] {
            assert_eq!(CpuList::from_value(&text(bad)), None, "{bad:?}");
        }
        assert_eq!(CpuList::from_value(&Value::List(vec![Value::Integer(-1)])), None);
    }

    #[test]
    fn a_mistyped_level_is_refused() {
        for good in ["info", "off", "info,storage_node=debug", "warn, roostd=trace"] {
            assert!(LogFilter::from_value(&text(good)).is_some(), "{good:?}");
        }
        for bad in ["", "inof", "storage_node", "info,storage_node=loud", "=info"] {
            assert!(LogFilter::from_value(&text(bad)).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn paths_print_as_toml_strings() {
        let path = PathBuf::from("/srv/a \"quoted\" \\ path");
        let printed: toml::Table = format!("path = {}", path.to_toml()).parse().unwrap();
        assert_eq!(printed["path"].as_str(), path.to_str());
    }
}
