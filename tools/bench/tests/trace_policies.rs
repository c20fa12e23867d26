//! Do the replayed policies decide as they should, and does none beat Belady?
#![expect(clippy::unwrap_used, reason = "a test")]

use clap::Parser;
use hps::{PolicyKind, mix64};
use hps_bench::hot_table::Model;
use hps_bench::trace::belady::Belady;
use hps_bench::trace::counts::{Lfu, PerfectStatic, Room};
use hps_bench::trace::generated::Generated;
use hps_bench::trace::ours::{Ours, OursConfig};
use hps_bench::trace::policies::{Lru, Policy, S3Fifo};
use hps_bench::trace::{Accesses, ReplayArgs, TraceTable, TraceWriter, replay};

fn run(policy: &mut dyn Policy, accesses: &Accesses) -> Vec<usize> {
    (0..accesses.batches())
        .map(|b| policy.batch(accesses.batch(b)).unwrap())
        .collect()
}

/// Batches of one key each.
fn singles(keys: &[u64]) -> Accesses {
    let batches: Vec<Vec<u64>> = keys.iter().map(|key| vec![*key]).collect();
    Accesses::from_batches(&batches).unwrap()
}

#[test]
fn belady_keeps_what_comes_back_first() {
    // With 2 places: 1 2, then 3 leaves at once or takes the place of 2, which comes back last.
    let accesses = singles(&[1, 2, 3, 1, 3, 2, 1]);
    let misses = run(&mut Belady::new(&accesses, 2), &accesses);
    assert_eq!(misses, [1, 1, 1, 0, 0, 1, 0]);
}

#[test]
fn belady_may_let_a_row_go_as_soon_as_its_batch_is_over() {
    let accesses = singles(&[1, 2, 9, 1, 2, 8, 1, 2]);
    let misses = run(&mut Belady::new(&accesses, 2), &accesses);
    assert_eq!(misses, [1, 1, 1, 0, 0, 1, 0, 0]);
}

#[test]
fn lru_lets_the_least_recent_go() {
    // 1 is used again before 3 comes, so 2 leaves; then 2 comes and 1 leaves.
    let accesses = singles(&[1, 2, 1, 3, 1, 2, 3, 1]);
    let misses = run(&mut Lru::new(accesses.distinct(), 2), &accesses);
    assert_eq!(misses, [1, 1, 0, 1, 0, 1, 1, 1]);
}

#[test]
fn lru_serves_the_hits_of_a_batch_before_rows_leave() {
    let accesses = Accesses::from_batches(&[vec![1, 2], vec![3, 1], vec![1, 3]]).unwrap();
    let misses = run(&mut Lru::new(accesses.distinct(), 2), &accesses);
    assert_eq!(misses, [2, 1, 0]);
}

#[test]
fn lfu_remembers_counts_of_rows_that_left() {
    // 1 twice, 2 once; 3 comes and leaves 2 out, which is older; then 2 (second time) beats 3.
    let accesses = singles(&[1, 1, 2, 3, 2, 3, 1, 2]);
    let mut lfu = Lfu::new(&accesses, &Room::slots(&accesses, 2));
    // At 3 (count 1) the older 2 leaves; 2 comes back with 2, and 3 leaves; 3 comes back with 2:
    // 1, 2 and 3 are equal now and 1 is the oldest.
    assert_eq!(run(&mut lfu, &accesses), [1, 0, 1, 1, 1, 1, 1, 1]);
    let accesses = singles(&[1, 1, 1, 2, 3, 4, 1, 2, 3, 1]);
    let mut lfu = Lfu::new(&accesses, &Room::slots(&accesses, 2));
    assert_eq!(run(&mut lfu, &accesses), [1, 0, 0, 1, 1, 1, 0, 1, 1, 0]);
}

#[test]
fn perfect_static_keeps_the_most_used_from_their_first_use() {
    // 1 and 2 come three times, 3 twice: 3 never stays.
    let accesses = singles(&[3, 1, 2, 3, 1, 2, 1, 2]);
    let misses = run(
        &mut PerfectStatic::new(&accesses, &Room::slots(&accesses, 2)),
        &accesses,
    );
    assert_eq!(misses, [1, 1, 1, 1, 0, 0, 0, 0]);
}

