//! Does the emulator find what is wrong in kernels? Mistakes are planted, one at a time; each must be found,
//! by the emulator or by bits that differ from the table in plain Rust, and nothing without one.
//!
//! Needs the feature `emu` (g++). `HPS_KERNEL_SEEDS` is the number of schedules without a mistake (10).

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where something goes wrong"
)]

#[path = "common/hbm_pair.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod hbm_pair;
#[path = "common/rng.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod rng;

use hbm_pair::{Batch, Driven, TRAIN, options, row_f32s};
use hps::hbm::{
    CpuTable, Faults, Index, Kind, Memory, Planted, Stream, Values, ValuesMut, barriers,
    open_with_faults,
};
use hps::{Error, NonFinite, Optimizer, TableDescriptor};
use rng::Rng;

/// So few that the sort needs one pass: one that is not stable leaves runs whole, in another order.
const ROWS: usize = 200;
const SEEDS: u64 = 3;
/// The shortest run that blocks sum; with the first place of a key it has one more.
const LONG_RUN: usize = 255;

type Setup = (Optimizer, usize, NonFinite);

/// Together they meet every barrier of the kernels; the last has more sums of long runs than blocks. Adam's kernel
/// looks itself at gradients that may be left out; for row-wise AdaGrad a kernel of its own does.
const TABLES: [Setup; 4] = [
    (Optimizer::Adagrad, 8, NonFinite::Apply),
    (Optimizer::Adam, 12, NonFinite::Skip),
    (Optimizer::RowwiseAdagrad, 17, NonFinite::Skip),
    (Optimizer::Sgd, 80, NonFinite::Reject),
];

/// All keys once, then three keys very often, in turns and in no order: a giant run (on the emulator 512 places and
/// more), of 6 slots with the narrowest rows, others that blocks sum, and short ones. Every 50th gradient is to be left out
/// where that is done.
fn batch(rng: &mut Rng, dim: usize, leaves_out: bool) -> Batch {
    let giant = if dim == 8 { 1300 } else { 600 };
    let mut many: Vec<u64> = vec![0; giant];
    many.extend([7; 300].iter().chain(&[14; LONG_RUN]));
    for last in (1..many.len()).rev() {
        many.swap(last, rng.below(last + 1));
    }
    let keys: Vec<u64> = (0..ROWS as u64).chain(many).collect();
    let n = keys.len();
    let value = |rng: &mut Rng| (rng.below(200_001) as f32 - 100_000.0) / 7.0;
    let mut gradients: Vec<f32> = (0..n * dim).map(|_| value(rng)).collect();
    if leaves_out {
        let bad = gradients.iter_mut().skip(dim / 2).step_by(50 * dim);
        bad.for_each(|value| *value = f32::NAN);
    }
    Batch {
        gradients,
        shows: vec![1; n],
        clicks: vec![0; n],
        lr: 0.05,
        step: 3,
        keys,
    }
}

fn work(
    driven: &mut Driven,
    (rows, values): (&[u32], &[f32]),
    batch: &Batch,
    refuses: bool,
) -> hps::Result<Vec<f32>> {
    let keys: Vec<u64> = (0..ROWS as u64).collect();
    let (stored, failed) = driven.insert(Index::First, &keys, rows)?;
    assert_eq!((stored, failed.len()), (ROWS as u64, 0), "keys stored");
    driven.place(rows, values)?;
    driven.accumulate(Index::First, batch)?;
    driven.table.wait(TRAIN)?;
    let told = !refuses || refused(driven, batch)?;
    let mut all = driven.get_rows(Index::First, &keys)?;
    let (places, packed) = driven.pack(rows)?;
    all.extend(packed);
    all.extend(places.iter().map(|place| *place as f32));
    all.extend(split_and_merge(driven, batch)?);
    all.push(driven.table.stats()?.skipped as f32);
    all.push(f32::from(u8::from(told)));
    Ok(all)
}

/// Whether a batch with a gradient that is not finite is refused.
fn refused(driven: &mut Driven, batch: &Batch) -> hps::Result<bool> {
    let mut bad = batch.clone();
    let last = bad.gradients.len() - 1;
    bad.gradients[last] = f32::INFINITY;
    driven.accumulate(Index::First, &bad)?;
    match driven.table.wait(TRAIN) {
        Err(Error::RefusedCall { position, .. }) => {
            driven.table.forget_refusal(TRAIN)?;
            Ok(position as usize == bad.keys.len() - 1)
        }
        other => other.map(|()| false),
    }
}

