/*
 * hps: an embedded, SSD-first store for the sparse parameters of embedding models.
 *
 * The manual is docs/C.md; include/hps.hpp is the C++ interface. These rules hold for every call:
 *
 *  1. Handles (hps_store, hps_lease, ...) are opaque. Each is freed by its own `_free` call and by
 *     nothing else, once, whatever became of what it stands for; `_free` of NULL does nothing. A
 *     handle that was freed must not be used again. A handle keeps what it needs: a store may be
 *     closed and freed before its leases, passes, tickets and walks; its directory stays locked for
 *     other writers until its leases, passes and tickets are freed, too.
 *  2. Arrays are a pointer and a number of elements. The pointer may be NULL where the number is
 *     0. The library copies what it keeps: arrays, strings and structs need to live only until the
 *     call returns. Pointers are aligned as C aligns their types; what a call writes overlaps
 *     nothing else of the call.
 *  3. Strings end with a zero byte. Names are UTF-8; paths are any bytes. Strings that the library
 *     returns live as long as the handle they came from and are not freed.
 *  4. A call that can fail returns an int32_t: HPS_OK (0) or another number of hps_code. Numbers
 *     of this header are never reused; a later version may add some.
 *  5. The last argument of such a call is where the reason goes: NULL if you do not want it, or
 *     the address of an hps_error *. It is NULL after HPS_OK; else it is yours to free with
 *     hps_error_free. What it pointed to before is overwritten, not freed.
 *  6. After an error nothing has changed unless the call says so. A handle that a call gives is
 *     NULL after an error; other outputs are undefined then.
 *  7. No panic and no exception leaves the library: a bug of its own is HPS_PANIC, and the store
 *     is poisoned. (The text of a panic goes to stderr as well.) Memory that can't be had ends the
 *     process.
 *  8. Any thread may make any call, and several at the same time, on one handle too, unless the
 *     call says otherwise. Only `_free` needs that no other thread uses the handle.
 *  9. A store belongs to the process that opened it. In a forked child every call on it, and on
 *     what it gave, is HPS_FORKED; freeing them there is allowed and does nothing to the parent's
 *     store.
 * 10. Pushes, puts and removes are durable with the next checkpoint, all of them or none. A crash,
 *     or hps_store_free of an open store, goes back to the last one.
 * 11. Where a call writes a `reserved` field, or reads one, it is 0. Set structs to zeros first.
 */


#ifndef HPS_H
#define HPS_H

/* Made by tools/header.sh from the sources in capi/src; change those. */

#include <stddef.h>
#include <stdint.h>

// A wait of so many microseconds has no end.
#define HPS_FOREVER UINT64_MAX

// What a call returns. A later version may have more; treat an unknown one as a failure.
typedef enum hps_code {
  // It did what it was asked.
  HPS_OK = 0,
  // An argument can't be served; nothing changed. `hps_error_kind` says which rule it broke.
  HPS_INVALID_ARGUMENT = 1,
  // Bytes on disk are not what was written. Fields: path, offset, what.
  HPS_CORRUPT = 2,
  // A data directory is not there. Fields: index, path, empty.
  HPS_MISSING_DIRECTORY = 3,
  // The operating system refused an operation. Fields: operation, path, errno.
  HPS_IO = 4,
  // The disk is full, or disk_bytes_max reached. Fields: path, used_bytes, asked_bytes,
  // limit_bytes.
  HPS_NO_SPACE = 5,
  // The batch and the outstanding leases can't be in memory together. Fields: table,
  // pinned_rows, asked_rows, capacity_rows, needed_bytes, leases (text).
  HPS_OVER_BUDGET = 6,
  // Somebody else holds what the call needs for itself. Fields: path, holder.
  HPS_LOCKED = 7,
  // The file is of a version of the format that this build does not know. Fields: path, found,
  // supported.
  HPS_UNSUPPORTED = 8,
  // The weights of a table are of a type that this build can't compute with. Fields: table,
  // dtype.
  HPS_UNSUPPORTED_TABLE = 9,
  // An earlier failure left the store without writes; open it again. Field: cause.
  HPS_POISONED = 10,
  // The store was closed with changes after its last checkpoint, which are gone. Field: rows.
  HPS_UNCHECKPOINTED = 11,
  // The call was asked to stop; nothing changed.
  HPS_CANCELLED = 12,
  // The store was opened read-only. Field: path.
  HPS_READ_ONLY = 13,
  // The time given for a wait passed; the ticket stays valid. Field: waited_ms.
  HPS_DEADLINE = 14,
  // A GPU, or its driver, failed. Fields: device, operation, why.
  HPS_DEVICE = 15,
  // The memory of a GPU does not suffice. Fields: device, what, asked_bytes, free_bytes.
  HPS_DEVICE_MEMORY = 16,
  // A call on a GPU was refused. Fields: call, why, key, position, positions.
  HPS_REFUSED_CALL = 17,
  // The handle belongs to the process that this one was forked from.
  HPS_FORKED = 18,
  // A pointer is NULL that must not be. Field: name.
  HPS_NULL_POINTER = 100,
  // The library has a bug: a panic was caught. The store, if one was called, is poisoned; open
  // it again.
  HPS_PANIC = 101,
  // An error that has no number in this version of hps.h.
  HPS_OTHER = 102,
} hps_code;

// Which I/O engine to use.
typedef enum hps_io {
  // io_uring, or plain calls where the kernel refuses it.
  HPS_IO_URING = 0,
  // Plain calls.
  HPS_IO_PREAD = 1,
} hps_io;

// Which rows leave memory first. `hps_options_set_policy_cached` sets one that has numbers.
typedef enum hps_policy {
  // LRU list of current rows, LFU list of candidates, frequencies that survive eviction.
  HPS_POLICY_BILEVEL = 0,
  // Least recently used.
  HPS_POLICY_LRU = 1,
  // First in, first out.
  HPS_POLICY_FIFO = 2,
  // The whole table stays in memory; a table that does not fit is an error.
  HPS_POLICY_PIN_ALL = 3,
  // As HPS_POLICY_PIN_ALL, and the whole table is read when the store is opened.
  HPS_POLICY_STAGED = 4,
} hps_policy;

// What to do with gradients that are NaN or infinite. They are always counted.
typedef enum hps_non_finite {
  // Leave the row as it is; other rows of the batch are updated.
  HPS_NON_FINITE_SKIP = 0,
  // Refuse the batch; nothing changes.
  HPS_NON_FINITE_REJECT = 1,
  // Apply them.
  HPS_NON_FINITE_APPLY = 2,
} hps_non_finite;

// The rule that turns a gradient into a change of the row, and the state it keeps.
typedef enum hps_optimizer {
  // `w -= lr * g`; no state.
  HPS_SGD = 0,
  // `v = momentum * v + g; w -= lr * v`; state: v `[dim]`.
  HPS_MOMENTUM = 1,
  // `v = momentum * v + g; w -= lr * (g + momentum * v)`; state: v `[dim]`.
  HPS_NESTEROV = 2,
  // `a += g * g; w -= lr * g / (sqrt(a) + epsilon)`; state: a `[dim]`.
  HPS_ADAGRAD = 3,
  // `a += mean(g * g); w -= lr * g / (sqrt(a) + epsilon)`; state: a `[1]`.
  HPS_ROWWISE_ADAGRAD = 4,
  // Lazy Adam with the row's own step count; state: m `[dim]`, v `[dim]`, t `[1]`.
  HPS_ADAM = 5,
  // FTRL-Proximal; state: z `[dim]`, n `[dim]`.
  HPS_FTRL = 6,
} hps_optimizer;

// What a key that was never pushed looks like.
typedef enum hps_initialiser {
  // All weights zero.
  HPS_INIT_ZERO = 0,
  // All weights a.
  HPS_INIT_CONSTANT = 1,
  // Weights uniform in `[a, b)`.
  HPS_INIT_UNIFORM = 2,
  // Weights normal, of mean a and standard deviation b.
  HPS_INIT_NORMAL = 3,
} hps_initialiser;

// Optional columns of a row, as bits that are added: u32 values that a push changes.
typedef enum hps_metadata {
  // The sum of the shows given at push.
  HPS_METADATA_SHOW = 1,
  // The sum of the clicks given at push.
  HPS_METADATA_CLICK = 2,
  // The number of pushes of the row.
  HPS_METADATA_COUNT = 4,
  // The step given at the last push of the row.
  HPS_METADATA_LAST_STEP = 8,
} hps_metadata;

// What the values of a push or put are.
typedef enum hps_values {
  // `[n, dim]`: the table's optimizer applies them; those of equal keys are summed first. Push
  // only.
  HPS_GRADIENTS = 0,
  // `[n, dim]`: added to the weights; equal keys add up in the order of the batch. Push only.
  HPS_DELTAS = 1,
  // `[n, dim]`: replace the weights. A push leaves the state; a put gives the state of a key
  // that was never pushed. Of equal keys the last one counts.
  HPS_WEIGHTS = 2,
  // `[n, row_f32s]`: replace whole rows, state and metadata included (u32 bit patterns). Of
  // equal keys the last one counts.
  HPS_ROWS = 3,
} hps_values;