#[test]
fn s3_fifo_filters_rows_used_once_and_knows_its_ghosts() {
    // 10 places: 1 in the small queue, 9 in the main one, 9 ghosts.
    let mut cache = S3Fifo::new(40, 10);
    let mut batch = |rows: &[u32]| cache.batch(rows).unwrap();
    // Row 0 is used three times: it moves to the main queue when it comes out of the small one.
    assert_eq!([batch(&[0]), batch(&[0]), batch(&[0])], [1, 0, 0]);
    // Rows used once fill the cache and pass through the small queue.
    for row in 1..20 {
        assert_eq!(batch(&[row]), 1);
    }
    assert_eq!(batch(&[0]), 0, "used thrice: kept");
    // The cache holds 0 and 11 to 19; the ghosts are 2 to 10.
    assert_eq!(batch(&[19]), 0);
    assert_eq!(batch(&[1]), 1, "no ghost any more");
    // That let 11 go, and 12 goes for the next: then 4 is the oldest ghost. It goes to the main
    // queue, and stays there while rows used once come; 3, a ghost no more, would not.
    assert_eq!(batch(&[4]), 1);
    for row in 20..40 {
        assert_eq!(batch(&[row]), 1);
    }
    assert_eq!([batch(&[4]), batch(&[1])], [0, 1]);
}

/// Batches of keys with a hot set that drifts, by a seed.
fn random(seed: u64, batches: u64, keys: u64, samples: u64) -> Accesses {
    let batches: Vec<Vec<u64>> = (0..batches)
        .map(|b| {
            let draw = |i| {
                let bits = mix64(seed << 48 ^ b << 24 ^ i);
                let unit = (bits >> 40) % 1000;
                // Cubed: most draws are near 0; the hot end moves with the batches.
                (unit * unit * unit * keys / 1_000_000_000 + b / 8) % keys
            };
            (0..samples).map(draw).collect()
        })
        .collect();
    Accesses::from_batches(&batches).unwrap()
}

/// With at least so many places for rows of 4 bytes, which take 16.
fn config(rows: usize, depth: usize) -> OursConfig {
    let config = OursConfig {
        bytes: 0,
        shards: 1,
        file_bytes: (rows / 16) as u64 * 48,
        depth,
        policy: PolicyKind::Bilevel,
        split: None,
    };
    let bytes = config.bytes_for(rows, 4).unwrap();
    OursConfig { bytes, ..config }
}

fn ours(accesses: &Accesses, rows: usize, depth: usize) -> Ours<'_> {
    Ours::new(&config(rows, depth), accesses).unwrap()
}

#[test]
fn no_policy_misses_less_than_belady() {
    for seed in 0..40 {
        let (keys, samples) = (50 + seed * 10, 1 + seed % 20);
        let accesses = random(seed, 300, keys, samples);
        for capacity in [1, 2, 7, 40, 1000] {
            let distinct = accesses.distinct();
            let room = Room::slots(&accesses, capacity);
            let sum = |policy: &mut dyn Policy| run(policy, &accesses).iter().sum::<usize>();
            let best = sum(&mut Belady::new(&accesses, capacity));
            let others = [
                sum(&mut Lru::new(distinct, capacity)),
                sum(&mut Lfu::new(&accesses, &room)),
                sum(&mut S3Fifo::new(distinct, capacity)),
                sum(&mut PerfectStatic::new(&accesses, &room)),
            ];
            let least = others.iter().min().copied().unwrap();
            assert!(best <= least, "seed {seed}, {capacity}: {best} {others:?}");
            if capacity >= distinct {
                assert_eq!((best, others), (distinct, [distinct; 4]), "first uses only");
            }
        }
        let mut ours = ours(&accesses, 150, 2);
        let best = run(&mut Belady::new(&accesses, ours.capacity(0)), &accesses);
        let ours: usize = run(&mut ours, &accesses).iter().sum();
        assert!(best.iter().sum::<usize>() <= ours, "seed {seed}: {ours}");
    }
}

#[test]
fn ours_has_the_places_that_its_bytes_give_and_flushes_before_rows_leave() {
    let accesses = random(3, 2000, 5000, 60);
    let mut few = ours(&accesses, 500, 2);
    // Two units of 4 KiB.
    assert_eq!(few.capacity(0), 512);
    assert!((44..70).contains(&few.meta_bytes()), "{}", few.meta_bytes());
    let least = config(500, 2);
    let bytes = least.bytes - least.bytes / 1000;
    let fewer = Ours::new(&OursConfig { bytes, ..least }, &accesses).unwrap();
    assert_eq!(fewer.capacity(0), 256, "they are the least bytes");
    let misses: usize = run(&mut few, &accesses).iter().sum();
    let evicted = misses - few.capacity(0);
    assert!(few.written() >= evicted as u64, "every row is changed");
    let mut all = ours(&accesses, 6000, 2);
    let misses: usize = run(&mut all, &accesses).iter().sum();
    assert_eq!((misses, all.written()), (accesses.distinct(), 0));
    let mut lru = Lru::new(accesses.distinct(), few.capacity(0));
    assert!(run(&mut lru, &accesses).iter().sum::<usize>() > accesses.distinct());
}

