//! What do many readings say in a few numbers?
//!
//! - The middle of an even number of readings is the mean of the two in the middle.
//! - A percentile is the smallest reading that at least this share of all are not above.

use serde_json::{Value, json};

/// Median and spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The middle reading.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of these readings; zeros when there are none.
    #[must_use]
    pub fn of(readings: &[f64]) -> Spread {
        let mut sorted = readings.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
            return Spread::default();
        };
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[half]
        } else {
            f64::midpoint(sorted[half - 1], sorted[half])
        };
        Spread {
            median,
            min: *min,
            max: *max,
        }
    }

    /// As a JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({"median": self.median, "min": self.min, "max": self.max})
    }
}

/// Milliseconds of single calls.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    sorted: Vec<f64>,
}

impl Latencies {
    /// Of these seconds.
    #[must_use]
    pub fn of_seconds(seconds: impl IntoIterator<Item = f64>) -> Latencies {
        let mut sorted: Vec<f64> = seconds.into_iter().map(|s| s * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        Latencies { sorted }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The percentile in thousandths (990: p99), in milliseconds; 0 when there are none.
    #[must_use]
    pub fn at(&self, thousandths: usize) -> f64 {
        let count = self.sorted.len();
        let rank = (count * thousandths).div_ceil(1000).max(1);
        self.sorted.get(rank - 1).copied().unwrap_or(0.0)
    }

    /// Count, p50, p99, p999 and the greatest, as a JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "count": self.len(),
            "p50_ms": self.at(500),
            "p99_ms": self.at(990),
            "p999_ms": self.at(999),
            "max_ms": self.at(1000),
        })
    }
}

/// A number with a unit's prefix: `12.3 M`.
#[must_use]
pub fn short(x: f64) -> String {
    let (scaled, prefix) = match x.abs() {
        y if y >= 1e9 => (x / 1e9, " G"),
        y if y >= 1e6 => (x / 1e6, " M"),
        y if y >= 1e3 => (x / 1e3, " K"),
        _ => (x, ""),
    };
    let digits = if scaled.abs() >= 100.0 { 0 } else { 2 };
    format!("{scaled:.digits$}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_those_of_the_sorted_readings() {
        let spread = Spread::of(&[3.0, 1.0, 2.0, 10.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of(&[7.0]).median, 7.0);
        assert_eq!(Spread::of(&[]), Spread::default());
        let all = Latencies::of_seconds((1..=1000).rev().map(|ms| f64::from(ms) / 1e3));
        assert_eq!(all.at(500).round(), 500.0);
        assert_eq!(all.at(990).round(), 990.0);
        assert_eq!(all.at(1000).round(), 1000.0);
        assert_eq!(Latencies::of_seconds([0.5]).at(999), 500.0);
        assert_eq!(Latencies::default().at(999), 0.0);
    }

    #[test]
    fn short_numbers_keep_three_digits_or_so() {
        assert_eq!(short(12_345_678.0), "12.35 M");
        assert_eq!(short(290_000.0), "290 K");
        assert_eq!(short(0.5), "0.50");
    }
}
