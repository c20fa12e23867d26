//! First speed figures: each beside the limit of the machine measured in the same run.
//!
//! `cargo bench --bench limits -- [--rows N] [--dim N] [--threads N] [--rounds N] [--dir DIR]`
//! prints a table and, last, one JSON object. In a debug build it runs tiny.
//! Figures are medians of `--rounds` rounds, the limits interleaved with the work.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use hps::io::uring::UringDisk;
use hps::io::{Disk, OpenMode, pread::PreadDisk};
use hps::row::{RowVisitor, Updater};
use hps::{Hyper, RuntimeOptions, Store, TableDescriptor, TableId, Update, mix64};

#[derive(Clone)]
struct Args {
    rows: usize,
    dim: usize,
    threads: usize,
    rounds: usize,
    dir: Option<PathBuf>,
}

fn args() -> Args {
    let tiny = cfg!(debug_assertions);
    let mut args = Args {
        rows: if tiny { 4000 } else { 2_000_000 },
        dim: 64,
        threads: 2,
        rounds: 3,
        dir: None,
    };
    if tiny {
        args.rounds = 1;
    }
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|w| w.parse().ok()).expect("a number");
        match word.as_str() {
            "--rows" => args.rows = number(),
            "--dim" => args.dim = number(),
            "--threads" => args.threads = number(),
            "--rounds" => args.rounds = number(),
            "--dir" => args.dir = words.next().map(PathBuf::from),
            _ => {} // cargo's own: --bench, --test
        }
    }
    args
}

/// Uniform keys without repeats inside a batch.
struct Draw {
    state: u64,
    rows: u64,
}

impl Draw {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.state) % self.rows
    }

    fn batch(&mut self, n: usize) -> Vec<u64> {
        let mut keys: Vec<u64> = (0..n).map(|_| self.next()).collect();
        keys.sort_unstable();
        keys.dedup();
        // Back to no order: a trainer's batch has none.
        keys.sort_unstable_by_key(|k| mix64(*k ^ 0x55));
        keys
    }
}

const BATCH: usize = 16_384;

struct Figure {
    work: &'static str,
    unit: &'static str,
    value: Vec<f64>,
    limit: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(f: impl FnOnce()) -> f64 {
    let since = Instant::now();
    f();
    since.elapsed().as_secs_f64()
}

/// Rows as an array, the same bytes a row as the store keeps; the bare machine's work on them.
struct Bare {
    rows: Vec<f32>,
    width: usize,
    dim: usize,
    threads: usize,
}

struct Visit<'a> {
    rows: &'a mut [f32],
    width: usize,
    places: std::slice::Iter<'a, usize>,
    gradient: &'a [f32],
}

impl RowVisitor for Visit<'_> {
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let place = *self.places.next()? * self.width;
        Some((&mut self.rows[place..place + self.width], self.gradient))
    }
}

impl Bare {
    fn gather(&self, batches: &[Vec<u64>]) -> f64 {
        let mut out = vec![0.0f32; BATCH * self.dim];
        let mut count = 0;
        let time = seconds(|| {
            for keys in batches {
                count += keys.len();
                let share = keys.len().div_ceil(self.threads);
                std::thread::scope(|scope| {
                    for (keys, out) in keys.chunks(share).zip(out.chunks_mut(share * self.dim)) {
                        scope.spawn(move || {
                            for (key, target) in keys.iter().zip(out.chunks_exact_mut(self.dim)) {
                                let at = usize::try_from(*key).unwrap() * self.width;
                                target.copy_from_slice(&self.rows[at..at + self.dim]);
                            }
                        });
                    }
                });
            }
        });
        count as f64 / time
    }

    /// Each thread updates rows of its own half, as shards do.
    fn update(&mut self, batches: &[Vec<u64>], updater: &Updater) -> f64 {
        let (width, dim, threads) = (self.width, self.dim, self.threads);
        let rows = self.rows.len() / width;
        let share = rows.div_ceil(threads);
        let gradient = vec![0.01f32; dim];
        let mut count = 0;
        let split: Vec<Vec<Vec<usize>>> = batches
            .iter()
            .map(|keys| {
                let mut parts = vec![Vec::new(); threads];
                for key in keys {
                    let key = usize::try_from(*key).unwrap();
                    parts[key / share].push(key % share);
                }
                parts
            })
            .collect();
        let time = seconds(|| {
            for parts in &split {
                count += parts.iter().map(Vec::len).sum::<usize>();
                std::thread::scope(|scope| {
                    let halves = self.rows.chunks_mut(share * width);
                    for (places, rows) in parts.iter().zip(halves) {
                        let gradient = &gradient;
                        scope.spawn(move || {
                            let places = places.iter();
                            updater.apply_all(
                                0.01,
                                &mut Visit {
                                    rows,
                                    width,
                                    places,
                                    gradient,
                                },
                            );
                        });
                    }
                });
            }
        });
        count as f64 / time
    }
}