// How the values of a push or put are meant, as bits that are added.
typedef enum hps_update_flags {
  // Weights or rows are stored to the bit, NaN and infinities included.
  HPS_VERBATIM = 1,
  // Only the rows at `positions` change: values, shows and clicks are those of these positions.
  // With `positions_len` 0 nothing changes. Push only.
  HPS_AT_POSITIONS = 2,
} hps_update_flags;

// How grave a line of the log is.
typedef enum hps_log_level {
  // Something failed, and nobody else is told.
  HPS_LOG_ERROR = 1,
  // Something is not as it should be, and the store goes on.
  HPS_LOG_WARN = 2,
  // Checkpoints, opens, closes.
  HPS_LOG_INFO = 3,
  // Flushes, compactions.
  HPS_LOG_DEBUG = 4,
  // Everything.
  HPS_LOG_TRACE = 5,
} hps_log_level;

// The type of the keys in a keyset file: little-endian, one after the other, nothing else.
typedef enum hps_key_type {
  // 8 bytes each (HugeCTR's `long long`): the bits of a u64.
  HPS_KEYS_I64 = 0,
  // 4 bytes each (HugeCTR's `unsigned int`).
  HPS_KEYS_U32 = 1,
} hps_key_type;

// Bytes that the library has allocated. `hps_bytes_free` frees them.
typedef struct hps_bytes hps_bytes;

// A walk over what changed. `hps_incremental` and `hps_incremental_of` give it,
// `hps_changes_free` frees it.
typedef struct hps_changes hps_changes;

// A checkpoint on its way. `hps_checkpoint_begin` gives it, `hps_checkpoint_ticket_free` frees it.
typedef struct hps_checkpoint_ticket hps_checkpoint_ticket;

// What is fixed with a table's data. `hps_descriptor_new` makes it, `hps_descriptor_free` frees
// it.
typedef struct hps_descriptor hps_descriptor;

// Why a call failed. `hps_error_free` frees it.
typedef struct hps_error hps_error;

// Keeps a checkpoint until it is freed. `hps_hold_checkpoint` gives it, `hps_hold_free` frees it.
typedef struct hps_hold hps_hold;

// Rows that stay in memory until it is freed; it holds no values. A pull or a ticket gives it,
// `hps_lease_free` frees it.
typedef struct hps_lease hps_lease;

// Options of an open or a create. `hps_options_new` makes them, `hps_options_free` frees them.
typedef struct hps_options hps_options;

// Keeps the rows of a pass in memory until it ends. `hps_pass_ticket_wait` gives it,
// `hps_pass_free` frees it.
typedef struct hps_pass hps_pass;

// A pass on its way. `hps_begin_pass` gives it, `hps_pass_ticket_free` frees it.
typedef struct hps_pass_ticket hps_pass_ticket;

// A walk over the rows of a checkpoint. `hps_rows` and `hps_rows_of` give it, `hps_row_iter_free`
// frees it.
typedef struct hps_row_iter hps_row_iter;

// A reading of everything that a store counts. `hps_stats` gives it, `hps_stats_free` frees it.
typedef struct hps_stats hps_stats;

// A store. `hps_create`, `hps_open`, `hps_open_or_create` and `hps_open_read_only` give it,
// `hps_close` closes it, `hps_store_free` frees it.
typedef struct hps_store hps_store;

// Options of one table. `hps_table_options_new` makes them, `hps_table_options_free` frees them.
typedef struct hps_table_options hps_table_options;

// A prefetch on its way. `hps_prefetch` and `hps_prefetch_many` give it, `hps_ticket_free` frees
// it.
typedef struct hps_ticket hps_ticket;

// Is called with each line of the log: how grave it is (a number of hps_log_level), where it comes
// from, and the text. The strings live until it returns.
typedef void (*hps_log_callback)(int32_t level,
                                 const char *target,
                                 const char *message,
                                 void *userdata);

// One part of a pass: keys of one table, in memory or in a keyset file. Set it to zeros, then fill
// in what is needed.
typedef struct hps_pass_part {
  // The table.
  uint32_t table;
  // The type of the keys in the file, a number of hps_key_type; 0 without a file.
  int32_t key_type;
  // `[keys_len]`, any u64, each once: room is asked for as often as a key is there, and its row
  // is brought in once. NULL with a file.
  const uint64_t *keys;
  // Keys; 0 with a file.
  size_t keys_len;
  // A keyset file, whose keys are read piece by piece; NULL: there is none.
  const char *path;
  // 0; room for later versions.
  uint64_t reserved;
} hps_pass_part;

// What bringing a pass in came to.
typedef struct hps_pass_report {
  // Keys.
  uint64_t keys;
  // Rows among them that were ever pushed and not removed since; others have no row on SSD.
  uint64_t known;
  // Known rows that were in memory when their turn came; of a table with blocks those in one.
  uint64_t hits;
  // Rows that were read from SSD, in bytes of rows.
  uint64_t bytes;
  // From the begin of the load to its end, waits for room included; not that for passes before.
  double seconds;
  // Hits per known key, 0 to 1; 1 where none is known: nothing had to be read.
  double hit_rate;
  // 0; room for later versions.
  uint64_t reserved[2];
} hps_pass_report;

// What bringing in one part of a pass came to; see hps_pass_report.
typedef struct hps_pass_table_report {
  // The table.
  uint32_t table;
  // 1: its rows stay as a block when the pass ends; else 0.
  int32_t is_block;
  // Keys.
  uint64_t keys;
  // Rows among them that were ever pushed.
  uint64_t known;
  // Known rows that were in memory, or in a block.
  uint64_t hits;
  // Rows that were read from SSD, in bytes of rows.
  uint64_t bytes;
  // Hits per known key.
  double hit_rate;
  // 0; room for later versions.
  uint64_t reserved;
} hps_pass_table_report;

// Numbers of the update rules that may change between runs; recorded in each checkpoint.
typedef struct hps_hyper {
  // Momentum, Nesterov. Default 0.9.
  float momentum;
  // AdaGrad (both), Adam. Default 1e-8.
  float epsilon;
  // Adam. Default 0.9.
  float beta1;
  // Adam. Default 0.999.
  float beta2;
  // FTRL. Default 1.0.
  float ftrl_beta;
  // FTRL L1. Default 0.
  float lambda1;
  // FTRL L2. Default 0.
  float lambda2;
} hps_hyper;

// A table, as it is stored.
typedef struct hps_table_info {
  // Its number in all calls; never given to another table of the store.
  uint32_t id;
  // Weights of a row.
  uint32_t dim;
  // Optimizer state of a row, in f32s.
  uint32_t state_f32s;
  // Columns of metadata, one word each.
  uint32_t metadata_columns;
  // Words of a whole row: weights, state, metadata, in this order.
  uint32_t row_f32s;
  // A number of hps_optimizer.
  int32_t optimizer;
  // A number of hps_initialiser.
  int32_t initialiser;
  // Numbers of hps_metadata, added.
  int32_t metadata;
  // First number of the initialiser: the constant, the lower bound, the mean.
  float init_a;
  // Second number of the initialiser: the upper bound, the standard deviation.
  float init_b;
  // Initial value of the optimizer's accumulator.
  float accumulator;
  // 0; room for later versions.
  uint32_t reserved;
  // Seed of the initialiser.
  uint64_t seed;
  // Its name, with a zero byte at the end.
  char name[256];
} hps_table_info;

// What a push does to the rows of a lease, or of a part of it. Set it to zeros, then fill in what
// is needed.
typedef struct hps_update {
  // What the values are: a number of hps_values.
  int32_t kind;
  // Numbers of hps_update_flags, added.
  uint32_t flags;
  // Learning rate of HPS_GRADIENTS; ignored else.
  float lr;
  // The trainer's step, for the column HPS_METADATA_LAST_STEP.
  uint32_t step;
  // `[n, dim]`, or `[n, row_f32s]` of HPS_ROWS; n is m with HPS_AT_POSITIONS.
  const float *values;
  // f32s in values.
  size_t values_len;
  // `[n]`, what is added to the column HPS_METADATA_SHOW. Shows and clicks are given together,
  // or neither is.
  const uint32_t *shows;
  // `[n]`, what is added to the column HPS_METADATA_CLICK.
  const uint32_t *clicks;
  // Numbers in shows, and as many in clicks; 0: neither is read.
  size_t shows_clicks_len;
  // `[m]`, each below the keys of the lease or part; read with HPS_AT_POSITIONS only.
  const uint32_t *positions;
  // Numbers in positions.
  size_t positions_len;
  // 0; room for later versions.
  uint64_t reserved[2];
} hps_update;

// What a push did.
typedef struct hps_push_report {
  // Distinct rows changed.
  uint64_t rows;
  // Positions whose values were not finite (skipped or applied, as the options say).
  uint64_t non_finite;
} hps_push_report;

