//! LMDB through heed: a B+ tree of 4 KiB pages in the page cache.
//!
//! - Tuned: integer keys, no read-ahead (`MDB_NORDAHEAD`), memory not cleared before use, commits
//!   unsynced and one sync at the checkpoint (`MDB_NOSYNC`).
//! - Two threads read, each in its own transaction; LMDB has one writer, so a push has one thread
//!   for the writes and two for the arithmetic.
//! - After a crash of the system between checkpoints an unsynced LMDB may be damaged; after a
//!   kill of the process it is whole.
//!
//! Unsafe here: opening the environment and setting flags that give up safety at a system crash.
#![expect(unsafe_code, reason = "heed opens and tunes an environment so")]

use anyhow::{Context, Result, ensure};
use heed::byteorder::NativeEndian;
use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvFlags, EnvOpenOptions, IntegerComparator, WithoutTls};
use hps::row::Updater;
use zerocopy::IntoBytes;

use super::{DIM, Engine, Place, Pulled, ROW, ROW_BYTES, both, copy_weights, update, updater};

type Rows = Database<U64<NativeEndian>, Bytes, IntegerComparator>;

/// An open LMDB environment.
pub struct Lmdb {
    env: Env<WithoutTls>,
    table: Rows,
    updater: Updater,
    pulled: Pulled,
    rows: Vec<f32>,
}

impl Lmdb {
    /// Opens the environment, made where there is none.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn open(place: &Place) -> Result<Lmdb> {
        // Address space only: pages are copied on write, so allow several times the rows.
        let bytes = place.rows * ROW_BYTES as u64 * 6 + (1 << 30);
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(usize::try_from(bytes)?.next_multiple_of(1 << 20));
        let flags = EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD | EnvFlags::NO_MEM_INIT;
        // SAFETY: none of the three makes memory unsound: they give up durability of commits
        // (the checkpoint syncs), read-ahead, and clearing of pages before they are written.
        unsafe { options.flags(flags) };
        // SAFETY: the environment belongs to this comparison: one process opens it at a time, once.
        let env = unsafe { options.open(&place.dir) }.context("open LMDB")?;
        let mut txn = env.write_txn()?;
        let table = env
            .database_options()
            .types::<U64<NativeEndian>, Bytes>()
            .key_comparator::<IntegerComparator>()
            .create(&mut txn)?;
        txn.commit()?;
        Ok(Lmdb {
            env,
            table,
            updater: updater(),
            pulled: Pulled::default(),
            rows: Vec::new(),
        })
    }

    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (key, row) in keys.iter().zip(rows.chunks_exact(ROW)) {
            self.table.put(&mut txn, key, row.as_bytes())?;
        }
        txn.commit()?;
        Ok(())
    }
}

/// Fetches whole rows in one read transaction.
fn get(env: &Env<WithoutTls>, table: Rows, keys: &[u64], rows: &mut [f32]) -> Result<()> {
    let txn = env.read_txn()?;
    for (key, row) in keys.iter().zip(rows.chunks_exact_mut(ROW)) {
        let value = table.get(&txn, key)?.context("a key that was not loaded")?;
        ensure!(value.len() == ROW_BYTES, "a value of {} bytes", value.len());
        row.as_mut_bytes().copy_from_slice(value);
    }
    Ok(())
}

impl Engine for Lmdb {
    fn load(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        self.put(keys, rows)
    }

    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> Result<()> {
        self.pulled.set(keys);
        self.rows.resize(keys.len() * ROW, 0.0);
        let n = keys.len() / 2;
        let (left, right) = self.rows.split_at_mut(n * ROW);
        let (out_left, out_right) = out.split_at_mut(n * DIM);
        let (env, table) = (&self.env, self.table);
        let half = |keys: &[u64], rows: &mut [f32], out: &mut [f32]| {
            get(env, table, keys, rows)?;
            copy_weights(rows, out);
            Ok(())
        };
        both(
            || half(&keys[..n], left, out_left),
            || half(&keys[n..], right, out_right),
        )
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> Result<()> {
        self.pulled.check(keys)?;
        let n = keys.len() / 2;
        let (left, right) = self.rows.split_at_mut(n * ROW);
        let updater = &self.updater;
        let half = |rows: &mut [f32], gradients: &[f32]| {
            update(updater, rows, gradients);
            Ok(())
        };
        both(
            || half(left, &gradients[..n * DIM]),
            || half(right, &gradients[n * DIM..]),
        )?;
        self.put(keys, &self.rows)
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.env.force_sync().context("sync LMDB")
    }
}
