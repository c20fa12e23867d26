//! Are several tables in one call as good as one: all of them or none, one admission, one cut?

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/at_end.rs"]
mod at_end;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/spans.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod spans;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use at_end::AtEnd;
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use small::{invalid, options, set, sgd};
use spans::Spans;

const ROOT: &str = "/store";

fn create(options: RuntimeOptions) -> Store {
    Store::create_on(
        Io::of(SimDisk::new(5)),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap()
}

/// Tables of several widths and optimizers.
fn tables(store: &Store) -> Vec<(TableId, TableDescriptor)> {
    let optimizers = [Optimizer::Adagrad, Optimizer::Sgd, Optimizer::Adam];
    let table = |(dim, optimizer)| {
        TableDescriptor::new(&format!("t{dim}"), dim)
            .optimizer(optimizer)
            .initialiser(Initialiser::Uniform {
                low: -1.0,
                high: 1.0,
            })
            .seed(7)
    };
    let descriptors = [3, 16, 128].into_iter().zip(optimizers).map(table);
    let made = descriptors.map(|d| (store.create_table(&d).unwrap(), d));
    made.collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Whole rows, asked for one table at a time.
fn rows(store: &Store, table: TableId, keys: &[u64]) -> Vec<u32> {
    let lease = store.prefetch(table, keys).unwrap().wait().unwrap();
    let width = lease.parts().next().unwrap().row_f32s();
    let mut out = vec![0.0; keys.len() * width];
    lease.read_rows(&mut out).unwrap();
    bits(&out)
}

/// Keys of five parts: the first table is in three of them, which have keys in common.
fn parts() -> [(usize, Vec<u64>); 5] {
    [
        (0, (0..300).map(mix64).collect()),
        (2, (0..90).map(mix64).chain([7, 7]).collect()),
        (0, (250..400).map(mix64).chain([mix64(3)]).collect()),
        (1, Vec::new()),
        (0, vec![mix64(3), 9, mix64(3)]),
    ]
}

fn gradients(part: usize, n: usize) -> Vec<f32> {
    let value = |i: usize| ((part * 31 + i * 7) % 64) as f32 / 64.0 - 0.5;
    (0..n).map(value).collect()
}

#[test]
fn a_call_of_several_parts_does_what_calls_of_one_part_do_in_their_order() {
    let shapes = [(1, 1), (4, 2)];
    for (shards, threads) in shapes {
        let options = options()
            .cache_bytes(4 << 20)
            .shards(shards)
            .threads(threads);
        let (many, single) = (create(options.clone()), create(options));
        let known = tables(&many);
        assert_eq!(known.len(), tables(&single).len());
        for round in 0..3 {
            let parts = parts();
            let dim = |t: &usize| known[*t].1.dim;
            let mut outs: Vec<Vec<f32>> = parts
                .iter()
                .map(|(t, keys)| vec![0.0; keys.len() * dim(t)])
                .collect();
            let wanted = parts.iter().zip(&mut outs);
            let mut wanted: Vec<PullPart<'_>> = wanted
                .map(|((t, keys), out)| PullPart::new(known[*t].0, keys, out))
                .collect();
            let lease = many.pull_many(&mut wanted).unwrap();
            assert_eq!(lease.len(), 300 + 92 + 151 + 3);
            assert_eq!(lease.parts().len(), 5);
            for (p, (part, (t, keys))) in lease.parts().zip(&parts).enumerate() {
                let (id, descriptor) = &known[*t];
                assert_eq!((part.table(), part.len()), (*id, keys.len()));
                assert_eq!(part.dim(), descriptor.dim);
                assert_eq!(part.row_f32s(), descriptor.row_f32s());
                let mut out = vec![0.0; outs[p].len()];
                drop(single.pull(*id, keys, &mut out).unwrap());
                assert_eq!(bits(&outs[p]), bits(&out), "round {round}, part {p}");
                let mut again = vec![1.0; out.len()];
                part.read(&mut again).unwrap();
                assert_eq!(bits(&again), bits(&out));
            }
            let values: Vec<Vec<f32>> = outs
                .iter()
                .enumerate()
                .map(|(p, out)| gradients(p, out.len()))
                .collect();
            let pushed = parts.iter().zip(&values);
            let pushed: Vec<PushPart<'_>> = pushed
                .map(|((t, _), v)| PushPart::new(known[*t].0, Update::gradients(v, 0.1)))
                .collect();
            let reports = many.push_many(&lease, &pushed).unwrap();
            for (p, (t, keys)) in parts.iter().enumerate() {
                let mut out = outs[p].clone();
                let lease = single.pull(known[*t].0, keys, &mut out).unwrap();
                let report = single.push(&lease, Update::gradients(&values[p], 0.1));
                assert_eq!(report.unwrap(), reports[p], "round {round}, part {p}");
            }
            // All of them at once, in the order of the parts.
            let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(|o| &mut o[..]).collect();
            lease.read_many(&mut slices).unwrap();
            let mut joined = vec![0.0; outs.iter().map(Vec::len).sum()];
            lease.read(&mut joined).unwrap();
            assert_eq!(bits(&joined), bits(&outs.concat()));
            drop(lease);
            for (t, keys) in &parts {
                let found = rows(&many, known[*t].0, keys);
                assert_eq!(found, rows(&single, known[*t].0, keys), "table {t}");
            }
            many.checkpoint(round, &[]).unwrap();
        }
        let stats = many.stats();
        assert_eq!((stats.leases, stats.pinned_rows), (0, 0), "{stats:?}");
        // As many rows are asked for and given as by single calls.
        let counted = |stats: &Stats| (stats.rows_pushed, stats.bytes_pushed);
        assert_eq!(counted(&stats), counted(&single.stats()));
    }
}

#[test]
fn what_does_not_fit_together_is_refused_together_and_leaves_no_pin() {
    let store = create(options().shards(2));
    let wide = store.create_table(&sgd("wide", 512)).unwrap();
    let narrow = store.create_table(&sgd("narrow", 4)).unwrap();
    let few: Vec<u64> = (0..50).map(mix64).collect();
    let too_many: Vec<u64> = (0..2000).map(mix64).collect();
    set(&store, narrow, &few, 1.0, 4);
    store.flush().unwrap();
    let asked = |parts: &[(TableId, &[u64])]| {
        let mut outs: Vec<Vec<f32>> = parts
            .iter()
            .map(|(t, keys)| vec![0.0; keys.len() * if *t == wide { 512 } else { 4 }])
            .collect();
        let parts = parts.iter().zip(&mut outs);
        let mut parts: Vec<PullPart<'_>> = parts
            .map(|((t, keys), out)| PullPart::new(*t, keys, out))
            .collect();
        store.pull_many(&mut parts)
    };
    for parts in [
        [(narrow, &few[..]), (wide, &too_many[..])],
        [(wide, &too_many[..]), (narrow, &few[..])],
    ] {
        let Err(Error::OverBudget {
            table,
            asked_rows,
            capacity_rows,
            needed_bytes,
            ..
        }) = asked(&parts)
        else {
            panic!("it can't fit");
        };
        assert_eq!(table, "wide");
        assert!(asked_rows > 1900 && capacity_rows < 1000, "{asked_rows}");
        assert!(needed_bytes > 2 << 20, "{needed_bytes}");
        let wanted = parts.map(|(table, keys)| PrefetchPart::new(table, keys));
        let ticket = store.prefetch_many(&wanted).unwrap();
        let error = ticket.wait().unwrap_err();
        assert!(matches!(error, Error::OverBudget { .. }), "{error}");
        let stats = store.stats();
        assert_eq!((stats.leases, stats.pinned_rows), (0, 0), "{stats:?}");
    }
    // A shard that had admitted its rows gives their promises back when the other refuses.
    let lower: Vec<u64> = (0..50).map(|k| unmix64(k << 40)).collect();
    let upper: Vec<u64> = (0..1000).map(|k| unmix64(1 << 63 | k << 40)).collect();
    for _ in 0..100 {
        asked(&[(narrow, &lower), (wide, &upper)]).unwrap_err();
    }
    drop(asked(&[(narrow, &lower)]).unwrap());
    // Each half fits; together they don't, whatever was promised to the first.
    let half = too_many.len() / 9;
    let lease = asked(&[(wide, &too_many[..half])]).unwrap();
    let second = [(narrow, &few[..]), (wide, &too_many[half..2 * half])];
    let error = asked(&second).unwrap_err();
    let Error::OverBudget { leases, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(leases[..], [lease.id()]);
    assert_eq!(store.stats().pinned_rows, half as u64);
    drop(lease);
    drop(asked(&second).unwrap());
    assert_eq!(store.stats().pinned_rows, 0);
}

/// A row that several parts name takes one slot: half as many rows as the cache holds fit in four parts.
#[test]
fn a_row_that_several_parts_name_has_one_slot() {
    let store = create(options().shards(1).inline(true));
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let capacity = store.stats().capacity_rows;
    let keys: Vec<u64> = (0..capacity).map(mix64).collect();
    let half = keys.len() / 2;
    for cold in [false, true] {
        let part = PrefetchPart::new(table, &keys[..half]);
        let lease = store.prefetch_many(&[part; 4]).unwrap().wait().unwrap();
        assert_eq!(lease.len(), 4 * half);
        assert_eq!(store.stats().pinned_rows, half as u64);
        let mut out = vec![1.0; 4 * half * 64];
        lease.read(&mut out).unwrap();
        let value = if cold { 3.0 } else { 0.0 };
        assert!(out.iter().all(|w| *w == value), "{cold}");
        let deltas = vec![1.0; half * 64];
        let push = PushPart::new(table, Update::deltas(&deltas));
        // The last changes nothing.
        let none = PushPart::new(table, Update::deltas(&[]).at(&[]));
        let reports = store.push_many(&lease, &[push, push, push, none]);
        let changed: Vec<u64> = reports.unwrap().iter().map(|r| r.rows).collect();
        assert_eq!(changed, [half as u64, half as u64, half as u64, 0]);
        drop(lease);
        store.flush().unwrap();
        // Others take their slots.
        drop(
            store
                .prefetch(table, &keys[half..])
                .unwrap()
                .wait()
                .unwrap(),
        );
        let others: Vec<u64> = (0..capacity).map(|k| mix64(k + (1 << 40))).collect();
        drop(store.prefetch(table, &others).unwrap().wait().unwrap());
    }
    let stats = store.stats();
    assert_eq!((stats.leases, stats.pinned_rows), (0, 0), "{stats:?}");
}

#[test]
fn a_push_of_several_parts_is_checked_whole_before_any_is_applied() {
    let reject = options().cache_bytes(4 << 20).non_finite(NonFinite::Reject);
    let (store, stranger) = (create(reject.clone()), create(reject));
    let known = tables(&store);
    tables(&stranger);
    let keys: Vec<u64> = (0..400).collect();
    let wanted = [0, 1, 2].map(|t: usize| PrefetchPart::new(known[t].0, &keys));
    let lease = store.prefetch_many(&wanted).unwrap().wait().unwrap();
    let before: Vec<_> = known.iter().map(|(t, _)| rows(&store, *t, &keys)).collect();
    let good: Vec<Vec<f32>> = known
        .iter()
        .map(|(_, d)| vec![0.5; keys.len() * d.dim])
        .collect();
    let part = |t: usize| PushPart::new(known[t].0, Update::gradients(&good[t], 0.1));
    let mut bad = good[2].clone();
    bad[399 * 128 + 5] = f32::NAN;
    let last = |update| [part(0), part(1), PushPart::new(known[2].0, update)];
    let refused = |parts: &[PushPart<'_>]| invalid(store.push_many(&lease, parts).unwrap_err());

    let nan = refused(&last(Update::gradients(&bad, 0.1)));
    let ArgumentError::NonFinite { table, key, index } = &nan else {
        panic!("{nan}");
    };
    assert_eq!((&**table, *key, *index), ("t128", 399, 399));
    // The index is that of the values, the key that of the position.
    let nan = refused(&last(
        Update::deltas(&bad[398 * 128..]).at(&[3, 77]).step(1),
    ));
    assert!(
        matches!(
            nan,
            ArgumentError::NonFinite {
                key: 77,
                index: 1,
                ..
            }
        ),
        "{nan}"
    );
    let short = refused(&last(Update::gradients(&good[2][1..], 0.1)));
    assert!(matches!(short, ArgumentError::Length { .. }), "{short}");
    let rate = refused(&last(Update::gradients(&good[2], f32::NAN)));
    assert!(rate.to_string().contains("lr"), "{rate}");
    let shows = refused(&last(
        Update::gradients(&good[2], 0.1).shows_clicks(&[1], &[1]),
    ));
    assert!(matches!(shows, ArgumentError::Length { .. }), "{shows}");
    let far = refused(&last(Update::deltas(&good[2][..128]).at(&[400])));
    assert!(
        matches!(
            far,
            ArgumentError::Position {
                position: 400,
                index: 0,
                rows: 400
            }
        ),
        "{far}"
    );
    let order = refused(&[part(0), part(2), part(1)]);
    assert!(
        matches!(order, ArgumentError::WrongTable { part: 1, .. }),
        "{order}"
    );
    let count = refused(&[part(0), part(1)]);
    assert!(matches!(
        count,
        ArgumentError::Length {
            expected: 3,
            found: 2,
            ..
        }
    ));
    let all = [part(0), part(1), part(2)];
    let foreign = invalid(stranger.push_many(&lease, &all).unwrap_err());
    assert_eq!(foreign, ArgumentError::ForeignLease);
    let single = invalid(store.push(&lease, part(0).update).unwrap_err());
    assert!(
        matches!(single, ArgumentError::SeveralParts { parts: 3, .. }),
        "{single}"
    );
    for ((table, _), before) in known.iter().zip(&before) {
        assert_eq!(&rows(&store, *table, &keys), before, "nothing was applied");
    }
    assert!(!store.has_changes() && store.stats().rows_pushed == 0);
    store.push_many(&lease, &all).unwrap();
    assert_ne!(rows(&store, known[0].0, &keys), before[0]);
}

#[test]
fn bad_arguments_of_calls_with_several_parts_have_their_errors_and_pin_nothing() {
    let store = create(options());
    let table = store.create_table(&sgd("t", 4)).unwrap();
    let mut out = [0.0; 8];
    let none = invalid(store.pull_many(&mut []).unwrap_err());
    assert!(matches!(none, ArgumentError::Other { .. }), "{none}");
    assert!(store.prefetch_many(&[]).is_err());
    let unknown = PrefetchPart::new(TableId(7), &[1]);
    let parts = [PrefetchPart::new(table, &[1]), unknown];
    let unknown = invalid(store.prefetch_many(&parts).unwrap_err());
    assert!(matches!(unknown, ArgumentError::UnknownTable { .. }));
    let (first, second) = out.split_at_mut(4);
    let mut parts = [
        PullPart::new(table, &[1], first),
        PullPart::new(table, &[2, 3], second),
    ];
    let length = invalid(store.pull_many(&mut parts).unwrap_err());
    assert!(matches!(
        length,
        ArgumentError::Length {
            expected: 8,
            found: 4,
            ..
        }
    ));
    let parts = [PrefetchPart::new(table, &[1, 2]); 2];
    let lease = store.prefetch_many(&parts).unwrap().wait().unwrap();
    let two = invalid(lease.read_many(&mut [&mut [0.0; 8][..]]).unwrap_err());
    assert!(matches!(two, ArgumentError::Length { .. }), "{two}");
    let two = &mut [&mut [0.0; 8][..], &mut [0.0; 7][..]];
    assert!(lease.read_many(two).is_err());
    let at = invalid(lease.read_rows_at(&[0], &mut [0.0; 4]).unwrap_err());
    assert!(
        matches!(at, ArgumentError::SeveralParts { parts: 2, .. }),
        "{at}"
    );
    assert_eq!(store.stats().pinned_rows, 2);
    drop(lease);
    assert_eq!(store.stats().pinned_rows, 0);
    store.close().unwrap();
}

/// Pushes to three tables at a time while checkpoints are made: in each of them all three have
/// come as far.
#[test]
fn a_checkpoint_falls_before_or_after_a_push_of_several_parts() {
    let store = create(options().shards(3).retain_checkpoints(100));
    let dims = [4usize, 64, 16];
    let ids = dims.map(|dim| store.create_table(&sgd(&format!("t{dim}"), dim)).unwrap());
    let keys: Vec<u64> = (0..400).map(mix64).collect();
    let (done, pushes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut checkpoints = Vec::new();
    std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            let ones = dims.map(|dim| vec![1.0; keys.len() * dim]);
            while !done.load(SeqCst) {
                let parts = ids.map(|id| PrefetchPart::new(id, &keys));
                let lease = store.prefetch_many(&parts).unwrap().wait().unwrap();
                let part = |i: usize| PushPart::new(ids[i], Update::deltas(&ones[i]));
                store
                    .push_many(&lease, &[part(0), part(1), part(2)])
                    .unwrap();
                pushes.fetch_add(1, SeqCst);
            }
        });
        let _end = AtEnd(|| done.store(true, SeqCst));
        for step in 1..=25 {
            // Every fifth waits for a push first, the others come whenever they do.
            let seen = pushes.load(SeqCst);
            while step % 5 == 0 && pushes.load(SeqCst) == seen && !trainer.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(step % 3));
            checkpoints.push(store.checkpoint(step, &[]).unwrap().id);
        }
    });
    let mut levels = std::collections::BTreeSet::new();
    for id in checkpoints {
        let mut rows = store.rows(id).unwrap();
        let (mut found, mut count) = (None, 0);
        while let Some(row) = rows.next_row().unwrap() {
            let level = *found.get_or_insert(row.values[0]);
            let whole = row.values.iter().all(|v| *v == level);
            assert!(
                whole,
                "checkpoint {id}: {level} and {:?}",
                &row.values[..3.min(row.values.len())]
            );
            count += 1;
        }
        assert!(count == 0 || count == 3 * keys.len(), "{count} rows");
        levels.insert(found.unwrap_or(0.0).to_bits());
    }
    assert!(
        levels.len() > 3,
        "the trainer came on between: {}",
        levels.len()
    );
    store.close_discarding();
}

