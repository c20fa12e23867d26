//! What is left when the power goes while threads train, flush, compact and make checkpoints?
//!
//! The disk stops at a drawn call of the play. Whatever the threads were doing, a store that is
//! opened on what is left is at the last acknowledged checkpoint or at one begun after it, and that
//! is a cut of what the trainers did.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use super::rng::Rng;
use super::trainers::*;
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::sync::{limits, thread};
use hps::*;

/// Calls of a shorter play, about.
const CALLS: usize = 200;

/// How the schedules of one test were stopped.
#[derive(Debug, Default)]
pub struct Stops {
    /// While a checkpoint was under way, or while none was.
    pub in_checkpoint: u64,
    pub between: u64,
    /// After the last call of the play.
    pub never: u64,
    /// What was left held the last acknowledged checkpoint, or one that was not acknowledged.
    pub acknowledged: u64,
    pub in_doubt: u64,
}

std::thread_local! {
    /// All threads of a schedule are one of the system's.
    pub static STOPS: RefCell<Stops> = RefCell::default();
}

/// A checkpoint that was begun, and how far the trainers were before and after its cut.
struct Begun {
    step: u64,
    before: Vec<usize>,
    after: Vec<usize>,
    acknowledged: bool,
}

/// What a store on a stopped disk may answer.
fn is_stopped(error: &Error) -> bool {
    matches!(error, Error::Io { .. } | Error::Poisoned { .. })
}

/// Begins checkpoints and flushes and compacts beside them, until a call fails.
fn checkpoints(
    scene: &Scene,
    store: &Store,
    rng: &mut Rng,
    logs: &[Log],
    begun: &mut Vec<Begun>,
) -> Result<()> {
    for step in 1..=scene.checkpoints {
        let before = progress(logs, |log| &log.ended);
        let at = begun.len();
        begun.push(Begun {
            step,
            before,
            // Until it is known where the cut is, it is anywhere.
            after: vec![usize::MAX; TRAINERS],
            acknowledged: false,
        });
        let ticket = store.checkpoint_begin(step, &[])?;
        begun[at].after = progress(logs, |log| &log.begun);
        write(store, rng)?;
        ticket.wait()?;
        begun[at].acknowledged = true;
        for _ in 0..3 {
            write(store, rng)?;
        }
    }
    Ok(())
}

fn write(store: &Store, rng: &mut Rng) -> Result<()> {
    match rng.below(3) {
        0 => store.flush().map(drop),
        1 => store.compact_fully().map(drop),
        _ => Ok(()),
    }
}

/// Two trainers, checkpoints, flushes and compactions, until the disk stops. `lies`: once the store
/// is made, the disk says that it syncs files, and does not.
pub fn play(scene: &Scene, seed: u64, lies: bool) {
    let mut rng = Rng(seed);
    let disk = SimDisk::new(rng.next());
    let shared = Io::of(disk.clone());
    let store = Store::create_on(
        shared,
        Path::new(ROOT),
        CreateOptions::new(),
        options(scene, false),
    )
    .unwrap();
    store.create_table(&table()).unwrap();
    disk.set_skip_sync(lies);
    let stop = disk.calls() + rng.below(CALLS) as u64;
    disk.stop_at(stop);
    let logs: [Log; TRAINERS] = Default::default();
    let mut begun = Vec::new();
    thread::scope(|scope| {
        for (t, log) in logs.iter().enumerate() {
            let store = &store;
            let disk = &disk;
            scope.spawn(move || ended(train(scene, store, t, log, seed), disk.calls() > stop));
        }
        let result = checkpoints(scene, &store, &mut rng, &logs, &mut begun);
        ended(result, disk.calls() > stop);
    });
    // A prefetch whose ticket was dropped ends by itself.
    while store.stats().pinned_rows > 0 {
        shuttle::thread::yield_now();
    }
    let reached = disk.calls() > stop;
    limits::closing();
    store.close_discarding();
    let under_way = begun.last().is_some_and(|b| !b.acknowledged);
    STOPS.with_borrow_mut(|stops| match (reached, under_way) {
        (false, _) => stops.never += 1,
        (true, true) => stops.in_checkpoint += 1,
        (true, false) => stops.between += 1,
    });
    for mode in [CrashMode::KeepNone, CrashMode::Random] {
        check(scene, disk.crash(rng.next(), mode), &begun, &logs);
    }
}

fn ended(result: Result<()>, stopped: bool) {
    if let Err(error) = result {
        assert!(stopped && is_stopped(&error), "{error}");
    }
}

/// Opens what is left, and compares it with what the trainers did.
fn check(scene: &Scene, left: SimDisk, begun: &[Begun], logs: &[Log]) {
    let store = Store::open_on(Arc::new(left), Path::new(ROOT), options(scene, true));
    let store = store.unwrap_or_else(|e| panic!("what is left does not open: {e}"));
    let durable = begun.iter().rev().find(|b| b.acknowledged);
    let durable = durable.map_or(0, |b| b.step);
    let Some(last) = store.last_checkpoint() else {
        assert_eq!(durable, 0, "an acknowledged checkpoint is lost");
        return store.close_discarding();
    };
    assert!(last.step >= durable, "{} after {durable}", last.step);
    let of_step = |b: &&Begun| b.step == last.step;
    let of = begun.iter().find(of_step).unwrap();
    let most = progress(logs, |log| &log.begun);
    let after = of.after.iter().zip(most).map(|(a, most)| (*a).min(most));
    let rows = rows_of(&store, last.id);
    let cut = Cut {
        rows,
        before: of.before.clone(),
        after: after.collect(),
    };
    check_cut(&cut, logs);
    assert_eq!(pulled(scene, &store), cut.rows, "rows pulled");
    STOPS.with_borrow_mut(|stops| match of.acknowledged {
        true => stops.acknowledged += 1,
        false => stops.in_doubt += 1,
    });
    store.close().unwrap();
}
