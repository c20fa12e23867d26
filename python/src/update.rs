//! What does a push do to the rows of a lease, as Python says it?

use hps::{PushPart, PutRows, Update};
use pyo3::prelude::*;

use crate::arrays::{Numbers, Values};
use crate::asked::{Part, check_count, items, list_of};
use crate::cell::TableInfo;
use crate::errors::refuse;

/// What a push did: `rows` changed, `non_finite` positions whose values were not finite.
#[pyclass(frozen, get_all, module = "hps")]
pub struct PushReport {
    /// Distinct rows changed.
    rows: u64,
    /// Positions whose values were not finite.
    non_finite: u64,
}

#[pymethods]
impl PushReport {
    fn __repr__(&self) -> String {
        let PushReport { rows, non_finite } = self;
        format!("PushReport(rows={rows}, non_finite={non_finite})")
    }
}

impl PushReport {
    pub fn new(rows: u64, non_finite: u64) -> PushReport {
        PushReport { rows, non_finite }
    }

    pub fn of(report: hps::PushReport) -> PushReport {
        PushReport::new(report.rows, report.non_finite)
    }
}

/// What values are.
#[derive(Clone, Copy)]
enum Kind {
    Gradients,
    Deltas,
    Weights,
    Rows,
}

impl Kind {
    fn named(py: Python<'_>, name: &str) -> PyResult<Kind> {
        match name {
            "gradients" => Ok(Kind::Gradients),
            "deltas" => Ok(Kind::Deltas),
            "weights" => Ok(Kind::Weights),
            "rows" => Ok(Kind::Rows),
            _ => {
                let message =
                    format!("kind {name:?}: gradients, deltas, weights or rows are known");
                Err(refuse(py, "InvalidArgument", &message))
            }
        }
    }
}

/// What a row is read or put as.
#[derive(Clone, Copy)]
pub enum RowKind {
    Weights,
    Rows,
}

impl RowKind {
    pub fn of(py: Python<'_>, name: &str) -> PyResult<RowKind> {
        match name {
            "weights" => Ok(RowKind::Weights),
            "rows" => Ok(RowKind::Rows),
            other => {
                let message = format!("kind {other:?}: weights or rows are known");
                Err(refuse(py, "InvalidArgument", &message))
            }
        }
    }

    /// f32s of a row.
    pub fn width(self, table: &TableInfo) -> usize {
        match self {
            RowKind::Weights => table.dim(),
            RowKind::Rows => table.row_f32s(),
        }
    }

    /// Values that are put.
    pub fn put(self, values: &[f32], verbatim: bool) -> PutRows<'_> {
        let rows = match self {
            RowKind::Weights => PutRows::weights(values),
            RowKind::Rows => PutRows::whole(values),
        };
        if verbatim { rows.verbatim() } else { rows }
    }
}

/// The arguments of a push beside its values.
pub struct How<'a, 'py> {
    pub lr: Option<&'a Bound<'py, PyAny>>,
    pub kind: &'a str,
    pub at: Option<&'a Bound<'py, PyAny>>,
    pub shows: Option<&'a Bound<'py, PyAny>>,
    pub clicks: Option<&'a Bound<'py, PyAny>>,
    pub step: u32,
    pub verbatim: bool,
}

/// The change of one part.
struct Change<'py> {
    kind: Kind,
    /// None: the rows stay as they are.
    values: Option<Values<'py>>,
    lr: f32,
    at: Option<Numbers<'py>>,
    shows_clicks: Option<(Numbers<'py>, Numbers<'py>)>,
    step: u32,
    verbatim: bool,
}

/// The change of all parts.
pub struct Changes<'py>(Vec<Change<'py>>);

/// The item of a part: of a list one a table, of anything else the same for all.
fn of_part<'py>(
    object: Option<&Bound<'py, PyAny>>,
    what: &str,
    parts: usize,
    at: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(object) = object else {
        return Ok(None);
    };
    match items(object) {
        None => Ok(Some(object.clone())),
        Some(list) => {
            check_count(object.py(), what, list.len(), parts)?;
            Ok(list.into_iter().nth(at).filter(|item| !item.is_none()))
        }
    }
}