fn disk() -> Arc<dyn Disk> {
    match UringDisk::new() {
        Ok(disk) => Arc::new(disk),
        Err(_) => Arc::new(PreadDisk::new()),
    }
}

/// Bytes a second written in order, 1 MiB a request, 4 in flight, unsynced.
fn write_limit(disk: &dyn Disk, dir: &Path, bytes: usize) -> f64 {
    let path = dir.join("probe");
    let _gone = std::fs::remove_file(&path);
    let file = disk.open(&path, OpenMode::CreateDirect).unwrap();
    let mut queue = disk.queue(4, 1 << 20).unwrap();
    let requests = (bytes >> 20).max(1);
    let time = seconds(|| {
        for i in 0..requests {
            let mut buffer = match queue.buffer() {
                Some(buffer) => buffer,
                None => queue
                    .wait()
                    .map(|c| c.result.map(|_| c.buffer).unwrap())
                    .unwrap(),
            };
            buffer[0] = 1;
            queue.write(&file, (i << 20) as u64, 1 << 20, buffer, 0);
            queue.submit();
        }
        while let Some(done) = queue.wait() {
            done.result.unwrap();
        }
    });
    (requests << 20) as f64 / time
}

/// Random reads a second of 1 KiB (a 512 B row with key and checksum), 64 in flight a thread.
fn read_limit(disk: &dyn Disk, dir: &Path, threads: usize, reads: usize) -> f64 {
    let path = dir.join("probe");
    let file = disk.open(&path, OpenMode::ReadDirect).unwrap();
    let blocks = file.bytes().unwrap() / 1024;
    let time = seconds(|| {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let file = Arc::clone(&file);
                scope.spawn(move || {
                    let mut queue = disk.queue(64, 4096).unwrap();
                    let mut draw = Draw {
                        state: thread as u64 + 77,
                        rows: blocks,
                    };
                    for _ in 0..reads / threads {
                        let buffer = match queue.buffer() {
                            Some(buffer) => buffer,
                            None => queue.wait().unwrap().buffer,
                        };
                        queue.read(&file, draw.next() * 1024, 1024, buffer, 0);
                    }
                    while let Some(done) = queue.wait() {
                        done.result.unwrap();
                    }
                });
            }
        });
    });
    (reads / threads * threads) as f64 / time
}

fn load(store: &Store, table: TableId, args: &Args) {
    let mut out = vec![0.0; BATCH * args.dim];
    for start in (0..args.rows as u64).step_by(BATCH) {
        let end = (start + BATCH as u64).min(args.rows as u64);
        let keys: Vec<u64> = (start..end).collect();
        let out = &mut out[..keys.len() * args.dim];
        let lease = store.pull(table, &keys, out).unwrap();
        out.fill(0.5);
        store.push(&lease, Update::weights(out)).unwrap();
    }
}

fn pull(store: &Store, table: TableId, batches: &[Vec<u64>], dim: usize) -> f64 {
    let mut out = vec![0.0; BATCH * dim];
    let mut count = 0;
    let time = seconds(|| {
        for keys in batches {
            count += keys.len();
            drop(
                store
                    .pull(table, keys, &mut out[..keys.len() * dim])
                    .unwrap(),
            );
        }
    });
    count as f64 / time
}

fn push(store: &Store, table: TableId, batches: &[Vec<u64>], dim: usize) -> f64 {
    let gradients = vec![0.01; BATCH * dim];
    let (mut time, mut count) = (0.0, 0);
    for keys in batches {
        let lease = store.prefetch(table, keys).unwrap().wait().unwrap();
        count += keys.len();
        time += seconds(|| {
            let update = Update::gradients(&gradients[..keys.len() * dim], 0.01);
            store.push(&lease, update).unwrap();
        });
    }
    count as f64 / time
}