/// The trace of a call for 26 tables: one admission, and all cold rows planned and read together.
#[test]
fn one_admission_and_one_queue_of_reads_serve_26_tables() {
    for (shards, threads) in [(1, 1), (4, 1), (4, 2)] {
        one_admission(shards, threads);
    }
}

/// Each shard reads what it wants of all tables in one go.
fn one_admission(shards: usize, threads: usize) {
    let disk = Io::of(SimDisk::new(6));
    let options = options()
        .cache_bytes(8 << 20)
        .shards(shards)
        .threads(threads)
        .inline(true);
    let store = Store::create_on(
        disk.clone(),
        Path::new(ROOT),
        CreateOptions::new(),
        options.clone(),
    )
    .unwrap();
    let keys: Vec<u64> = (0..100).map(mix64).collect();
    let dim = |t: usize| 4 + 4 * (t % 3);
    let make = |t| store.create_table(&sgd(&format!("t{t}"), dim(t))).unwrap();
    let ids: Vec<TableId> = (0..26).map(make).collect();
    for (t, id) in ids.iter().enumerate() {
        set(&store, *id, &keys, t as f32 + 1.0, dim(t));
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let open = || Store::open_on(disk.clone(), Path::new(ROOT), options.clone()).unwrap();

    let spans = Spans::default();
    // Before any span is met for the first time: one that nobody asked for then is met no more.
    let _asked_for = tracing::Dispatch::new(spans.clone());
    let store = open();
    for id in &ids {
        drop(store.prefetch(*id, &keys).unwrap().wait().unwrap());
    }
    let single = store.stats().reads;
    drop(store);
    let store = open();
    let wanted: Vec<PrefetchPart<'_>> = ids.iter().map(|t| PrefetchPart::new(*t, &keys)).collect();
    let lease = tracing::subscriber::with_default(spans.clone(), || {
        store.prefetch_many(&wanted).unwrap().wait().unwrap()
    });
    for (t, part) in lease.parts().enumerate() {
        let mut out = vec![0.0; keys.len() * dim(t)];
        part.read(&mut out).unwrap();
        assert!(out.iter().all(|w| *w == t as f32 + 1.0), "table {t}");
    }
    let seen = spans.seen();
    let named = |name: &str| seen.iter().filter(|s| s.name == name).collect::<Vec<_>>();
    let (admissions, reads, waits) = (named("admission"), named("read"), named("wait"));
    assert_eq!(admissions.len(), 1);
    let value = |span: &spans::Seen, field| span.values[field].clone();
    assert_eq!(value(admissions[0], "parts"), "26");
    assert_eq!(value(admissions[0], "keys"), "2600");
    // A thread reads once for all shards of a share. Only what this one does is seen: one share, none, or both.
    assert_eq!(reads.len(), waits.len());
    assert!(reads.len() == 1 || threads == 2 && reads.len() <= 2);
    for read in reads {
        assert_eq!(value(read, "tables"), "26");
        let rows = value(read, "rows").parse::<usize>().unwrap();
        if threads == 1 {
            assert_eq!(rows, 2600);
        } else {
            assert!((1000..1600).contains(&rows), "{rows} rows of 2600");
        }
    }
    // Tables lie next to each other in a file: a read holds rows of several.
    let many = store.stats().reads;
    assert!(many < single, "{many} reads, {single} one table at a time");
    drop(lease);
    store.close().unwrap();
}
