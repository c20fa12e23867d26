//! What does `hps-import` make of any text of Paddle's parameter server? The input is the rules and the dim, flags
//! (1 weights alone, 2 the text is split into two files, 4 the second one is a `.gz`), what to do with numbers that
//! are not finite, then the text.
//!
//! Promise: rows or an error, never a panic. Taken is exactly what a plain reader takes, which looks at words
//! between spaces; the same rows, to the bit.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::str::FromStr;

use flate2::Compression;
use flate2::write::GzEncoder;
use hps_fuzz::Input;
use hps_fuzz::folder::{args, memory, same};
use hps_tools::import::rows;
use libfuzzer_sys::fuzz_target;

const RULES: [&str; 5] = ["naive", "adagrad", "std-adagrad", "adam", "shared-adam"];
const NON_FINITE: [&str; 3] = ["reject", "skip", "apply"];

fn state(rule: usize, dim: usize) -> usize {
    [0, 1, dim, 2 * dim + 2, 4][rule]
}

/// Whether number `index` of the state can be this: sums of squares are not below 0, powers of betas 0 to 1.
fn is_state(rule: usize, dim: usize, index: usize, value: f32) -> bool {
    let (squares, powers) = match rule {
        1 | 2 => (0..usize::MAX, 0..0),
        3 => (dim..2 * dim, 2 * dim..2 * dim + 2),
        4 => (1..2, 2..4),
        _ => (0..0, 0..0),
    };
    value.is_nan()
        || !(squares.contains(&index) && value < 0.0
            || powers.contains(&index) && !(0.0..=1.0).contains(&value))
}

fn number<T: FromStr>(word: &str) -> Option<T> {
    // As C++ may print it.
    let word = if word == "-nan" { "nan" } else { word };
    word.parse().ok()
}

/// What a plain reader makes of the lines: rows, or `None` where something is wrong.
fn plain(
    text: &[u8],
    (embed, embedx, dim): (usize, usize, usize),
    with_counts: bool,
    non_finite: &str,
    found: &mut BTreeMap<u64, Vec<f32>>,
    keys: &mut BTreeSet<u64>,
) -> Option<()> {
    let short = 6 + state(embed, 1);
    let long = short + dim + state(embedx, dim);
    let lines = match text {
        [] => return Some(()),
        _ => text.strip_suffix(b"\n")?.split(|byte| *byte == b'\n'),
    };
    for line in lines {
        let line = str::from_utf8(line).ok()?;
        if !line.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let mut words = line
            .split(|c: char| c.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let key: u64 = words.next()?.parse().ok()?;
        let words: Vec<&str> = words.collect();
        let numbers: Option<Vec<f64>> = words.iter().map(|word| number(word)).collect();
        let numbers = numbers?;
        if numbers.len() != short && numbers.len() != long {
            return None;
        }
        // Rounded once, from the text.
        let float = |at: usize| number(words[at]).expect("a number");
        let can_be = (6..short).all(|at| is_state(embed, 1, at - 6, float(at)))
            && (short + dim..numbers.len())
                .all(|at| is_state(embedx, dim, at - short - dim, float(at)));
        if !can_be {
            return None;
        }
        let mut row: Vec<f32> = vec![float(5)];
        let has_embedx = numbers.len() == long;
        row.extend((short..short + dim).map(|at| if has_embedx { float(at) } else { 0.0 }));
        let is_finite = row.iter().all(|number| number.is_finite());
        if !is_finite && non_finite == "reject" {
            return None;
        }
        let is_new = keys.insert(key);
        if !is_finite && non_finite == "skip" {
            if !is_new {
                return None;
            }
            continue;
        }
        if with_counts {
            for count in [numbers[3], numbers[4]] {
                let whole = count.round();
                if !(0.0..=4_294_967_295.0).contains(&whole) {
                    return None;
                }
                row.push(f32::from_bits(whole as u32));
            }
        }
        if !is_new {
            return None;
        }
        found.insert(key, row);
    }
    Some(())
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let (embed, embedx, dim) = (input.below(5), input.below(5), input.below(6));
    let flags = input.number(1);
    let non_finite = NON_FINITE[input.below(3)];
    let text = input.take(usize::MAX);
    let (weights_only, split, gz) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
    let at = if split { text.len() / 2 } else { text.len() };
    let (first, second) = text.split_at(at);
    let folder = memory();
    let file =
        |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("a file");
    file("part-000-00000", first);
    if split && gz {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(second).expect("memory");
        file("part-000-00001.gz", &packed.finish().expect("memory"));
    } else if split {
        file("part-000-00001", second);
    }
    let mut more = vec![
        String::from("--format=paddle-text"),
        String::from("--accessor=ctr-common"),
        String::from("--optimizer=sgd"),
        format!("--embedx-dim={dim}"),
        format!("--embed-rule={}", RULES[embed]),
        format!("--embedx-rule={}", RULES[embedx]),
        format!("--non-finite={non_finite}"),
    ];
    more.extend(weights_only.then(|| String::from("--weights-only")));
    let taken = rows(&args(folder.path(), &more));
    let (mut expected, mut keys) = (BTreeMap::new(), BTreeSet::new());
    let layout = (embed, embedx, dim);
    let mut read = |text| {
        plain(
            text,
            layout,
            !weights_only,
            non_finite,
            &mut expected,
            &mut keys,
        )
    };
    let is_good = read(first).is_some() && read(second).is_some();
    match taken {
        Ok(found) => {
            assert!(is_good, "taken, but not by a plain reader");
            same(&found.rows, &expected);
        }
        Err(error) => {
            assert!(!is_good, "refused, but not by a plain reader: {error}");
            assert!(!error.to_string().is_empty());
        }
    }
});
