//! What is refused before a cut, and what a cut and its end leave.

use crate::options::Thresholds;
use crate::store::tests::{made, options, set, sgd};
use crate::*;

#[test]
fn a_step_has_to_rise_and_a_meta_to_fit_before_anything_is_cut() {
    let (_, store) = made(RuntimeOptions {
        thresholds: Thresholds {
            meta_bytes_max: 10,
            ..Thresholds::default()
        },
        ..options()
    });
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    assert!(!store.parts.checkpointer.is_settled(), "there is none");
    set(&store, table, &[1], 1.0);
    let invalid = |step, meta: &[u8]| match store.checkpoint(step, meta) {
        Err(Error::InvalidArgument(why)) => why.to_string(),
        other => unreachable!("{other:?}"),
    };
    assert!(invalid(1, &[0; 11]).contains("has 11 bytes, at most 10"));
    assert!(store.has_changes());
    assert_eq!(store.checkpoint(1, &[3; 10]).unwrap().meta_bytes, 10);
    assert!(store.parts.checkpointer.is_settled());
    set(&store, table, &[1], 2.0);
    assert!(!store.parts.checkpointer.is_settled());
    assert!(invalid(1, &[]).contains("step 1 does not come after step 1"));
    assert!(invalid(0, &[]).contains("step 0 does not come after step 1"));
    assert!(store.has_changes());
    let intervals = |s: usize| store.parts.core.shards[s].lock().intervals();
    assert_eq!(intervals(0), intervals(1));
    let before = intervals(0);
    assert_eq!(store.checkpoint(2, &[]).unwrap().step, 2);
    assert_eq!(intervals(0), (before.0 + 1, None), "a cut, and its end");
    assert_eq!((store.stats().checkpoints, store.has_changes()), (2, false));
}
