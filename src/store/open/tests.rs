//! How many files may stay open.

use super::*;
use crate::error::ArgumentError;
use crate::store::PutRows;
use crate::store::tests::{made, options, set, sgd};

/// Half of the limit, or what was asked for, where that and some others fit or can be made to.
#[test]
fn files_stay_open_as_far_as_the_limit_of_descriptors_goes() {
    let never = |_| unreachable!("the limit is enough");
    assert_eq!(files_within(0, 1001, never), 500);
    assert_eq!(files_within(100, 1000, never), 100);
    assert_eq!(
        files_within(936, 1000, never),
        936,
        "64 are left for others"
    );
    for (raised, found) in [(1001, 937), (1000, 936), (64, 0), (10, 0)] {
        let raise = |wanted| {
            assert_eq!(wanted, 1001);
            raised
        };
        assert_eq!(files_within(937, 1000, raise), found);
    }
    let most = |asked, read_only| {
        let options = RuntimeOptions {
            open_files_max: asked,
            ..options()
        };
        open_files_max(&options, read_only)
    };
    assert_eq!(most(100, true), usize::MAX, "a reader closes none");
    assert_eq!(most(100, false), 100);
    let least = options().thresholds_in_force().open_files_least;
    assert!(least > 1 && most(1, false) == least);
    let limits = [
        descriptor_limit(),
        most(0, false) as u64 * 2,
        descriptor_limit(),
    ];
    assert!(
        limits[0] <= limits[1] + 1 && limits[1] <= limits[2],
        "{limits:?}"
    );
}

/// Whoever found the table just before it was dropped has no slots to ask for any more: it was told that
/// the cache was too small.
#[test]
fn a_call_that_found_its_table_before_the_drop_is_told_so() {
    let (_, store) = made(options());
    let id = store.create_table(&sgd("rows", 4)).unwrap();
    let parts = &store.parts;
    let table = parts.core.table(id).unwrap();
    store.drop_table(id).unwrap();
    let dropped = |result: Result<()>| {
        let error = result.unwrap_err();
        let is = |e: &ArgumentError| matches!(e, ArgumentError::TableDropped { .. });
        assert!(
            matches!(&error, Error::InvalidArgument(e) if is(e)),
            "{error}"
        );
    };
    let rows = [1.0; 4];
    dropped(parts.puller.pull(&table, &[7], &mut [0.0; 4]).map(drop));
    let ticket = parts.puller.prefetch(&table, &[7]).unwrap();
    dropped(ticket.wait().map(drop));
    dropped(
        parts
            .putter
            .put(&table, &[7], PutRows::weights(&rows))
            .map(drop),
    );
    dropped(parts.puller.remove(&table, &[7]).map(drop));
    dropped(parts.puller.contains(&table, &[7]).map(drop));
    store.checkpoint(1, &[]).unwrap();
}

/// Memory is handed out in pieces that are a part of the cache as it was opened: a cache that is smaller than one piece for
/// each row size would admit no batch.
#[test]
fn a_cache_does_not_get_smaller_than_its_pieces() {
    let (_, store) = made(options().cache_bytes(1 << 30).shards(1));
    for (i, dim) in [4, 64, 256].into_iter().enumerate() {
        store.create_table(&sgd(&format!("rows-{i}"), dim)).unwrap();
    }
    let error = store.set_cache_bytes(4 << 20).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("cache_bytes") && text.contains("open it anew"),
        "{text}"
    );
    store.set_cache_bytes(64 << 20).unwrap();
    let table = store.table("rows-2").unwrap();
    set(&store, table, &[1, 2, 3], 1.0);
}
