//! Is there a better split than the one that curves of exact LFUs name? A climb in steps.
//!
//! - Curves know nothing of pinned rows and of flushes: shares that they name are where the climb begins.
//! - A step gives one table a quarter more or a fifth less; all others share the difference. It is kept
//!   if the split is worth more then.

use anyhow::Result;

/// A table with less than one in this many parts is not tried: it gains or loses next to nothing.
const SMALL_SHARE: u64 = 100;
/// Parts of its share that a table has after a step, in twentieths.
const STEPS: [u64; 2] = [25, 16];

/// The best of so many splits that are tried, and what it is worth. Each has the bytes of the first one.
///
/// # Errors
/// What `worth` says.
pub fn climb(
    first: Vec<u64>,
    tries: usize,
    mut worth: impl FnMut(&[u64]) -> Result<u64>,
) -> Result<(Vec<u64>, u64)> {
    let (mut best, mut most) = (first.clone(), worth(&first)?);
    let mut tried = 1;
    loop {
        let before = most;
        let all: u64 = best.iter().sum();
        let mut order: Vec<usize> = (0..best.len()).collect();
        order.retain(|table| best[*table] > all / SMALL_SHARE);
        order.sort_by_key(|table| std::cmp::Reverse(best[*table]));
        for table in order {
            for step in STEPS {
                if tried >= tries {
                    return Ok((best, most));
                }
                tried += 1;
                let split = with_share(&best, table, best[table] * step / 20);
                let found = worth(&split)?;
                if found > most {
                    (best, most) = (split, found);
                    break;
                }
            }
        }
        if most == before {
            return Ok((best, most));
        }
    }
}

/// The split in which one table has so many bytes, and the others what is left in their proportion.
fn with_share(split: &[u64], table: usize, bytes: u64) -> Vec<u64> {
    let all: u64 = split.iter().sum();
    let (bytes, others) = (bytes.min(all), (all - split[table]).max(1));
    let part = |(t, share): (usize, &u64)| match t == table {
        true => bytes,
        false => {
            let part = u128::from(*share) * u128::from(all - bytes) / u128::from(others);
            u64::try_from(part).unwrap_or(u64::MAX)
        }
    };
    split.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_climb_comes_near_the_top_and_keeps_to_the_bytes() {
        // Shares of 1 : 2 : 3 are worth most.
        let worth = |split: &[u64]| {
            let terms = split.iter().zip([1.0, 2.0, 3.0]);
            let sum: f64 = terms
                .map(|(bytes, weight)| weight * (*bytes as f64).ln())
                .sum();
            Ok(crate::keys::whole(sum * 1e6))
        };
        let first = vec![20_000, 20_000, 20_000];
        let start = worth(&first).unwrap();
        let (best, most) = climb(first.clone(), 60, worth).unwrap();
        assert!(most > start && most == worth(&best).unwrap());
        let sum: u64 = best.iter().sum();
        assert!(sum <= 60_000 && sum > 59_900, "{best:?}");
        let near = |bytes: u64, of: u64| bytes.abs_diff(of) < of / 4;
        assert!(
            near(best[0], 10_000) && near(best[1], 20_000) && near(best[2], 30_000),
            "{best:?}"
        );
        let (same, _) = climb(first.clone(), 1, worth).unwrap();
        assert_eq!(same, first, "nothing else was tried");
    }
}
