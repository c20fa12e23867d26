//! What is counted of values: exact numbers for rows of any length.

use super::*;

/// Of rows that are given one after the other.
fn of(rows: &[&[f32]]) -> ValueStats {
    let mut stats = ValueStats::default();
    for row in rows {
        let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
        stats.add(&bytes);
    }
    stats
}

/// Class i of the histogram starts at a norm of 2^(i - 24).
#[test]
fn rows_are_counted_in_the_class_of_their_norm() {
    let power = |exponent: i32| 2f32.powi(exponent);
    let cases: &[(&[f32], usize)] = &[
        (&[1.0], 24),
        (&[-1.0], 24),
        (&[1.9], 24),
        (&[2.0], 25),
        (&[0.75], 23),
        (&[-0.5], 23),
        (&[0.49], 22),
        // A norm of 5.
        (&[3.0, -4.0], 26),
        // 3, over more than one step of eight.
        (&[1.0; 9], 25),
        // 32, from 1024 values.
        (&[-1.0; 1024], 29),
        (&[power(-23)], 1),
        (&[power(-24)], 0),
        (&[power(-30)], 0),
        (&[0.0, -0.0], 0),
        (&[power(22)], 46),
        (&[power(23)], 47),
        (&[power(40)], 47),
        (&[f32::MAX, f32::MAX], 47),
    ];
    for (row, class) in cases {
        let stats = of(&[row]);
        let mut norms = [0; NORM_BUCKETS];
        norms[*class] = 1;
        assert_eq!(stats.norms, norms, "{:?}", &row[..row.len().min(3)]);
        assert_eq!(stats.values, row.len() as u64);
    }
    let stats = of(&[&[1.0], &[3.0, 4.0], &[-1.5], &[]]);
    assert_eq!((stats.norms[24], stats.norms[26]), (2, 1));
    assert_eq!(stats.norms.iter().sum::<u64>(), 3, "no values, no row");
}

#[test]
fn each_kind_of_wild_value_is_counted_by_itself() {
    let tame = of(&[&[0.5, -9.99e8, 3.0], &[-7.0; 20]]);
    assert_eq!((tame.values, tame.largest), (23, 9.99e8));
    assert_eq!((tame.nan, tame.infinite, tame.absurd), (0, 0, 0));
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    let row = [
        -1e9, 2.0, nan, infinite, -infinite, 3e9, -4e9, 5e9, 8e8, -3.0, infinite, 6e9, -nan, 1.0,
    ];
    let wild = of(&[&[0.5, -9.99e8, 3.0], &row, &[-7.0; 20]]);
    assert_eq!(wild.values, 23 + 14);
    assert_eq!((wild.nan, wild.infinite, wild.absurd), (2, 3, 5));
    assert_eq!(wild.largest, 6e9, "the greatest that is finite");
    let none = of(&[&[nan, infinite, nan, nan]]);
    assert_eq!((none.nan, none.infinite, none.absurd), (3, 1, 0));
    assert_eq!(none.largest, 0.0);
}

/// Each place of a step of eight, and of the rest after the last whole one.
#[test]
fn a_value_counts_wherever_it_is_in_a_row() {
    for length in 1..=25 {
        for place in 0..length {
            let mut row = vec![0.25; length];
            row[place] = -1024.0;
            let stats = of(&[&row]);
            assert_eq!((stats.largest, stats.norms[34]), (1024.0, 1), "{place}");
            row[place] = -2e9;
            let stats = of(&[&row]);
            assert_eq!((stats.largest, stats.absurd), (2e9, 1), "{place}");
        }
    }
}

#[test]
fn parts_of_a_table_add_up() {
    let [one, other] = [3, 50].map(|n| {
        let mut stats = ValueStats {
            values: n,
            nan: n + 1,
            infinite: n + 2,
            absurd: n + 3,
            largest: n as f32,
            ..ValueStats::default()
        };
        (0..).zip(&mut stats.norms).for_each(|(i, m)| *m = n + i);
        stats
    });
    for (mut sum, part) in [(one.clone(), &other), (other.clone(), &one)] {
        sum.merge(part);
        let counts = (sum.values, sum.nan, sum.infinite, sum.absurd);
        assert_eq!(counts, (53, 55, 57, 59));
        assert_eq!(sum.largest, 50.0);
        assert!((0..).zip(&sum.norms).all(|(i, n)| *n == 53 + 2 * i));
    }
}
