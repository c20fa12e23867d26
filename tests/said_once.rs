//! Is what stays so for hours said once, and not twice a second?

#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/spans.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod spans;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hooked::{Hook, HookedDisk};
use hps::io::sim::{SimDisk, plant};
use hps::*;
use nix::errno::Errno;
use small::{options, set, sgd};
use spans::Spans;

const DIM: usize = 64;

/// A store whose cache was low when a sync failed logged `a flush failed` twice a second until it
/// was closed: 170 000 lines a day, which say nothing that the first does not.
#[test]
fn the_flushing_thread_says_once_that_writes_are_refused() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    // Nothing can be written, so that the cache stays low.
    let hook: Hook = Arc::new(|call, path| {
        let rows = path.extension().is_some_and(|e| e == "rows");
        (call == "create" && rows).then(|| Err(Errno::EIO.into()))
    });
    let disk = HookedDisk::new(SimDisk::new(1), hook);
    let store = Store::create_on(
        Arc::new(disk),
        Path::new("/store"),
        CreateOptions::new(),
        options(),
    )
    .unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let said = |what: &str| {
        let seen = spans.seen();
        let flush = "a flush failed; the rows stay in memory";
        let of = |name: &str, error: &str| name == flush && error.contains(what);
        seen.iter()
            .filter(|s| s.values.get("error").is_some_and(|e| of(&s.name, e)))
            .count()
    };
    let (mut key, mut is_full) = (0, false);
    // Until no row comes in any more: one that fails to gives back what made the cache low.
    while said("Input/output error") == 0 || !is_full {
        // The thread may be late: then this one needs room itself, and can't have it either.
        let mut out = vec![0.0; DIM];
        match store.pull(table, &[key], &mut out) {
            Ok(lease) => {
                store.push(&lease, Update::weights(&[1.0; DIM])).unwrap();
                key += 1;
            }
            Err(Error::Io { .. }) => {
                is_full = true;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(other) => unreachable!("{other}"),
        }
    }
    plant::panic_at("push", "");
    let push = || set(&store, table, &[0], 2.0, DIM);
    catch_unwind(AssertUnwindSafe(push)).unwrap_err();
    let until = Instant::now() + Duration::from_secs(20);
    // At first the store may know that there was a panic, and not yet what it said.
    while said("panicked") == 0 {
        assert!(Instant::now() < until, "nothing is said at all");
        // Whoever asks for room has the thread look.
        let mut out = vec![0.0; DIM];
        drop(store.pull(table, &[key], &mut out));
        key += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(said("panicked"), 1);
    store.close_discarding();
}
