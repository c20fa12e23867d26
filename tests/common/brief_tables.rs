//! Tables that come, go and change their names beside trainers, readers and checkpoints: a checkpoint has
//! the tables, names and rows of its cut, and a call on a table that went is told so or is whole.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

use std::cell::RefCell;
use std::path::Path;

use super::rng::Rng;
use super::trainers::{self, Log, ROOT, Scene, TRAINERS, new_store, options};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::sync::{limits, thread};
use hps::*;

/// How often what was tried came about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Happened {
    pub created: u64,
    pub dropped: u64,
    /// Drops and new tables that leases kept off.
    pub refused: u64,
    pub renamed: u64,
    /// Renames and drops between a cut and its checkpoint.
    pub beside_a_cut: u64,
    /// Pulls of a table that came and went: whole, and told that it is gone.
    pub pulled: u64,
    pub told: u64,
}

std::thread_local! {
    /// All threads of a schedule are one of the system's.
    pub static HAPPENED: RefCell<Happened> = RefCell::default();
}

fn note(of: impl FnOnce(&mut Happened)) {
    HAPPENED.with_borrow_mut(of);
}

const KEYS: [u64; 4] = [1, 2, 3, u64::MAX];

/// What is known of the table that comes and goes.
#[derive(Clone, Debug, PartialEq)]
struct Brief {
    id: TableId,
    name: String,
    dim: usize,
    value: f32,
}

fn held(error: &Error) -> bool {
    let leases = |e: &ArgumentError| matches!(e, ArgumentError::LeasesOutstanding { .. });
    matches!(error, Error::InvalidArgument(e) if leases(e))
}

fn gone(error: &Error) -> bool {
    let gone = |e: &ArgumentError| {
        matches!(
            e,
            ArgumentError::TableDropped { .. } | ArgumentError::UnknownTable { .. }
        )
    };
    matches!(error, Error::InvalidArgument(e) if gone(e))
}

/// Does one of the changes.
fn change(store: &Store, rng: &mut Rng, brief: &mut Option<Brief>) {
    let Some(known) = brief else {
        let dim = [3, 64, 128][rng.below(3)];
        let optimizer = [Optimizer::Sgd, Optimizer::Adagrad, Optimizer::Adam][rng.below(3)];
        let descriptor = TableDescriptor::new("brief", dim)
            .optimizer(optimizer)
            .initialiser(Initialiser::Zero);
        match store.create_table(&descriptor) {
            Ok(id) => {
                let value = 1.0 + rng.below(100) as f32;
                let rows = vec![value; KEYS.len() * dim];
                store.put(id, &KEYS, PutRows::weights(&rows)).unwrap();
                let name = String::from("brief");
                *brief = Some(Brief {
                    id,
                    name,
                    dim,
                    value,
                });
                note(|all| all.created += 1);
            }
            Err(error) if held(&error) => note(|all| all.refused += 1),
            Err(error) => panic!("a new table gave {error}"),
        }
        return;
    };
    if rng.one_in(2) {
        let name = ["brief", "other"][rng.below(2)];
        store.rename_table(known.id, name).unwrap();
        name.clone_into(&mut known.name);
        note(|all| all.renamed += 1);
        return;
    }
    match store.drop_table(known.id) {
        Ok(()) => {
            *brief = None;
            note(|all| all.dropped += 1);
        }
        Err(error) if held(&error) => note(|all| all.refused += 1),
        Err(error) => panic!("a drop gave {error}"),
    }
}

/// Asks for a table that comes and goes, by one name.
fn read(store: &Store) {
    let tables = store.tables();
    let Some((id, descriptor)) = tables.into_iter().find(|(_, t)| t.name != "t") else {
        return shuttle::thread::yield_now();
    };
    let mut rows = vec![0.0; KEYS.len() * descriptor.dim];
    match store.pull(id, &KEYS, &mut rows) {
        Ok(lease) => {
            // Held for a while: the table can't be dropped.
            shuttle::thread::yield_now();
            drop(lease);
            // Each as it was before it was put, or after.
            let rows = rows.chunks(descriptor.dim);
            rows.for_each(|row| assert!(row.iter().all(|v| *v == row[0]), "{row:?}"));
            note(|all| all.pulled += 1);
        }
        Err(Error::OverBudget { .. }) => {}
        Err(error) if gone(&error) => note(|all| all.told += 1),
        Err(error) => panic!("a pull gave {error}"),
    }
}

/// A checkpoint has the table as it was at the cut.
fn check(store: &Store, id: CheckpointId, cut: Option<&Brief>) {
    let tables = store.tables_at(id).unwrap();
    let mut rows = store.rows(id).unwrap();
    let mut found = 0;
    while let Some(row) = rows.next_row().unwrap() {
        if row.table != TableId(0) {
            let brief = cut.unwrap_or_else(|| panic!("a row of {:?}", row.table));
            assert_eq!(row.table, brief.id);
            assert!(row.values[..brief.dim].iter().all(|v| *v == brief.value));
            found += 1;
        }
    }
    match cut {
        Some(brief) => {
            assert_eq!(found, KEYS.len());
            let own = tables.iter().find(|(id, _)| *id == brief.id).unwrap();
            assert_eq!((&*own.1.name, own.1.dim), (&*brief.name, brief.dim));
        }
        None => assert_eq!(found, 0),
    }
}

/// Trainers of a table that stays, a reader of one that does not, and a thread that makes it, gives it names,
/// drops it, and makes checkpoints meanwhile.
pub fn play(scene: &Scene, seed: u64) {
    let mut rng = Rng(seed);
    let disk = SimDisk::new(rng.next());
    let io = Io::of(disk.clone());
    let store = new_store(io, scene);
    let logs: [Log; TRAINERS] = Default::default();
    let mut brief = None;
    thread::scope(|scope| {
        let store = &store;
        let log = &logs[0];
        scope.spawn(move || trainers::train(scene, store, 0, log, seed).unwrap());
        scope.spawn(move || (0..scene.rounds).for_each(|_| read(store)));
        for step in 1..=scene.checkpoints {
            (0..3).for_each(|_| change(store, &mut rng, &mut brief));
            let cut = brief.clone();
            let ticket = store.checkpoint_begin(step, &[]).unwrap();
            if rng.one_in(2) {
                change(store, &mut rng, &mut brief);
                note(|all| all.beside_a_cut += u64::from(brief != cut));
            }
            check(store, ticket.wait().unwrap().id, cut.as_ref());
        }
    });
    trainers::at_rest(&store);
    // All is quiet: nothing is in the way.
    if let Some(brief) = &brief {
        store.drop_table(brief.id).unwrap();
    }
    let id = store.checkpoint(100, &[]).unwrap().id;
    check(&store, id, None);
    limits::closing();
    store.close().unwrap();
    let store = Store::open_on(Io::of(disk), Path::new(ROOT), options(scene, true)).unwrap();
    assert_eq!(store.tables().len(), 1);
    check(&store, id, None);
    store.close().unwrap();
}
