//! How fast are the rows of passes gathered and updated in memory, by key, and what of that does a store reach?
//!
//! - Measured before and after each round of passes, since memory is not as fast from one minute to the next.
//! - Pass after pass, whole, as what is measured has them: into a buffer of a pass, and out of one. Fewer rows at a
//!   time, the buffer would stay in the processor's cache; one pass again and again, its entries of the hash table.

use anyhow::Result;
use hps::TableDescriptor;
use hps::row::Updater;

use super::keysets::Keysets;
use super::policies::Phase;
use crate::figures::Spread;
use crate::limits::memory::BareRows;

/// Rows a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    pub gather: f64,
    pub update: f64,
}

/// All rows, bare, and where those of each pass lie.
#[derive(Debug)]
pub struct InMemory {
    bare: BareRows,
    /// Rows by number: the place of the key among all.
    passes: Vec<Vec<u64>>,
    updater: Updater,
    threads: usize,
    /// When it was last measured.
    last: Speed,
}

impl InMemory {
    /// Touches as much memory as all rows take, and measures.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(
        keysets: &Keysets,
        descriptor: &TableDescriptor,
        threads: usize,
    ) -> Result<InMemory> {
        let place = |key: &u64| keysets.union.binary_search(key).unwrap_or(0) as u64;
        let passes = keysets.passes.iter();
        let (rows, width) = (keysets.union.len(), descriptor.row_f32s());
        let mut memory = InMemory {
            bare: BareRows::new(rows, width, descriptor.dim)?,
            passes: passes
                .map(|keys| keys.iter().map(place).collect())
                .collect(),
            updater: Updater::new(descriptor, &hps::HyperParameters::new()),
            threads,
            last: Speed::default(),
        };
        memory.last = memory.measure()?;
        Ok(memory)
    }

    fn measure(&mut self) -> Result<Speed> {
        let (bare, passes) = (&mut self.bare, &self.passes);
        Ok(Speed {
            gather: bare.gather_found(passes, self.threads)?.per_second,
            update: bare.update(passes, self.threads, &self.updater)?.per_second,
        })
    }

    /// A round is over: measures again, and notes at each of its phases what memory gave before and after.
    ///
    /// # Errors
    /// Too little memory.
    pub fn round_is_over(&mut self, round: &mut [Phase]) -> Result<()> {
        let after = self.measure()?;
        let before = std::mem::replace(&mut self.last, after);
        for phase in round {
            phase.in_memory = Some(Speed {
                gather: f64::midpoint(before.gather, after.gather),
                update: f64::midpoint(before.update, after.update),
            });
        }
        Ok(())
    }
}

/// What a store reached of memory's speed.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Means over phases of what memory gave.
    pub memory: Speed,
    /// Medians over phases of what was read of a gather, and written of an update.
    pub read: f64,
    pub written: f64,
}

impl Reached {
    /// None where memory was not measured.
    pub fn of(phases: &[Phase]) -> Option<Reached> {
        let measured =
            |phase: &Phase| Some((phase.in_memory?, phase.reads_per_s(), phase.writes_per_s()));
        let all: Vec<_> = phases.iter().filter_map(measured).collect();
        let mean = |of: fn(&Speed) -> f64| {
            all.iter().map(|(speed, ..)| of(speed)).sum::<f64>() / all.len() as f64
        };
        let median = |of: fn(&(Speed, f64, f64)) -> f64| {
            Spread::of(&all.iter().map(of).collect::<Vec<_>>()).median
        };
        (!all.is_empty()).then(|| Reached {
            memory: Speed {
                gather: mean(|speed| speed.gather),
                update: mean(|speed| speed.update),
            },
            read: median(|(speed, reads, _)| reads / speed.gather),
            written: median(|(speed, _, writes)| writes / speed.update),
        })
    }
}
