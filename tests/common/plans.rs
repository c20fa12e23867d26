//! What do the workloads of the crash and fault tests do?
//!
//! - [`plan`] has a fixed order, so that each has what the tests of other things need.
//! - [`mixed`] is everything a store can do in any order, with thresholds so low that a short run
//!   meets index snapshots, new manifests and new reserves of numbers.

use std::collections::BTreeSet;
use std::path::PathBuf;

use hps::*;

use super::{FIRST_TABLES, KEYS, Op, Random, key};

/// A row of each table fits, and not much more: rows leave memory all the time.
const SHARD_CACHE_BYTES: u64 = 40 << 10;

/// What a workload does.
#[derive(Clone, Debug)]
pub struct Plan {
    pub ops: Vec<Op>,
    pub create: CreateOptions,
    pub options: RuntimeOptions,
    pub compacting: bool,
    /// It begins on a store of version 1.
    pub older: bool,
}

/// Keys of a table, `count` of them at most.
fn some_keys(random: &mut Random, table: usize, count: u64) -> Vec<u64> {
    let keys: BTreeSet<u64> = (0..count).map(|_| random.below(KEYS[table])).collect();
    keys.into_iter().map(key).collect()
}

/// A few keys of several tables; the narrow one twice, with keys in common. Drawn apart: a seed does
/// what it did before there was this.
fn several(seed: u64, value: f32) -> Op {
    let mut random = Random(seed ^ 0x7365_7665_7261_6c21);
    let narrow = some_keys(&mut random, 0, 3);
    let again = [&narrow[..1], &some_keys(&mut random, 0, 2)].concat();
    let again: BTreeSet<u64> = again.into_iter().collect();
    let mut parts = vec![
        (0, narrow),
        (1, some_keys(&mut random, 1, 2)),
        (0, again.into_iter().collect()),
        (FIRST_TABLES, some_keys(&mut random, FIRST_TABLES, 2)),
    ];
    let count = parts.len();
    parts.rotate_left(random.below(count as u64) as usize);
    Op::Several(parts, value)
}

/// Keys of a table, half of them or all, some twice: more than the cache has slots for. Drawn apart, too.
fn put(seed: u64, value: f32) -> Op {
    let mut random = Random(seed ^ 0x7075_7421);
    let table = [0, 0, 1, FIRST_TABLES][random.below(4) as usize];
    let count = KEYS[table] * (1 + random.below(2));
    let mut keys = some_keys(&mut random, table, count);
    keys.extend(some_keys(&mut random, table, 2));
    let turn = random.below(keys.len() as u64) as usize;
    keys.rotate_left(turn);
    Op::Put(table, keys, value)
}

/// How long the puts are whose rows go past the cache: none is, or some, or all. Drawn apart, too.
fn straight_rows(seed: u64) -> usize {
    [0, 3, 12][Random(seed ^ 0x7374_7261).below(3) as usize]
}