/// A batch's keys by owner; its gradients as if they lay by owner, put into the caller's order.
fn split_and_merge(driven: &mut Driven, batch: &Batch) -> hps::Result<Vec<f32>> {
    const PARTS: usize = 3;
    let (table, n) = (&mut driven.table, batch.keys.len());
    let out = table.allocate(Memory::Device, Kind::Keys, n)?;
    let ends = table.allocate(Memory::Device, Kind::Keys, PARTS)?;
    let merged = table.allocate(Memory::Device, Kind::Floats, batch.gradients.len())?;
    table.write(TRAIN, driven.keys, 0, Values::Keys(&batch.keys))?;
    table.write(TRAIN, driven.floats, 0, Values::Floats(&batch.gradients))?;
    let asked = (driven.keys, n, PARTS);
    table.split(TRAIN, asked, (out, driven.positions, ends))?;
    let rows = (driven.floats, merged);
    table.merge(TRAIN, driven.positions, rows, (n, driven.dim))?;
    let (mut counted, mut owned) = (vec![0; PARTS], vec![0; n]);
    let mut all = vec![0.0; batch.gradients.len()];
    table.read(TRAIN, ends, 0, ValuesMut::Keys(&mut counted))?;
    table.read(TRAIN, out, 0, ValuesMut::Keys(&mut owned))?;
    table.read(TRAIN, merged, 0, ValuesMut::Floats(&mut all))?;
    table.wait(TRAIN)?;
    all.extend(counted.iter().chain(&owned).map(|number| *number as f32));
    Ok(all)
}

/// The same work on the emulator with a mistake, and in plain Rust; how the mistake was found, if it was.
fn found(table: Setup, seed: u64, planted: Option<Planted>) -> Option<String> {
    let (optimizer, dim, non_finite) = table;
    let mut descriptor = TableDescriptor::new("t", dim);
    descriptor.optimizer = optimizer;
    let options = options(ROWS).non_finite(non_finite);
    let mut rng = Rng(seed);
    let batch = batch(&mut rng, dim, non_finite == NonFinite::Skip);
    let rows: Vec<u32> = (0..u32::try_from(ROWS).unwrap()).rev().collect();
    let values = vec![0.25; ROWS * row_f32s(&descriptor)];
    let mut faults = Faults::default();
    if let Some(mistake) = planted {
        faults = faults.planted(mistake);
    }
    let plain = Box::new(CpuTable::new(&descriptor, &options).unwrap());
    let emulated = open_with_faults((seed, faults), &descriptor, &options).unwrap();
    let n = batch.keys.len();
    let mut driven = Driven::new(plain, &descriptor, n).unwrap();
    let refuses = non_finite == NonFinite::Reject;
    let placed = (&rows[..], &values[..]);
    let expected = work(&mut driven, placed, &batch, refuses).unwrap();
    assert_eq!(expected.last(), Some(&1.0), "what is not finite is refused");
    let mut driven = Driven::new(emulated, &descriptor, n).unwrap();
    match work(&mut driven, placed, &batch, refuses) {
        Err(told) => Some(told.to_string()),
        Ok(all) => {
            let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            (bits(&all) != bits(&expected)).then(|| "other bits".to_owned())
        }
    }
}

/// Barriers of the kernels' source, as [`barriers`] names them.
fn barriers_of_source() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ext| ext != "cu") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        for (line, number) in text.lines().zip(1..) {
            let code = line.split("//").next().unwrap();
            let calls = [
                ("__syncthreads", "("),
                ("__syncwarp", "("),
                ("wait_for_copies", "<"),
                ("fence_stores", "();"),
            ];
            for (call, then) in calls {
                if code.contains(&format!("{call}{then}")) {
                    all.push(format!("{name}:{number} {call}"));
                }
            }
        }
    }
    all.sort();
    all
}

/// Barriers that launches meet, with their places.
fn barriers_met() -> Vec<(String, u32)> {
    for table in TABLES {
        assert_eq!(
            found(table, 0, None),
            None,
            "{table:?}, no mistake is planted"
        );
    }
    let all = barriers().into_iter().zip(0..);
    all.filter(|(name, _)| !name.starts_with("planted.cu"))
        .collect()
}

