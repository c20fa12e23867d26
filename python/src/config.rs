//! How do tables and options come from Python?

use std::collections::HashMap;
use std::path::PathBuf;

use hps::{
    Dtype, HyperParameters, Initialiser, IoEngine, KeyType, NonFinite, Optimizer, PolicyKind,
    RowMetadata, RuntimeOptions, TableDescriptor, TableOptions,
};
use numpy::dtype;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PySlice, PyTuple};

use crate::errors::refuse;

/// What `hps.Table` says of itself.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TableSpec {
    name: String,
    dim: usize,
    dtype: String,
    optimizer: String,
    lr: f32,
    hyper: HashMap<String, f32>,
    init: String,
    init_a: f32,
    init_b: f32,
    seed: u64,
    accumulator: f32,
    metadata: Vec<String>,
    policy: Option<Py<PyAny>>,
    cache_bytes_min: u64,
    cache_bytes_max: Option<u64>,
}

/// Values by the names that Python has for them.
type Names<T, const N: usize> = [(&'static str, T); N];

const DTYPES: Names<Dtype, 3> = [
    ("f32", Dtype::F32),
    ("f16", Dtype::F16),
    ("bf16", Dtype::Bf16),
];
const OPTIMIZERS: Names<Optimizer, 7> = [
    ("sgd", Optimizer::Sgd),
    ("momentum", Optimizer::Momentum),
    ("nesterov", Optimizer::Nesterov),
    ("adagrad", Optimizer::Adagrad),
    ("rowwise_adagrad", Optimizer::RowwiseAdagrad),
    ("adam", Optimizer::Adam),
    ("ftrl", Optimizer::Ftrl),
];
const POLICIES: Names<PolicyKind, 5> = [
    ("bilevel", PolicyKind::Bilevel),
    ("lru", PolicyKind::Lru),
    ("fifo", PolicyKind::Fifo),
    ("pin_all", PolicyKind::PinAll),
    ("staged", PolicyKind::Staged),
];
const KEY_TYPES: Names<KeyType, 2> = [("i64", KeyType::I64), ("u32", KeyType::U32)];
const ENGINES: Names<IoEngine, 2> = [("uring", IoEngine::Uring), ("pread", IoEngine::Pread)];
const NON_FINITE: Names<NonFinite, 3> = [
    ("skip", NonFinite::Skip),
    ("reject", NonFinite::Reject),
    ("apply", NonFinite::Apply),
];

fn unknown<T>(py: Python<'_>, what: &str, found: &str, known: &str) -> PyResult<T> {
    let message = format!("{what} {found:?}: known are {known}");
    Err(refuse(py, "InvalidArgument", &message))
}

/// The value of a name.
fn named<T: Copy>(py: Python<'_>, what: &str, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    match known.iter().find(|(known, _)| *known == name) {
        Some((_, value)) => Ok(*value),
        None => {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            unknown(py, what, name, &names.join(", "))
        }
    }
}

/// The name of a value; those of later versions have none here.
fn name_of<T: PartialEq>(value: T, known: &[(&'static str, T)]) -> &'static str {
    let found = known.iter().find(|(_, known)| *known == value);
    found.map_or("unknown", |(name, _)| *name)
}

pub fn policy_name(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::Cached { .. } => "cached",
        other => name_of(other, &POLICIES),
    }
}

/// What `hps.Cached` says of itself.
#[derive(FromPyObject)]
struct Cached {
    num_blocks: u32,
    target_hit_rate: f64,
    max_num_evict: u64,
}

/// A policy: its name, or `hps.Cached`.
fn policy(given: &Bound<'_, PyAny>) -> PyResult<PolicyKind> {
    let py = given.py();
    let Ok(name) = given.extract::<String>() else {
        let Cached {
            num_blocks,
            target_hit_rate,
            max_num_evict,
        } = given.extract()?;
        return Ok(PolicyKind::Cached {
            num_blocks,
            target_hit_rate,
            max_num_evict,
        });
    };
    match &*name {
        // It has numbers, too.
        "cached" => unknown(
            py,
            "policy",
            &name,
            "bilevel, lru, fifo, pin_all, staged, and hps.Cached(num_blocks, ...)",
        ),
        other => named(py, "policy", other, &POLICIES),
    }
}

/// The type of the keys in a keyset file.
pub fn key_type(py: Python<'_>, name: &str) -> PyResult<KeyType> {
    named(py, "dtype", name, &KEY_TYPES)
}

impl TableSpec {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn lr(&self) -> f32 {
        self.lr
    }

    /// What is stored.
    pub fn descriptor(&self, py: Python<'_>) -> PyResult<TableDescriptor> {
        let dtype = named(py, "dtype", &self.dtype, &DTYPES)?;
        let optimizer = named(py, "optimizer", &self.optimizer, &OPTIMIZERS)?;
        let (a, b) = (self.init_a, self.init_b);
        let initialiser = match &*self.init {
            "zero" => Initialiser::Zero,
            "constant" => Initialiser::Constant { value: a },
            "uniform" => Initialiser::Uniform { low: a, high: b },
            "normal" => Initialiser::Normal {
                mean: a,
                deviation: b,
            },
            other => return unknown(py, "init", other, "zero, constant, uniform, normal"),
        };
        let mut metadata = RowMetadata::new();
        for column in &self.metadata {
            metadata = match &**column {
                "show" => metadata.show(true),
                "click" => metadata.click(true),
                "count" => metadata.count(true),
                "last_step" => metadata.last_step(true),
                other => return unknown(py, "metadata", other, "show, click, count, last_step"),
            };
        }
        Ok(TableDescriptor::new(&self.name, self.dim)
            .dtype(dtype)
            .optimizer(optimizer)
            .initialiser(initialiser)
            .seed(self.seed)
            .accumulator(self.accumulator)
            .metadata(metadata))
    }

    /// What may differ at each open.
    pub fn options(&self, py: Python<'_>) -> PyResult<TableOptions> {
        let mut hyper = HyperParameters::new();
        for (name, value) in &self.hyper {
            hyper = match &**name {
                "momentum" => hyper.momentum(*value),
                "epsilon" => hyper.epsilon(*value),
                "beta1" => hyper.beta1(*value),
                "beta2" => hyper.beta2(*value),
                "ftrl_beta" => hyper.ftrl_beta(*value),
                "lambda1" => hyper.lambda1(*value),
                "lambda2" => hyper.lambda2(*value),
                other => {
                    let known = "momentum, epsilon, beta1, beta2, ftrl_beta, lambda1, lambda2";
                    return unknown(py, "hyperparameter", other, known);
                }
            };
        }
        let mut options = TableOptions::new()
            .hyper(hyper)
            .cache_bytes_min(self.cache_bytes_min);
        if let Some(bytes) = self.cache_bytes_max {
            options = options.cache_bytes_max(bytes);
        }
        if let Some(given) = &self.policy {
            options = options.policy(policy(given.bind(py))?);
        }
        Ok(options)
    }
}

/// Options by name, as `hps.open` has them.
pub fn runtime_options(given: &Bound<'_, PyDict>) -> PyResult<RuntimeOptions> {
    let py = given.py();
    let mut options = RuntimeOptions::new();
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        options = one_option(py, options, &name, &value)?;
    }
    Ok(options)
}

fn one_option(
    py: Python<'_>,
    options: RuntimeOptions,
    name: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<RuntimeOptions> {
    Ok(match name {
        "cache_bytes" => options.cache_bytes(value.extract()?),
        "shards" => options.shards(value.extract()?),
        "threads" => options.threads(value.extract()?),
        "io_depth" => options.io_depth(value.extract()?),
        "io" => options.io(named(py, name, &value.extract::<String>()?, &ENGINES)?),
        "policy" => options.policy(policy(value)?),
        "file_bytes" => options.file_bytes(value.extract()?),
        "flush_step_rows" => options.flush_step_rows(value.extract()?),
        "space_bound" => options.space_bound(value.extract()?),
        "compaction_threads" => options.compaction_threads(value.extract()?),
        "open_files_max" => options.open_files_max(value.extract()?),
        "disk_bytes_max" => options.disk_bytes_max(value.extract()?),
        "retain_checkpoints" => options.retain_checkpoints(value.extract()?),
        "inline" => options.inline(value.extract()?),
        "warm" => options.warm(value.extract()?),
        "non_finite" => {
            options.non_finite(named(py, name, &value.extract::<String>()?, &NON_FINITE)?)
        }
        "moved_directories" => options.moved_directories(value.extract::<Vec<PathBuf>>()?),
        other => return unknown(py, "option", other, "those of hps.open"),
    })
}

/// A column of a row beside its weights.
pub struct StateColumn {
    pub name: &'static str,
    begin: usize,
    width: usize,
    is_integer: bool,
}

impl StateColumn {
    /// The column of whole rows `[n, row_f32s]`: `[n, width]`, of one number a row `[n]`.
    pub fn of<'py>(&self, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = rows.py();
        let bound = |at: usize| isize::try_from(at).unwrap_or(isize::MAX);
        let all = PyEllipsis::get(py);
        let column = match self.width {
            1 => rows.get_item(PyTuple::new(
                py,
                [
                    all.as_any().clone(),
                    self.begin.into_pyobject(py)?.into_any(),
                ],
            )?)?,
            _ => {
                let slice = PySlice::new(py, bound(self.begin), bound(self.begin + self.width), 1);
                rows.get_item(PyTuple::new(py, [all.as_any().clone(), slice.into_any()])?)?
            }
        };
        match self.is_integer {
            false => Ok(column),
            true => {
                let whole = column.call_method0("copy")?;
                whole.call_method1("view", (dtype::<u32>(py),))
            }
        }
    }
}

/// The columns beside the weights, in their order.
pub fn state_columns(table: &TableDescriptor) -> Vec<StateColumn> {
    let dim = table.dim;
    let state: &[(&'static str, usize)] = match table.optimizer {
        Optimizer::Momentum | Optimizer::Nesterov => &[("v", dim)],
        Optimizer::Adagrad => &[("a", dim)],
        Optimizer::RowwiseAdagrad => &[("a", 1)],
        Optimizer::Adam => &[("m", dim), ("v", dim), ("t", 1)],
        Optimizer::Ftrl => &[("z", dim), ("n", dim)],
        _ => &[],
    };
    let RowMetadata {
        show,
        click,
        count,
        last_step,
        ..
    } = table.metadata;
    let metadata = [
        ("show", show),
        ("click", click),
        ("count", count),
        ("last_step", last_step),
    ];
    let metadata = metadata.iter().filter(|column| column.1);
    let named = state.iter().map(|(name, width)| (*name, *width, false));
    let named = named.chain(metadata.map(|(name, _)| (*name, 1, true)));
    let mut begin = dim;
    let column = |(name, width, is_integer)| {
        let column = StateColumn {
            name,
            begin,
            width,
            is_integer,
        };
        begin += width;
        column
    };
    named.map(column).collect()
}

/// A stored descriptor as `hps.Table` reads it back.
pub fn describe<'py>(py: Python<'py>, table: &TableDescriptor) -> PyResult<Bound<'py, PyDict>> {
    let (init, a, b) = match table.initialiser {
        Initialiser::Zero => ("zero", 0.0, 0.0),
        Initialiser::Constant { value } => ("constant", value, 0.0),
        Initialiser::Uniform { low, high } => ("uniform", low, high),
        Initialiser::Normal { mean, deviation } => ("normal", mean, deviation),
        _ => ("unknown", 0.0, 0.0),
    };
    let columns = state_columns(table);
    let metadata: Vec<_> = columns
        .iter()
        .filter(|c| c.is_integer)
        .map(|c| c.name)
        .collect();
    let dict = PyDict::new(py);
    dict.set_item("name", &table.name)?;
    dict.set_item("dim", table.dim)?;
    dict.set_item("dtype", table.dtype.name())?;
    dict.set_item("optimizer", name_of(table.optimizer, &OPTIMIZERS))?;
    dict.set_item("init", init)?;
    dict.set_item("init_a", a)?;
    dict.set_item("init_b", b)?;
    dict.set_item("seed", table.seed)?;
    dict.set_item("accumulator", table.accumulator)?;
    dict.set_item("metadata", metadata)?;
    dict.set_item("row_f32s", table.row_f32s())?;
    dict.set_item("row_bytes", table.row_bytes())?;
    Ok(dict)
}
