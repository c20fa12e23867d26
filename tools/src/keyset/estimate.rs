//! How many different keys are there, about, in 64 KiB of memory?
//!
//! - HyperLogLog (Flajolet et al., 2007) over mix64, with the estimator of Ertl (2017), which needs no
//!   correction for few or for many keys.

use hps::mix64;

/// Bits of a hash that choose the register.
const CHOOSING_BITS: u32 = 16;
const REGISTERS: usize = 1 << CHOOSING_BITS;
/// Bits of which the leading zeros are counted.
const COUNTED_BITS: u32 = u64::BITS - CHOOSING_BITS;

/// What is kept of all keys.
#[derive(Debug)]
pub struct Estimate {
    registers: Vec<u8>,
}

impl Estimate {
    /// Of no key.
    #[must_use]
    pub fn new() -> Estimate {
        Estimate {
            registers: vec![0; REGISTERS],
        }
    }

    /// Takes a key.
    pub fn put(&mut self, key: u64) {
        let hash = mix64(key);
        let register = &mut self.registers[(hash >> COUNTED_BITS) as usize];
        // At most 48, so that a bit behind those counted ends the zeros.
        let zeros = (hash << CHOOSING_BITS | 1 << (CHOOSING_BITS - 1)).leading_zeros();
        *register = (*register).max(u8::try_from(zeros + 1).unwrap_or(u8::MAX));
    }

    /// How many different keys there were; one standard deviation is 0.4 %.
    #[must_use]
    pub fn keys(&self) -> f64 {
        let mut counts = [0u32; COUNTED_BITS as usize + 2];
        for register in &self.registers {
            counts[usize::from(*register)] += 1;
        }
        let all = REGISTERS as f64;
        let [empty, counts @ .., full] = counts;
        let mut sum = all * tau(1.0 - f64::from(full) / all);
        for count in counts.iter().rev() {
            sum = 0.5 * (sum + f64::from(*count));
        }
        sum += all * sigma(f64::from(empty) / all);
        all * all / (2.0 * std::f64::consts::LN_2 * sum)
    }
}

/// Ertl's correction for registers that no key has met.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut sum, mut weight) = (x, 1.0);
    loop {
        x *= x;
        let before = sum;
        sum += x * weight;
        weight += weight;
        if sum <= before {
            return sum;
        }
    }
}

/// Ertl's correction for registers that can't grow.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut sum, mut weight) = (1.0 - x, 1.0);
    loop {
        x = x.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - x).powi(2) * weight;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_within_four_deviations_from_one_key_to_millions() {
        assert!(Estimate::new().keys().abs() < 1e-9);
        for count in [1u64, 10, 1000, 50_000, 160_000, 300_000, 2_000_000] {
            for spread in [1, 1 << 32] {
                let mut estimate = Estimate::new();
                for _ in 0..2 {
                    (0..count).for_each(|i| estimate.put(i * spread));
                }
                let error = estimate.keys() / count as f64 - 1.0;
                assert!(error.abs() < 0.0163, "{count} x {spread}: {error}");
            }
        }
    }

    #[test]
    fn full_registers_are_counted_as_such() {
        let mut estimate = Estimate::new();
        let before = estimate.keys();
        // The one key whose hash is zero has the most zeros that there can be.
        estimate.put(hps::unmix64(0));
        assert_eq!(estimate.registers[0], 49);
        assert!(estimate.keys() > before);
    }
}
