//! How are numbers, times and names written for people?
//!
//! - Sizes have a unit and two or three digits, counts have all of theirs.
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
