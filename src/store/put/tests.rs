//! What is kept for a put between its promise and its end.

use super::*;
use crate::store::tests::{keys, made, options, set, sgd};
use crate::{Error, PolicyKind, TableOptions};

/// All rows were in memory to stay, so nothing was promised; a table that was made before the put had
/// the gate took their slots, and the put waited for room with the gate held, for ever.
#[test]
fn a_table_in_which_a_put_is_about_to_write_keeps_its_slots_and_its_name() {
    let (_, store) = made(options());
    let stays = TableOptions::new().policy(PolicyKind::PinAll);
    let table = store.create_table_with(&sgd("stays", 4), stays).unwrap();
    let all = keys(0..50);
    set(&store, table, &all, 1.0);
    let there = store.parts.core.table(table).unwrap();
    for some in [&all[..1], &all] {
        let room = store.parts.putter.promise(&there, some).unwrap();
        let refused = |result: Result<()>| {
            let leases = |e: &ArgumentError| matches!(e, ArgumentError::LeasesOutstanding { .. });
            matches!(result, Err(Error::InvalidArgument(e)) if leases(&e))
        };
        // Another table's coming does not matter.
        store.create_table(&sgd("other", 4)).unwrap();
        assert!(refused(store.drop_table(table)));
        drop(room);
        assert_eq!(store.parts.in_use(), 0);
    }
    assert_eq!(
        store
            .put(table, &all, PutRows::weights(&[2.0; 200]))
            .unwrap()
            .rows,
        50
    );
    store.create_table(&sgd("other", 4)).unwrap();
    store.drop_table(table).unwrap();
}
