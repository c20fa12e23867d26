//! How sure is a ratio of two builds, and what does it say?
//!
//! - A pair gives one ratio new ÷ old. The ratios' logarithms are taken as draws of a normal
//!   distribution: the interval is Student's t interval of their mean, taken back by `exp`.
//! - "Not slower" is a claim to be shown: an interval that reaches beyond the bound shows nothing.

/// A rate may fall to this part and still counts as kept.
pub const RATE_MIN: f64 = 0.97;
/// A cost may grow to this part and still counts as kept.
pub const COST_MAX: f64 = 1.03;
/// The share of intervals made so that hold the true ratio.
pub const CONFIDENCE: f64 = 0.95;

/// Whether more or less of a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// A rate.
    Higher,
    /// A cost.
    Lower,
}

/// What an interval says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval lies on the right side of the bound.
    NotSlower,
    /// The interval lies on the wrong side of 1.
    Slower,
    /// Neither: more pairs are needed, or a quieter machine.
    Undecided,
}

impl Verdict {
    /// For people and for JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::NotSlower => "not slower",
            Verdict::Slower => "slower",
            Verdict::Undecided => "undecided",
        }
    }
}

/// A ratio and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The geometric mean of the ratios.
    pub ratio: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Interval {
    /// Of pairs (old, new); `None` when there are fewer than two or a reading is no positive
    /// number. Pairs that are zero on both sides throughout are equal: exactly 1.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Interval> {
        if pairs.len() < 2 {
            return None;
        }
        if pairs.iter().all(|(old, new)| *old == 0.0 && *new == 0.0) {
            return Some(Interval {
                ratio: 1.0,
                low: 1.0,
                high: 1.0,
            });
        }
        let logs: Vec<f64> = pairs.iter().map(|(old, new)| (new / old).ln()).collect();
        if !logs.iter().all(|x| x.is_finite()) {
            return None;
        }
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let squares: f64 = logs.iter().map(|x| (x - mean).powi(2)).sum();
        let error = (squares / (n - 1.0) / n).sqrt();
        let reach = t_quantile(logs.len() - 1) * error;
        Some(Interval {
            ratio: mean.exp(),
            low: (mean - reach).exp(),
            high: (mean + reach).exp(),
        })
    }

    /// What it says of a figure.
    #[must_use]
    pub fn verdict(&self, better: Better) -> Verdict {
        let (kept, lost) = match better {
            Better::Higher => (self.low >= RATE_MIN, self.high < 1.0),
            Better::Lower => (self.high <= COST_MAX, self.low > 1.0),
        };
        match (kept, lost) {
            (true, _) => Verdict::NotSlower,
            (false, true) => Verdict::Slower,
            (false, false) => Verdict::Undecided,
        }
    }
}

/// Student's t for a two-sided interval of 95 %.
///
/// # Source
/// Tables up to nine degrees of freedom; from there on the series of Cornish and Fisher (Abramowitz
/// and Stegun 26.7.5), within 0.0002.
fn t_quantile(freedom: usize) -> f64 {
    const TABLE: [f64; 9] = [
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622,
    ];
    if let Some(t) = freedom.checked_sub(1).and_then(|i| TABLE.get(i)) {
        return *t;
    }
    let (z, v) = (1.959_964_f64, freedom.max(1) as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / v + second / v.powi(2) + third / v.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_quantiles_are_those_of_the_tables() {
        for (freedom, wanted) in [
            (1, 12.7062),
            (9, 2.2622),
            (10, 2.2281),
            (14, 2.1448),
            (29, 2.0452),
            (120, 1.9799),
        ] {
            let found = t_quantile(freedom);
            assert!((found - wanted).abs() < 2e-4, "{freedom}: {found}");
        }
    }

    #[test]
    fn an_interval_is_that_of_the_mean_logarithm() {
        // Logarithms 0.01, 0.03: mean 0.02, standard error 0.01, t 12.7062.
        let pairs = [(1.0, 0.01f64.exp()), (2.0, 2.0 * 0.03f64.exp())];
        let found = Interval::of(&pairs).unwrap();
        assert!((found.ratio - 0.02f64.exp()).abs() < 1e-12);
        assert!((found.low - (0.02f64 - 0.127_062).exp()).abs() < 1e-6);
        assert!((found.high - (0.02f64 + 0.127_062).exp()).abs() < 1e-6);
    }

    #[test]
    fn readings_that_have_no_ratio_have_no_interval() {
        assert_eq!(Interval::of(&[(1.0, 1.0)]), None);
        assert_eq!(Interval::of(&[(0.0, 1.0), (1.0, 1.0)]), None);
        assert_eq!(Interval::of(&[(f64::NAN, 1.0), (1.0, 1.0)]), None);
        let equal = Interval::of(&[(0.0, 0.0), (0.0, 0.0)]).unwrap();
        assert_eq!(equal.verdict(Better::Lower), Verdict::NotSlower);
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let interval = |low, high| Interval {
            ratio: 1.0,
            low,
            high,
        };
        let rate = |low, high| interval(low, high).verdict(Better::Higher);
        assert_eq!(rate(0.97, 0.99), Verdict::NotSlower);
        assert_eq!(rate(0.96, 1.2), Verdict::Undecided);
        assert_eq!(rate(0.90, 0.99), Verdict::Slower);
        let cost = |low, high| interval(low, high).verdict(Better::Lower);
        assert_eq!(cost(1.01, 1.03), Verdict::NotSlower);
        assert_eq!(cost(0.9, 1.04), Verdict::Undecided);
        assert_eq!(cost(1.01, 1.04), Verdict::Slower);
    }
}
