//! What python/examples/resume.py does, in Rust: `twin DIRECTORY STEPS DUMP`. Writes all rows of the
//! last checkpoint to DUMP: key, then weights and state, little-endian.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};

const KEYS: u64 = 200_000;
const BATCH: u64 = 4096;
const DIM: usize = 16;

fn batch(step: u64) -> Vec<u64> {
    let key = |at: u64| ((at + step * BATCH).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % KEYS;
    (0..BATCH).map(key).collect()
}

fn gradient(step: u64, key: u64, weight: f32) -> Result<f32, Box<dyn Error>> {
    let wanted = u16::try_from(key.wrapping_mul(31).wrapping_add(step) % 17)?;
    Ok(weight * 0.5 + (f32::from(wanted) - 8.0) / 16.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, directory, steps, dump] = &arguments[..] else {
        return Err("twin DIRECTORY STEPS DUMP".into());
    };
    let options = RuntimeOptions::new().cache_bytes(64 << 20).threads(1);
    let table = TableDescriptor::new("t", DIM).seed(3);
    let (store, ids) = Store::open_or_create(
        Path::new(directory),
        CreateOptions::new(),
        options,
        &[table],
    )?;
    let mut rows = vec![0.0; DIM * usize::try_from(BATCH)?];
    let steps: u64 = steps.parse()?;
    for step in 1..=steps {
        let keys = batch(step);
        let lease = store.pull(ids[0], &keys, &mut rows)?;
        for (key, row) in keys.iter().zip(rows.chunks_exact_mut(DIM)) {
            for weight in row {
                *weight = gradient(step, *key, *weight)?;
            }
        }
        store.push(&lease, Update::gradients(&rows, 0.05))?;
    }
    let last = store.checkpoint(steps, &[])?;
    let mut out = std::io::BufWriter::new(std::fs::File::create(dump)?);
    let mut all = store.rows(last.id)?;
    while let Some(row) = all.next_row()? {
        out.write_all(&row.key.to_le_bytes())?;
        for value in row.values {
            out.write_all(&value.to_le_bytes())?;
        }
    }
    out.flush()?;
    drop(all);
    store.close()?;
    Ok(())
}