// What a put did.
typedef struct hps_put_report {
  // Keys whose rows were written; one that is there twice counts twice.
  uint64_t rows;
  // Keys whose values were not finite (skipped or written, as the options say).
  uint64_t non_finite;
} hps_put_report;

// One part of `hps_pull_many`.
typedef struct hps_pull_part {
  // The table.
  uint32_t table;
  // 0; room for later versions.
  uint32_t reserved;
  // `[keys_len]`, any u64, duplicates allowed.
  const uint64_t *keys;
  // Keys.
  size_t keys_len;
  // `[keys_len, dim]`: where the weights go.
  float *out;
  // f32s in out.
  size_t out_len;
} hps_pull_part;

// One part of `hps_prefetch_many`.
typedef struct hps_prefetch_part {
  // The table.
  uint32_t table;
  // 0; room for later versions.
  uint32_t reserved;
  // `[keys_len]`, any u64, duplicates allowed.
  const uint64_t *keys;
  // Keys.
  size_t keys_len;
} hps_prefetch_part;

// One part of `hps_push_many`.
typedef struct hps_push_part {
  // The table of the lease's part.
  uint32_t table;
  // 0; room for later versions.
  uint32_t reserved;
  // What is done to its rows.
  struct hps_update update;
} hps_push_part;

// A durable checkpoint.
typedef struct hps_checkpoint_info {
  // From 1 on; never used again, also after a rollback.
  uint64_t id;
  // The trainer's step.
  uint64_t step;
  // Bytes of the trainer's meta.
  uint64_t meta_bytes;
  // Seconds since 1970 at which it was made.
  uint64_t unix_seconds;
} hps_checkpoint_info;

// Which store this is, and which of its histories.
typedef struct hps_identity {
  // The uuid that the store got when it was made; its exports and repairs have it too.
  uint8_t store[16];
  // The uuid of its history: a rollback, an export and a repair each begin a new one.
  uint8_t timeline[16];
  // The last durable checkpoint, 0 if there is none; of a reader, the one that it has open.
  uint64_t checkpoint;
} hps_identity;

// What a delta is.
typedef struct hps_delta_info {
  // Deltas before it in its chain.
  uint64_t sequence;
  // The checkpoint that the changes come after; 0: they are all rows.
  uint64_t since;
  // The checkpoint that they lead to.
  uint64_t until;
  // The trainer's step.
  uint64_t step;
  // Rows that changed.
  uint64_t rows;
  // Keys that were removed.
  uint64_t removed;
  // 1: it was written, or applied, by this call; 0: it was applied before.
  int32_t is_new;
} hps_delta_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of this library, such as "0.1.0". It is never freed.
const char *hps_version(void);

// The version of the format on disk that this library writes; it reads all versions up to it.
uint32_t hps_format_version(void);

// Makes an empty store in a directory that is missing or empty, and opens it for writing.
//
// # Durability
// An empty store survives a crash once this returns; tables do from the first checkpoint on.
//
// # Errors
// HPS_INVALID_ARGUMENT (the directory holds something, an option is out of its range), HPS_LOCKED,
// HPS_NO_SPACE, HPS_IO.
//
// # Threads
// Any.
int32_t hps_create(const char *directory,
                   hps_options *options,
                   hps_store **store,
                   hps_error **error);

// Opens a store for writing, at its last checkpoint. One process has it open for writing at a
// time.
//
// # Durability
// What was not in a checkpoint is gone, as if it had never been pushed.
//
// # Errors
// HPS_INVALID_ARGUMENT (no store is there, an option is out of its range), HPS_LOCKED,
// HPS_MISSING_DIRECTORY, HPS_CORRUPT, HPS_UNSUPPORTED, HPS_UNSUPPORTED_TABLE, HPS_IO.
//
// # Threads
// Any.
int32_t hps_open(const char *directory,
                 hps_options *options,
                 hps_store **store,
                 hps_error **error);

// Opens the store in a directory, or creates it; creates the tables that are missing, and checks
// the descriptors of those that are there. A table that is there and is not asked for stays.
//
// descriptors: `[tables]` handles; ids: `[tables]`, the tables' numbers in the same order.
//
// # Durability
// As `hps_open` and `hps_create`.
//
// # Errors
// HPS_INVALID_ARGUMENT (a descriptor that is bad or not the stored one, options for a name that no
// table has, a directory that holds something else); else as `hps_open` and `hps_create`.
//
// # Threads
// Any.
int32_t hps_open_or_create(const char *directory,
                           hps_options *options,
                           const hps_descriptor *const *descriptors,
                           size_t tables,
                           uint32_t *ids,
                           hps_store **store,
                           hps_error **error);

// Opens a retained checkpoint for reading, beside a writer or not; `checkpoint` 0 is the last one.
// The writer keeps the checkpoint while it is open. Calls that change something are HPS_READ_ONLY.
//
// # Errors
// As `hps_open`; HPS_INVALID_ARGUMENT when the checkpoint is not retained; HPS_LOCKED where the
// writer is dropping it.
//
// # Threads
// Any.
int32_t hps_open_read_only(const char *directory,
                           uint64_t checkpoint,
                           hps_options *options,
                           hps_store **store,
                           hps_error **error);

// Closes a store, and waits for calls of other threads and a running checkpoint. The handle stays:
// calls with it are HPS_INVALID_ARGUMENT of kind "Closed" from now on, and it has to be freed. A
// store that is closed stays so.
//
// discard: 1 gives up changes after the last checkpoint without an error, 0 tells of them.
//
// # Durability
// None of its own: what the last checkpoint has is durable already.
//
// # Errors
// HPS_UNCHECKPOINTED where `discard` is 0 and something changed after the last checkpoint: the
// store is closed all the same, unharmed at its last checkpoint. `hps_has_changes` tells before.
// HPS_FORKED.
//
// # Threads
// Any; not from a callback of the log.
int32_t hps_close(hps_store *store, int32_t discard, hps_error **error);

// Frees a store's handle. A store that is open is closed as by a crash: it opens at its last
// checkpoint. Leases and tickets of it stay valid handles, which are freed by their own calls.
// NULL is allowed.
//
// # Threads
// None may use the handle any more.
void hps_store_free(struct hps_store *store);

// Tells whether something was pushed, put or removed, or a table dropped or renamed, since the
// last checkpoint: 1 or 0.
//
// # Errors
// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_has_changes(hps_store *store, int32_t *changes, hps_error **error);

// Changes the memory of the cache until the store is closed. Less: cold rows leave, dirty ones are
// written first; other calls go on meanwhile.
//
// # Errors
// HPS_INVALID_ARGUMENT, HPS_OVER_BUDGET (leases hold more): the cache is as before. HPS_NO_SPACE,
// HPS_IO, HPS_POISONED where dirty rows could not be written.
//
// # Threads
// Any.
int32_t hps_set_cache_bytes(hps_store *store, uint64_t bytes, hps_error **error);

// Limits the bytes that compactions read and write per second, until the store is closed; 0 lifts
// the limit.
//
// # Errors
// HPS_READ_ONLY, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_set_compaction_rate(hps_store *store, uint64_t bytes_per_second, hps_error **error);

// Gives the default hyperparameters.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_hyper_default(hps_hyper *hyper, hps_error **error);

// Makes options: all have their defaults. Where a call takes options, NULL stands for the
// defaults.
//
// # Threads
// Any thread may use them; setters and calls that read them take turns.
struct hps_options *hps_options_new(void);

// Frees options. A store that was opened with them has a copy. NULL is allowed.
void hps_options_free(struct hps_options *options);

// Sets the memory of the cache in bytes: rows, lists, hash, lease and write buffers. Default 1
// GiB; at least 1 MiB. The index is beside it. An open checks the range of this and all other
// options.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_cache_bytes(hps_options *options, uint64_t bytes, hps_error **error);

// Sets the ranges of keys that have a lock each. Default 4; 1 to 256.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_shards(hps_options *options, size_t shards, hps_error **error);

// Sets the threads that serve batches. Default: cores, at most 8; 1 to 256.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_threads(hps_options *options, size_t threads, hps_error **error);

// Sets the queue depth of reads per thread. Default 64; 1 to 1024.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_io_depth(hps_options *options, size_t depth, hps_error **error);

// Sets the I/O engine, a number of hps_io. Default HPS_IO_URING.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
int32_t hps_options_set_io(hps_options *options, int32_t io, hps_error **error);

// Sets which rows leave memory first, a number of hps_policy, for tables that have no options of
// their own. Default HPS_POLICY_BILEVEL.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
int32_t hps_options_set_policy(hps_options *options, int32_t policy_number, hps_error **error);

// Sets a policy for tables that are trained pass by pass, and have no options of their own: rows
// of some passes stay in memory when their pass has ended, a *block* each; others leave. A pass
// becomes a block while its table has fewer than `num_blocks` (0: none does); later if fewer of
// its known keys than `target_hit_rate` (0 to 1) lie in blocks, and the oldest block leaves for
// it, `max_num_evict` times at most (`hps_unfreeze` begins anew). The cache needs room for
// `num_blocks` + 1 passes, and one more where the next comes in meanwhile.
//
// # Errors
// HPS_NULL_POINTER. The open checks the range.
int32_t hps_options_set_policy_cached(hps_options *options,
                                      uint32_t num_blocks,
                                      double target_hit_rate,
                                      uint64_t max_num_evict,
                                      hps_error **error);

