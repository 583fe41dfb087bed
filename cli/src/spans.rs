//! Spans of time on the command line: one notation for every command.

use std::time::Duration;

const UNITS: [(&[&str], u64); 7] = [
    (&["ns", "nsec", "nanosecond", "nanoseconds"], 1),
    (&["us", "µs", "μs", "usec", "microsecond", "microseconds"], 1_000),
    (&["ms", "msec", "millisecond", "milliseconds"], 1_000_000),
    (&["s", "sec", "secs", "second", "seconds"], 1_000_000_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000_000_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000_000_000),
    (&["d", "day", "days"], 86_400_000_000_000),
];

const EXAMPLES: &str = "write for example 250ns, 100us, 1.5ms, 5 sec or 1h 30min";

/// `100us`, `1.5 s`, `5sec`, `1h 30min`; digits of less than a nanosecond are refused.
///
/// # Errors
/// What is wrong with it, with examples.
pub fn span(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(format!("no span; {EXAMPLES}"));
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let behind = behind.trim_start();
        let letters = behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at(letters);
        let known = UNITS.iter().find(|(names, _)| names.contains(&unit));
        let scale = match known {
            _ if number.is_empty() => return Err(format!("{text:?} is no span; {EXAMPLES}")),
            Some((_, scale)) => *scale,
            None if unit.is_empty() => return Err(format!("{text:?} has no unit; {EXAMPLES}")),
            None => return Err(format!("the unit {unit:?} is unknown; {EXAMPLES}")),
        };
        let ns = scaled(number, scale).map_err(|why| format!("{text:?} {why}; {EXAMPLES}"))?;
        sum = sum.checked_add(ns).ok_or_else(|| format!("{text:?} is too long"))?;
        rest = next.trim_start();
    }
    Ok(Duration::from_nanos(sum))
}

/// A decimal number of `scale` ns each.
fn scaled(number: &str, scale: u64) -> Result<u64, &'static str> {
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
    if !is_number(whole) || !is_number(part) {
        return Err("is no number");
    }
    let whole: u128 = whole.parse().map_err(|_| "is too long")?;
    let part = part.trim_end_matches('0');
    // 10^14 of the longest unit fit.
    let places = u32::try_from(part.len()).ok().filter(|places| *places <= 14);
    let ten = 10_u128.pow(places.ok_or("has too many digits")?);
    let part: u128 = if part.is_empty() { 0 } else { part.parse().map_err(|_| "is no number")? };
    let part = part * u128::from(scale);
    if !part.is_multiple_of(ten) {
        return Err("is finer than a nanosecond");
    }
    let ns = whole.checked_mul(u128::from(scale)).and_then(|ns| ns.checked_add(part / ten));
    ns.and_then(|ns| u64::try_from(ns).ok()).ok_or("is too long")
}

/// An amount of memory in MiB: `2048` (MiB, as QEMU counts), `512M`, `1G`, `1.5GiB`.
///
/// # Errors
/// What is wrong with it, with examples.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    let examples = "write for example 512M, 2G or 1.5GiB; a number without a unit is MiB";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let kib: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "k" | "kib" => 1,
        "" | "m" | "mib" => 1 << 10,
        "g" | "gib" => 1 << 20,
        "t" | "tib" => 1 << 30,
        unit => return Err(format!("the unit {unit:?} is unknown; {examples}")),
    };
    let all =
        scaled(number, kib).map_err(|_| format!("{text:?} is no amount of memory; {examples}"))?;
    if all == 0 || !all.is_multiple_of(1 << 10) {
        return Err(format!("{text:?} is not whole MiB; {examples}"));
    }
    Ok(all >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_spans_in_many_ways() {
        for (text, ns) in [
            ("100us", 100_000),
            ("5 ms", 5_000_000),
            ("5sec", 5_000_000_000),
            ("1.5s", 1_500_000_000),
            ("1.000000001 s", 1_000_000_001),
            ("0.25ms", 250_000),
            ("1h 30min", 5_400_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("2d", 172_800_000_000_000),
            ("7µs", 7_000),
            ("0", 0),
            ("0s", 0),
            (" 3 s ", 3_000_000_000),
        ] {
            assert_eq!(span(text), Ok(Duration::from_nanos(ns)), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_span_is_refused_with_examples() {
        for (text, why) in [
            ("", "no span"),
            ("100", "no unit"),
            ("ms", "is no span"),
            ("-1ms", "is no span"),
            ("1.5.2s", "is no number"),
            (".5s", "is no number"),
            ("1.s", "is no number"),
            ("0.1ns", "finer than a nanosecond"),
            ("1 fortnight", "unknown"),
            ("1S", "unknown"),
            ("99999999999999999999ns", "too long"),
            ("400000d", "too long"),
            ("1s,", "is no span"),
            ("1e3s", "unknown"),
            ("0.123456789012345s", "too many digits"),
        ] {
            let said = span(text).unwrap_err();
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }

    #[test]
    fn memory_is_whole_mebibytes() {
        for (text, mib) in
            [("64", 64), ("512M", 512), ("1G", 1024), ("1.5GiB", 1536), ("2048 KiB", 2)]
        {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for bad in ["", "G", "0", "1K", "0.1M", "1GB", "-1G", "1.2.3G"] {
            assert!(mebibytes(bad).unwrap_err().contains("512M"), "{bad}");
        }
    }
}
