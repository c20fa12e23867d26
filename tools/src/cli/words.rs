//! How are numbers, times and names written for people, and sizes read from them?
//!
//! - Sizes have a unit and two or three digits, counts have all of theirs. A size that is read is plain
//!   bytes or a number with a unit: 64MiB, 2GB, 1.5GiB.
//! - A name or message with control characters is written with escapes: it comes from a disk that
//!   nobody vouches for, and goes to a terminal.

use std::ops::RangeInclusive;
use std::time::Duration;

use hps::CheckpointId;

/// Bytes as people read them: 4.3 GB.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A size in bytes, from text such as 64MiB.
///
/// # Errors
/// What is wrong with the text.
pub fn size_of(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("", 1),
        ("B", 1),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim());
    let wrong = || String::from("a size is bytes, or a number with a unit: 64MiB, 2GB, 1.5GiB");
    let (_, factor) = factor.ok_or_else(wrong)?;
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let mut bytes = whole.checked_mul(*factor).ok_or_else(wrong)?;
    if !part.is_empty() {
        let scale = u32::try_from(part.len())
            .ok()
            .and_then(|n| 10u64.checked_pow(n));
        let (scale, part) = (scale.ok_or_else(wrong)?, part.parse::<u64>());
        let part = part.map_err(|_| wrong())?.checked_mul(*factor);
        bytes = bytes
            .checked_add(part.ok_or_else(wrong)? / scale)
            .ok_or_else(wrong)?;
    }
    Ok(bytes)
}

/// Checkpoints as they stand in JSON.
#[must_use]
pub fn numbers(checkpoints: &[CheckpointId]) -> Vec<u64> {
    checkpoints.iter().map(|id| id.0).collect()
}

/// A number with its thousands apart: 8 000 000.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A number of things, in the singular where it is one: 1 row, 8 000 rows.
#[must_use]
pub fn of(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// A time as people read it: 45 s, 7 min 05 s, 2 h 05 min.
#[must_use]
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{minutes} min {:02} s", seconds % 60),
        _ => format!("{} h {:02} min", count(hours), minutes % 60),
    }
}

/// A text in which every control character, and every one that changes the direction of writing,
/// stands as an escape.
#[must_use]
pub fn visible(text: &str) -> String {
    const TURNS: [RangeInclusive<char>; 3] = [
        '\u{200e}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2066}'..='\u{2069}',
    ];
    let turns = |c: char| TURNS.iter().any(|range| range.contains(&c));
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || turns(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_read_well_at_their_edges() {
        let sizes = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (4_321_000_000, "4.3 GB"),
            (99_960_000, "100 MB"),
            (u64::MAX, "18447 PB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(8_000_000), "8 000 000");
        assert_eq!(of(1, "row"), "1 row");
        assert_eq!(of(0, "row"), "0 rows");
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let good = [
            ("0", 0),
            ("4096", 4096),
            ("12B", 12),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("2GB", 2_000_000_000),
            ("1.5GiB", 3 << 29),
            ("0.25kB", 250),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in good {
            assert_eq!(size_of(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "1e9",
            "12Mib",
            "1.2.3kB",
            "99999999TiB",
            "7 parsecs",
        ] {
            assert!(size_of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_read_well_at_their_edges() {
        let times = [
            (0, "0 s"),
            (99, "99 s"),
            (100, "1 min 40 s"),
            (425, "7 min 05 s"),
            (5999, "99 min 59 s"),
            (6000, "1 h 40 min"),
            (7500, "2 h 05 min"),
        ];
        for (seconds, text) in times {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_name_can_not_speak_to_the_terminal() {
        assert_eq!(visible("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(visible("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(visible("ä/木 é"), "ä/木 é");
    }
}