// Sets the target size of a parameter file in bytes. Default 32 MiB; 1 MiB to 1 GiB.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_file_bytes(hps_options *options, uint64_t bytes, hps_error **error);

// Sets the rows taken per flush. Default 0: chosen from the cache and the file size.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_flush_step_rows(hps_options *options, size_t rows, hps_error **error);

// Sets how many times the live rows the current files may take on disk. Default 2; 1.1 to 10.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_space_bound(hps_options *options, double bound, hps_error **error);

// Sets the threads that compact. Default 0: one a data directory, at most 4. 0 to 256.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_compaction_threads(hps_options *options,
                                           size_t threads,
                                           hps_error **error);

// Sets how many parameter files stay open. Default 0: half of the process' limit.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_open_files_max(hps_options *options, size_t files, hps_error **error);

// Sets the most bytes that the store may take on its file systems. Default 0: 85 % of them.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_disk_bytes_max(hps_options *options, uint64_t bytes, hps_error **error);

// Sets how many checkpoints are retained. Default 2; 1 to 1000.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_retain_checkpoints(hps_options *options,
                                           size_t checkpoints,
                                           hps_error **error);

// Sets whether flushes, compactions and checkpoints run in the caller's thread: 0 (the default) or
// 1. For tests that must replay to the byte.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_inline(hps_options *options, int32_t on, hps_error **error);

// Sets whether a restart is warm: 0 (the default) or 1. Index snapshots say how often each row was used, and
// an open reads those rows back in the background that were worth most, as many as the cache has room
// for. To be set in the runs that train, too.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_warm(hps_options *options,
                             int32_t on,
                             hps_error **error);

// Sets what to do with gradients that are not finite, a number of hps_non_finite. Default
// HPS_NON_FINITE_SKIP.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
int32_t hps_options_set_non_finite(hps_options *options, int32_t what, hps_error **error);

// Sets the hyperparameters of tables that have no options of their own. They are copied.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_set_hyper(hps_options *options, const hps_hyper *hyper, hps_error **error);

// Sets the options of the table of this name; they are copied. A name that no table has waits for
// `hps_create_table`; `hps_open_or_create` refuses it.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for a name that is not UTF-8.
int32_t hps_options_set_table(hps_options *options,
                              const char *name,
                              hps_table_options *table_options,
                              hps_error **error);

// Adds a data directory to those that a new store is made with, one per SSD: missing or empty; a
// relative path is below the store's directory. Without any there is `part-0` in the store's
// directory. Their number and order never change; an open of a store that is there ignores them.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_add_data_directory(hps_options *options,
                                       const char *path,
                                       hps_error **error);

// Adds a data directory to those that have moved: where they lie now, all of them, in the order in
// which the store was made with them. Each open needs them; a create refuses them.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_options_add_moved_directory(hps_options *options,
                                        const char *path,
                                        hps_error **error);

// Makes options of one table: all are as the store's.
struct hps_table_options *hps_table_options_new(void);

// Frees options of a table. NULL is allowed.
void hps_table_options_free(struct hps_table_options *table_options);

// Sets the hyperparameters of the table's update rule. They are copied.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_table_options_set_hyper(hps_table_options *table_options,
                                    const hps_hyper *hyper,
                                    hps_error **error);

// Sets which of the table's rows leave memory first, a number of hps_policy.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
int32_t hps_table_options_set_policy(hps_table_options *table_options,
                                     int32_t policy_number,
                                     hps_error **error);

// Sets a policy for a table that is trained pass by pass: see `hps_options_set_policy_cached`.
//
// # Errors
// HPS_NULL_POINTER. The call that takes the options checks the range.
int32_t hps_table_options_set_policy_cached(hps_table_options *table_options,
                                            uint32_t num_blocks,
                                            double target_hit_rate,
                                            uint64_t max_num_evict,
                                            hps_error **error);

// Sets the memory of the cache, in bytes, that the table's rows keep while other tables need it.
// Default 0.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_table_options_set_cache_bytes_min(hps_table_options *table_options,
                                              uint64_t bytes,
                                              hps_error **error);

// Sets the memory of the cache, in bytes, that the table's rows take at most, but for rows that
// leases or dirty rows hold. Default: no limit.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_table_options_set_cache_bytes_max(hps_table_options *table_options,
                                              uint64_t bytes,
                                              hps_error **error);

// Makes the descriptor of a table: AdaGrad, new rows uniform in ±0.01, seed 0, no metadata.
//
// name: 1 to 255 bytes of UTF-8; dim: weights of a row, 1 to 8192. Both are checked when the table
// is made.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for a name that is not UTF-8.
//
// # Threads
// Any thread may use it; setters and calls that read it take turns.
int32_t hps_descriptor_new(const char *name,
                           size_t dim,
                           hps_descriptor **descriptor,
                           hps_error **error);

// Frees a descriptor. NULL is allowed.
void hps_descriptor_free(struct hps_descriptor *descriptor);

// Sets the update rule, a number of hps_optimizer.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
int32_t hps_descriptor_set_optimizer(hps_descriptor *descriptor,
                                     int32_t number,
                                     hps_error **error);

// Sets what rows of keys never pushed are made from: `initialiser` is a number of hps_initialiser,
// which says what a and b are. A number that it does not use is ignored.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
int32_t hps_descriptor_set_initialiser(hps_descriptor *descriptor,
                                       int32_t initialiser,
                                       float a,
                                       float b,
                                       hps_error **error);

// Sets the seed of the initialiser.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_descriptor_set_seed(hps_descriptor *descriptor, uint64_t seed, hps_error **error);

// Sets the initial value of the optimizer's accumulator (AdaGrad a, FTRL n). Default 0.
//
// # Errors
// HPS_NULL_POINTER.
int32_t hps_descriptor_set_accumulator(hps_descriptor *descriptor,
                                       float accumulator,
                                       hps_error **error);

// Sets the optional columns of a row: numbers of hps_metadata, added. Default 0: none.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for other bits.
int32_t hps_descriptor_set_metadata(hps_descriptor *descriptor,
                                    int32_t columns,
                                    hps_error **error);

// Checks the range of every field, as making the table does.
//
// # Errors
// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT naming the field.
int32_t hps_descriptor_validate(hps_descriptor *descriptor, hps_error **error);

// Adds a table; one of the same name and descriptor is found instead. Waits for a running
// checkpoint.
//
// # Durability
// With the next checkpoint.
//
// # Errors
// HPS_INVALID_ARGUMENT (a bad or changed descriptor, a cache too small), HPS_OVER_BUDGET,
// HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY.
//
// # Threads
// Any.
int32_t hps_create_table(hps_store *store,
                         hps_descriptor *descriptor,
                         uint32_t *table,
                         hps_error **error);

// As `hps_create_table`, with options of the table in the place of what the store was opened with
// for its name. A table that is there has them from now on, too. They hold until the store is
// closed.
//
// # Durability
// As `hps_create_table`; options are not stored.
//
// # Errors
// As `hps_create_table`; HPS_INVALID_ARGUMENT for an option out of its range, and where the policy
// is to become HPS_POLICY_PIN_ALL while leases are outstanding.
//
// # Threads
// Any.
int32_t hps_create_table_with(hps_store *store,
                              hps_descriptor *descriptor,
                              hps_table_options *table_options,
                              uint32_t *table,
                              hps_error **error);

// Finds a table by name.
//
// # Errors
// HPS_INVALID_ARGUMENT of kind "UnknownTable", whose field "known" names the tables there are.
//
// # Threads
// Any.
int32_t hps_table(hps_store *store, const char *name, uint32_t *table, hps_error **error);

// Describes a table: sizes of its rows, optimizer, name.
//
// # Errors
// HPS_INVALID_ARGUMENT of kind "UnknownTable" for a number that no table has.
//
// # Threads
// Any.
int32_t hps_describe_table(hps_store *store,
                           uint32_t table,
                           hps_table_info *table_info,
                           hps_error **error);

// Lists the tables, by number; without those that were dropped.
//
// infos: `[capacity]`, of which as many are written as there are; count: how many there are, which
// may be more. With capacity 0 infos may be NULL.
//
// # Errors
// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_tables(hps_store *store,
                   hps_table_info *infos,
                   size_t capacity,
                   size_t *count,
                   hps_error **error);

// Lists the tables of a retained checkpoint, under the names of that time; as `hps_tables` else.
//
// # Errors
// HPS_INVALID_ARGUMENT for an unknown checkpoint; HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_tables_at(hps_store *store,
                      uint64_t checkpoint,
                      hps_table_info *infos,
                      size_t capacity,
                      size_t *count,
                      hps_error **error);

