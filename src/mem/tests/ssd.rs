//! What the tests with random operations keep of an SSD: what was written, what is on its way there, and what
//! a checkpoint's cut must find.

use super::*;

/// Table and key.
pub(super) type Key = (usize, u64);

pub(super) struct Cut {
    pub interval: u32,
    pub truth: BTreeMap<Key, f32>,
    cursor: usize,
}

#[derive(Default)]
pub(super) struct Ssd {
    pub rows: BTreeMap<Key, f32>,
    pub flying: Vec<(Victim, Taken, f32)>,
    pub cut: Option<Cut>,
}

impl Ssd {
    /// The interval of the cut, and whether there is one.
    pub fn frozen(&self) -> Option<u32> {
        self.cut.as_ref().map(|cut| cut.interval)
    }

    pub fn interval_max(&self) -> u32 {
        self.frozen().unwrap_or(u32::MAX)
    }

    pub fn begin_cut(&mut self, interval: u32, truth: &BTreeMap<Key, f32>) {
        self.cut = Some(Cut {
            interval,
            truth: truth.clone(),
            cursor: 0,
        });
    }

    /// What was written is there, or is dirty again; whether a state is lost that a cut may need.
    pub fn report(&mut self, cache: &mut Cache, ok: bool) -> bool {
        let mut lost = false;
        for (victim, taken, value) in std::mem::take(&mut self.flying) {
            let key = (victim.table(), unmix64(taken.hash));
            lost |= !cache.written(&victim, ok);
            if ok && taken.tombstone {
                self.rows.remove(&key);
            } else if ok {
                self.rows.insert(key, value);
            }
        }
        if let Some(cut) = self.cut.as_mut().filter(|_| !ok) {
            cut.cursor = 0;
        }
        lost
    }

    /// Rows that the cut still lacks; none once it is complete, and over.
    pub fn drain(&mut self, cache: &mut Cache, want: FlushStep) -> Option<Vec<Victim>> {
        let cut = self.cut.as_mut()?;
        let mut victims = Vec::new();
        if cache.take_frozen(&mut cut.cursor, want, cut.interval, &mut victims) {
            return Some(victims);
        }
        for (key, value) in &self.rows {
            assert_eq!(cut.truth.get(key), Some(value), "{key:?}");
        }
        assert_eq!(
            self.rows, cut.truth,
            "the SSD holds the cut, nothing more or less"
        );
        assert_eq!(cache.frozen_copies(), 0);
        self.cut = None;
        None
    }
}
