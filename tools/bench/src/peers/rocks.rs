//! RocksDB as FBGEMM's SSD table sets it up.
//!
//! - As there: `MultiGet` over sorted keys, direct reads and direct writes of flush and
//!   compaction, no WAL, 10-bit Bloom filters, a hash index in data blocks, universal compaction
//!   (ratio 10, 8 runs, slowdown at 32, stop at 64), no compression, checksums unverified on read,
//!   merging of two memtables, index and filters in the block cache.
//! - Otherwise than there: a block cache instead of the GPU's; space amplification at most 100 %
//!   (there 400 %), the bound that hps has; filters also at the last level only if it has several
//!   runs, as there (`optimize_filters_for_hits`).
//! - Memory: an eighth of the budget in memtables, six tenths in the block cache. The rest goes to
//!   the allocator, open files and the compaction's buffers: with seven tenths the process was
//!   killed for memory now and then. Compaction reads 512 KiB at a time, enough for the device.
//! - The checkpoint is a flush of the memtables: without a WAL nothing else is durable.
//! - `async_io` is left off: it needs a build with coroutines, which no distribution has.

use anyhow::{Context, Result, ensure};
use hps::row::Updater;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompactionStyle, DBCompressionType,
    DataBlockIndexType, Env, FlushOptions, Options, ReadOptions, UniversalCompactOptions,
    WriteBatch, WriteOptions, properties,
};
use zerocopy::IntoBytes;

use super::{DIM, Engine, Place, Pulled, ROW, ROW_BYTES, both, copy_weights, update, updater};

/// Keys of one call of `MultiGet`: bounds what pinned blocks add to the cache.
const GET_KEYS: usize = 1024;

/// An open RocksDB.
pub struct Rocks {
    db: DB,
    updater: Updater,
    pulled: Pulled,
    rows: Vec<f32>,
}

/// Keys in an order of bytes that is the order of numbers.
fn key_bytes(key: u64) -> [u8; 8] {
    key.swap_bytes().to_le_bytes()
}

fn table_options(cache: &Cache) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(10.0, false);
    table.set_format_version(5);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    table.set_data_block_hash_ratio(0.75);
    table
}

fn options(memory_bytes: u64) -> Result<Options> {
    let write_buffers = (memory_bytes / 8).clamp(4 << 20, 512 << 20);
    let cache = Cache::new_lru_cache(usize::try_from(memory_bytes / 10 * 6)?)?;
    let mut universal = UniversalCompactOptions::default();
    universal.set_size_ratio(10);
    universal.set_min_merge_width(2);
    universal.set_max_size_amplification_percent(100);
    let mut env = Env::new()?;
    env.set_high_priority_background_threads(2);
    env.set_low_priority_background_threads(2);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_env(&env);
    options.set_block_based_table_factory(&table_options(&cache));
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(usize::try_from(write_buffers / 4)?);
    options.set_max_write_buffer_number(4);
    options.set_min_write_buffer_number_to_merge(2);
    options.set_compaction_style(DBCompactionStyle::Universal);
    options.set_universal_compaction_options(&universal);
    options.set_level_zero_file_num_compaction_trigger(8);
    options.set_level_zero_slowdown_writes_trigger(32);
    options.set_level_zero_stop_writes_trigger(64);
    options.set_optimize_filters_for_hits(true);
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.05);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_compaction_readahead_size(512 << 10);
    options.set_max_background_jobs(2);
    options.set_max_open_files(-1);
    Ok(options)
}

fn unlogged() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

impl Rocks {
    /// Opens the database, made where there is none.
    ///
    /// # Errors
    /// What RocksDB says.
    pub fn open(place: &Place) -> Result<Rocks> {
        let options = options(place.memory_bytes)?;
        // Named, so that there is a handle for MultiGet.
        let column = ColumnFamilyDescriptor::new("default", options.clone());
        let db = DB::open_cf_descriptors(&options, &place.dir, [column]).context("open RocksDB")?;
        Ok(Rocks {
            db,
            updater: updater(),
            pulled: Pulled::default(),
            rows: Vec::new(),
        })
    }
}

/// Fetches whole rows.
fn get(db: &DB, keys: &[u64], rows: &mut [f32]) -> Result<()> {
    let column = db.cf_handle("default").context("the default column")?;
    let mut options = ReadOptions::default();
    options.set_verify_checksums(false);
    let rows = rows.chunks_mut(GET_KEYS * ROW);
    for (keys, rows) in keys.chunks(GET_KEYS).zip(rows) {
        let bytes = keys.iter().map(|key| key_bytes(*key));
        let values = db.batched_multi_get_cf_opt(column, bytes, true, &options);
        for (value, row) in values.into_iter().zip(rows.chunks_exact_mut(ROW)) {
            let value = value?.context("a key that was not loaded")?;
            ensure!(value.len() == ROW_BYTES, "a value of {} bytes", value.len());
            row.as_mut_bytes().copy_from_slice(&value);
        }
    }
    Ok(())
}

fn put(db: &DB, keys: &[u64], rows: &[f32]) -> Result<()> {
    let mut batch = WriteBatch::default();
    for (key, row) in keys.iter().zip(rows.chunks_exact(ROW)) {
        batch.put(key_bytes(*key), row.as_bytes());
    }
    Ok(db.write_opt(batch, &unlogged())?)
}

impl Engine for Rocks {
    fn load(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let n = keys.len() / 2;
        both(
            || put(&self.db, &keys[..n], &rows[..n * ROW]),
            || put(&self.db, &keys[n..], &rows[n * ROW..]),
        )
    }

    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> Result<()> {
        self.pulled.set(keys);
        self.rows.resize(keys.len() * ROW, 0.0);
        let n = keys.len() / 2;
        let (left, right) = self.rows.split_at_mut(n * ROW);
        let (out_left, out_right) = out.split_at_mut(n * DIM);
        let db = &self.db;
        let half = |keys: &[u64], rows: &mut [f32], out: &mut [f32]| {
            get(db, keys, rows)?;
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
        ensure!(gradients.len() == keys.len() * DIM, "one gradient a key");
        let n = keys.len() / 2;
        let (left, right) = self.rows.split_at_mut(n * ROW);
        let (db, updater) = (&self.db, &self.updater);
        let half = |keys: &[u64], rows: &mut [f32], gradients: &[f32]| {
            update(updater, rows, gradients);
            put(db, keys, rows)
        };
        both(
            || half(&keys[..n], left, &gradients[..n * DIM]),
            || half(&keys[n..], right, &gradients[n * DIM..]),
        )
    }

    fn checkpoint(&mut self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.db.flush_opt(&options).context("flush RocksDB")
    }

    /// One sorted run: else the compactions that the load left run beside what is measured.
    fn settle(&mut self) -> Result<()> {
        self.checkpoint()?;
        self.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn describe(&self) -> String {
        let number = |name: &std::ffi::CStr| self.db.property_int_value(name).ok().flatten();
        format!(
            "block cache {} MiB of {}, memtables {} MiB",
            number(properties::BLOCK_CACHE_USAGE).unwrap_or(0) >> 20,
            number(properties::BLOCK_CACHE_CAPACITY).unwrap_or(0) >> 20,
            number(properties::CUR_SIZE_ALL_MEM_TABLES).unwrap_or(0) >> 20,
        )
    }
}