// Drops a table: its rows are gone, its name is free, its number is never given again. Checkpoints
// that have it keep it.
//
// # Durability
// With the next checkpoint; a crash before gives the table back.
//
// # Errors
// HPS_INVALID_ARGUMENT (no such table, dropped already, leases or tickets of it outstanding),
// HPS_POISONED, HPS_READ_ONLY; the table is there as before.
//
// # Threads
// Any.
int32_t hps_drop_table(hps_store *store, uint32_t table, hps_error **error);

// Gives a table another name; its number, rows, options and leases stay.
//
// # Durability
// With the next checkpoint; older checkpoints keep the old name.
//
// # Errors
// HPS_INVALID_ARGUMENT (no such table, a name that is taken, empty or longer than 255 bytes),
// HPS_POISONED, HPS_READ_ONLY.
//
// # Threads
// Any.
int32_t hps_rename_table(hps_store *store, uint32_t table, const char *name, hps_error **error);

// Makes rows resident, pins them and copies their weights. A key that was never pushed has the row
// of the table's initialiser. Rows are pinned until the lease is freed.
//
// keys: `[keys_len]`, any u64, duplicates allowed; out: `[keys_len, dim]`, in the same order, so
// `out_len` is keys_len * dim.
//
// # Durability
// None: nothing changes.
//
// # Errors
// HPS_OVER_BUDGET when the batch can't be in memory beside the outstanding leases (nobody waits),
// HPS_INVALID_ARGUMENT, HPS_IO, HPS_CORRUPT, HPS_NO_SPACE or HPS_POISONED (room needed a flush).
// What is in `out` then is undefined.
//
// # Threads
// Any; calls of several threads run at the same time.
int32_t hps_pull(hps_store *store,
                 uint32_t table,
                 const uint64_t *keys,
                 size_t keys_len,
                 float *out,
                 size_t out_len,
                 hps_lease **lease,
                 hps_error **error);

// Starts making rows resident, in a thread of the store. The keys are copied. Values are gathered
// when the lease is read, so a prefetch changes when rows are read from the device, never what a
// batch sees.
//
// keys: `[keys_len]`, any u64, duplicates allowed.
//
// # Durability
// None: nothing changes.
//
// # Errors
// HPS_INVALID_ARGUMENT; everything else comes from `hps_ticket_wait`.
//
// # Threads
// Any.
int32_t hps_prefetch(hps_store *store,
                     uint32_t table,
                     const uint64_t *keys,
                     size_t keys_len,
                     hps_ticket **ticket,
                     hps_error **error);

// Writes rows without reading what they replace: for rows that come from elsewhere. Any number of
// keys in one call.
//
// keys: `[keys_len]`; kind: HPS_WEIGHTS, values: `[keys_len, dim]`, or HPS_ROWS, `[keys_len,
// row_f32s]`; flags: 0 or HPS_VERBATIM; report: what was done, or NULL.
//
// # Durability
// With the next checkpoint: all of the call, or nothing.
//
// # Errors
// HPS_INVALID_ARGUMENT, HPS_OVER_BUDGET, HPS_READ_ONLY: nothing changed. HPS_NO_SPACE, HPS_IO,
// HPS_POISONED: some rows may have changed.
//
// # Threads
// Any.
int32_t hps_put(hps_store *store,
                uint32_t table,
                const uint64_t *keys,
                size_t keys_len,
                int32_t kind,
                const float *values,
                size_t values_len,
                uint32_t flags,
                hps_put_report *report,
                hps_error **error);

// Tells which keys were pushed or put, and not removed since. No I/O.
//
// keys: `[keys_len]`; found: `[keys_len]`, 1 or 0.
//
// # Errors
// HPS_INVALID_ARGUMENT, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_contains(hps_store *store,
                     uint32_t table,
                     const uint64_t *keys,
                     size_t keys_len,
                     uint8_t *found,
                     hps_error **error);

// Forgets keys: they have the initialiser's row again.
//
// keys: `[keys_len]`, duplicates allowed; removed: how many were known, or NULL.
//
// # Durability
// With the next checkpoint.
//
// # Errors
// HPS_INVALID_ARGUMENT, HPS_READ_ONLY: nothing changed. HPS_OVER_BUDGET, HPS_NO_SPACE, HPS_IO,
// HPS_POISONED: some of the keys may have been removed.
//
// # Threads
// Any.
int32_t hps_remove(hps_store *store,
                   uint32_t table,
                   const uint64_t *keys,
                   size_t keys_len,
                   uint64_t *removed,
                   hps_error **error);

// Gives the distinct keys of a batch, in the order in which rows lie on disk, and where each key
// of the batch is among them: `distinct[inverse[i]]` is `keys[i]`.
//
// keys: `[keys_len]`; distinct: room for `[keys_len]`, of which `count` are written; inverse:
// `[keys_len]`.
//
// # Errors
// HPS_INVALID_ARGUMENT for 2^32 keys or more, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_unique(hps_store *store,
                   const uint64_t *keys,
                   size_t keys_len,
                   uint64_t *distinct,
                   uint32_t *inverse,
                   size_t *count,
                   hps_error **error);

// Makes rows of several tables resident, pins them and copies their weights: all parts or none,
// under one lease. A table may be in several parts, and a key in several of them.
//
// parts: `[parts_len]`, at least one.
//
// # Durability
// None: nothing changes.
//
// # Errors
// As `hps_pull`; nothing is pinned, of no part.
//
// # Threads
// Any.
int32_t hps_pull_many(hps_store *store,
                      const hps_pull_part *parts,
                      size_t parts_len,
                      hps_lease **lease,
                      hps_error **error);

// Starts making rows of several tables resident, all parts or none. The keys are copied.
//
// parts: `[parts_len]`, at least one.
//
// # Durability
// None: nothing changes.
//
// # Errors
// HPS_INVALID_ARGUMENT; everything else comes from `hps_ticket_wait`.
//
// # Threads
// Any.
int32_t hps_prefetch_many(hps_store *store,
                          const hps_prefetch_part *parts,
                          size_t parts_len,
                          hps_ticket **ticket,
                          hps_error **error);

// Changes the rows of all parts of a lease, in their order. A part whose rows are to stay as they
// are gets an update of HPS_AT_POSITIONS without positions.
//
// parts: `[parts_len]`, one for each part of the lease, in its order; reports: the same, or NULL.
//
// # Durability
// With the next checkpoint: all parts, or none where its cut came before.
//
// # Errors
// As `hps_push`; HPS_INVALID_ARGUMENT also for another number of parts, or another table than a
// part's. Nothing changed, of no part.
//
// # Threads
// As `hps_push`.
int32_t hps_push_many(hps_store *store,
                      const hps_lease *lease,
                      const hps_push_part *parts,
                      size_t parts_len,
                      hps_push_report *reports,
                      hps_error **error);

// The keys of the batch, duplicates included, of all parts. 0 for NULL.
//
// # Threads
// Any.
size_t hps_lease_len(const hps_lease *lease);

// The parts of a lease: 1, or as many as `hps_pull_many` and `hps_prefetch_many` were asked for. 0
// for NULL.
//
// # Threads
// Any.
size_t hps_lease_parts(const hps_lease *lease);

// The number of the lease, as HPS_OVER_BUDGET names it. 0 for NULL.
//
// # Threads
// Any.
uint64_t hps_lease_id(const hps_lease *lease);

// Describes a part of a lease: its table, its keys, the weights and all words of a row. Any of the
// places may be NULL.
//
// # Errors
// HPS_INVALID_ARGUMENT for a part that is not there.
//
// # Threads
// Any.
int32_t hps_lease_part(const hps_lease *lease,
                       size_t part_index,
                       uint32_t *table,
                       size_t *len,
                       size_t *dim,
                       size_t *row_f32s,
                       hps_error **error);

// Copies the weights as they are now: every push before it shows. Rows of a store that was closed
// are as they were.
//
// out: `[n, dim]`, in the order of the keys; of several parts, one after the other.
//
// # Errors
// HPS_INVALID_ARGUMENT when `out` has another length, HPS_FORKED.
//
// # Threads
// Any, several at the same time.
int32_t hps_lease_read(const hps_lease *lease, float *out, size_t out_len, hps_error **error);

// Copies whole rows as they are now: weights, optimizer state, metadata (u32 bit patterns).
//
// out: `[n, row_f32s]`, in the order of the keys; of several parts, one after the other.
//
// # Errors
// As `hps_lease_read`.
//
// # Threads
// Any, several at the same time.
int32_t hps_lease_read_rows(const hps_lease *lease,
                            float *out,
                            size_t out_len,
                            hps_error **error);

// Copies the weights of one part. out: `[n, dim]` of the part.
//
// # Errors
// As `hps_lease_read`; HPS_INVALID_ARGUMENT for a part that is not there.
//
// # Threads
// Any, several at the same time.
int32_t hps_lease_read_part(const hps_lease *lease,
                            size_t part_index,
                            float *out,
                            size_t out_len,
                            hps_error **error);

