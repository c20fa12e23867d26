//! How does C say what may differ at each open?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::path::PathBuf;
use std::sync::Mutex;

use store::{CreateOptions, HyperParameters, PolicyKind, RuntimeOptions};

use crate::border::{call, free, lock, survive};
use crate::codes::{io_engine, non_finite, policy};
use crate::error::Result;
use crate::pointers::{ErrorOut, HyperOut, HyperRef, OptionsRef, Room, TableOptionsRef, Text};

/// Everything that an open or a create is told.
#[derive(Clone, Default)]
pub struct Asked {
    pub runtime: RuntimeOptions,
    pub create: CreateOptions,
}

/// Options of an open or a create. `hps_options_new` makes them, `hps_options_free` frees them.
pub struct OptionsHandle(Mutex<Asked>);

impl OptionsRef<'_> {
    /// What was set; the defaults where there are no options.
    pub fn asked(self) -> Asked {
        match self.get("options") {
            Ok(options) => lock(&options.0).clone(),
            Err(_) => Asked::default(),
        }
    }

    fn set(self, change: impl FnOnce(&mut Asked) -> Result<()>) -> Result<()> {
        change(&mut lock(&self.get("options")?.0))
    }
}

/// Numbers of the update rules that may change between runs; recorded in each checkpoint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hyper {
    /// Momentum, Nesterov. Default 0.9.
    pub momentum: f32,
    /// AdaGrad (both), Adam. Default 1e-8.
    pub epsilon: f32,
    /// Adam. Default 0.9.
    pub beta1: f32,
    /// Adam. Default 0.999.
    pub beta2: f32,
    /// FTRL. Default 1.0.
    pub ftrl_beta: f32,
    /// FTRL L1. Default 0.
    pub lambda1: f32,
    /// FTRL L2. Default 0.
    pub lambda2: f32,
}

impl Hyper {
    pub fn parameters(self) -> HyperParameters {
        HyperParameters::new()
            .momentum(self.momentum)
            .epsilon(self.epsilon)
            .beta1(self.beta1)
            .beta2(self.beta2)
            .ftrl_beta(self.ftrl_beta)
            .lambda1(self.lambda1)
            .lambda2(self.lambda2)
    }
}

/// Gives the default hyperparameters.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_hyper_default(hyper: HyperOut, error: ErrorOut) -> i32 {
    call(error, || {
        let of = HyperParameters::default();
        hyper.place("hyper")?.write(Hyper {
            momentum: of.momentum,
            epsilon: of.epsilon,
            beta1: of.beta1,
            beta2: of.beta2,
            ftrl_beta: of.ftrl_beta,
            lambda1: of.lambda1,
            lambda2: of.lambda2,
        });
        Ok(())
    })
}

/// Makes options: all have their defaults. Where a call takes options, NULL stands for the
/// defaults.
///
/// # Threads
/// Any thread may use them; setters and calls that read them take turns.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_new() -> Option<Box<OptionsHandle>> {
    survive(|| Box::new(OptionsHandle(Mutex::default())))
}

/// Frees options. A store that was opened with them has a copy. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_free(options: Option<Box<OptionsHandle>>) {
    free(options);
}

/// Sets the memory of the cache in bytes: rows, lists, hash, lease and write buffers. Default 1
/// GiB; at least 1 MiB. The index is beside it. An open checks the range of this and all other
/// options.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_cache_bytes(
    options: OptionsRef,
    bytes: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.cache_bytes = bytes;
            Ok(())
        })
    })
}

/// Sets the ranges of keys that have a lock each. Default 4; 1 to 256.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_shards(
    options: OptionsRef,
    shards: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.shards = shards;
            Ok(())
        })
    })
}

/// Sets the threads that serve batches. Default: cores, at most 8; 1 to 256.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_threads(
    options: OptionsRef,
    threads: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.threads = threads;
            Ok(())
        })
    })
}

/// Sets the queue depth of reads per thread. Default 64; 1 to 1024.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_io_depth(
    options: OptionsRef,
    depth: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.io_depth = depth;
            Ok(())
        })
    })
}

/// Sets the I/O engine, a number of hps_io. Default HPS_IO_URING.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_io(options: OptionsRef, io: i32, error: ErrorOut) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.io = io_engine(io)?;
            Ok(())
        })
    })
}

/// Sets which rows leave memory first, a number of hps_policy, for tables that have no options of
/// their own. Default HPS_POLICY_BILEVEL.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_policy(
    options: OptionsRef,
    policy_number: i32,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.policy = policy(policy_number)?;
            Ok(())
        })
    })
}

