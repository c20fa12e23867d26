//! Which keys does a batch ask for? Seeded draws, uniform or zipf, over keys `0..rows`.
//!
//! - A draw is a pure function of (rows, theta, key seed, stream): two streams over the same key
//!   seed ask for the same hot keys in another order, and a run is repeated by its seed.
//! - Zipf is exact and takes O(1) memory: rejection-inversion (Hoermann and Derflinger,
//!   "Rejection-inversion to generate variates from monotone discrete distributions", 1996).
//! - The ranks are scattered over `0..rows` by a bijection, so that neither hot keys nor their
//!   neighbours lie together, and an array of rows may still be indexed by key.

use hps::mix64;

/// Which keys are asked for how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All equally often.
    Uniform,
    /// The key of rank r in proportion to `r ^ -theta`, r from 1.
    Zipf {
        /// The exponent, above 0.
        theta: f64,
    },
}

impl Distribution {
    /// The distribution that a `--zipf` flag means: 0 is uniform.
    #[must_use]
    pub fn from_theta(theta: f64) -> Distribution {
        if theta > 0.0 {
            Distribution::Zipf { theta }
        } else {
            Distribution::Uniform
        }
    }
}

/// In which order a batch hands out its unique keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By key, as a trainer's "unique" leaves them.
    Sorted,
    /// In no order.
    Mixed,
}

/// A bijection on `0..rows` without order.
///
/// Mixes inside the next power of two and walks the cycle until it is back in range: fewer than
/// two rounds on average.
#[derive(Clone, Copy, Debug)]
pub struct Scramble {
    rows: u64,
    mask: u64,
    shift: u32,
    seed: u64,
}

impl Scramble {
    /// The bijection on `0..rows` that belongs to `seed`.
    ///
    /// # Panics
    /// When there are no rows.
    #[must_use]
    pub fn new(rows: u64, seed: u64) -> Scramble {
        assert!(rows > 0, "a bijection on nothing");
        let bits = (64 - (rows - 1).leading_zeros()).max(2);
        let mask = u64::MAX >> (64 - bits);
        let seed = mix64(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
        Scramble {
            rows,
            mask,
            shift: bits.div_ceil(2),
            seed,
        }
    }

    /// The key of a rank below `rows`.
    #[must_use]
    pub fn key(&self, rank: u64) -> u64 {
        debug_assert!(rank < self.rows, "a rank out of range");
        let mut x = rank;
        loop {
            x = self.round(x);
            if x < self.rows {
                return x;
            }
        }
    }

    /// Each step has an inverse modulo the power of two.
    fn round(&self, x: u64) -> u64 {
        let mut x = x.wrapping_add(self.seed) & self.mask;
        for multiplier in [0xd6e8_feb8_6659_fd93u64, 0x9e37_79b9_7f4a_7c15] {
            x ^= x >> self.shift;
            x = x.wrapping_mul(multiplier) & self.mask;
        }
        x ^ (x >> self.shift)
    }
}

/// Ranks `1..=n`, rank r in proportion to `r ^ -theta`.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    n: f64,
    theta: f64,
    /// The integral at both ends, and how far from a rank a point is always taken.
    low: f64,
    high: f64,
    near: f64,
}

/// `ln(1 + x) / x`, also at 0.
fn log_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.ln_1p() / x
    } else {
        1.0 - x * (0.5 - x / 3.0)
    }
}

/// `(e^x - 1) / x`, also at 0.
fn exp_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.exp_m1() / x
    } else {
        1.0 + x * 0.5 * (1.0 + x / 3.0)
    }
}

impl Zipf {
    /// Ranks from 1 to `n`.
    #[must_use]
    pub fn new(n: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf {
            n: n as f64,
            theta,
            low: 0.0,
            high: 0.0,
            near: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.n + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// The integral of the density, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        exp_ratio((1.0 - self.theta) * log) * log
    }

    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.theta)).max(-1.0);
        (log_ratio(t) * y).exp()
    }

    /// One rank, from numbers in `[0, 1)`.
    pub fn rank(&self, mut unit: impl FnMut() -> f64) -> u64 {
        loop {
            let y = self.high + unit() * (self.low - self.high);
            let x = self.inverse(y);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.near || y >= self.integral(k + 0.5) - self.density(k) {
                return whole(k);
            }
        }
    }
}

/// The number that an exact f64 stands for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "called with whole numbers from 0 to 2^53 only"
)]
pub(crate) fn whole(x: f64) -> u64 {
    x as u64
}

/// A seeded stream of keys.
#[derive(Clone, Debug)]
pub struct Draw {
    state: u64,
    rows: u64,
    zipf: Option<Zipf>,
    scramble: Scramble,
}