// Copies whole rows of one part. out: `[n, row_f32s]` of the part.
//
// # Errors
// As `hps_lease_read`; HPS_INVALID_ARGUMENT for a part that is not there.
//
// # Threads
// Any, several at the same time.
int32_t hps_lease_read_rows_part(const hps_lease *lease,
                                 size_t part_index,
                                 float *out,
                                 size_t out_len,
                                 hps_error **error);

// Copies whole rows at some positions of one part.
//
// positions: `[m]`, each below the keys of the part, in any order; out: `[m, row_f32s]`.
//
// # Errors
// As `hps_lease_read`; HPS_INVALID_ARGUMENT for a part or a position that is not there.
//
// # Threads
// Any, several at the same time.
int32_t hps_lease_read_rows_at(const hps_lease *lease,
                               size_t part_index,
                               const uint32_t *positions,
                               size_t positions_len,
                               float *out,
                               size_t out_len,
                               hps_error **error);

// Frees a lease: its rows may leave memory. NULL is allowed.
//
// # Threads
// None may use the lease any more.
void hps_lease_free(struct hps_lease *lease);

// Tells whether `hps_ticket_wait` returns at once: 1 or 0. Never waits.
//
// # Errors
// HPS_NULL_POINTER, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_ticket_poll(hps_ticket *ticket, int32_t *ready, hps_error **error);

// Waits until the rows are resident, at most `timeout_us` microseconds, and gives the lease. With
// HPS_FOREVER, a prefetch that has not started is served by this thread, like a pull: that never
// depends on room which the caller itself holds. The ticket has to be freed in any case.
//
// # Errors
// HPS_DEADLINE when the rows are not resident yet: the prefetch goes on, wait again or free the
// ticket. HPS_OVER_BUDGET when it can't fit beside the outstanding leases, HPS_IO, HPS_CORRUPT,
// HPS_NO_SPACE, HPS_POISONED. HPS_INVALID_ARGUMENT once a lease or another error was given, and
// when the store was closed.
//
// # Threads
// Any; several that wait for one ticket take turns.
int32_t hps_ticket_wait(hps_ticket *ticket,
                        uint64_t timeout_us,
                        hps_lease **lease,
                        hps_error **error);

// Frees a ticket; a prefetch that has given no lease is cancelled. NULL is allowed.
//
// # Threads
// None may use the ticket any more.
void hps_ticket_free(struct hps_ticket *ticket);

// Changes the rows of a lease of one part. No I/O.
//
// update: what is done; report: what was done, or NULL.
//
// # Durability
// With the next checkpoint.
//
// # Errors
// HPS_INVALID_ARGUMENT (a lease of another store, lengths, lr, positions, values that are not
// finite when the options reject them), HPS_READ_ONLY, HPS_POISONED; nothing changed.
//
// # Threads
// Any. Pushes that run at the same time are applied row by row in an order that is not defined.
int32_t hps_push(hps_store *store,
                 const hps_lease *lease,
                 const hps_update *update,
                 hps_push_report *report,
                 hps_error **error);

// Lets the table's optimizer apply gradients to the rows of a lease of one part; those of equal
// keys are summed first. The same as `hps_push` of HPS_GRADIENTS.
//
// gradients: `[n, dim]` for the n keys of the lease.
//
// # Durability
// With the next checkpoint.
//
// # Errors
// As `hps_push`.
//
// # Threads
// As `hps_push`.
int32_t hps_push_gradients(hps_store *store,
                           const hps_lease *lease,
                           const float *gradients,
                           size_t gradients_len,
                           float lr,
                           hps_push_report *report,
                           hps_error **error);

// Begins a pass: the rows of its keys come into memory, beside other calls, and stay until the
// pass ends, so that pulls and pushes of them are hits. Passes come in one after the other, in the
// order in which they were begun. Keys in memory are copied. Values depend on nothing of this.
//
// Of a table with a cached policy (`hps_options_set_policy_cached`) the rows may stay beyond the
// end of the pass, as a block.
//
// parts: `[parts_len]`, at least one.
//
// # Durability
// None: what is pushed in a pass is durable with the next checkpoint.
//
// # Errors
// HPS_OVER_BUDGET: more rows than the cache has room for; needed_bytes is one that would do.
// HPS_INVALID_ARGUMENT, also for a keyset file without keys, or that has no whole number of them;
// HPS_IO. Everything else comes from `hps_pass_ticket_wait`.
//
// # Threads
// Any.
int32_t hps_begin_pass(hps_store *store,
                       const hps_pass_part *parts,
                       size_t parts_len,
                       hps_pass_ticket **ticket,
                       hps_error **error);

// Tells whether `hps_pass_ticket_wait` returns at once: 1 or 0. Never waits.
//
// # Errors
// HPS_NULL_POINTER, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_pass_ticket_poll(hps_pass_ticket *ticket, int32_t *ready, hps_error **error);

// Waits until the rows are in memory, at most `timeout_us` microseconds, and gives the pass. The
// ticket has to be freed in any case.
//
// # Errors
// HPS_DEADLINE when the rows are not there yet: wait again or free the ticket. HPS_OVER_BUDGET,
// with HPS_FOREVER only, when the pass can't fit although nobody else holds rows, and at once when
// it has no room beside what others hold. HPS_IO, HPS_CORRUPT, HPS_NO_SPACE, HPS_POISONED.
// HPS_INVALID_ARGUMENT once a pass or another error was given, and when the store was closed.
//
// # Threads
// Any; several that wait for one ticket take turns.
int32_t hps_pass_ticket_wait(hps_pass_ticket *ticket,
                             uint64_t timeout_us,
                             hps_pass **pass,
                             hps_error **error);

// Frees a ticket; one that has given no pass is given up. NULL is allowed.
//
// # Threads
// None may use the ticket any more.
void hps_pass_ticket_free(struct hps_pass_ticket *ticket);

// Tells what bringing a pass in came to, before its end or after.
//
// report: NULL if it is not wanted; tables: `[capacity]`, one for each part, in their order, of
// which as many are written as there are; count: the parts, which may be more, or NULL.
//
// # Errors
// HPS_NULL_POINTER, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_pass_read(hps_pass *pass,
                      hps_pass_report *report,
                      hps_pass_table_report *tables,
                      size_t capacity,
                      size_t *count,
                      hps_error **error);

// Copies weights of rows of a pass, as they are now: of one part, from its key number `first` on,
// as many as `out` has room for. No key is looked up.
//
// part_index: in the order of `hps_begin_pass`; out: `[n, dim]`, in the order of the part's keys.
//
// # Errors
// HPS_INVALID_ARGUMENT: the pass has no such part, the part not so many keys, `out` no whole
// number of rows, or the pass has ended; nothing was copied. HPS_FORKED.
//
// # Threads
// Any, several at the same time.
int32_t hps_pass_read_weights(hps_pass *pass,
                              size_t part_index,
                              size_t first,
                              float *out,
                              size_t out_len,
                              hps_error **error);

// Copies whole rows of a pass: weights, optimizer state, metadata (u32 bit patterns).
//
// out: `[n, row_f32s]`; all else as of `hps_pass_read_weights`.
//
// # Errors
// As `hps_pass_read_weights`.
//
// # Threads
// Any, several at the same time.
int32_t hps_pass_read_rows(hps_pass *pass,
                           size_t part_index,
                           size_t first,
                           float *out,
                           size_t out_len,
                           hps_error **error);

// Writes rows of a pass, whatever they held, from key number `first` of a part on: as `hps_put` of
// these keys, but they are not looked up.
//
// kind: HPS_WEIGHTS, values: `[n, dim]`, or HPS_ROWS, `[n, row_f32s]`, in the order of the part's
// keys; of a key that is there twice the last row counts. flags: 0 or HPS_VERBATIM; report: what
// was done, or NULL.
//
// # Durability
// With the next checkpoint: all of the call, or nothing.
//
// # Errors
// HPS_INVALID_ARGUMENT, HPS_READ_ONLY, HPS_FORKED: nothing changed. HPS_POISONED: some rows may
// have changed.
//
// # Threads
// Any.
int32_t hps_pass_put(hps_pass *pass,
                     size_t part_index,
                     size_t first,
                     int32_t kind,
                     const float *values,
                     size_t values_len,
                     uint32_t flags,
                     hps_put_report *report,
                     hps_error **error);

// Ends a pass: its rows may leave memory, but for those of blocks; where another thread reads or
// writes them, once it has. The handle stays; a pass that has ended stays so.
//
// report: what bringing it in came to, or NULL.
//
// # Errors
// HPS_NULL_POINTER, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_pass_end(hps_pass *pass, hps_pass_report *report, hps_error **error);

// Frees a pass, and ends it. NULL is allowed.
//
// # Threads
// None may use the pass any more.
void hps_pass_free(struct hps_pass *pass);

// Lets blocks of a table leave again, as often as its policy says
// (`hps_options_set_policy_cached`): what is popular has changed.
//
// # Errors
// HPS_INVALID_ARGUMENT of kind "UnknownTable" for a number that no table has; HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_unfreeze(hps_store *store, uint32_t table, hps_error **error);