/// Sets a policy for tables that are trained pass by pass, and have no options of their own: rows
/// of some passes stay in memory when their pass has ended, a *block* each; others leave. A pass
/// becomes a block while its table has fewer than `num_blocks` (0: none does); later if fewer of
/// its known keys than `target_hit_rate` (0 to 1) lie in blocks, and the oldest block leaves for
/// it, `max_num_evict` times at most (`hps_unfreeze` begins anew). The cache needs room for
/// `num_blocks` + 1 passes, and one more where the next comes in meanwhile.
///
/// # Errors
/// HPS_NULL_POINTER. The open checks the range.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_policy_cached(
    options: OptionsRef,
    num_blocks: u32,
    target_hit_rate: f64,
    max_num_evict: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.policy = PolicyKind::Cached {
                num_blocks,
                target_hit_rate,
                max_num_evict,
            };
            Ok(())
        })
    })
}

/// Sets the target size of a parameter file in bytes. Default 32 MiB; 1 MiB to 1 GiB.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_file_bytes(
    options: OptionsRef,
    bytes: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.file_bytes = bytes;
            Ok(())
        })
    })
}

/// Sets the rows taken per flush. Default 0: chosen from the cache and the file size.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_flush_step_rows(
    options: OptionsRef,
    rows: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.flush_step_rows = rows;
            Ok(())
        })
    })
}

/// Sets how many times the live rows the current files may take on disk. Default 2; 1.1 to 10.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_space_bound(
    options: OptionsRef,
    bound: f64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.space_bound = bound;
            Ok(())
        })
    })
}

/// Sets the threads that compact. Default 0: one a data directory, at most 4. 0 to 256.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_compaction_threads(
    options: OptionsRef,
    threads: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.compaction_threads = threads;
            Ok(())
        })
    })
}

/// Sets how many parameter files stay open. Default 0: half of the process' limit.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_open_files_max(
    options: OptionsRef,
    files: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.open_files_max = files;
            Ok(())
        })
    })
}

/// Sets the most bytes that the store may take on its file systems. Default 0: 85 % of them.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_disk_bytes_max(
    options: OptionsRef,
    bytes: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.disk_bytes_max = bytes;
            Ok(())
        })
    })
}

/// Sets how many checkpoints are retained. Default 2; 1 to 1000.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_retain_checkpoints(
    options: OptionsRef,
    checkpoints: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.retain_checkpoints = checkpoints;
            Ok(())
        })
    })
}

/// Sets whether flushes, compactions and checkpoints run in the caller's thread: 0 (the default) or
/// 1. For tests that must replay to the byte.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_inline(options: OptionsRef, on: i32, error: ErrorOut) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.inline = on != 0;
            Ok(())
        })
    })
}

/// Sets whether a restart is warm: 0 (the default) or 1. Index snapshots say how often each row was used, and
/// an open reads those rows back in the background that were worth most, as many as the cache has room
/// for. To be set in the runs that train, too.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_warm(options: OptionsRef, on: i32, error: ErrorOut) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.warm = on != 0;
            Ok(())
        })
    })
}

/// Sets what to do with gradients that are not finite, a number of hps_non_finite. Default
/// HPS_NON_FINITE_SKIP.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_non_finite(
    options: OptionsRef,
    what: i32,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        options.set(|asked| {
            asked.runtime.non_finite = non_finite(what)?;
            Ok(())
        })
    })
}

/// Sets the hyperparameters of tables that have no options of their own. They are copied.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_hyper(
    options: OptionsRef,
    hyper: HyperRef,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let hyper = hyper.get("hyper")?.parameters();
        options.set(|asked| {
            asked.runtime.hyper = hyper;
            Ok(())
        })
    })
}

/// Sets the options of the table of this name; they are copied. A name that no table has waits for
/// `hps_create_table`; `hps_open_or_create` refuses it.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for a name that is not UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_set_table(
    options: OptionsRef,
    name: Text,
    table_options: TableOptionsRef,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (name, of_table) = (name.text("name")?.to_owned(), table_options.asked()?);
        options.set(|asked| {
            asked.runtime.tables.insert(name, of_table);
            Ok(())
        })
    })
}

/// Adds a data directory to those that a new store is made with, one per SSD: missing or empty; a
/// relative path is below the store's directory. Without any there is `part-0` in the store's
/// directory. Their number and order never change; an open of a store that is there ignores them.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_add_data_directory(
    options: OptionsRef,
    path: Text,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let path: PathBuf = path.path("path")?.to_owned();
        options.set(|asked| {
            asked.create.data_directories.push(path);
            Ok(())
        })
    })
}

/// Adds a data directory to those that have moved: where they lie now, all of them, in the order in
/// which the store was made with them. Each open needs them; a create refuses them.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_options_add_moved_directory(
    options: OptionsRef,
    path: Text,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let path: PathBuf = path.path("path")?.to_owned();
        options.set(|asked| {
            asked.runtime.moved_directories.push(path);
            Ok(())
        })
    })
}