#[test]
fn ours_says_when_the_batches_in_use_do_not_fit() {
    let batches: Vec<Vec<u64>> = (0..8).map(|b| (b * 100..b * 100 + 100).collect()).collect();
    let accesses = Accesses::from_batches(&batches).unwrap();
    let mut ours = ours(&accesses, 100, 2);
    let result: anyhow::Result<Vec<usize>> = (0..accesses.batches())
        .map(|b| ours.batch(accesses.batch(b)))
        .collect();
    let error = format!("{:#}", result.unwrap_err());
    assert!(error.contains("too small"), "{error}");
}

/// Batches of two tables: small rows that are used twice as often, and large ones.
fn two_sizes() -> Accesses {
    let tables = [(400, 64), (400, 640)].map(|(keys, row_bytes)| TraceTable { keys, row_bytes });
    let batch = |b: u64| {
        let draw = |i: u64, table: u64| mix64(b << 32 | i << 8 | table) % 400;
        let small = (0..40).map(|i| draw(i, 0)).collect();
        let large = (0..20).map(|i| draw(i, 1)).collect();
        vec![small, large]
    };
    Accesses::from_tables(&tables, (0..400).map(batch)).unwrap()
}

#[test]
fn bytes_go_to_rows_that_are_used_most_for_their_bytes() {
    let accesses = two_sizes();
    // All of the small ones fit, and 40 of the large ones.
    let room = Room::bytes(&accesses, 0, 400 * 64 + 40 * 640);
    let large = |row: &&u32| accesses.table(**row) == 1;
    for mut policy in [
        Box::new(Lfu::new(&accesses, &room)) as Box<dyn Policy>,
        Box::new(PerfectStatic::new(&accesses, &room)),
    ] {
        let found = run(&mut *policy, &accesses);
        for (batch, missed) in found.iter().enumerate().skip(200) {
            let large = accesses.batch(batch).iter().filter(large).count();
            assert!(*missed <= large, "small rows stay: {missed} of {large}");
        }
        let missed: usize = found[200..].iter().sum();
        let large: usize = (200..400)
            .map(|b| accesses.batch(b).iter().filter(large).count())
            .sum();
        let share = missed as f64 / large as f64;
        assert!(
            (0.80..0.97).contains(&share),
            "a tenth of the large ones stay: {share}"
        );
    }
    // With as many slots, a row is a row: the more frequent small ones stay, few large ones do.
    let room = Room::slots(&accesses, 440);
    let mut lfu = Lfu::new(&accesses, &room);
    let missed: usize = run(&mut lfu, &accesses)[200..].iter().sum();
    assert!(missed > 0);
}

#[test]
fn traces_are_drawn_with_a_load_before_them_and_drift_in_them() {
    let generated = Generated {
        zipf: 0.99,
        table: TraceTable {
            keys: 5000,
            row_bytes: 64,
        },
        batches: 300,
        samples: 512,
        load: true,
        drift: None,
        seed: 4,
    };
    let accesses = generated.accesses(|| {}).unwrap();
    assert_eq!(accesses.load_batches(), 10);
    assert_eq!((accesses.batches(), accesses.distinct()), (310, 5000));
    let loaded: usize = (0..10).map(|b| accesses.batch(b).len()).sum();
    assert_eq!(loaded, 5000, "each row once");
    // What the last batches ask for most, and how often the first ones did.
    let late = |accesses: &Accesses| -> f64 {
        let count = |range: std::ops::Range<usize>| {
            let mut counts = vec![0usize; accesses.distinct()];
            for batch in range {
                accesses
                    .batch(batch)
                    .iter()
                    .for_each(|row| counts[*row as usize] += 1);
            }
            counts
        };
        let (first, last) = (count(10..60), count(260..310));
        let mut order: Vec<usize> = (0..last.len()).collect();
        order.sort_by_key(|row| std::cmp::Reverse(last[*row]));
        let sum = |counts: &[usize]| order[..200].iter().map(|row| counts[*row]).sum::<usize>();
        sum(&first) as f64 / sum(&last) as f64
    };
    let still = late(&accesses);
    let drift = Some((20, 1000));
    let moved = late(&Generated { drift, ..generated }.accesses(|| {}).unwrap());
    assert!(still > 0.9, "{still}");
    assert!(moved < 0.8 * still, "{moved} of {still}");
}

