//! Which tables a checkpoint has, what a manifest says of that, and which edits contradict the others.

use super::*;
use crate::format::manifest::CheckpointMeta;
use crate::ssd::edits::Replay;
use crate::units::FileNumber;

const fn id(id: u64) -> CheckpointId {
    CheckpointId(id)
}

fn table(name: &str) -> TableState {
    TableState {
        descriptor: TableDescriptor::new(name, 4),
        is_dropped: false,
    }
}

fn dropped(name: &str) -> TableState {
    TableState {
        is_dropped: true,
        ..table(name)
    }
}

fn checkpoint(number: u64) -> Edit {
    Edit::Checkpoint(CheckpointMeta {
        id: id(number),
        step: number,
        interval: 1,
        next_rank: 1,
        meta_number: FileNumber(7),
        meta_bytes: 100,
        meta_checksum: 1,
        unix_seconds: 1,
    })
}

/// Names by number; "-" before that of a dropped table.
fn names(tables: &[TableState]) -> Vec<String> {
    let name = |t: &TableState| match t.is_dropped {
        true => format!("-{}", t.descriptor.name),
        false => t.descriptor.name.clone(),
    };
    tables.iter().map(name).collect()
}

/// The tables of five checkpoints. "a" and "b" change names, the first "c" is dropped and its name is
/// used again; "d" is dropped before a checkpoint had it.
fn checkpoints() -> Vec<(CheckpointId, Vec<TableState>)> {
    vec![
        (id(2), vec![table("a"), table("b")]),
        (
            id(3),
            vec![table("b"), table("a"), table("c"), dropped("d")],
        ),
        (
            id(5),
            vec![
                table("b"),
                table("x"),
                dropped("c"),
                dropped("d"),
                table("c"),
            ],
        ),
        (
            id(6),
            vec![
                table("b"),
                dropped("y"),
                dropped("c"),
                dropped("d"),
                table("c"),
            ],
        ),
        (
            id(9),
            vec![
                table("a"),
                dropped("y"),
                dropped("c"),
                dropped("d"),
                table("e"),
            ],
        ),
    ]
}

/// The history, and the edits that a manifest has that all checkpoints were appended to.
fn history() -> (TableHistory, Vec<Edit>) {
    let (mut history, mut edits) = (TableHistory::default(), Vec::new());
    for (id, tables) in checkpoints() {
        edits.extend(history.changes(id, &tables));
        edits.push(checkpoint(id.0));
        history.note(id, &tables);
    }
    (history, edits)
}

fn replayed(edits: &[Edit]) -> Result<TableHistory, String> {
    let mut replay = Replay::default();
    for edit in edits {
        replay.apply(edit.clone())?;
    }
    Ok(replay.tables)
}

/// What a new manifest has that knows these checkpoints.
fn snapshot(history: &TableHistory, kept: &[u64]) -> Vec<Edit> {
    let (mut before, mut edits) = (CheckpointId::NONE, Vec::new());
    for number in kept {
        history.tell(before, id(*number), &mut edits);
        edits.push(checkpoint(*number));
        before = id(*number);
    }
    edits
}

#[test]
fn a_checkpoint_has_its_tables_under_the_names_of_that_time() {
    let (history, edits) = history();
    let again = replayed(&edits).unwrap();
    for (id, tables) in checkpoints() {
        let own = tables.len();
        for history in [&history, &again] {
            let view = history.view(id);
            assert_eq!(view[..own], tables, "checkpoint {id}");
            assert_eq!(view.len(), 5);
        }
    }
    assert_eq!(history.now(), checkpoints()[4].1);
    assert_eq!(again.now(), history.now());
    // "c" and "e" of checkpoint 9 are one table; it is not in checkpoint 3, and its name is free there.
    assert_eq!(names(&history.view(id(3)))[4], "e");
}

