//! How are the entries looked at in steps, while the map changes between them?

use super::KeyMap;
use super::segment::Kind;
use crate::units::to_usize;

impl KeyMap {
    /// Shows hash and value of each entry, of about so many: of whole segments, from the one that holds the
    /// hash `from` on, in hash order. Returns where to go on, or that all were seen. What is seen in steps
    /// that way is seen once, however the map changes meanwhile.
    ///
    /// # Cost
    /// Some nanoseconds an entry.
    pub fn walk(&self, from: u64, entries: usize, see: &mut impl FnMut(u64, u64)) -> Option<u64> {
        let (mut left, mut some) = (entries, Vec::new());
        self.walk_from(from, &mut left, &mut some, see)
    }

    fn walk_from(
        &self,
        from: u64,
        left: &mut usize,
        some: &mut Vec<(u64, u64)>,
        see: &mut impl FnMut(u64, u64),
    ) -> Option<u64> {
        let first = self.range.position(self.range.offset(from).unwrap_or(0));
        let mut entry = to_usize((first >> 1) >> (63 - self.depth));
        while let Some(number) = self.directory.get(entry) {
            let segment = &self.segments[*number as usize];
            let spare = self.depth - segment.depth;
            entry = (entry >> spare) << spare;
            let hash = self.first_hash(entry)?;
            if *left == 0 {
                return Some(hash);
            }
            if let Some(next) = self.directory.get(entry + (1 << spare)) {
                self.segments[*next as usize].announce_all(&self.pools);
            }
            if segment.kind == Kind::Nested {
                let nested = &self.nested[segment.blocks[0] as usize];
                let next = nested.walk_from(from.max(hash), left, some, see);
                if next.is_some() {
                    return next;
                }
            } else {
                some.clear();
                segment.read(&self.pools, &self.range, (entry >> spare) as u64, some);
                some.iter()
                    .for_each(|(offset, value)| see(self.range.low + offset, *value));
            }
            // A segment without entries takes time, too.
            *left = left.saturating_sub(segment.len().max(1));
            entry += 1 << spare;
        }
        None
    }
}