/// Whether tables come and go in a mixed workload: in every other one, since they take slots from those that
/// stay.
fn has_brief(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Something about a table that comes and goes. Drawn apart, too.
fn brief(seed: u64, value: f32) -> Op {
    let mut random = Random(seed ^ 0x6272_6965_6621);
    match random.below(8) {
        0..=2 => Op::CreateBrief(random.next()),
        3 => Op::BriefRows(value),
        4 | 5 => Op::DropBrief(random.next()),
        _ => Op::RenameBrief(random.next()),
    }
}

/// A short workload: at least one eviction flush, two checkpoints and one remove; every other one
/// compacts and unlinks.
pub fn plan(seed: u64) -> Plan {
    let mut random = Random(seed.wrapping_mul(0x1234_5679) ^ 0xabcd);
    let compacting = seed.is_multiple_of(2);
    let retain = if compacting {
        1 + seed / 2 % 2
    } else {
        1 + random.below(3)
    };
    // In more of them no row would have to leave.
    let shards = usize::try_from(1 + random.below(3)).unwrap().min(2);
    let directories = if random.below(2) == 0 {
        vec![]
    } else {
        vec!["a".into(), "b".into()]
    };
    let options = RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .shards(shards)
        .threads(1)
        .io_depth(2)
        .file_bytes(1 << 20)
        .flush_step_rows(4 + usize::try_from(random.below(8)).unwrap())
        .retain_checkpoints(usize::try_from(retain).unwrap())
        .inline(true)
        .thresholds(Thresholds {
            shard_cache_bytes: SHARD_CACHE_BYTES,
            straight_rows: straight_rows(seed),
            ..Thresholds::default()
        })
        .policy([PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo][seed as usize % 3]);
    let mut ops = Vec::new();
    let mut value = 1.0;
    let fill = |ops: &mut Vec<Op>, value: &mut f32, from: u64, to: u64| {
        for first in (from..to).step_by(8) {
            *value += 1.0;
            ops.push(Op::Rows(
                0,
                (first..to.min(first + 8)).map(key).collect(),
                *value,
            ));
        }
    };
    fill(&mut ops, &mut value, 0, 44);
    ops.push(Op::Weights(1, some_keys(&mut random, 1, 3), 0.5));
    ops.push(Op::Remove(0, some_keys(&mut random, 0, 6)));
    let meta = |step: u64| vec![step as u8 ^ 0x5a; usize::try_from(step * 300 % 1700).unwrap()];
    let mut step = 1 + random.below(3);
    ops.push(Op::Checkpoint(step, meta(step)));
    ops.push(Op::Gradients(0, some_keys(&mut random, 0, 8), 0.125));
    ops.push(several(seed, -2.5));
    ops.push(put(seed, -4.5));
    let start = random.below(8);
    fill(&mut ops, &mut value, start, start + 16);
    match random.below(6) {
        0 => ops.push(Op::Reopen(usize::try_from(1 + random.below(3)).unwrap())),
        1 => {
            ops.push(Op::CreateTable);
            ops.push(Op::Weights(
                FIRST_TABLES,
                some_keys(&mut random, FIRST_TABLES, 8),
                7.0,
            ));
        }
        2 => ops.push(Op::Rollback(0)),
        3 => ops.push(Op::Flush),
        _ => {}
    }
    ops.push(Op::Remove(0, some_keys(&mut random, 0, 5)));
    ops.push(Op::Remove(1, some_keys(&mut random, 1, 1)));
    if compacting {
        ops.push(Op::Flush);
        ops.push(Op::Compact);
    }
    step += 1 + random.below(3);
    ops.push(Op::Checkpoint(step, meta(step)));
    ops.push(Op::Gradients(0, some_keys(&mut random, 0, 8), 0.5));
    if retain > 1 && random.below(2) == 0 {
        ops.push(Op::Rollback(1));
        ops.push(Op::Weights(0, some_keys(&mut random, 0, 8), 3.0));
    }
    if compacting {
        step += 1;
        ops.push(Op::Checkpoint(step, meta(step)));
        ops.push(Op::Weights(1, some_keys(&mut random, 1, 2), 9.0));
        ops.push(Op::Flush);
    }
    Plan {
        ops,
        create: CreateOptions::new().data_directories(directories),
        options,
        compacting,
        older: false,
    }
}

/// Everything that must not change a value, and what makes rare things happen.
pub fn some_options(random: &mut Random) -> RuntimeOptions {
    let below = |random: &mut Random, bound| usize::try_from(random.below(bound)).unwrap();
    // A few, or as many as there are. Drawn apart: a seed does what it did before there was this.
    let open_files_max = [0, 1, 2, 5][below(&mut Random(random.0 ^ 0x6f70_656e), 4)];
    let warm = Random(random.0 ^ 0x7761_726d).below(2) == 0;
    RuntimeOptions::new()
        .warm(warm)
        .cache_bytes(1 << 20)
        .shards(1 + below(random, 3))
        .threads(1)
        .io_depth(1 + below(random, 4))
        .file_bytes(1 << 20)
        .flush_step_rows(4 + below(random, 12))
        .space_bound(1.1 + 0.2 * random.below(5) as f64)
        .retain_checkpoints(1 + below(random, 3))
        .inline(true)
        .open_files_max(open_files_max)
        .policy([PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo][below(random, 3)])
        .thresholds(Thresholds {
            open_files_least: 1,
            // Rows of more sizes than in a plan of fixed order.
            shard_cache_bytes: SHARD_CACHE_BYTES + (28 << 10),
            snapshot_young_bytes: random.below(500),
            snapshot_young_part: 2 + random.below(200),
            manifest_roll_bytes: random.below(300),
            numbers_reserved: 17 + random.below(16),
            open_unit_entries: 8 + random.below(100),
            straight_rows: straight_rows(random.0),
            ..Thresholds::default()
        })
}

/// A short workload of everything, in any order.
pub fn mixed(seed: u64) -> Plan {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6d69);
    let directories: Vec<PathBuf> = match random.below(4) {
        0 => vec![],
        1 => vec!["a".into(), "b".into(), "c".into()],
        _ => vec!["a".into(), "b".into()],
    };
    let options = some_options(&mut random);
    let mut ops = Vec::new();
    let mut value = 100.0;
    // More rows than the cache has places for.
    for first in (0..44).step_by(11) {
        value += 1.0;
        ops.push(Op::Rows(0, (first..first + 11).map(key).collect(), value));
    }
    let mut step = random.below(3);
    let mut exports = 0;
    for _ in 0..12 + random.below(6) {
        value += 1.0;
        let table = [0, 0, 1, FIRST_TABLES][random.below(4) as usize];
        let op = match random.below(27) {
            0..=3 => Op::Rows(table, some_keys(&mut random, table, 9), value),
            4 | 5 => Op::Gradients(table, some_keys(&mut random, table, 6), 0.25),
            6 => Op::Weights(table, some_keys(&mut random, table, 6), value),
            7 | 8 => Op::Remove(table, some_keys(&mut random, table, 5)),
            9 => Op::Remove(table, (0..KEYS[table]).map(key).collect()),
            10 => Op::Flush,
            11 => Op::Compact,
            12 => Op::CreateTable,
            13 => Op::Rollback(random.below(3) as usize),
            14 | 15 => Op::ReopenOther(random.next()),
            16 => Op::Read,
            17 if exports < 2 => {
                exports += 1;
                Op::Export
            }
            18 => Op::Recommit,
            19 => Op::Forget,
            _ => checkpoint(&mut random, &mut step),
        };
        ops.push(op);
        if mix64(seed ^ u64::from(value.to_bits())).is_multiple_of(4) {
            ops.push(several(seed ^ u64::from(value.to_bits()), -value));
        }
        if mix64(seed ^ u64::from(value.to_bits()) ^ 0x7075).is_multiple_of(4) {
            ops.push(put(seed ^ u64::from(value.to_bits()), -value));
        }
        if has_brief(seed) && !mix64(seed ^ u64::from(value.to_bits()) ^ 0x7461).is_multiple_of(3) {
            ops.push(brief(seed ^ u64::from(value.to_bits()), -value));
        }
    }
    if seed.is_multiple_of(3) {
        // As many in a row as let a manifest grow beyond its limit.
        for _ in 0..4 {
            value += 1.0;
            ops.push(Op::Rows(0, some_keys(&mut random, 0, 6), value));
            ops.push(checkpoint(&mut random, &mut step));
        }
    }
    ops.push(checkpoint(&mut random, &mut step));
    ops.push(Op::Gradients(0, some_keys(&mut random, 0, 4), 0.5));
    Plan {
        ops,
        create: CreateOptions::new().data_directories(directories),
        options,
        compacting: false,
        older: seed % 5 == 2,
    }
}

/// A checkpoint of a later step, with a meta of any length.
fn checkpoint(random: &mut Random, step: &mut u64) -> Op {
    *step += 1 + random.below(3);
    let bytes = [0, 1, 300, 4000][random.below(4) as usize];
    Op::Checkpoint(*step, vec![*step as u8 ^ 0x5a; bytes])
}