/// Everything in memory: hits, updates, then writing it all out.
fn in_memory(args: &Args, dir: &Path, figures: &mut [Figure]) {
    let descriptor = TableDescriptor::new("t", args.dim);
    let width = descriptor.row_f32s();
    let rows_bytes = args.rows as u64 * (width as u64 * 4 + 64);
    let options = RuntimeOptions {
        cache_bytes: rows_bytes * 5 / 4 + (64 << 20),
        threads: args.threads,
        ..RuntimeOptions::default()
    };
    let path = dir.join("store");
    let _gone = std::fs::remove_dir_all(&path);
    let store = Store::create(&path, options).unwrap();
    let table = store.create_table(&descriptor).unwrap();
    load(&store, table, args);
    let updater = Updater::new(&descriptor, &Hyper::default());
    let rows = vec![0.5; args.rows * width];
    let mut bare = Bare {
        rows,
        width,
        dim: args.dim,
        threads: args.threads,
    };
    let disk = disk();
    let mut draw = Draw {
        state: 1,
        rows: args.rows as u64,
    };
    for round in 0..args.rounds {
        let n = if cfg!(debug_assertions) { 2 } else { 40 };
        let batches: Vec<Vec<u64>> = (0..n)
            .map(|_| draw.batch(BATCH.min(args.rows / 2)))
            .collect();
        figures[0].limit.push(bare.gather(&batches));
        figures[0]
            .value
            .push(pull(&store, table, &batches, args.dim));
        figures[1].limit.push(bare.update(&batches, &updater));
        figures[1]
            .value
            .push(push(&store, table, &batches, args.dim));
        if round > 0 {
            load(&store, table, args); // all dirty again
        }
        let bytes = args.rows * width * 4;
        figures[3]
            .limit
            .push(write_limit(&*disk, dir, bytes.min(1 << 30)));
        let time = seconds(|| assert!(store.flush().unwrap() > 0));
        figures[3].value.push(bytes as f64 / time);
        store.checkpoint(round as u64 + 1, &[]).unwrap();
    }
    store.close().unwrap();
}

/// A cache of a sixteenth: cold rows, and opening.
fn cold(args: &Args, dir: &Path, figures: &mut [Figure]) {
    let options = RuntimeOptions {
        cache_bytes: (args.rows as u64 * 32).max(40 << 20),
        threads: args.threads,
        ..RuntimeOptions::default()
    };
    let disk = disk();
    let path = dir.join("store");
    for round in 0..args.rounds {
        let since = Instant::now();
        let store = Store::open(&path, options.clone()).unwrap();
        figures[4].value.push(since.elapsed().as_secs_f64());
        figures[4].limit.push(read_image(&path));
        let table = store.table("t").unwrap();
        let mut draw = Draw {
            state: 100 + round as u64,
            rows: args.rows as u64,
        };
        let n = if cfg!(debug_assertions) { 1 } else { 12 };
        let batches: Vec<Vec<u64>> = (0..n)
            .map(|_| draw.batch(BATCH.min(args.rows / 4)))
            .collect();
        let reads: usize = batches.iter().map(Vec::len).sum();
        figures[2]
            .limit
            .push(read_limit(&*disk, dir, args.threads, reads));
        let before = store.stats();
        let rate = pull(&store, table, &batches, args.dim);
        let after = store.stats();
        let missed = (after.unique_asked - before.unique_asked) as f64
            - (after.unique_hits - before.unique_hits) as f64;
        figures[2].value.push(rate * missed / reads as f64);
        store.close().unwrap();
    }
}

/// Seconds to read the index image in order.
fn read_image(path: &Path) -> f64 {
    let disk = PreadDisk::new();
    let entries = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path());
    let image = entries
        .filter(|p| p.extension().is_some_and(|e| e == "image"))
        .last();
    let Some(image) = image else { return f64::NAN };
    seconds(|| {
        let file = disk.open(&image, OpenMode::ReadDirect).unwrap();
        let mut buffer = hps::io::AlignedBuffer::try_new(1 << 20).unwrap();
        let mut offset = 0;
        while let Ok(n @ 1..) = file.read_at(&mut buffer, offset) {
            offset += n as u64;
        }
    })
}

fn main() {
    let args = args();
    let temporary = tempfile::tempdir().unwrap();
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&dir).unwrap();
    let figure = |work, unit| Figure {
        work,
        unit,
        value: Vec::new(),
        limit: Vec::new(),
    };
    let mut figures = vec![
        figure("pull-hit", "rows/s (limit: gather)"),
        figure("push-hit", "rows/s (limit: read-modify-write)"),
        figure("pull-miss", "cold rows/s (limit: random 1 KiB reads)"),
        figure("flush", "useful bytes/s (limit: sequential write)"),
        figure("reopen", "s (limit: read the image in order)"),
    ];
    in_memory(&args, &dir, &mut figures);
    cold(&args, &dir, &mut figures);
    println!(
        "{} rows, dim {}, {} threads, medians of {}",
        args.rows, args.dim, args.threads, args.rounds
    );
    println!(
        "{:<10} {:>14} {:>14} {:>7}  unit",
        "work", "reached", "limit", "ratio"
    );
    let mut json = Vec::new();
    for f in &figures {
        let (value, limit) = (median(&f.value), median(&f.limit));
        let ratio = if f.work == "reopen" {
            limit / value
        } else {
            value / limit
        };
        println!(
            "{:<10} {value:>14.4e} {limit:>14.4e} {ratio:>7.3}  {}",
            f.work, f.unit
        );
        json.push(format!(
            "{{\"workload\":\"{}\",\"value\":{value},\"limit\":{limit},\"ratio\":{ratio}}}",
            f.work
        ));
    }
    println!("[{}]", json.join(","));
    let _gone = std::fs::remove_dir_all(dir.join("store"));
    let _gone = std::fs::remove_file(dir.join("probe"));
}
