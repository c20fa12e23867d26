//! What is told of files, and of the work that is done on them.

use std::ops::ControlFlow;

use crate::options::Thresholds;
use crate::store::tests::{all_limits, keys, made, options, set, sgd};
use crate::*;

fn files_named(store: &Store, numbers: &[FileNumber]) -> Vec<FileInfo> {
    let mut files = store.files();
    files.retain(|f| numbers.contains(&f.number));
    files
}

#[test]
fn files_and_their_rows_are_told_to_the_last_one() {
    let (_, store) = made(RuntimeOptions {
        space_bound: 10.0,
        thresholds: Thresholds {
            snapshot_young_bytes: 0,
            ..Thresholds::default()
        },
        ..options()
    });
    let table = store.create_table(&sgd("rows", 16)).unwrap();
    set(&store, table, &keys(0..100), 1.0);
    store.checkpoint(1, b"one").unwrap();
    set(&store, table, &keys(0..40), 2.0);
    store.remove(table, &keys(40..50)).unwrap();
    store.checkpoint(2, b"second").unwrap();
    let ids: Vec<_> = store
        .checkpoints()
        .iter()
        .map(|c| (c.id, c.step, c.meta_bytes))
        .collect();
    assert_eq!(ids, [(CheckpointId(1), 1, 3), (CheckpointId(2), 2, 6)]);
    assert_eq!(store.last_checkpoint().unwrap().step, 2);
    assert_eq!(store.checkpoint_meta(CheckpointId(1)).unwrap(), b"one");
    let files = store.files();
    let [old, new] = &files[..] else {
        unreachable!("{files:?}")
    };
    assert_eq!((old.rows, old.tombstones, old.live_entries), (100, 0, 50));
    assert_eq!((new.rows, new.tombstones, new.live_entries), (40, 10, 50));
    assert_eq!((old.entries(), new.entries()), (100, 50));
    assert_eq!((old.stale_share(), new.stale_share()), (0.5, 0.0));
    assert_eq!((old.live_bytes, new.live_bytes), (old.bytes / 2, new.bytes));
    assert!(old.current && new.current && old.number < new.number);
    assert_eq!(old.checkpoints, [1, 2].map(CheckpointId));
    assert_eq!(new.checkpoints, [CheckpointId(2)]);
    let directories = store.directories();
    let [only] = &directories[..] else {
        unreachable!("{directories:?}")
    };
    assert_eq!((only.files, only.current_bytes), (2, old.bytes + new.bytes));
    // Summed before it is rounded.
    assert!(only.live_bytes.abs_diff(old.live_bytes + new.live_bytes) <= 1);
    assert_eq!(only.pinned_bytes, 0);
    assert_eq!((only.compactions, only.compaction_failures), (0, 0));
    assert_eq!(
        (only.files_set_aside, only.is_paused, &only.failure),
        (0, false, &None)
    );
    // What is rewritten, told beforehand, meanwhile and afterwards.
    let plan = store.compaction_plan(&all_limits());
    assert_eq!(plan, files[..1]);
    let mut told = Vec::new();
    let tell = &mut |now: CompactProgress| {
        told.push(now);
        ControlFlow::Continue(())
    };
    let report = store.compact(&all_limits(), tell).unwrap();
    let expected = CompactProgress {
        files_done: 0,
        files_left: 1,
        bytes_done: 0,
        bytes_left: old.bytes + old.live_bytes,
    };
    assert_eq!(told, [expected]);
    let after = store.files();
    let outputs: Vec<_> = after.iter().filter(|f| f.number > new.number).collect();
    let [output] = &outputs[..] else {
        unreachable!("{after:?}")
    };
    assert_eq!(
        (output.rows, output.tombstones, output.live_entries),
        (50, 0, 50)
    );
    assert_eq!(
        (report.files, report.files_left, report.cancelled),
        (1, 0, false)
    );
    assert_eq!(report.bytes_written, output.bytes);
    assert!(report.bytes_read > 50 * 64, "{report:?}");
    assert_eq!(report.disk_bytes_before, old.bytes + new.bytes);
    // The first checkpoint needs the old file; the last one has the output instead.
    assert_eq!(
        report.disk_bytes_after,
        old.bytes + new.bytes + output.bytes
    );
    assert!(report.durable);
    let old = after.iter().find(|f| f.number == old.number).unwrap();
    assert_eq!(
        (old.current, old.live_entries, old.live_bytes),
        (false, 0, 0)
    );
    assert_eq!(old.checkpoints, [CheckpointId(1)]);
    assert_eq!(store.directories()[0].pinned_bytes, old.bytes);
    let stats = store.stats();
    assert_eq!((stats.compactions, stats.files), (1, 2));
    assert!(store.parts.core.ssd.index_snapshot_bytes() > 0);
    assert_eq!(
        stats.pinned_bytes,
        old.bytes + store.parts.core.ssd.index_snapshot_bytes()
    );
    assert_eq!(stats.disk_bytes, stats.current_bytes + stats.pinned_bytes);
    assert_eq!(stats.compaction_written_bytes, output.bytes);
    assert_eq!(stats.written_bytes, report.disk_bytes_after);
    assert_eq!(store.directories()[0].compactions, 1);
    let dropped = store.drop_checkpoints(&[CheckpointId(1)]).unwrap();
    assert_eq!((dropped.freed_bytes, dropped.held.len()), (old.bytes, 0));
    assert_eq!(dropped.dropped, [CheckpointId(1)]);
    // Forced, both become one: without the old file no tombstone hides anything.
    assert_eq!(store.compact_fully().unwrap(), 1);
    let files = store.files();
    let one = files.iter().find(|f| f.current && f.rows > 0).unwrap();
    assert_eq!((one.rows, one.tombstones), (90, 0), "{files:?}");
    assert_eq!(store.compact_fully().unwrap(), 0, "nothing is left to do");
}

