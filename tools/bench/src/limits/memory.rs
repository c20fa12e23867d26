//! How many rows a second do bare threads copy out of memory, and update in place?
//!
//! - The rows have the store's width; what is returned or updated is what a pull returns and a
//!   push updates: `dim` weights out, or gradients of `dim` in and the engine's own arithmetic.
//! - The array is anonymous memory advised to huge pages; `machine::huge_bytes` tells what the
//!   kernel gave.
//! - Several prefetch distances are tried and the best one counts.
//! - Threads start together and share nothing that is written: in an update each thread owns the
//!   rows of one range, as the shards of a store do.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result};
use hps::mix64;
use hps::row::{RowVisitor, Updater};
use memmap2::{Advice, MmapMut};
use prefetch_index::prefetch_index;
use zerocopy::FromBytes;

use super::share;

/// Prefetch distances tried, in rows; 0: none.
const DISTANCES: [usize; 5] = [0, 4, 8, 16, 32];
/// u64s of what a store keeps of a row beside it.
const STATE_WORDS: usize = 4;
/// f32s of a cache line.
const LINE_F32S: usize = 16;

/// Rows a second, and the prefetch distance at which they were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowRate {
    /// Rows a second, all threads together.
    pub per_second: f64,
    /// Rows ahead of the one in work.
    pub distance: usize,
}

/// An array of rows and nothing else.
#[derive(Debug)]
pub struct BareRows {
    memory: MmapMut,
    rows: usize,
    width: usize,
    dim: usize,
}

/// Memory whose pages are touched.
fn huge(bytes: usize) -> Result<MmapMut> {
    let mut memory = MmapMut::map_anon(bytes).context("memory for the limits")?;
    // Without huge pages the limit is that of small ones; the report tells the bytes in huge.
    let _refused = memory.advise(Advice::HugePage);
    for chunk in memory.chunks_mut(4096) {
        chunk[0] = 1;
    }
    Ok(memory)
}

fn words_of(memory: &mut MmapMut) -> Result<&mut [u64]> {
    let words = <[u64]>::mut_from_bytes(memory);
    words.map_err(|e| anyhow::anyhow!("memory of the limits: {e}"))
}

impl BareRows {
    /// `rows` rows of `width` f32s, the first `dim` of them weights, all pages touched.
    ///
    /// # Errors
    /// When the system has not that much memory.
    pub fn new(rows: usize, width: usize, dim: usize) -> Result<BareRows> {
        anyhow::ensure!(rows > 0 && dim > 0 && dim <= width, "rows without weights");
        let mut bare = BareRows {
            memory: huge(rows * width * 4)?,
            rows,
            width,
            dim,
        };
        bare.floats_mut()?.fill(0.5);
        Ok(bare)
    }

    fn floats(&self) -> Result<&[f32]> {
        let floats = <[f32]>::ref_from_bytes(&self.memory);
        floats.map_err(|e| anyhow::anyhow!("memory of the limits: {e}"))
    }

    fn floats_mut(&mut self) -> Result<&mut [f32]> {
        let floats = <[f32]>::mut_from_bytes(&mut self.memory);
        floats.map_err(|e| anyhow::anyhow!("memory of the limits: {e}"))
    }

    /// Copies the weights of rows out. A batch names rows by number; each thread has an equal
    /// share of each batch and its own output, as long as its share of the longest batch.
    ///
    /// # Errors
    /// When the memory can't be seen as f32s.
    pub fn gather(&self, batches: &[Vec<u64>], threads: usize) -> Result<RowRate> {
        let floats = self.floats()?;
        let places = self.split_evenly(batches, threads);
        let longest = batches.iter().map(Vec::len).max().unwrap_or(0);
        let mut outs = vec![vec![0.0f32; longest.div_ceil(threads) * self.dim]; threads];
        best(|distance| {
            timed(places.iter().zip(&mut outs), |(batches, out)| {
                for places in batches {
                    gather(floats, self.width, self.dim, places, out, distance);
                }
            })
        })
        .map(|(seconds, distance)| rate(batches, seconds, distance))
    }

