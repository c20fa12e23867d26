//! The life of a store: make it, train a row or two, checkpoint, open it again.
//!
//! `cargo run --example quickstart [DIRECTORY]`

#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};

const DIM: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let given = std::env::args_os().nth(1).map(std::path::PathBuf::from);
    let directory = given.unwrap_or_else(|| temporary.path().join("store"));
    let options = RuntimeOptions::new().cache_bytes(16 << 20);
    let store = Store::create(&directory, CreateOptions::new(), options.clone())?;
    let clicks = store.create_table(&TableDescriptor::new("clicks", DIM))?;

    let keys = [7, 42, 7]; // any u64; the same one may come twice
    let mut weights = vec![0.0; keys.len() * DIM];
    for _ in 0..100 {
        let lease = store.pull(clicks, &keys, &mut weights)?; // pinned until it is dropped
        let gradients: Vec<f32> = weights.iter().map(|weight| weight - 1.0).collect();
        store.push(&lease, Update::gradients(&gradients, 0.5))?;
    }
    store.checkpoint(100, b"whatever else belongs to step 100")?; // survives a crash from here on
    store.close()?;

    let store = Store::open(&directory, options)?;
    drop(store.pull(clicks, &keys, &mut weights)?);
    let last = store.last_checkpoint().ok_or("no checkpoint")?;
    println!(
        "step {}: the weights of key 7 are {:.3?}",
        last.step,
        &weights[..DIM]
    );
    assert!(weights.iter().all(|weight| (weight - 1.0).abs() < 0.05));
    store.close()?;
    Ok(())
}