#[test]
fn a_younger_table_is_not_there_in_the_view_of_a_checkpoint_where_its_name_is_taken() {
    let mut history = TableHistory::default();
    history.note(id(1), &[table("a"), table("b")]);
    history.note(
        id(2),
        &[dropped("a"), table("c"), table("a"), table("b"), table("d")],
    );
    assert_eq!(names(&history.view(id(1))), ["a", "b", "-a", "-b", "d"]);
    assert_eq!(names(&history.view(id(2))), ["-a", "c", "a", "b", "d"]);
    let back = history.going_on_from(id(1), &[]);
    assert_eq!(names(&back.now()), ["a", "b", "-a", "-b", "d"]);
    assert_eq!(names(&back.view(id(1))), names(&back.now()));
    // Also one that no checkpoint has had yet.
    let mut now = history.now();
    now.extend([table("e"), dropped("f"), table("b2")]);
    let back = history.going_on_from(id(1), &now);
    assert_eq!(names(&back.now())[4..], ["d", "e", "-f", "b2"]);
    // What no checkpoint has of the younger ones holds too: a drop that was not durable came back.
    now[4] = dropped("d");
    now[2].descriptor.name = String::from("free");
    now[1] = dropped("c");
    let back = history.going_on_from(id(1), &now);
    let expected = ["a", "b", "free", "-b", "-d", "e", "-f", "b2"];
    assert_eq!(names(&back.now()), expected);
    assert_eq!(names(&back.view(id(1))), expected);
}

/// A table that the checkpoint did not know was dropped, and another had its name; neither was in a
/// checkpoint yet. A rollback took the first for what the last checkpoint says of it: two tables of one
/// name, and a store that did not open.
#[test]
fn what_a_checkpoint_does_not_know_is_as_it_is_now() {
    let mut history = TableHistory::default();
    history.note(id(1), &[table("a")]);
    history.note(id(2), &[table("a"), table("x")]);
    for (now, told) in [
        ([table("a"), dropped("x"), table("x")], ["a", "-x", "x"]),
        ([table("b"), table("y"), table("x")], ["a", "y", "x"]),
    ] {
        let back = history.going_on_from(id(1), &now);
        assert_eq!(names(&back.now()), told);
        let replayed = replayed(&snapshot(&back, &[1])).unwrap();
        assert_eq!(names(&replayed.now()), told);
    }
}

#[test]
fn a_new_manifest_says_the_same_of_the_checkpoints_that_it_knows() {
    let (history, _) = history();
    let all = [2u64, 3, 5, 6, 9];
    for bits in 1u32..32 {
        let kept = all.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
        let kept: Vec<u64> = kept.map(|(_, id)| *id).collect();
        let edits = snapshot(&history, &kept);
        let again = replayed(&edits).unwrap_or_else(|error| panic!("{kept:?}: {error}"));
        for number in &kept {
            let own = checkpoints()
                .iter()
                .find(|c| c.0 == id(*number))
                .unwrap()
                .1
                .len();
            let view = again.view(id(*number));
            assert_eq!(
                view[..own],
                history.view(id(*number))[..own],
                "{number} of {kept:?}"
            );
        }
        // And once more: what is read says what was read.
        let twice = replayed(&snapshot(&again, &kept)).unwrap();
        for number in &kept {
            assert_eq!(twice.view(id(*number)), again.view(id(*number)));
        }
    }
}

#[test]
fn a_history_goes_on_from_an_earlier_checkpoint_with_its_names_and_no_number_twice() {
    let (history, _) = history();
    for (from, tables) in checkpoints() {
        let back = history.going_on_from(from, &[]);
        assert_eq!(back.count(), 5, "numbers stay");
        assert_eq!(back.now()[..tables.len()], tables);
        for (earlier, tables) in checkpoints().into_iter().filter(|(id, _)| *id <= from) {
            assert_eq!(back.view(earlier)[..tables.len()], tables);
        }
        let kept: Vec<u64> = checkpoints()
            .iter()
            .map(|c| c.0.0)
            .filter(|n| *n <= from.0)
            .collect();
        let again = replayed(&snapshot(&back, &kept)).unwrap();
        assert_eq!(again.now(), back.now());
        // It goes on.
        let mut next = back.now();
        next[0].descriptor.name = String::from("next");
        next.push(table("new"));
        let mut edits = snapshot(&back, &kept);
        edits.extend(back.changes(id(12), &next));
        edits.push(checkpoint(12));
        assert_eq!(replayed(&edits).unwrap().now(), next);
    }
}