#[test]
fn nothing_is_found_where_nothing_is_planted() {
    let seeds = std::env::var("HPS_KERNEL_SEEDS").ok();
    for table in TABLES {
        for seed in 0..seeds.as_ref().map_or(10, |text| text.parse().unwrap()) {
            assert_eq!(found(table, seed, None), None, "{table:?}, seed {seed}");
        }
    }
    let mut met: Vec<String> = barriers_met().into_iter().map(|(name, _)| name).collect();
    met.sort();
    assert_eq!(met, barriers_of_source(), "barriers that the tables meet");
}

/// In each seed at least one table, with one mistake at every barrier in turn.
fn every_barrier(mistake: fn(u32) -> Planted) {
    for (name, place) in barriers_met() {
        for seed in 0..SEEDS {
            let mut told = TABLES
                .iter()
                .filter_map(|table| found(*table, seed, Some(mistake(place))));
            let told = told.next();
            assert!(
                told.is_some(),
                "{:?} at {name}, seed {seed}",
                mistake(place)
            );
        }
    }
}

#[test]
fn a_barrier_that_is_left_out_is_found() {
    every_barrier(Planted::LeftOut);
}

#[test]
fn a_barrier_in_a_divergent_branch_is_found() {
    every_barrier(Planted::Divergent);
}

/// Finds a planted kernel in every seed; `told` is what it is found by.
fn check_planted(mistake: &'static str, table: Setup, told: &str) {
    for seed in 0..SEEDS {
        let text = found(table, seed, Some(Planted::Kernel(mistake))).unwrap_or_default();
        assert!(text.contains(told), "{mistake}, seed {seed}: {text:?}");
    }
}

#[test]
fn an_unordered_sum_is_found() {
    check_planted("atomic", TABLES[0], "a sum in no order");
    // Nothing tells but the bits.
    check_planted("unstable", TABLES[0], "other bits");
    check_planted("unstable", TABLES[2], "other bits");
}

#[test]
fn an_index_that_is_read_by_the_launch_that_builds_it_is_found() {
    check_planted("reading", TABLES[0], "race: insert");
}

#[test]
fn a_row_with_two_writers_and_reads_of_what_is_not_there_are_found() {
    check_planted("twice", TABLES[0], "race: place_wide4");
    check_planted("beside", TABLES[0], "an address outside of all allocations");
    check_planted("unset", TABLES[0], "is read before it is written");
}

/// The host builds the next index on one stream and reads it on the other; the order between them is asked
/// for, but the device ignores it if that is planted.
fn build_and_read(faults: Faults) -> hps::Result<Vec<f32>> {
    let descriptor = TableDescriptor::new("t", 8);
    let table = open_with_faults((1, faults), &descriptor, &options(ROWS))?;
    let mut driven = Driven::new(table, &descriptor, ROWS)?;
    let keys: Vec<u64> = (0..ROWS as u64).collect();
    let rows: Vec<u32> = (0..u32::try_from(ROWS).unwrap()).collect();
    driven.place(&rows, &vec![1.0; ROWS * driven.row_f32s])?;
    let (table, builds) = (&mut driven.table, Stream::Transfer);
    // All but the index is ordered: nothing else can be found.
    table.wait(TRAIN)?;
    table.write(builds, driven.keys, 0, Values::Keys(&keys))?;
    table.write(builds, driven.rows, 0, Values::Words(&rows))?;
    table.wait(builds)?;
    let entries = (driven.keys, driven.rows, ROWS);
    table.insert(builds, Index::Second, entries, driven.failed)?;
    table.order(builds, TRAIN)?;
    table.get(TRAIN, Index::Second, driven.keys, ROWS, driven.floats)?;
    let mut out = vec![0.0; ROWS * driven.dim];
    table.read(TRAIN, driven.floats, 0, ValuesMut::Floats(&mut out))?;
    Ok(out)
}

#[test]
fn an_index_that_one_stream_reads_while_the_other_builds_it_is_found() {
    assert_eq!(
        build_and_read(Faults::default()).unwrap(),
        vec![1.0; ROWS * 8]
    );
    let told = build_and_read(Faults::default().planted(Planted::Unordered)).unwrap_err();
    let told = told.to_string();
    assert!(
        told.contains("insert on the other stream") && told.contains("not ordered"),
        "{told}"
    );
}