#[test]
fn a_plan_keeps_within_the_bytes_that_may_be_moved() {
    let (_, store) = made(RuntimeOptions {
        space_bound: 10.0,
        ..options()
    });
    let table = store.create_table(&sgd("rows", 64)).unwrap();
    for file in 0..20 {
        set(&store, table, &keys(100 * file..100 * file + 100), 1.0);
        store.flush().unwrap();
    }
    // Each loses as many rows as its number says, and thus some share.
    for file in 0..20 {
        set(&store, table, &keys(100 * file..101 * file), 2.0);
    }
    store.checkpoint(1, &[]).unwrap();
    let plan = |limits: &CompactLimits| -> Vec<FileNumber> {
        store
            .compaction_plan(limits)
            .iter()
            .map(|f| f.number)
            .collect()
    };
    let all = plan(&all_limits());
    let stale: Vec<FileNumber> = store.files()[1..20]
        .iter()
        .rev()
        .map(|f| f.number)
        .collect();
    assert_eq!(all, stale, "the stalest first");
    let share = |stale_share| {
        plan(&CompactLimits {
            stale_share,
            ..all_limits()
        })
        .len()
    };
    assert_eq!(
        [share(0.1), share(0.19), share(0.2), share(1.0)],
        [10, 1, 0, 0]
    );
    let first = store.files()[19].clone();
    let limited = |bytes_max| {
        let limits = CompactLimits {
            bytes_max: Some(bytes_max),
            ..all_limits()
        };
        plan(&limits)
    };
    assert!(limited(0).is_empty());
    let cost: u64 = files_named(&store, &all[..5])
        .iter()
        .map(|f| f.bytes + f.live_bytes)
        .sum();
    assert_eq!(limited(cost), all[..5]);
    assert!(limited(first.bytes + first.live_bytes).len() == 1);
    for stale_share in [-0.1, 1.1, f64::NAN] {
        let limits = CompactLimits {
            stale_share,
            ..all_limits()
        };
        let error = store.compact(&limits, &mut |_| ControlFlow::Continue(()));
        assert!(
            matches!(error, Err(Error::InvalidArgument(_))),
            "{stale_share}"
        );
    }
    // Sixteen at a time: each group is told what is left, the second without what the first moved.
    let left: u64 = files_named(&store, &all[16..])
        .iter()
        .map(|f| f.bytes + f.live_bytes)
        .sum();
    let mut told = Vec::new();
    let report = store.compact(&all_limits(), &mut |now| {
        told.push(now);
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    assert_eq!((report.files, report.files_left), (19, 0));
    assert!(told.iter().all(|now| now.files_done + now.files_left == 19));
    let second = told.iter().find(|now| now.files_done == 16).unwrap();
    assert_eq!(second.bytes_left, left);
    assert!(second.bytes_done > 0 && second.bytes_done < report.bytes_read + report.bytes_written);
}
