//! What does the store of `fuzz/src/tiny.rs` hold, and does an open store show it?
//!
//! - A value, a meta or a key that is shown and is not the one written fails the test; so does one
//!   that is left out without an error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;

use crate::tiny::{self, KEYS, ROOT, Rows, Tiny, descriptors, initial_row, key, options};

/// The name of an error's variant; for a wrong argument, of what was wrong.
pub fn name_of(error: &Error) -> String {
    let text = match error {
        Error::InvalidArgument(invalid) => format!("{invalid:?}"),
        other => format!("{other:?}"),
    };
    text.chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect()
}

/// What each checkpoint holds, the forgotten one too.
pub struct Oracle(pub BTreeMap<CheckpointId, (Rows, Vec<u8>)>);

impl Oracle {
    pub fn new(tiny: &Tiny) -> Oracle {
        // The first checkpoint of `tiny`, made again: it no longer knows what it held.
        let disk = Io::of(SimDisk::new(2));
        let store =
            Store::create_on(disk, Path::new(ROOT), CreateOptions::new(), options()).unwrap();
        let mut rows = Rows::new();
        for (table, count) in [(0, 8), (1, 4)] {
            store.create_table(&descriptors()[table as usize]).unwrap();
            let keys: Vec<u64> = (0..count).map(key).collect();
            let value = if table == 0 { 10 } else { 15 };
            tiny::push(&store, &mut rows, table, &keys, value).unwrap();
            rows.remove(&(table, key(2)));
            rows.remove(&(table, key(3)));
        }
        store.close_discarding();
        let mut checkpoints = tiny.checkpoints.clone();
        checkpoints.insert(CheckpointId(1), (rows, vec![10; 40]));
        Oracle(checkpoints)
    }

    /// Reads everything of an open store; what errors there were. A value that is shown and is
    /// another than the one written fails the test.
    pub fn read(&self, store: &Store) -> BTreeSet<String> {
        let mut told = BTreeSet::new();
        let mut note = |what: &str, e: &Error| {
            told.insert(format!("{what}: {}", name_of(e)));
        };
        let infos = store.checkpoints();
        for info in &infos {
            let (rows, meta) = &self.0[&info.id];
            match store.checkpoint_meta(info.id) {
                Ok(found) => assert_eq!(&found, meta, "meta of checkpoint {}", info.id),
                Err(e) => note("meta", &e),
            }
            if let Err(e) = compare_rows(store, info.id, rows) {
                note("row", &e);
            }
        }
        let last = &self.0[&infos.last().unwrap().id].0;
        for (number, descriptor) in (0..).zip(descriptors()) {
            for key in (0..KEYS).map(key) {
                let row = last.get(&(number, key)).cloned();
                let table = TableId(number);
                assert_eq!(store.contains(table, &[key]).unwrap(), [row.is_some()]);
                let mut out = vec![0.0; descriptor.dim];
                match store.pull(table, &[key], &mut out) {
                    Err(e) => note("row", &e),
                    Ok(_) => {
                        let row = row.unwrap_or_else(|| initial_row(number));
                        let found = out.iter().map(|v| v.to_bits());
                        assert!(found.eq(row[..descriptor.dim].iter().copied()), "{key:#x}");
                    }
                }
            }
        }
        let ids: Vec<CheckpointId> = infos.iter().map(|i| i.id).collect();
        if ids != [2, 3].map(CheckpointId) {
            told.insert(format!("at checkpoint {} of 3", ids.last().unwrap()));
        }
        told
    }
}

fn compare_rows(store: &Store, checkpoint: CheckpointId, expected: &Rows) -> Result<()> {
    let mut rows = store.rows(checkpoint)?;
    let mut count = 0;
    while let Some(row) = rows.next_row()? {
        let found: Vec<u32> = row.values.iter().map(|v| v.to_bits()).collect();
        let known = expected.get(&(row.table.0, row.key));
        assert_eq!(
            known,
            Some(&found),
            "row {:#x} of checkpoint {checkpoint}",
            row.key
        );
        count += 1;
    }
    assert_eq!(count, expected.len(), "rows of checkpoint {checkpoint}");
    Ok(())
}