impl<'py> Changes<'py> {
    /// Reads the values of all parts.
    pub fn of(
        parts: &[Part],
        is_list: bool,
        values: &Bound<'py, PyAny>,
        how: &How<'_, 'py>,
    ) -> PyResult<Changes<'py>> {
        let py = values.py();
        let kind = Kind::named(py, how.kind)?;
        let values = match is_list {
            true => list_of(values, how.kind, parts.len())?,
            false => vec![values.clone()],
        };
        let change = |(index, (part, values))| {
            let what = match is_list {
                true => format!("{}[{index}]", how.kind),
                false => how.kind.to_owned(),
            };
            let count = (parts.len(), index);
            Change::of(part, kind, values, how, &what, count)
        };
        let all = parts.iter().zip(&values).enumerate().map(change);
        Ok(Changes(all.collect::<PyResult<_>>()?))
    }

    /// As the store takes them.
    pub fn parts(&self, parts: &[Part]) -> Vec<PushPart<'_>> {
        let part = |(part, change): (&Part, _)| {
            let change: &Change<'_> = change;
            PushPart::new(part.table.id, change.update())
        };
        parts.iter().zip(&self.0).map(part).collect()
    }
}

impl<'py> Change<'py> {
    fn of(
        part: &Part,
        kind: Kind,
        values: &Bound<'py, PyAny>,
        how: &How<'_, 'py>,
        what: &str,
        (parts, index): (usize, usize),
    ) -> PyResult<Change<'py>> {
        let py = values.py();
        let at = of_part(how.at, "at", parts, index)?;
        let at = at.map(|at| Numbers::of(&at, "at", None)).transpose()?;
        let rows = at.as_ref().map_or(part.rows, |at| at.as_slice().len());
        let width = match kind {
            Kind::Rows => part.table.row_f32s(),
            _ => part.table.dim(),
        };
        let stays = values.is_none();
        let values = match stays {
            true => None,
            false => Some(Values::of(values, what, &[rows, width])?),
        };
        let lr = match (kind, of_part(how.lr, "lr", parts, index)?) {
            (Kind::Gradients, Some(lr)) => lr.extract()?,
            (Kind::Gradients, None) if !stays => match part.table.lr {
                Some(lr) => lr,
                None => {
                    let name = &part.table.descriptor.name;
                    let message = format!(
                        "lr: table {name:?} has none, since the store was opened without an hps.Table \
                         for it; give lr to push"
                    );
                    return Err(refuse(py, "InvalidArgument", &message));
                }
            },
            _ => 0.0,
        };
        let numbers = |object, what: &str| {
            let object = of_part(object, what, parts, index)?;
            object
                .map(|object| Numbers::of(&object, what, Some(rows)))
                .transpose()
        };
        let shows_clicks = match (numbers(how.shows, "shows")?, numbers(how.clicks, "clicks")?) {
            (Some(shows), Some(clicks)) => Some((shows, clicks)),
            (None, None) => None,
            _ => {
                let message = "shows and clicks: one came, both are needed";
                return Err(refuse(py, "InvalidArgument", message));
            }
        };
        Ok(Change {
            kind,
            values,
            lr,
            at,
            shows_clicks,
            step: how.step,
            verbatim: how.verbatim,
        })
    }

    fn update(&self) -> Update<'_> {
        let Some(values) = &self.values else {
            return Update::weights(&[]).at(&[]);
        };
        let values = values.as_slice();
        let mut update = match self.kind {
            Kind::Gradients => Update::gradients(values, self.lr),
            Kind::Deltas => Update::deltas(values),
            Kind::Weights => Update::weights(values),
            Kind::Rows => Update::rows(values),
        };
        update = update.step(self.step);
        if let Some(at) = &self.at {
            update = update.at(at.as_slice());
        }
        if let Some((shows, clicks)) = &self.shows_clicks {
            update = update.shows_clicks(shows.as_slice(), clicks.as_slice());
        }
        match self.verbatim {
            true => update.verbatim(),
            false => update,
        }
    }
}
