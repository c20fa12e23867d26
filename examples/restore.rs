//! Checkpoints: go on after a crash, read one beside the writer, go back to an earlier one.
//!
//! `cargo run --example restore`

#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let directory = temporary.path().join("store");
    let options = RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .retain_checkpoints(3);
    let store = Store::create(&directory, CreateOptions::new(), options.clone())?;
    let table = store.create_table(&TableDescriptor::new("clicks", 1))?;
    let mut row = [0.0];
    for step in 1..=3u16 {
        let lease = store.pull(table, &[7], &mut row)?;
        store.push(&lease, Update::weights(&[f32::from(step)]))?;
        drop(lease);
        store.checkpoint(
            u64::from(step),
            format!("data at row {}", 1000 * step).as_bytes(),
        )?;
    }
    let lease = store.pull(table, &[7], &mut row)?;
    store.push(&lease, Update::weights(&[99.0]))?; // after the last checkpoint
    drop(lease);
    store.close_discarding(); // as a crash would

    let store = Store::open(&directory, options.clone())?;
    let last = store.last_checkpoint().ok_or("no checkpoint")?;
    let meta = String::from_utf8(store.checkpoint_meta(last.id)?)?;
    drop(store.pull(table, &[7], &mut row)?);
    println!(
        "go on after step {} with {meta}; the row is {row:?}",
        last.step
    );
    assert_eq!(row, [3.0]);

    let checkpoints = store.checkpoints();
    let first = &checkpoints[0];
    let reader = Store::open_read_only(&directory, Some(first.id), options)?; // beside the writer
    drop(reader.pull(table, &[7], &mut row)?);
    println!("step {} beside it: the row was {row:?}", first.step);
    reader.close()?;
    let store = store.rollback(first.id)?; // later checkpoints are gone
    drop(store.pull(table, &[7], &mut row)?);
    assert_eq!(row, [1.0]);
    store.close()?;
    Ok(())
}
