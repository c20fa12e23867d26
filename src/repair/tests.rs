//! What a repair says of itself.

use super::*;

fn repaired() -> Repaired {
    Repaired {
        path: PathBuf::from("/store.repair"),
        checkpoint: CheckpointId(3),
        step: 3,
        meta_lost: false,
        version_lost: None,
        checkpoints_kept: vec![CheckpointId(2)],
        checkpoints_dropped: Vec::new(),
        moved: Vec::new(),
        given_up: Vec::new(),
        tables: Vec::new(),
        files_shared: 1,
        files_rewritten: 1,
        files_gone: 1,
        entries_saved: 1,
        lost: Counts::default(),
        nameless: 0,
        undecided: 0,
        _locks: Vec::new(),
    }
}

#[test]
fn nothing_is_lost_only_where_no_kind_of_loss_is_told() {
    assert!(repaired().lost_nothing());
    let losses: [fn(&mut Repaired); 8] = [
        |r| r.lost.gone = 1,
        |r| r.lost.older = 1,
        |r| r.lost.back = 1,
        |r| r.nameless = 1,
        |r| r.undecided = 1,
        |r| r.meta_lost = true,
        |r| r.version_lost = Some(String::from("CURRENT is damaged")),
        |r| r.checkpoints_dropped = vec![CheckpointId(1)],
    ];
    for (i, lose) in losses.iter().enumerate() {
        let mut repaired = repaired();
        lose(&mut repaired);
        assert!(!repaired.lost_nothing(), "{i}");
    }
}