// Makes everything pushed so far durable, together with bytes of the trainer's own.
//
// step: rises from checkpoint to checkpoint; meta: `[meta_len]`; info: the checkpoint, or NULL.
//
// # Durability
// All earlier pushes, puts, removes and tables survive a crash once this returns HPS_OK; else none
// of those since the checkpoint before.
//
// # Errors
// HPS_INVALID_ARGUMENT when `step` does not rise, HPS_NO_SPACE, HPS_IO, HPS_POISONED,
// HPS_READ_ONLY.
//
// # Threads
// Any; other calls go on meanwhile, a second checkpoint waits for the first.
int32_t hps_checkpoint(hps_store *store,
                       uint64_t step,
                       const uint8_t *meta,
                       size_t meta_len,
                       hps_checkpoint_info *info,
                       hps_error **error);

// Freezes the state and writes behind: training may go on at once. Waits first for a checkpoint
// that is still running. The meta is copied.
//
// # Durability
// None yet: with `hps_checkpoint_ticket_wait`.
//
// # Errors
// As `hps_checkpoint`; what happens later comes from `hps_checkpoint_ticket_wait`.
//
// # Threads
// Any.
int32_t hps_checkpoint_begin(hps_store *store,
                             uint64_t step,
                             const uint8_t *meta,
                             size_t meta_len,
                             hps_checkpoint_ticket **ticket,
                             hps_error **error);

// Tells whether `hps_checkpoint_ticket_wait` returns at once: 1 or 0. Never waits.
//
// # Errors
// HPS_NULL_POINTER.
//
// # Threads
// Any.
int32_t hps_checkpoint_ticket_poll(hps_checkpoint_ticket *ticket,
                                   int32_t *done,
                                   hps_error **error);

// Waits until the checkpoint is durable, at most `timeout_us` microseconds; HPS_FOREVER has no
// end.
//
// info: the checkpoint, or NULL.
//
// # Durability
// Every push before `hps_checkpoint_begin` survives a crash once this returns HPS_OK.
//
// # Errors
// HPS_DEADLINE when it is not durable yet: it goes on, and may be waited for again. HPS_NO_SPACE,
// HPS_IO, HPS_POISONED: the last checkpoint stays in force. HPS_INVALID_ARGUMENT once its end was
// told. HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_checkpoint_ticket_wait(hps_checkpoint_ticket *ticket,
                                   uint64_t timeout_us,
                                   hps_checkpoint_info *info,
                                   hps_error **error);

// Frees the ticket; the checkpoint goes on. NULL is allowed.
//
// # Threads
// None may use the ticket any more.
void hps_checkpoint_ticket_free(struct hps_checkpoint_ticket *ticket);

// Lists the retained checkpoints, oldest first.
//
// infos: `[capacity]`, of which as many are written as there are; count: how many there are, which
// may be more. With capacity 0 infos may be NULL.
//
// # Errors
// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_checkpoints(hps_store *store,
                        hps_checkpoint_info *infos,
                        size_t capacity,
                        size_t *count,
                        hps_error **error);

// Gives the last durable checkpoint; all zeros where there is none.
//
// # Errors
// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_last_checkpoint(hps_store *store, hps_checkpoint_info *info, hps_error **error);

// Gives the bytes that a retained checkpoint was made with; they are read and verified.
//
// # Errors
// HPS_INVALID_ARGUMENT for an unknown checkpoint, HPS_CORRUPT, HPS_IO, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_checkpoint_meta(hps_store *store,
                            uint64_t checkpoint,
                            hps_bytes **meta,
                            hps_error **error);

// The bytes; they live as long as the handle. NULL for NULL.
//
// # Threads
// Any.
const uint8_t *hps_bytes_data(const hps_bytes *bytes);

// How many bytes there are. 0 for NULL.
//
// # Threads
// Any.
size_t hps_bytes_len(const hps_bytes *bytes);

// Frees bytes. NULL is allowed.
void hps_bytes_free(struct hps_bytes *bytes);

// Goes back to a retained checkpoint; later ones, and all changes since, are gone. Waits for calls
// of other threads.
//
// # Durability
// The store opens at that checkpoint once this returns HPS_OK.
//
// # Errors
// HPS_INVALID_ARGUMENT (kind "UnknownCheckpoint"; "LeasesOutstanding": leases or tickets; "Option":
// a cache too small for a dropped table that comes back), HPS_UNSUPPORTED_TABLE, HPS_POISONED,
// HPS_READ_ONLY, HPS_FORKED: the store is open as before. After any other error it is closed: open
// it again, at that checkpoint or at the last one.
//
// # Threads
// Any; not from a callback of the log.
int32_t hps_rollback(hps_store *store, uint64_t checkpoint, hps_error **error);

// Makes a store at `target` that holds one retained checkpoint, by hard links: no bytes of rows
// are copied.
//
// parts: `[parts_len]`, a directory for each data directory, on its file system; with parts_len 0
// they are inside `target`.
//
// # Durability
// The export survives a crash once this returns HPS_OK.
//
// # Errors
// HPS_INVALID_ARGUMENT (an unknown checkpoint, a directory in use), HPS_IO (another file system),
// HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_export(hps_store *store,
                   uint64_t checkpoint,
                   const char *target,
                   const char *const *parts,
                   size_t parts_len,
                   hps_error **error);

// Keeps a retained checkpoint, whatever is retained, until the hold is freed, also after the store
// was closed. It ends with the process.
//
// # Errors
// HPS_INVALID_ARGUMENT for an unknown checkpoint, HPS_LOCKED when it is being dropped,
// HPS_CORRUPT, HPS_IO, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_hold_checkpoint(hps_store *store,
                            uint64_t checkpoint,
                            hps_hold **hold,
                            hps_error **error);

// Frees a hold: its checkpoint is retained as the others are. NULL is allowed.
void hps_hold_free(struct hps_hold *hold);

// Drops retained checkpoints, and unlinks the files that only they need. One that a reader or a
// hold keeps stays.
//
// checkpoints: `[checkpoints_len]`, without the last one; dropped: how many were, or NULL.
//
// # Durability
// They are gone for good once this returns HPS_OK; after a crash before that, all are there or
// none.
//
// # Errors
// HPS_INVALID_ARGUMENT for a checkpoint that is not retained or is the last one (nothing changed),
// HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY.
//
// # Threads
// Any.
int32_t hps_drop_checkpoints(hps_store *store,
                             const uint64_t *checkpoints,
                             size_t checkpoints_len,
                             uint64_t *dropped,
                             hps_error **error);

// Tells which store and which history this is, and how far it is: what a job writes down beside
// its results.
//
// # Errors
// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_store_identity(hps_store *store, hps_identity *identity, hps_error **error);

// Begins a walk over the rows of a retained checkpoint, of all its tables, in the order of (table,
// mix64 of the key). What it needs stays readable while the walk lives, also when the checkpoint
// is dropped or the store closed.
//
// # Errors
// HPS_INVALID_ARGUMENT for an unknown checkpoint, HPS_CORRUPT, HPS_IO, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_rows(hps_store *store, uint64_t checkpoint, hps_row_iter **rows, hps_error **error);

// Begins a walk over one of `parts` equal ranges of a table's rows: an export by several threads
// has one such walk for each `part` from 0 to parts - 1. The table may have been dropped since.
//
// # Errors
// HPS_INVALID_ARGUMENT for an unknown checkpoint, table or part, HPS_CORRUPT, HPS_IO, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_rows_of(hps_store *store,
                    uint64_t checkpoint,
                    uint32_t table,
                    size_t part,
                    size_t parts,
                    hps_row_iter **rows,
                    hps_error **error);

// Gives the next rows, all of one table: as many as there is room for, and at least one unless the
// walk is at its end.
//
// keys: room for `[keys_len]`; values: room for `[values_len]` f32s, whole rows (weights, state,
// metadata) one after the other; intervals: room for `[keys_len]`, the checkpoint intervals in
// which the rows last changed, or NULL; table: whose rows they are; count: how many rows, 0 at the
// end.
//
// # Errors
// HPS_INVALID_ARGUMENT of kind "Length" where there is no room for one row: nothing is skipped.
// HPS_CORRUPT, HPS_IO: the walk is at its end. HPS_FORKED.
//
// # Threads
// Any; several that use one walk take turns.
int32_t hps_row_iter_next(hps_row_iter *rows,
                          uint64_t *keys,
                          size_t keys_len,
                          float *values,
                          size_t values_len,
                          uint32_t *intervals,
                          uint32_t *table,
                          size_t *count,
                          hps_error **error);

// Ends a walk. NULL is allowed.
//
// # Threads
// None may use the walk any more.
void hps_row_iter_free(struct hps_row_iter *rows);

