//! How many rows are missing, and is that more than usual?

use crate::units::saturate;

/// Misses are counted over this share of the capacity in touches, one in so many.
const WINDOW_SHARE: usize = 4;
/// Where so many tenths of what is usual are missing, what is asked for has changed: frequencies are halved once more.
/// A hot table that moved: 33.2 -> 30.3 % missing in the 50 batches from the 150th on behind the move; without drift
/// the same.
const RISE_TENTHS: u64 = 11;
/// Touches of a window, at least: in fewer, chance alone makes such a difference.
const SMALLEST_WINDOW: usize = 1 << 14;
/// Weight of a window in what is usual, one in so many.
const WEIGHT: u64 = 10;
/// All, as shares are told.
const WHOLE: u64 = 1 << 32;

/// Tells when more rows are missing than usual.
#[derive(Debug, Default)]
pub(super) struct Misses {
    /// Touches of a window, and those of the one that has begun.
    window: usize,
    touches: usize,
    missing: usize,
    /// The share of misses in the last window, and in windows before.
    shares: Option<(u64, u64)>,
}

impl Misses {
    /// Says how many rows fit.
    pub fn set_capacity(&mut self, rows: usize) {
        self.window = rows / WINDOW_SHARE;
    }

    /// A row was missing.
    #[inline]
    pub fn add(&mut self) {
        self.missing += 1;
    }

    /// Counts touches, those of missing rows included; whether a window has ended in which more rows were missing than
    /// usual.
    pub fn rise(&mut self, touches: usize) -> bool {
        self.touches += touches;
        if self.touches < self.window.max(SMALLEST_WINDOW) {
            return false;
        }
        let share = scaled(
            WHOLE,
            self.missing.min(self.touches) as u64,
            self.touches as u64,
        );
        (self.touches, self.missing) = (0, 0);
        let usual = self.shares.map_or(share, |(_, usual)| usual);
        self.shares = Some((share, (usual * (WEIGHT - 1) + share) / WEIGHT));
        share * 10 > usual * RISE_TENTHS
    }

    /// How much of what is asked for is likely to be missing; all, as long as nothing is known.
    pub fn likely(&self, asked: u64) -> u64 {
        match self.shares {
            Some((last, usual)) => scaled(asked, last.max(usual), WHOLE),
            None => asked,
        }
    }
}

fn scaled(value: u64, share: u64, whole: u64) -> u64 {
    saturate(u128::from(value) * u128::from(share) / u128::from(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(misses: &mut Misses, missing: usize) -> bool {
        (0..missing).for_each(|_| misses.add());
        misses.rise(SMALLEST_WINDOW)
    }

    #[test]
    fn a_window_with_a_tenth_more_misses_than_usual_is_a_rise() {
        let mut misses = Misses::default();
        misses.set_capacity(1000);
        assert_eq!(misses.likely(7), 7, "nothing is known");
        assert!((0..20).all(|_| !window(&mut misses, 1000)));
        assert!(!window(&mut misses, 1090));
        assert!(window(&mut misses, 1200));
        assert!(!misses.rise(SMALLEST_WINDOW - 1), "no window has ended");
        assert!(!misses.rise(1));
    }

    #[test]
    fn the_share_that_may_miss_is_that_of_the_worse_of_now_and_before() {
        let mut misses = Misses::default();
        let all = SMALLEST_WINDOW as u64;
        window(&mut misses, 2000);
        assert_eq!(misses.likely(all), 2000);
        window(&mut misses, 8000);
        assert_eq!(misses.likely(all), 8000);
        window(&mut misses, 100);
        assert!((2000..3000).contains(&misses.likely(all)));
        // More rows come in than are asked for where some are put.
        window(&mut misses, 3 * SMALLEST_WINDOW);
        assert_eq!(misses.likely(u64::MAX), u64::MAX);
    }
}
