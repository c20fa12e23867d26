//! How does a trainer say which rows its next pass needs?

use super::pass::{PassPart, PassTicket};
use super::{Result, Store};
use crate::units::TableId;

impl Store {
    /// Begins a pass: the rows of its keys come into memory and stay until the pass ends, so that pulls and
    /// pushes of them are hits. HugeCTR's Embedding Training Cache works so: while a trainer goes through one
    /// part of its data, the rows of the next come in.
    ///
    /// Passes come in one after the other, in the order in which they were begun; a trainer begins the next
    /// while it works with the one before. Rows that both need never leave. Checkpoints inside a pass, pulls of
    /// other rows, leases and prefetches go on as ever. Values depend on nothing of this.
    ///
    /// Where a table's policy is [`PolicyKind::Cached`](crate::PolicyKind::Cached), the pass becomes a *block*
    /// when its rows are there: they stay beyond its end. That is so while the table has fewer than `num_blocks`
    /// blocks; later if fewer of its known keys than `target_hit_rate` lie in blocks, and the oldest block
    /// leaves for it, `max_num_evict` times at most ([`Store::unfreeze`] begins anew). Rows that no block has
    /// leave when the pass ends.
    ///
    /// # Shapes
    /// Of each part, keys: `[n]`, each once
    ///
    /// # Cost
    /// Keys in memory are copied; those of a keyset file are read 2 M at a time. The rest is done by a
    /// thread of the store: they are put into the order in which rows lie on SSD (24 bytes a key meanwhile), then
    /// looked up and read by pieces of 32 768 keys as by a pull. Where a `Staged` table is in memory its keys come
    /// as they are, by 65 536; one that is there twice may be counted twice. A row that stays takes 12 bytes
    /// beside it, and 4 as part of a block.
    ///
    /// # Durability
    /// None: what is pushed in a pass is durable with the next checkpoint.
    ///
    /// # Errors
    /// `OverBudget`: more rows than the cache has room for, with the cache that would do; or split the keyset
    /// (`hps-keyset split`). `InvalidArgument`: no part, an unknown table, a keyset file without keys or that
    /// has no whole number of them; `Io`. Everything else comes from [`PassTicket::wait`].
    ///
    /// # Source
    /// HugeCTR's Embedding Training Cache: Staged-PS and Cached-PS.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-pass-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let keysets = [[1, 2, 3], [3, 4, 5]];
    /// let mut next = Some(store.begin_pass(&[PassPart::new(items, &keysets[0])])?);
    /// for number in 0..keysets.len() {
    ///     let pass = next.take().unwrap().wait()?;
    ///     if let Some(keyset) = keysets.get(number + 1) {
    ///         next = Some(store.begin_pass(&[PassPart::new(items, keyset)])?); // comes in meanwhile
    ///     }
    ///     let mut weights = [0.0; 2 * 4];
    ///     let lease = store.pull(items, &keysets[number][..2], &mut weights)?; // a batch: all hits
    ///     store.push(&lease, Update::gradients(&weights, 0.05))?;
    ///     drop(lease);
    ///     let report = pass.end();
    ///     println!("{} keys, {:.1} % hits", report.keys, 100.0 * report.hit_rate());
    /// }
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn begin_pass(&self, parts: &[PassPart<'_>]) -> Result<PassTicket> {
        self.call(|store| store.passes.begin(parts))
    }

    /// Lets blocks of a table leave again, as often as its policy says
    /// ([`PolicyKind::Cached`](crate::PolicyKind::Cached)): what is popular has changed.
    ///
    /// # Cost
    /// None.
    ///
    /// # Errors
    /// `InvalidArgument`: no such table; `Forked`.
    pub fn unfreeze(&self, table: TableId) -> Result<()> {
        self.call(|store| {
            let table = store.core.table(table)?;
            store.passes.blocks.unfreeze(table.id);
            Ok(())
        })
    }
}