#[test]
fn a_table_that_changes_between_two_checkpoints_is_told_once() {
    let mut history = TableHistory::default();
    history.note(id(1), &[table("a"), table("b")]);
    let said = |tables: &[TableState]| history.changes(id(4), tables);
    assert_eq!(said(&[table("a"), table("b")]), []);
    let renamed = |table, name: &str| Edit::RenameTable {
        table,
        renamed: id(4),
        name: name.to_owned(),
    };
    let drop = |table| Edit::DropTable {
        table,
        dropped: id(4),
    };
    assert_eq!(
        said(&[table("b"), table("a")]),
        [renamed(0, "b"), renamed(1, "a")]
    );
    assert_eq!(
        said(&[dropped("z"), table("a")]),
        [renamed(0, "z"), drop(0), renamed(1, "a")]
    );
    let descriptor = table("c").descriptor;
    assert_eq!(
        said(&[table("a"), table("b"), dropped("c")]),
        [Edit::Table { id: 2, descriptor }, drop(2)]
    );
}

#[test]
fn edits_of_tables_that_contradict_what_came_before_are_told() {
    let new = |id, name: &str| Edit::Table {
        id,
        descriptor: table(name).descriptor,
    };
    let drop = |table, at| Edit::DropTable {
        table,
        dropped: id(at),
    };
    let rename = |table, at, name: &str| Edit::RenameTable {
        table,
        renamed: id(at),
        name: name.to_owned(),
    };
    let hyper = |table| Edit::HyperParameters {
        table,
        hyper: crate::HyperParameters::new(),
    };
    let two = [new(0, "a"), new(1, "b"), checkpoint(3)];
    let right: [&[Edit]; 5] = [
        &[drop(0, 4), checkpoint(4)],
        &[drop(0, 5), new(2, "a"), checkpoint(5)],
        &[
            rename(0, 4, "b"),
            rename(1, 5, "a"),
            checkpoint(7),
            drop(0, 8),
            checkpoint(8),
        ],
        &[
            rename(0, 4, "c"),
            rename(0, 5, "d"),
            drop(0, 5),
            checkpoint(5),
        ],
        &[hyper(0), drop(0, 4), checkpoint(4)],
    ];
    for edits in right {
        replayed(&[&two[..], edits].concat()).unwrap_or_else(|e| panic!("{edits:?}: {e}"));
    }
    let not_there = |n| format!("table {n} is changed and is not there");
    let no_hyper = |n| format!("hyperparameters of table {n}, which is not known");
    let wrong: [(&[Edit], String); 12] = [
        (&[new(3, "c")], String::from("table 3 follows 2 tables")),
        (&[drop(2, 4)], not_there(2)),
        (&[rename(2, 4, "c")], not_there(2)),
        (&[drop(0, 4), drop(0, 5)], not_there(0)),
        (&[drop(0, 4), rename(0, 5, "c")], not_there(0)),
        (&[drop(0, 4), hyper(0)], no_hyper(0)),
        (
            &[drop(0, 3)],
            String::from("a change of table 0 is of checkpoint 3, after 3"),
        ),
        (
            &[rename(1, 2, "c")],
            String::from("a change of table 1 is of checkpoint 2, after 3"),
        ),
        (
            &[rename(1, 4, "c"), rename(1, 4, "d")],
            String::from("a change of table 1 is of checkpoint 4, after 4"),
        ),
        (
            &[drop(0, NOT_REMOVED.0)],
            format!("a change of table 0 is of checkpoint {NOT_REMOVED}, after 3"),
        ),
        (
            &[drop(0, 6), checkpoint(5)],
            String::from("a change of tables is of checkpoint 6, before 5"),
        ),
        (
            &[rename(0, 4, "b"), checkpoint(4)],
            String::from("two tables of checkpoint 4 are named \"b\""),
        ),
    ];
    for (edits, what) in wrong {
        let found = replayed(&[&two[..], edits].concat()).unwrap_err();
        assert_eq!(found, what, "{edits:?}");
    }
    let twice = replayed(&[new(0, "a"), new(1, "a"), checkpoint(1)]).unwrap_err();
    assert_eq!(twice, "two tables of checkpoint 1 are named \"a\"");
}

#[test]
fn hyperparameters_end_with_the_table() {
    let hyper = crate::HyperParameters::new().beta1(0.5);
    let edits = [
        Edit::Table {
            id: 0,
            descriptor: table("a").descriptor,
        },
        Edit::HyperParameters { table: 0, hyper },
        checkpoint(1),
        Edit::DropTable {
            table: 0,
            dropped: id(2),
        },
        checkpoint(2),
    ];
    let mut replay = Replay::default();
    edits
        .into_iter()
        .for_each(|edit| replay.apply(edit).unwrap());
    assert_eq!(replay.hyper.at(id(1))[..], [Some(hyper)]);
    assert_eq!(replay.hyper.at(id(2))[..], [None]);
}
