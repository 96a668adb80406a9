//! Numbers for people.

/// 1234567 as 1,234,567.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and a unit: 870 ns, 215 us, 1.85 ms, 12.3 s.
pub(super) fn time(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// In binary units: 512 B, 4.00 KiB, 262 KiB.
pub(super) fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), units[unit])
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// "1 extent", "2 extents".
pub(super) fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_exact_enough() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        for (ns, text) in
            [(1.0, "1.00 ns"), (870.0, "870 ns"), (215_400.0, "215 us"), (1_850_000.0, "1.85 ms"), (12.34e9, "12.3 s")]
        {
            assert_eq!(time(ns), text);
        }
        for (size, text) in [(512.0, "512 B"), (4096.0, "4.00 KiB"), (268_288.0, "262 KiB"), (3e9, "2.79 GiB")] {
            assert_eq!(bytes(size), text);
        }
        assert_eq!((count(1, "extent"), count(64, "extent")), ("1 extent".to_owned(), "64 extents".to_owned()));
    }
}