    /// [`BareRows::gather`] with the least that finding a row by its key adds: a word of a hash
    /// table is read, and the row's state is changed. Their addresses are known beforehand here, so
    /// that all three are fetched at once: no store that finds rows by key and knows of their use
    /// can be faster.
    ///
    /// # Errors
    /// When the memory can't be seen as f32s.
    pub fn gather_found(&self, batches: &[Vec<u64>], threads: usize) -> Result<RowRate> {
        let floats = self.floats()?;
        let share_rows = self.rows.div_ceil(threads);
        let places = self.split_by_range(batches, threads, share_rows);
        let longest = places.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let mut words = huge((self.rows * 7 / 4 + 1) * size_of::<u64>())?;
        let words = &*words_of(&mut words)?;
        let mut states = huge(share_rows * threads * STATE_WORDS * size_of::<u64>())?;
        let states = words_of(&mut states)?;
        let mut outs = vec![vec![0.0f32; longest * self.dim]; threads];
        best(|distance| {
            let rows = floats.chunks(share_rows * self.width);
            let states = states.chunks_mut(share_rows * STATE_WORDS);
            let parts = places.iter().zip(&mut outs).zip(rows.zip(states));
            timed(parts, |((batches, out), (rows, states))| {
                for places in batches {
                    let mut find = Find {
                        words,
                        states,
                        rows,
                        dim: self.dim,
                    };
                    find.gather(places, out, distance);
                }
            })
        })
        .map(|(seconds, distance)| rate(batches, seconds, distance))
    }

    /// Updates rows with the engine's arithmetic; each row has its own gradient.
    ///
    /// # Errors
    /// When the memory can't be seen as f32s.
    pub fn update(
        &mut self,
        batches: &[Vec<u64>],
        threads: usize,
        updater: &Updater,
    ) -> Result<RowRate> {
        let (width, dim) = (self.width, self.dim);
        let share_rows = self.rows.div_ceil(threads);
        let places = self.split_by_range(batches, threads, share_rows);
        let longest = places.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let gradients = vec![0.01f32; longest * dim];
        let floats = self.floats_mut()?;
        best(|distance| {
            let ranges = floats.chunks_mut(share_rows * width);
            timed(places.iter().zip(ranges), |(batches, rows)| {
                for places in batches {
                    let mut visit = Visit {
                        rows,
                        width,
                        places,
                        next: 0,
                        gradients: gradients.chunks_exact(dim),
                        distance,
                    };
                    updater.apply_all(0.01, &mut visit);
                }
            })
        })
        .map(|(seconds, distance)| rate(batches, seconds, distance))
    }

    /// By thread, by batch: offsets of rows.
    fn split_evenly(&self, batches: &[Vec<u64>], threads: usize) -> Vec<Vec<Vec<usize>>> {
        let mut parts = vec![Vec::with_capacity(batches.len()); threads];
        for keys in batches {
            let mut rest = &keys[..];
            for (thread, part) in parts.iter_mut().enumerate() {
                let (own, others) = rest.split_at(share(keys.len(), threads, thread));
                part.push(own.iter().map(|k| self.row_of(*k) * self.width).collect());
                rest = others;
            }
        }
        parts
    }

    /// By thread, by batch: offsets of rows inside the thread's own range.
    fn split_by_range(
        &self,
        batches: &[Vec<u64>],
        threads: usize,
        share_rows: usize,
    ) -> Vec<Vec<Vec<usize>>> {
        let mut parts = vec![vec![Vec::new(); batches.len()]; threads];
        for (b, keys) in batches.iter().enumerate() {
            for row in keys.iter().map(|k| self.row_of(*k)) {
                parts[row / share_rows][b].push(row % share_rows * self.width);
            }
        }
        parts
    }

    fn row_of(&self, key: u64) -> usize {
        usize::try_from(key).map_or(0, |key| key % self.rows)
    }
}

fn rate(batches: &[Vec<u64>], seconds: f64, distance: usize) -> RowRate {
    let rows: usize = batches.iter().map(Vec::len).sum();
    RowRate {
        per_second: rows as f64 / seconds,
        distance,
    }
}

/// The shortest time over the prefetch distances, after one run that touches everything.
fn best(mut run: impl FnMut(usize) -> Result<f64>) -> Result<(f64, usize)> {
    run(0)?;
    let mut found = (f64::INFINITY, 0);
    for distance in DISTANCES {
        let seconds = run(distance)?;
        if seconds < found.0 {
            found = (seconds, distance);
        }
    }
    Ok(found)
}

/// Runs one thread per item; the longest time of a thread, started together.
fn timed<T: Send>(items: impl Iterator<Item = T>, work: impl Fn(T) + Send + Sync) -> Result<f64> {
    let items: Vec<T> = items.collect();
    let start = Barrier::new(items.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = items
            .into_iter()
            .map(|item| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    let since = Instant::now();
                    work(item);
                    since.elapsed().as_secs_f64()
                })
            })
            .collect();
        let mut longest = 0.0f64;
        for thread in threads {
            let seconds = thread.join();
            longest = longest.max(seconds.map_err(|_| anyhow::anyhow!("a thread panicked"))?);
        }
        Ok(longest)
    })
}