// Begins a walk over what changed after the checkpoint `since` up to the retained one `until`, in
// the order of (table, mix64 of the key). `since` is retained, or a cursor's (`hps_set_cursor`), or
// 0: before everything, which gives all rows and no removed keys. What it needs stays readable
// while the walk lives.
//
// # Errors
// HPS_INVALID_ARGUMENT (kind "HistoryGone": what changed since then is not kept, take a whole copy;
// "UnknownCheckpoint"; "Other": the wrong order), HPS_CORRUPT, HPS_IO, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_incremental(hps_store *store,
                        uint64_t since,
                        uint64_t until,
                        hps_changes **changes,
                        hps_error **error);

// As `hps_incremental`, of one table and one of `parts` equal ranges of its keys: several threads
// have one such walk for each `part` from 0 to parts - 1.
//
// # Errors
// As `hps_incremental`; an unknown table or part.
//
// # Threads
// Any.
int32_t hps_incremental_of(hps_store *store,
                           uint64_t since,
                           uint64_t until,
                           uint32_t table,
                           size_t part,
                           size_t parts,
                           hps_changes **changes,
                           hps_error **error);

// Gives the next changes, all of one table: as many as there is room for, and at least one unless
// the walk is at its end.
//
// keys: room for `[keys_len]`; values: room for `[values_len]` f32s, whole rows (weights, state,
// metadata) one after the other; count: how many rows. removed: room for `[removed_len]`, the keys
// that have no row any more; removed_count: how many. table: whose they are. Both counts are 0 at
// the end.
//
// # Errors
// HPS_INVALID_ARGUMENT of kind "Length" where there is no room for the next change: nothing is
// skipped. HPS_CORRUPT, HPS_IO: the walk is at its end. HPS_FORKED.
//
// # Threads
// Any; several that use one walk take turns.
int32_t hps_changes_next(hps_changes *changes,
                         uint64_t *keys,
                         size_t keys_len,
                         float *values,
                         size_t values_len,
                         uint64_t *removed,
                         size_t removed_len,
                         uint32_t *table,
                         size_t *count,
                         size_t *removed_count,
                         hps_error **error);

// Ends a walk. NULL is allowed.
//
// # Threads
// None may use the walk any more.
void hps_changes_free(struct hps_changes *changes);

// Says that a reader of this name has everything up to a retained checkpoint: what changes from
// there on can be told by `hps_incremental` also when the checkpoint is dropped. It keeps notes of
// removed keys until it moves on, and no file.
//
// # Durability
// It survives a crash once this returns HPS_OK.
//
// # Errors
// HPS_INVALID_ARGUMENT (kind "UnknownCheckpoint"; "Other": a name that is empty or longer than 255
// bytes), HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY, HPS_FORKED.
//
// # Threads
// Any; waits for a running checkpoint.
int32_t hps_set_cursor(hps_store *store,
                       const char *name,
                       uint64_t checkpoint,
                       hps_error **error);

// Takes the cursor of a reader back, if it has one.
//
// # Durability
// As `hps_set_cursor`.
//
// # Errors
// HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY, HPS_FORKED.
//
// # Threads
// Any; waits for a running checkpoint.
int32_t hps_remove_cursor(hps_store *store, const char *name, hps_error **error);

// Gives the checkpoint up to which a reader has everything; 0 where there is no reader of this name.
//
// # Errors
// HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_cursor(hps_store *store,
                   const char *name,
                   uint64_t *checkpoint,
                   hps_error **error);

// Writes the changes up to a retained checkpoint into a folder, which is made, or is empty: a delta,
// from which `hps_apply_delta` brings a copy of the store up to that checkpoint.
//
// after: the folder of the delta before, or NULL; since, without it: the checkpoint of which the
// copy is an export, or 0 for everything. info may be NULL.
//
// # Durability
// The folder survives a crash once this returns HPS_OK; one without a file DELTA is not finished.
//
// # Errors
// HPS_INVALID_ARGUMENT (kind "HistoryGone", "UnknownCheckpoint", "NotAStore": a folder in use,
// "Delta": one of another store; "Other": after and since at once), HPS_NO_SPACE, HPS_CORRUPT,
// HPS_IO, HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_write_delta(hps_store *store,
                        uint64_t until,
                        const char *folder,
                        const char *after,
                        uint64_t since,
                        hps_delta_info *info,
                        hps_error **error);

// Brings a store that is a copy of another one up to where a delta leads, with one checkpoint of the
// same step and meta. The copy began as an empty store, or as an export; applied again, the last
// delta does nothing. info may be NULL.
//
// # Durability
// All of it survives a crash once this returns HPS_OK; after a crash before that, all or nothing.
//
// # Errors
// Before anything is changed: HPS_INVALID_ARGUMENT (kind "Delta": no delta, a gap before it, an older
// one, of another store or timeline, or a store with changes of its own), HPS_CORRUPT,
// HPS_UNSUPPORTED, HPS_READ_ONLY, HPS_FORKED. Later: HPS_NO_SPACE, HPS_IO; the store then refuses
// writes until it is opened again, at the checkpoint before.
//
// # Threads
// Any; nobody else changes the store meanwhile.
int32_t hps_apply_delta(hps_store *store,
                        const char *folder,
                        hps_delta_info *info,
                        hps_error **error);

// Reads all counters of a store. Counters count from the opening; the rest is as of the call. No
// I/O.
//
// # Errors
// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
//
// # Threads
// Any.
int32_t hps_stats_read(hps_store *store, hps_stats **stats, hps_error **error);

// Gives one counter of the store by its name, such as "resident_rows".
//
// # Errors
// HPS_INVALID_ARGUMENT for a name that no counter has.
//
// # Threads
// Any.
int32_t hps_stats_get(const hps_stats *stats,
                      const char *name,
                      uint64_t *value,
                      hps_error **error);

// Gives one counter of a table by its name, such as "unique_hits" or "wait_device_us".
//
// # Errors
// HPS_INVALID_ARGUMENT for a name that no counter has, and for a table that is not there.
//
// # Threads
// Any.
int32_t hps_stats_get_table(const hps_stats *stats,
                            uint32_t table,
                            const char *name,
                            uint64_t *value,
                            hps_error **error);

// The name of a counter of the store by its place, from 0 on; NULL after the last. It lives as
// long as the reading.
//
// # Threads
// Any.
const char *hps_stats_name(const hps_stats *stats, size_t index);

// The name of a counter of tables by its place, from 0 on; NULL after the last, and where there is
// no table. It lives as long as the reading.
//
// # Threads
// Any.
const char *hps_stats_table_name(const hps_stats *stats, size_t index);

// The I/O engine in use: "uring", "pread", or "uring+pread" where the kernel gave some queues no
// ring. It lives as long as the reading. NULL for NULL.
//
// # Threads
// Any.
const char *hps_stats_io_engine(const hps_stats *stats);

// Frees a reading. NULL is allowed.
void hps_stats_free(struct hps_stats *stats);

// Gives each line that is logged from now on, by all stores of the process, to a callback; NULL
// ends that. Once this returns, the callback that was set before runs on no thread, and is not
// called again.
//
// level: a number of hps_log_level, the least grave that is told; userdata: given to the callback
// as it is.
//
// The callback is called on the thread that logs, which may be one of a store's own and may hold
// locks of it: it has to be quick, must not call this library for a store (its own calls are not
// logged) and must not leave by longjmp or an exception. Several threads may be in it at the same
// time.
//
// # Errors
// HPS_INVALID_ARGUMENT for another level, where it is called by the callback itself, and in a
// program whose Rust code has a `tracing` subscriber of its own.
//
// # Threads
// Any.
int32_t hps_set_log(hps_log_callback callback, void *userdata, int32_t level, hps_error **error);

// The code of an error: what the call that gave it has returned. HPS_OK for NULL.
//
// # Threads
// Any; an error is never changed.
int32_t hps_error_code(const hps_error *error);

// What went wrong, in one sentence that names the thing and the way out. It lives as long as the
// error. NULL for NULL.
//
// # Threads
// Any.
const char *hps_error_message(const hps_error *error);

// Of HPS_INVALID_ARGUMENT, which rule the argument broke: "UnknownTable", "TableDropped",
// "TableExists", "DescriptorChanged", "Length", "NonFinite", "ForeignLease", "WrongTable",
// "Position", "SeveralParts", "Closed", "NotAStore", "AlreadyAStore", "Option", "StepNotRising",
// "UnknownCheckpoint", "HistoryGone", "Delta", "LeasesOutstanding", "Other". Empty for other codes, NULL for NULL. It is
// never freed.
//
// # Threads
// Any.
const char *hps_error_kind(const hps_error *error);

// Gives a number that the error holds, such as "needed_bytes" of HPS_OVER_BUDGET: the codes say
// which fields there are. Returns 1, or 0 where the error has no number of this name.
//
// # Threads
// Any.
int32_t hps_error_field_u64(const hps_error *error, const char *name, uint64_t *value);

// Gives a text that the error holds, such as "path" of HPS_IO; NULL where it has no text of this
// name. It lives as long as the error.
//
// # Threads
// Any.
const char *hps_error_field_text(const hps_error *error, const char *name);

// Frees an error. NULL is allowed.
//
// # Threads
// None may use the error any more.
void hps_error_free(struct hps_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HPS_H */
