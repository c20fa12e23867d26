//! Which keys does each pass have?

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::keys::{Distribution, Draw, Order};

/// Keys of the passes in Table 2 of HugeCTR's guide: three days of Criteo's click logs.
const TABLE_2: [u64; 10] = [
    24_199_179, 26_015_075, 27_387_817, 23_672_542, 26_053_910, 27_697_628, 24_727_672, 25_643_779,
    26_374_086, 26_580_983,
];
/// Keys from which they are drawn, so that all ten passes have as many rows as the guide says.
const UNIVERSE: u64 = 184_300_000;

/// The keys of passes.
#[derive(Debug)]
pub struct Keysets {
    /// Those of each pass, unique, in no order.
    pub passes: Vec<Vec<u64>>,
    /// All of them, sorted.
    pub union: Vec<u64>,
}

impl Keysets {
    /// Draws as many keys for each pass as the guide has, divided by `scale`.
    pub fn drawn(scale: u64, zipf: f64, seed: u64) -> Keysets {
        let universe = (UNIVERSE / scale).max(1000);
        let distribution = Distribution::from_theta(zipf);
        let pass = |(stream, keys): (u64, &u64)| {
            let count = usize::try_from((keys / scale).max(10)).unwrap_or(usize::MAX);
            Draw::new(universe, distribution, seed, stream).distinct(count, Order::Mixed)
        };
        Keysets::of((1..).zip(&TABLE_2).map(pass).collect())
    }

    /// Reads keyset files, by name.
    ///
    /// # Errors
    /// A folder without keyset files, a file that is none.
    pub fn read(folder: &Path) -> Result<Keysets> {
        let what = || format!("look into {}", folder.display());
        let mut paths = BTreeSet::new();
        for entry in fs::read_dir(folder).with_context(what)? {
            let path = entry.with_context(what)?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "keyset")
            {
                paths.insert(path);
            }
        }
        if paths.is_empty() {
            bail!("{}: no file *.keyset", folder.display());
        }
        let keys = |path: &std::path::PathBuf| -> Result<Vec<u64>> {
            let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
            let (keys, rest) = bytes.as_chunks::<8>();
            if keys.is_empty() || !rest.is_empty() {
                let (path, bytes) = (path.display(), bytes.len());
                bail!("{path}: {bytes} bytes are no keyset of i64 keys (8 bytes each)");
            }
            Ok(keys.iter().map(|key| u64::from_le_bytes(*key)).collect())
        };
        Ok(Keysets::of(paths.iter().map(keys).collect::<Result<_>>()?))
    }

    fn of(passes: Vec<Vec<u64>>) -> Keysets {
        let mut union: Vec<u64> = passes.iter().flatten().copied().collect();
        union.sort_unstable();
        union.dedup();
        Keysets { passes, union }
    }

    /// Hits of each pass where the first `blocks` of them stay: the guide's test, in which none leaves.
    pub fn expected_hits(&self, blocks: usize, rounds: usize) -> Vec<u64> {
        let mut kept: VecDeque<HashSet<u64>> = VecDeque::new();
        let mut all = Vec::new();
        for pass in std::iter::repeat_n(&self.passes, rounds).flatten() {
            let is_hit = |key: &&u64| kept.iter().any(|block| block.contains(key));
            all.push(pass.iter().filter(is_hit).count() as u64);
            if kept.len() < blocks {
                kept.push_back(pass.iter().copied().collect());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_have_the_guides_keys_and_rows() {
        let keysets = Keysets::drawn(2000, 0.9, 1);
        let expected: Vec<usize> = TABLE_2
            .iter()
            .map(|keys| usize::try_from(keys / 2000).unwrap())
            .collect();
        let found: Vec<usize> = keysets.passes.iter().map(Vec::len).collect();
        assert_eq!(found, expected);
        // 53.9 GiB of rows of 512 bytes, 113 M, and 45 to 46 % of the later passes in the first two.
        let rows = keysets.union.len() as f64 * 2000.0;
        assert!((1.12e8..1.15e8).contains(&rows), "{rows}");
        let hits = keysets.expected_hits(2, 2);
        assert_eq!(hits[10], keysets.passes[0].len() as u64);
        for (pass, hits) in keysets.passes.iter().zip(&hits).skip(2) {
            let rate = *hits as f64 / pass.len() as f64;
            assert!((0.43..0.48).contains(&rate), "{rate}");
        }
    }

    #[test]
    fn keyset_files_come_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Keysets::read(folder.path()).is_err());
        for (name, keys) in [("b.keyset", [1u64, 9]), ("a.keyset", [3, 1])] {
            let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let keysets = Keysets::read(folder.path()).unwrap();
        assert_eq!(keysets.passes, [[3, 1], [1, 9]]);
        assert_eq!(keysets.union, [1, 3, 9]);
        fs::write(folder.path().join("c.keyset"), [0; 7]).unwrap();
        let error = Keysets::read(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("c.keyset") && error.contains("7 bytes"),
            "{error}"
        );
    }
}
