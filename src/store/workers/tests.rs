//! How many buffers of which size, how many threads, and who does which shard.

use super::*;
use crate::options::{TableDescriptor, TableOptions};
use crate::store::open::make_table;
use crate::store::tests::{made, options, sgd};

fn table(descriptor: &TableDescriptor) -> Vec<Arc<Table>> {
    vec![Arc::new(make_table(
        0,
        descriptor,
        TableOptions::new(),
        &options(),
    ))]
}

/// About a sixteenth of the cache, and never more than a quarter.
#[test]
fn queues_have_as_many_buffers_as_the_cache_can_spare() {
    let shape = |cache_bytes, threads, io_depth| {
        let options = RuntimeOptions {
            cache_bytes,
            threads,
            io_depth,
            ..options()
        };
        let shape = QueueShape::of(&options, &table(&sgd("rows", 4)));
        (shape.depth, shape.buffer_bytes)
    };
    assert_eq!(shape(1 << 30, 4, 32), (32, 16 << 10), "they are no longer");
    assert_eq!(
        shape(64 << 20, 2, 32),
        (32, 16 << 10),
        "a share of 21845 bytes would be more"
    );
    assert_eq!(
        shape(16 << 20, 2, 32),
        (32, 12 << 10),
        "a row of 512 bytes fits"
    );
    assert_eq!(
        shape(8 << 20, 2, 32),
        (16, 12 << 10),
        "a quarter of the cache"
    );
    assert_eq!(
        shape(4 * 6 * 16 * 12288, 2, 32),
        (16, 12 << 10),
        "just a quarter"
    );
    assert_eq!(
        shape(1 << 20, 2, 32),
        (4, 12 << 10),
        "never fewer than four"
    );
    assert_eq!(
        shape(1 << 20, 1, 2),
        (2, 12 << 10),
        "unless so many are asked for"
    );
}

#[test]
fn a_buffer_holds_the_longest_record_wherever_it_begins() {
    let options = RuntimeOptions {
        cache_bytes: 64 << 20,
        io_depth: 64,
        threads: 4,
        ..options()
    };
    let wide = sgd("wide", 8000);
    let mut tables = table(&wide);
    tables.push(Arc::new(make_table(
        1,
        &sgd("narrow", 4),
        TableOptions::new(),
        &options,
    )));
    let stride = record_stride(wide.row_bytes());
    let shape = QueueShape::of(&options, &tables);
    assert_eq!(shape.buffer_bytes, (stride + 8192).next_multiple_of(4096));
    // And a table that comes later gets pools with such buffers.
    let (_, store) = made(options);
    let workers = &store.parts.workers;
    let small = workers.pools();
    store.create_table(&sgd("narrow", 4)).unwrap();
    assert!(Arc::ptr_eq(&small, &workers.pools()), "nothing changed");
    store.create_table(&wide).unwrap();
    let large = workers.pools();
    assert_eq!(large.shape, shape);
    let one = (4 * shape.depth * shape.buffer_bytes) as u64;
    assert_eq!((workers.bytes(), large.foreground.bytes()), (3 * one, one));
    let mut stats = Stats {
        buffer_bytes: 5,
        ..Stats::default()
    };
    workers.count(&mut stats);
    assert_eq!(stats.buffer_bytes, 3 * one + 5);
}

/// Three pools in which the caller is the first thread; then two that serve prefetches, one that
/// brings passes in, a writer, a checkpoint's, and one a data directory that compacts.
#[test]
fn a_store_has_so_many_threads() {
    let threads = |threads, inline, directories: usize| {
        let options = RuntimeOptions {
            threads,
            inline,
            ..options()
        };
        threads_of(&options, directories)
    };
    assert_eq!([threads(1, true, 0), threads(3, true, 0)], [0, 6]);
    assert_eq!([threads(1, false, 0), threads(3, false, 0)], [6, 12]);
    assert_eq!([threads(1, false, 1), threads(3, false, 4)], [6, 15]);
}

#[test]
fn each_shard_is_served_once_and_few_keys_by_the_caller_alone() {
    let (_, store) = made(RuntimeOptions {
        threads: 3,
        ..options()
    });
    let pool = store.parts.workers.foreground();
    assert_eq!(pool.threads(), 3);
    let me = std::thread::current().id();
    for shards in [5, 2, 1] {
        for keys in [255, 256] {
            let served = pool.shards(shards, keys, |s| (s, std::thread::current().id()));
            let (by_shard, ids): (Vec<_>, Vec<_>) = served.into_iter().unzip();
            assert_eq!(by_shard, (0..shards).collect::<Vec<_>>());
            assert!(keys == 256 || ids.iter().all(|id| *id == me));
        }
    }
    // The caller alone would wait for ever.
    let meet = std::sync::Barrier::new(2);
    pool.shards(2, 256, |_| {
        meet.wait();
    });
    let shares = |keys| pool.shares(5, keys, |own, share| (share, own.collect::<Vec<_>>()));
    assert_eq!(shares(255), [(0, vec![0, 1, 2, 3, 4])]);
    let three = [(0, vec![0, 3]), (1, vec![1, 4]), (2, vec![2])];
    assert_eq!(shares(256), three);
}

/// Who finds the own queue in use reads with another's.
#[test]
fn who_reads_takes_a_queue_that_is_free() {
    let (_, store) = made(RuntimeOptions {
        threads: 3,
        ..options()
    });
    let pool = store.parts.workers.foreground();
    let at = |lane: &mut ReadLane| std::ptr::from_mut(lane).addr();
    let own: Vec<usize> = (0..3).map(|t| pool.read(t, at)).collect();
    pool.read(1, |first| {
        assert_eq!(at(first), own[1]);
        pool.read(1, |second| {
            assert_eq!(at(second), own[2]);
            assert_eq!(pool.read(1, at), own[0]);
            assert_eq!(pool.read(2, at), own[0]);
        });
        assert_eq!(pool.read(2, at), own[2]);
    });
}