/// Asks for the lines of a row.
#[inline(always)]
fn prefetch(floats: &[f32], at: usize, width: usize) {
    for line in (0..width).step_by(LINE_F32S) {
        prefetch_index(floats, at + line);
    }
}

fn gather(
    floats: &[f32],
    width: usize,
    dim: usize,
    places: &[usize],
    out: &mut [f32],
    distance: usize,
) {
    debug_assert!(dim <= width, "weights are a part of the row");
    for (i, (at, target)) in places.iter().zip(out.chunks_exact_mut(dim)).enumerate() {
        if distance > 0
            && let Some(ahead) = places.get(i + distance)
        {
            prefetch(floats, *ahead, dim);
        }
        target.copy_from_slice(&floats[*at..*at + dim]);
    }
    std::hint::black_box(out);
}

/// A hash table, the states and the rows of one thread.
struct Find<'a> {
    words: &'a [u64],
    states: &'a mut [u64],
    rows: &'a [f32],
    dim: usize,
}

impl Find<'_> {
    /// Where a row's word and state are: anywhere, as its key decides.
    #[inline(always)]
    fn addresses(&self, at: usize) -> (usize, usize) {
        let hash = u128::from(mix64(at as u64));
        let pick = |length: usize| usize::try_from((hash * length as u128) >> 64).unwrap_or(0);
        let state = pick(self.states.len() / STATE_WORDS) * STATE_WORDS;
        (pick(self.words.len()), state)
    }

    fn gather(&mut self, places: &[usize], out: &mut [f32], distance: usize) {
        for (i, (at, target)) in places
            .iter()
            .zip(out.chunks_exact_mut(self.dim))
            .enumerate()
        {
            if distance > 0
                && let Some(ahead) = places.get(i + distance)
            {
                let (word, state) = self.addresses(*ahead);
                prefetch_index(self.words, word);
                prefetch_index(&*self.states, state);
                prefetch(self.rows, *ahead, self.dim);
            }
            let (word, state) = self.addresses(*at);
            self.states[state] += self.words[word];
            target.copy_from_slice(&self.rows[*at..*at + self.dim]);
        }
        std::hint::black_box(out);
    }
}

/// Hands rows and their gradients to the engine's arithmetic.
struct Visit<'a> {
    rows: &'a mut [f32],
    width: usize,
    places: &'a [usize],
    next: usize,
    gradients: std::slice::ChunksExact<'a, f32>,
    distance: usize,
}

impl RowVisitor for Visit<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let at = *self.places.get(self.next)?;
        if self.distance > 0
            && let Some(ahead) = self.places.get(self.next + self.distance)
        {
            prefetch(self.rows, *ahead, self.width);
        }
        self.next += 1;
        let gradient = self.gradients.next()?;
        Some((&mut self.rows[at..at + self.width], gradient))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hps::{HyperParameters, TableDescriptor};

    #[test]
    fn each_row_is_gathered_and_updated_once_per_run() {
        let descriptor = TableDescriptor::new("t", 8);
        let width = descriptor.row_f32s();
        let mut bare = BareRows::new(100, width, 8).unwrap();
        let batches = vec![(0..50).collect::<Vec<u64>>(), vec![7, 99, 51]];
        let updater = Updater::new(&descriptor, &HyperParameters::default());
        let rate = bare.update(&batches, 3, &updater).unwrap();
        assert!(rate.per_second > 0.0 && DISTANCES.contains(&rate.distance));
        let mut twin = vec![0.5f32; width];
        let gradient = [0.01f32; 8];
        for _ in 0..=DISTANCES.len() {
            updater.apply_gradient(&mut twin, &gradient, 0.01);
        }
        let floats = bare.floats().unwrap();
        let row = |n: usize| &floats[n * width..(n + 1) * width];
        assert_eq!(
            (row(51), row(99), row(0)),
            (&twin[..], &twin[..], &twin[..])
        );
        assert_eq!(row(50), vec![0.5; width]);
        assert_ne!(row(7), &twin[..], "a row of two batches is updated twice");
        assert!(bare.gather(&batches, 2).unwrap().per_second > 0.0);
        assert!(bare.gather_found(&batches, 3).unwrap().per_second > 0.0);
        let mut out = vec![0.0; 8];
        gather(floats, width, 8, &[51 * width], &mut out, 4);
        assert_eq!(out, &twin[..8]);
    }
}
