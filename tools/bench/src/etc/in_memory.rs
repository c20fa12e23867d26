//! How fast are the rows of a pass gathered and updated in memory, by key?

use anyhow::Result;
use hps::TableDescriptor;
use hps::row::Updater;

use super::keysets::Keysets;
use crate::limits::memory::BareRows;

/// All rows, bare, and where those of each pass lie.
#[derive(Debug)]
pub struct InMemory {
    bare: BareRows,
    /// Rows by number: the place of the key among all. Whole passes, as what is measured has them: into a buffer of a
    /// pass, and out of one. Fewer rows at a time, the buffer would stay in the processor's cache; one pass again and
    /// again, its entries of the hash table.
    passes: Vec<Vec<u64>>,
    updater: Updater,
    threads: usize,
}

impl InMemory {
    /// Touches as much memory as all rows take.
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
        Ok(InMemory {
            bare: BareRows::new(keysets.union.len(), descriptor.row_f32s(), descriptor.dim)?,
            passes: passes
                .map(|keys| keys.iter().map(place).collect())
                .collect(),
            updater: Updater::new(descriptor, &hps::HyperParameters::new()),
            threads,
        })
    }

    /// Rows a second gathered and updated, pass after pass.
    ///
    /// # Errors
    /// Too little memory.
    pub fn measure(&mut self) -> Result<(f64, f64)> {
        let (bare, passes) = (&mut self.bare, &self.passes);
        let gather = bare.gather_found(passes, self.threads)?.per_second;
        let update = bare.update(passes, self.threads, &self.updater)?.per_second;
        Ok((gather, update))
    }
}
