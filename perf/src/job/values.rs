//! The values of job files: sizes, durations, counts, switches, lists of cores.

use std::time::Duration;

/// A size in bytes: digits and k, m, g or t (times 1024), also spelled kb, kib, …
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let error = || format!("{text:?} is no size: write bytes, or a number with k, m, g or t (times 1024)");
    let (digits, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(error()),
    };
    let count: u64 = digits.parse().map_err(|_| error())?;
    count.checked_mul(1 << shift).ok_or_else(error)
}

/// A duration: digits and us, ms, s, m, h or d; seconds without a unit, as in fio.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let error = || format!("{text:?} is no duration: write seconds, or a number with us, ms, s, m, h or d");
    let (digits, unit) = split(text);
    let microseconds = match unit.to_ascii_lowercase().as_str() {
        "us" => 1,
        "ms" => 1_000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(error()),
    };
    let count: u64 = digits.parse().map_err(|_| error())?;
    count.checked_mul(microseconds).map(Duration::from_micros).ok_or_else(error)
}

/// A number within bounds.
pub(crate) fn count(text: &str, least: u64, most: u64) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|count| (least..=most).contains(count))
        .ok_or_else(|| format!("{text:?} is no number from {least} to {most}"))
}

/// 0 or 1.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("{text:?} is neither 0 nor 1")),
    }
}

/// Cores, as `1`, `0,2` or `2-5`.
pub(crate) fn cores(text: &str) -> Result<Vec<usize>, String> {
    const CORE_MAX: usize = 1023;
    let error = || format!("{text:?} is no list of cores: write `1`, `0,2` or `2-5`");
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().map_err(|_| error())?;
        let last: usize = last.trim().parse().map_err(|_| error())?;
        if first > last || last > CORE_MAX {
            return Err(error());
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_take_their_units() {
        for (text, bytes) in [("0", 0), ("100", 100), ("1k", 1024), ("2MiB", 2 << 20), ("3g", 3 << 30), ("1 k", 1024)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, milliseconds) in [("5", 5_000), ("5s", 5_000), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for bad in ["", "k", "-1", "1.5k", "1x", "99999999999999999999", "999999999t"] {
            assert!(size(bad).is_err() && duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_switches_and_cores_are_bounded() {
        assert_eq!(count("7", 1, 7), Ok(7));
        assert!(count("0", 1, 7).is_err() && count("8", 1, 7).is_err() && count("x", 1, 7).is_err());
        assert_eq!((switch("0"), switch("1")), (Ok(false), Ok(true)));
        assert!(switch("yes").is_err());
        assert_eq!(cores("3,0-1,1"), Ok(vec![0, 1, 3]));
        for bad in ["", "a", "2-1", "1-", "4096"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }
}
