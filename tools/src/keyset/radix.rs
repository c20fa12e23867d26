//! How are keys sorted and made unique?
//!
//! - By radix, eleven bits at a time, over the bits in which the keys differ and no others.
//! - Few keys are sorted by comparison, which is faster then.

/// Below this many keys a comparison sort is faster.
const FEW: usize = 1024;
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;

fn digit(key: u64, shift: u32) -> usize {
    ((key >> shift) & 0x7ff) as usize
}

/// Sorts keys and drops those that are there twice. `scratch` grows to as many keys.
pub fn sort_unique(keys: &mut Vec<u64>, scratch: &mut Vec<u64>) {
    sort(keys, scratch);
    keys.dedup();
}

/// Sorts keys as unsigned numbers.
fn sort(keys: &mut Vec<u64>, scratch: &mut Vec<u64>) {
    if keys.len() < FEW {
        keys.sort_unstable();
        return;
    }
    let (all, any) = keys
        .iter()
        .fold((u64::MAX, 0), |(all, any), key| (all & key, any | key));
    let varying = all ^ any;
    if scratch.len() < keys.len() {
        scratch.reserve_exact(keys.len() - scratch.len());
        scratch.resize(keys.len(), 0);
    }
    scratch.truncate(keys.len());
    let mut shift = varying.trailing_zeros();
    while shift < u64::BITS && varying >> shift != 0 {
        if digit(varying, shift) != 0 {
            pass(keys, scratch, shift);
            std::mem::swap(keys, scratch);
        }
        shift += DIGIT_BITS;
    }
}

/// Distributes keys by one digit, in their order.
fn pass(keys: &[u64], target: &mut [u64], shift: u32) {
    let mut places = [0usize; DIGITS];
    for key in keys {
        places[digit(*key, shift)] += 1;
    }
    let mut before = 0;
    for place in &mut places {
        before += std::mem::replace(place, before);
    }
    for key in keys {
        let place = &mut places[digit(*key, shift)];
        target[*place] = *key;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_of_any_spread_are_sorted_and_unique() {
        let mut state = 7u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state ^ state >> 29
        };
        let mut scratch = Vec::new();
        for (count, mask) in [
            (0, 0),
            (1, u64::MAX),
            (FEW - 1, 0xff),
            (FEW, u64::MAX),
            (5000, 0),
            (5000, 0xff00_0000_0000_0001),
            (70_000, 0x1f_ffff_ffff),
            (70_000, u64::MAX),
            (3000, 1 << 63),
        ] {
            let keys: Vec<u64> = (0..count).map(|_| next() & mask).collect();
            let wanted: Vec<u64> = keys
                .iter()
                .copied()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect();
            let mut sorted = keys;
            sort_unique(&mut sorted, &mut scratch);
            assert_eq!(sorted, wanted, "{count} keys under {mask:#x}");
        }
    }
}
