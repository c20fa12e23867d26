//! Look-ahead: the rows of the next batches are read while this one trains.
//!
//! `cargo run --release --example prefetch`

#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use std::collections::VecDeque;

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update, mix64};

const DIM: usize = 16;
const KEYS: u64 = 200_000;
/// Batches on their way: each pins its rows, so this many must fit in the cache together.
const DEPTH: usize = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let directory = temporary.path().join("store");
    let options = RuntimeOptions::new().cache_bytes(8 << 20); // the table below takes 26 MB
    let store = Store::create(&directory, CreateOptions::new(), options)?;
    let table = store.create_table(&TableDescriptor::new("items", DIM))?;

    let mut batches = (0..60u64).map(|step| (0..2048).map(move |i| mix64(step << 32 | i) % KEYS));
    let mut in_flight = VecDeque::new();
    loop {
        while in_flight.len() < DEPTH
            && let Some(batch) = batches.next()
        {
            let keys: Vec<u64> = batch.collect();
            in_flight.push_back(store.prefetch(table, &keys)?);
        }
        let Some(ticket) = in_flight.pop_front() else {
            break;
        };
        let lease = ticket.wait()?; // its rows are in memory now
        let mut weights = vec![0.0; lease.len() * DIM];
        lease.read(&mut weights)?; // with every push before it
        store.push(&lease, Update::gradients(&weights, 0.01))?;
    }
    let stats = store.stats();
    println!(
        "hit rate {:.3}, {} device reads",
        stats.hit_rate(),
        stats.reads
    );
    store.close_discarding(); // nothing of this is worth a checkpoint
    Ok(())
}