#[test]
fn ours_serves_several_tables_with_rows_of_their_own_sizes() {
    let accesses = Model::new(1, 100).accesses(40, 600, || {}).unwrap();
    let config = OursConfig {
        bytes: 6 << 20,
        shards: 1,
        file_bytes: 1 << 20,
        depth: 1,
        policy: PolicyKind::Bilevel,
        split: None,
    };
    let mut ours = Ours::new(&config, &accesses).unwrap();
    let missed: usize = run(&mut ours, &accesses).iter().sum();
    assert!(missed >= accesses.distinct() && missed < accesses.total());
    assert!(
        (20..50).contains(&ours.meta_bytes()),
        "{}",
        ours.meta_bytes()
    );
}

#[test]
fn a_table_of_a_split_keeps_to_its_share() {
    let tables = [(4000, 64), (4000, 640)].map(|(keys, row_bytes)| TraceTable { keys, row_bytes });
    let batch = |b: u64| {
        let draw = |i: u64, table: u64| mix64(b << 32 | i << 8 | table) % 4000;
        let small = (0..400).map(|i| draw(i, 0)).collect();
        let large = (0..200).map(|i| draw(i, 1)).collect();
        vec![small, large]
    };
    let accesses = Accesses::from_tables(&tables, (0..200).map(batch)).unwrap();
    let pool = OursConfig {
        bytes: 2 << 20,
        shards: 1,
        file_bytes: 1 << 16,
        depth: 0,
        policy: PolicyKind::Bilevel,
        split: None,
    };
    let large = |row: &&u32| accesses.table(**row) == 1;
    let of_small = |split: [u64; 2]| -> usize {
        let split = Some(split.to_vec());
        let config = OursConfig {
            split,
            ..pool.clone()
        };
        let found = run(&mut Ours::new(&config, &accesses).unwrap(), &accesses);
        let late = (100..200).map(|b| {
            let large = accesses.batch(b).iter().filter(large).count();
            found[b].saturating_sub(large)
        });
        late.sum()
    };
    // All small rows fit: what is missed is large. With little for them, more is missed than that.
    let (little, all) = (1 << 17, 1 << 19);
    assert_eq!(of_small([all, (2 << 20) - all]), 0);
    assert!(of_small([little, (2 << 20) - little]) > 1000);
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReplayArgs,
}

fn args(words: &[&str]) -> Result<ReplayArgs, clap::Error> {
    Line::try_parse_from(std::iter::once(&"replay").chain(words)).map(|line| line.args)
}

#[test]
fn replay_reads_a_trace_and_refuses_what_it_cannot_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.trace");
    let mut writer = TraceWriter::create(&path).unwrap();
    let accesses = random(1, 100, 40_000, 500);
    for batch in 0..accesses.batches() {
        let keys = accesses.batch(batch).iter();
        let keys: Vec<u64> = keys.map(|row| accesses.keys()[*row as usize]).collect();
        writer.batch(&keys).unwrap();
    }
    writer.finish().unwrap();
    let path = path.to_string_lossy();
    replay(&args(&[&path, "--cache-mib", "2", "--json"]).unwrap()).unwrap();
    let odd = args(&[&path, "--cache-mib", "2", "--row-bytes", "65"]).unwrap();
    assert!(replay(&odd).unwrap_err().to_string().contains("multiple"));
    let skip = args(&[&path, "--cache-mib", "2", "--skip", "100"]).unwrap();
    assert!(replay(&skip).unwrap_err().to_string().contains("--skip"));
    let missing = args(&["no-such.trace", "--cache-mib", "2"]).unwrap();
    assert!(replay(&missing).is_err());
    assert!(args(&[&path]).is_err() && args(&[&path, "--cache-mib", "0"]).is_err());
    assert!(
        args(&[&path, "--zipf", "1", "--slots", "9"]).is_err(),
        "one trace"
    );
    assert!(
        args(&["--hot-table", "--slots", "9"]).is_err(),
        "rows of different sizes"
    );
}

#[test]
fn replay_draws_its_own_traces() {
    let zipf = [
        "--zipf",
        "1.2",
        "--rows",
        "4000",
        "--batches",
        "60",
        "--batch",
        "100",
    ];
    let zipf = [
        &zipf[..],
        &["--slots", "900", "--load", "--drift", "20", "--json"],
    ]
    .concat();
    replay(&args(&zipf).unwrap()).unwrap();
    let tables = [
        "--hot-table",
        "--batches",
        "6",
        "--batch",
        "500",
        "--cache-mib",
        "64",
    ];
    replay(&args(&tables).unwrap()).unwrap();
}
