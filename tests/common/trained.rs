//! A store that is trained and writes a delta after each checkpoint, for copies of it.
#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;

use super::rng::Rng;
use super::small;

pub const SOURCE: &str = "/source";
pub const COPY: &str = "/copy";

pub type Rows = BTreeMap<(u32, u64), Vec<u32>>;

pub fn options() -> RuntimeOptions {
    small::options().inline(true).retain_checkpoints(2)
}

pub fn create(disk: &SimDisk, root: &str) -> Store {
    let io = Io::of(disk.clone());
    Store::create_on(io, Path::new(root), CreateOptions::new(), options()).unwrap()
}

pub fn open(disk: &SimDisk, root: &str) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(root), options()).unwrap()
}

pub fn folder(n: usize) -> PathBuf {
    PathBuf::from(format!("/deltas/{n}"))
}

/// All rows of the last checkpoint, to the bit, and the names of its tables.
pub fn content(store: &Store) -> Content {
    let last = store.last_checkpoint().unwrap().id;
    let mut rows = Rows::new();
    let mut walk = store.rows(last).unwrap();
    while let Some(row) = walk.next_row().unwrap() {
        let bits = row.values.iter().map(|value| value.to_bits()).collect();
        rows.insert((row.table.0, row.key), bits);
    }
    (rows, store.tables_at(last).unwrap())
}

pub fn meta(store: &Store) -> Vec<u8> {
    let last = store.last_checkpoint().unwrap();
    store.checkpoint_meta(last.id).unwrap()
}

/// A trained store that writes a delta after each checkpoint.
pub struct Trained {
    pub disk: SimDisk,
    pub store: Store,
    pub rng: Rng,
    pub step: u64,
    pub names: u64,
}

impl Trained {
    pub fn new(seed: u64) -> Trained {
        let disk = SimDisk::new(seed);
        disk.create_dir(Path::new("/deltas")).unwrap();
        let store = create(&disk, SOURCE);
        store.create_table(&TableDescriptor::new("ads", 3)).unwrap();
        let adam = TableDescriptor::new("items", 2).optimizer(Optimizer::Adam);
        store.create_table(&adam).unwrap();
        Trained {
            disk,
            store,
            rng: Rng(seed),
            step: 0,
            names: 0,
        }
    }

    pub fn work(&mut self) {
        for _ in 0..3 + self.rng.below(5) {
            let tables = self.store.tables();
            let (table, descriptor) = &tables[self.rng.below(tables.len())];
            let first = self.rng.below(200) as u64;
            let keys: Vec<u64> = (first..first + 40).collect();
            if self.rng.below(4) == 0 {
                self.store.remove(*table, &keys[..20]).unwrap();
                continue;
            }
            let mut values = vec![0.0; keys.len() * descriptor.dim];
            let lease = self.store.pull(*table, &keys, &mut values).unwrap();
            let gradients: Vec<f32> = values.iter().map(|v| v * 0.5 + 0.25).collect();
            self.store
                .push(&lease, Update::gradients(&gradients, 0.1))
                .unwrap();
        }
    }

    /// Tables come, go, and change names.
    pub fn change_tables(&mut self) {
        let tables = self.store.tables();
        self.names += 1;
        let name = format!("table-{}", self.names);
        match self.rng.below(4) {
            0 => drop(
                self.store
                    .create_table(&TableDescriptor::new(&name, 3))
                    .unwrap(),
            ),
            1 if tables.len() > 2 => self.store.drop_table(tables[0].0).unwrap(),
            2 => {
                // Two change places.
                let (a, b) = (&tables[0], &tables[1]);
                self.store.rename_table(a.0, &name).unwrap();
                self.store.rename_table(b.0, &a.1.name).unwrap();
                self.store.rename_table(a.0, &b.1.name).unwrap();
            }
            _ => {
                // One that no checkpoint sees, whose name is used again.
                let gone = self
                    .store
                    .create_table(&TableDescriptor::new(&name, 1))
                    .unwrap();
                self.store.drop_table(gone).unwrap();
                self.store
                    .create_table(&TableDescriptor::new(&name, 2))
                    .unwrap();
            }
        }
    }

    pub fn checkpoint(&mut self) -> CheckpointId {
        self.step += 1 + self.rng.below(3) as u64;
        let meta = format!("dense weights at {}", self.step);
        self.store
            .checkpoint(self.step, meta.as_bytes())
            .unwrap()
            .id
    }

    /// Writes the next delta, and keeps what the one after it needs.
    pub fn delta(&mut self, n: usize) -> DeltaInfo {
        let id = self.checkpoint();
        let before = folder(n.saturating_sub(1));
        let base = match n {
            0 => DeltaBase::Nothing,
            _ => DeltaBase::Delta(&before),
        };
        let info = self.store.write_delta(id, &folder(n), base).unwrap();
        self.store.set_cursor("deltas", id).unwrap();
        assert_eq!(
            (info.sequence, info.until, info.step),
            (n as u64, id, self.step)
        );
        info
    }
}

/// What a store has: all rows of the last checkpoint, to the bit, and its tables.
pub type Content = (Rows, Vec<(TableId, TableDescriptor)>);

/// A store with two deltas, and a copy that has taken the first; what the copy has, and what it has with the
/// second. `more` is done between the two.
pub fn one_behind(seed: u64, more: impl FnOnce(&mut Trained)) -> (Trained, Content, Content) {
    let mut trained = Trained::new(seed);
    trained.work();
    trained.delta(0);
    let copy = create(&trained.disk, COPY);
    copy.apply_delta(&folder(0)).unwrap();
    let before = content(&copy);
    copy.close().unwrap();
    trained.work();
    more(&mut trained);
    trained.delta(1);
    let after = content(&trained.store);
    assert!(before != after);
    (trained, before, after)
}
