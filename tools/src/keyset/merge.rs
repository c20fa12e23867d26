//! How do runs become one sorted sequence of unique keys?
//!
//! - Of each run a window is in memory. All keys up to the least last key of the windows can be told
//!   at once: they are copied together, sorted and made unique.
//! - Every step uses up at least one window, so that the number of steps is bounded by the data.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Result, anyhow};

use super::crew::{Crew, Failure};
use super::plan::Plan;
use super::radix::sort_unique;
use super::run::{Run, Writer};
use crate::cli::Interrupt;

/// Keys of each run that are looked at to cut the keys into ranges of about equal size.
const SAMPLES: u64 = 64;

/// What is in memory of a run.
struct Window<'a> {
    run: &'a Run,
    /// The part of the run that was not read yet.
    from: u64,
    until: u64,
    keys: Vec<u64>,
    /// Keys at the front that are used up.
    used: usize,
}

impl Window<'_> {
    fn refill(&mut self, keys_max: usize, bytes: &mut [u8]) -> Result<()> {
        self.keys.drain(..self.used);
        self.used = 0;
        let room = (keys_max - self.keys.len()) as u64;
        let count = usize::try_from(room.min(self.until - self.from))?;
        self.run.read(self.from, count, bytes, &mut self.keys)?;
        self.from += count as u64;
        Ok(())
    }
}

/// Gives the unique keys of runs that are in a range, in order.
///
/// # Errors
/// What reading met, `emit` says, or `Cancelled`.
pub fn merge(
    runs: &[Run],
    range: &RangeInclusive<u64>,
    (window_keys, file_bytes): (usize, usize),
    interrupt: &Interrupt,
    mut emit: impl FnMut(&[u64]) -> Result<()>,
) -> Result<()> {
    let mut bytes = vec![0; file_bytes.max(8)];
    let mut windows = Vec::with_capacity(runs.len());
    for run in runs {
        let from = run.below(*range.start())?;
        let until = match range.end().checked_add(1) {
            Some(end) => run.below(end)?,
            None => run.keys,
        };
        if from < until {
            let keys = Vec::with_capacity(window_keys);
            windows.push(Window {
                run,
                from,
                until,
                keys,
                used: 0,
            });
        }
    }
    let (mut step, mut scratch) = (Vec::new(), Vec::new());
    loop {
        interrupt.check()?;
        let mut bound = u64::MAX;
        for window in &mut windows {
            window.refill(window_keys, &mut bytes)?;
            if window.from < window.until
                && let Some(last) = window.keys.last()
            {
                bound = bound.min(*last);
            }
        }
        windows.retain(|window| !window.keys.is_empty());
        if windows.is_empty() {
            return Ok(());
        }
        step.clear();
        for window in &mut windows {
            window.used = window.keys.partition_point(|key| *key <= bound);
            step.extend_from_slice(&window.keys[..window.used]);
        }
        if windows.len() > 1 {
            sort_unique(&mut step, &mut scratch);
        }
        emit(&step)?;
    }
}

/// Merges groups of runs until one merge can take all that are left; how many times over.
///
/// # Errors
/// What reading and writing met; `Cancelled`.
pub fn level(
    mut runs: Vec<Run>,
    plan: &Plan,
    folder: &Path,
    crew: &mut Crew<'_>,
) -> Result<(Vec<Run>, u32)> {
    let mut levels = 0;
    loop {
        let (fan_in, window) = plan.windows(runs.len(), held(&runs));
        if runs.len() <= fan_in {
            return Ok((runs, levels));
        }
        levels += 1;
        let groups: Vec<&[Run]> = runs.chunks(fan_in).collect();
        let next = Mutex::new(groups.iter());
        let interrupt = crew.interrupt;
        let merged = crew.run(plan.threads, |_| {
            let mut writer = Writer::new(folder, plan.file_bytes).map_err(Failure::first)?;
            let mut done = Vec::new();
            while let Some(group) = take(&next) {
                let sizes = (window, plan.file_bytes);
                merge(group, &(0..=u64::MAX), sizes, interrupt, |keys| {
                    writer.write(keys)
                })
                .map_err(Failure::first)?;
                done.push(writer.end_run());
            }
            Ok(done)
        })?;
        runs = merged.into_iter().flatten().collect();
    }
}

fn take<T: Copy, I: Iterator<Item = T>>(next: &Mutex<I>) -> Option<T> {
    next.lock().ok().and_then(|mut next| next.next())
}

/// Bytes of memory that runs take.
#[must_use]
pub fn held(runs: &[Run]) -> usize {
    runs.iter().map(Run::held_bytes).sum()
}

/// Ranges that cover all keys, in order, with about as many keys of the runs in each.
///
/// # Errors
/// What reading met.
pub fn ranges(runs: &[Run], count: usize) -> Result<Vec<RangeInclusive<u64>>> {
    let total: u64 = runs.iter().map(|run| run.keys).sum();
    let mut samples = Vec::new();
    for run in runs {
        let share = u128::from(SAMPLES) * runs.len() as u128 * u128::from(run.keys);
        let count = u64::try_from(share.div_ceil(u128::from(total.max(1))))?.min(run.keys);
        for sample in 0..count {
            let number = u128::from(run.keys) * u128::from(sample) / u128::from(count);
            samples.push(run.key(u64::try_from(number)?)?);
        }
    }
    samples.sort_unstable();
    let mut starts: Vec<u64> = (1..count)
        .filter_map(|i| samples.get(samples.len() * i / count).copied())
        .collect();
    starts.retain(|start| *start > 0);
    starts.dedup();
    starts.insert(0, 0);
    let ends = starts[1..].iter().map(|start| start - 1).chain([u64::MAX]);
    Ok(starts
        .iter()
        .zip(ends)
        .map(|(start, end)| *start..=end)
        .collect())
}

/// Does something with each of several pieces of work, on all threads; results in order.
///
/// # Errors
/// The first error of a piece.
pub fn each<T: Sync, R: Send>(
    crew: &mut Crew<'_>,
    threads: usize,
    pieces: &[T],
    work: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = Mutex::new(0..pieces.len());
    let done = crew.run(threads.min(pieces.len()).max(1), |_| {
        let mut done = Vec::new();
        while let Some(number) = take(&next) {
            let made = work(number, &pieces[number]);
            done.push((number, made.map_err(|e| Failure::at(number as u64, e))?));
        }
        Ok(done)
    })?;
    let mut done: Vec<(usize, R)> = done.into_iter().flatten().collect();
    done.sort_unstable_by_key(|(number, _)| *number);
    if done.len() != pieces.len() {
        return Err(anyhow!("a thread left its work"));
    }
    Ok(done.into_iter().map(|(_, made)| made).collect())
}