impl Draw {
    /// Keys `0..rows`. `seed` says which key has which rank, `stream` in which order they come.
    #[must_use]
    pub fn new(rows: u64, distribution: Distribution, seed: u64, stream: u64) -> Draw {
        let zipf = match distribution {
            Distribution::Uniform => None,
            Distribution::Zipf { theta } => Some(Zipf::new(rows, theta)),
        };
        Draw {
            state: mix64(seed ^ mix64(stream.wrapping_add(0x5851_f42d_4c95_7f2d))),
            rows,
            zipf,
            scramble: Scramble::new(rows, seed),
        }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.state)
    }

    /// A number in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One rank, from 0 (the hottest).
    pub fn rank(&mut self) -> u64 {
        match self.zipf {
            Some(zipf) => zipf.rank(|| self.unit()) - 1,
            None => {
                let wide = u128::from(self.bits()) * u128::from(self.rows);
                u64::try_from(wide >> 64).unwrap_or(0)
            }
        }
    }

    /// One key.
    pub fn key(&mut self) -> u64 {
        let rank = self.rank();
        self.scramble.key(rank)
    }

    /// The unique keys of `samples` draws, into `keys`.
    pub fn fill(&mut self, samples: usize, order: Order, keys: &mut Vec<u64>) {
        keys.clear();
        keys.extend((0..samples).map(|_| self.key()));
        keys.sort_unstable();
        keys.dedup();
        if order == Order::Mixed {
            self.shuffle(keys);
        }
    }

    /// The unique keys of `samples` draws.
    #[must_use]
    pub fn batch(&mut self, samples: usize, order: Order) -> Vec<u64> {
        let mut keys = Vec::with_capacity(samples);
        self.fill(samples, order, &mut keys);
        keys.shrink_to_fit();
        keys
    }

    /// Exactly `count` different keys, or all there are.
    #[must_use]
    pub fn distinct(&mut self, count: usize, order: Order) -> Vec<u64> {
        let count = count.min(usize::try_from(self.rows).unwrap_or(usize::MAX));
        let mut keys = Vec::with_capacity(count);
        while keys.len() < count {
            let missing = count - keys.len();
            keys.extend((0..missing + missing / 8 + 1).map(|_| self.key()));
            keys.sort_unstable();
            keys.dedup();
        }
        self.shuffle(&mut keys);
        keys.truncate(count);
        if order == Order::Sorted {
            keys.sort_unstable();
        }
        keys
    }

    fn shuffle(&mut self, keys: &mut [u64]) {
        for i in (1..keys.len()).rev() {
            let wide = u128::from(self.bits()) * (i as u128 + 1);
            keys.swap(i, usize::try_from(wide >> 64).unwrap_or(0));
        }
    }
}

/// All keys once, in no order: batches of a load.
pub fn load_order(rows: u64, seed: u64, batch: usize) -> impl Iterator<Item = Vec<u64>> {
    let scramble = Scramble::new(rows, mix64(seed) ^ 0x10ad);
    let step = batch.max(1);
    (0..rows).step_by(step).map(move |first| {
        let last = rows.min(first + step as u64);
        (first..last).map(|i| scramble.key(i)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scramble_is_a_bijection_that_leaves_little_order() {
        for rows in [1, 2, 3, 7, 1000, 4096, 4097] {
            let scramble = Scramble::new(rows, 5);
            let mut keys: Vec<u64> = (0..rows).map(|r| scramble.key(r)).collect();
            let rising = keys.windows(2).filter(|w| w[0] < w[1]).count();
            assert!(rows < 1000 || (rising * 10 > keys.len() * 4 && rising * 10 < keys.len() * 6));
            keys.sort_unstable();
            assert!(keys.iter().copied().eq(0..rows), "{rows} rows");
        }
    }

    /// Counts of the first ranks and of the rest, against the exact sums.
    #[test]
    fn zipf_draws_have_the_frequencies_of_the_law() {
        for theta in [0.5, 0.99, 1.0, 1.2, 2.0] {
            let (n, samples) = (1000u64, 400_000u32);
            let total: f64 = (1..=n).map(|r| (r as f64).powf(-theta)).sum();
            let mut draw = Draw::new(n, Distribution::from_theta(theta), 1, 9);
            let mut counts = vec![0u32; usize::try_from(n).unwrap()];
            for _ in 0..samples {
                counts[usize::try_from(draw.rank()).unwrap()] += 1;
            }
            for range in [0..1, 1..2, 2..4, 4..10, 10..50, 50..200, 200..1000] {
                let p: f64 = range
                    .clone()
                    .map(|r| ((r + 1) as f64).powf(-theta) / total)
                    .sum();
                let found: u32 = counts[range.clone()].iter().sum();
                let expected = p * f64::from(samples);
                let deviation = (expected * (1.0 - p)).sqrt();
                assert!(
                    (f64::from(found) - expected).abs() < 5.0 * deviation,
                    "theta {theta}, ranks {range:?}: {found} for {expected}"
                );
            }
        }
    }

    #[test]
    fn batches_are_unique_repeatable_and_differ_by_stream() {
        let draw = |stream| Draw::new(50_000, Distribution::from_theta(0.99), 3, stream);
        let sorted = draw(1).batch(4096, Order::Sorted);
        assert!(sorted.windows(2).all(|w| w[0] < w[1]));
        assert!(sorted.len() > 500 && sorted.len() < 4096);
        assert_eq!(sorted, draw(1).batch(4096, Order::Sorted));
        assert_ne!(sorted, draw(2).batch(4096, Order::Sorted));
        let mut mixed = draw(1).batch(4096, Order::Mixed);
        assert_ne!(mixed, sorted);
        mixed.sort_unstable();
        assert_eq!(mixed, sorted);
        // The hottest key is the same in both streams.
        let hottest = Scramble::new(50_000, 3).key(0);
        assert!(sorted.contains(&hottest) && draw(2).batch(64, Order::Mixed).contains(&hottest));
    }

    #[test]
    fn distinct_draws_have_the_count_that_was_asked() {
        let mut draw = Draw::new(1000, Distribution::Uniform, 1, 1);
        for count in [0, 1, 900, 1000, 5000] {
            let keys = draw.distinct(count, Order::Sorted);
            assert_eq!(keys.len(), count.min(1000));
            assert!(keys.windows(2).all(|w| w[0] < w[1]));
        }
    }

    #[test]
    fn a_load_names_each_key_once_and_not_in_order() {
        let batches: Vec<Vec<u64>> = load_order(10_001, 4, 1024).collect();
        let mut keys = batches.concat();
        assert_eq!(keys.len(), 10_001);
        assert!(!keys.is_sorted());
        keys.sort_unstable();
        assert!(keys.iter().copied().eq(0..10_001));
    }
}
