//! What does a push do to the rows of a lease, and what does it say of it?

use crate::units::TableId;

/// What a push does to the rows of a lease.
///
/// ```
/// use hps::Update;
///
/// let values = [0.1; 2 * 4]; // of two keys, dim 4
/// let learn = Update::gradients(&values, 0.05).step(17).shows_clicks(&[1, 1], &[0, 1]);
/// let only_the_second = Update::weights(&values[4..]).at(&[1]);
/// # let _both = (learn, only_the_second);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    pub(crate) kind: Kind<'a>,
    pub(crate) step: u32,
    pub(crate) shows: Option<&'a [u32]>,
    pub(crate) clicks: Option<&'a [u32]>,
    pub(crate) positions: Option<&'a [u32]>,
    pub(crate) is_verbatim: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    Gradients { values: &'a [f32], lr: f32 },
    Deltas { values: &'a [f32] },
    Weights { values: &'a [f32] },
    Rows { values: &'a [f32] },
}

impl<'a> Update<'a> {
    fn new(kind: Kind<'a>) -> Update<'a> {
        Update {
            kind,
            step: 0,
            shows: None,
            clicks: None,
            positions: None,
            is_verbatim: false,
        }
    }

    /// The table's optimizer applies the gradients; those of equal keys are summed first.
    ///
    /// # Shapes
    /// values: `[n, dim]`
    #[must_use]
    pub fn gradients(values: &'a [f32], lr: f32) -> Update<'a> {
        Update::new(Kind::Gradients { values, lr })
    }

    /// Adds to the weights; equal keys add up in the caller's order.
    ///
    /// # Shapes
    /// values: `[n, dim]`
    #[must_use]
    pub fn deltas(values: &'a [f32]) -> Update<'a> {
        Update::new(Kind::Deltas { values })
    }

    /// Replaces the weights and leaves the state; of equal keys the last one counts.
    ///
    /// # Shapes
    /// values: `[n, dim]`
    #[must_use]
    pub fn weights(values: &'a [f32]) -> Update<'a> {
        Update::new(Kind::Weights { values })
    }

    /// Replaces whole rows, state and metadata included; of equal keys the last one counts.
    ///
    /// # Shapes
    /// values: `[n, row_f32s]`
    #[must_use]
    pub fn rows(values: &'a [f32]) -> Update<'a> {
        Update::new(Kind::Rows { values })
    }

    /// The trainer's step, for the `last_step` column.
    #[must_use]
    pub fn step(mut self, step: u32) -> Update<'a> {
        self.step = step;
        self
    }

    /// Shows and clicks to add to the metadata columns.
    ///
    /// # Shapes
    /// `[n]` each; `[m]` with [`Update::at`]
    #[must_use]
    pub fn shows_clicks(mut self, shows: &'a [u32], clicks: &'a [u32]) -> Update<'a> {
        self.shows = Some(shows);
        self.clicks = Some(clicks);
        self
    }

    /// Changes only the rows at some positions of the lease, or of its part: values, shows and clicks
    /// are those of these positions, in their order. A position that is named twice counts as a key
    /// that is there twice; no position at all changes nothing.
    ///
    /// # Shapes
    /// positions: `[m]`, each below n, in any order; values: `[m, dim]` or `[m, row_f32s]`
    ///
    /// # Cost
    /// A search for each position, shortest where positions rise.
    ///
    /// # Errors
    /// The push gives `InvalidArgument` for a position past the end; nothing changed.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};
    /// # let directory = std::env::temp_dir().join(format!("hps-at-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let table = store.create_table(&TableDescriptor::new("clicks", 2))?;
    /// let mut weights = [0.0; 3 * 2];
    /// let lease = store.pull(table, &[7, 8, 9], &mut weights)?;
    /// let new = [1.0, 2.0]; // of key 9
    /// store.push(&lease, Update::weights(&new).at(&[2]))?;
    /// lease.read(&mut weights)?;
    /// assert_eq!(weights[4..], new);
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    #[must_use]
    pub fn at(mut self, positions: &'a [u32]) -> Update<'a> {
        self.positions = Some(positions);
        self
    }

    /// Takes the bits of weights or rows as they are, whatever the options say of values that are not
    /// finite: a NaN or an infinity is stored like any number, and not counted. For rows that come
    /// from a store, and go back.
    ///
    /// # Errors
    /// The push gives `InvalidArgument` for gradients and deltas, which are computed with.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};
    /// # let directory = std::env::temp_dir().join(format!("hps-bits-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let table = store.create_table(&TableDescriptor::new("clicks", 2))?;
    /// let mut weights = [0.0; 2];
    /// let lease = store.pull(table, &[7], &mut weights)?;
    /// let report = store.push(&lease, Update::weights(&[f32::NAN, 1.0]).verbatim())?;
    /// assert_eq!((report.rows, report.non_finite), (1, 0));
    /// lease.read(&mut weights)?;
    /// assert!(weights[0].is_nan());
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    #[must_use]
    pub fn verbatim(mut self) -> Update<'a> {
        self.is_verbatim = true;
        self
    }

    pub(super) fn values(&self) -> &'a [f32] {
        match self.kind {
            Kind::Gradients { values, .. }
            | Kind::Deltas { values }
            | Kind::Weights { values }
            | Kind::Rows { values } => values,
        }
    }
}

/// What a push did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushReport {
    /// Distinct rows changed.
    pub rows: u64,
    /// Positions whose values were not finite (skipped or applied, as the options say).
    pub non_finite: u64,
}

/// One part of a [`Store::push_many`](crate::Store::push_many).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PushPart<'a> {
    /// The table of the lease's part.
    pub table: TableId,
    /// What is done to its rows.
    pub update: Update<'a>,
}

impl<'a> PushPart<'a> {
    /// What is done to the rows of a part of the lease.
    #[must_use]
    pub fn new(table: TableId, update: Update<'a>) -> PushPart<'a> {
        PushPart { table, update }
    }
}
