//! How does an object of Python become a slice, and where do the rows of a lease lie?
//!
//! - Keys, gradients and rows are read where they are: NumPy's arrays, or anything that has
//!   `__dlpack__` and lies in the memory of the CPU.
//! - What has another type, shape or layout is refused with what came and what is needed; nothing is
//!   converted silently.
//! - A buffer goes back to its pool only if nobody else refers to it: an array that the caller kept is
//!   never written to again.

use std::sync::Mutex;

use numpy::{
    Element, PyArray1, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyReadwriteArrayDyn, PyUntypedArray, PyUntypedArrayMethods, dtype,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

use crate::errors::refuse;
use crate::wait::lock;

/// DLPack's number of the CPU, and of its memory that is pinned for CUDA.
const DEVICES_READABLE: [i64; 2] = [1, 3];

/// Keys of a batch, read in place.
pub struct Keys<'py>(PyReadonlyArrayDyn<'py, u64>);

/// Values of a batch, read in place.
pub struct Values<'py>(PyReadonlyArrayDyn<'py, f32>);

/// Numbers that may be left out, read in place.
pub struct Numbers<'py>(PyReadonlyArrayDyn<'py, u32>);

/// An array of the caller that rows are copied to.
pub struct Out<'py>(PyReadwriteArrayDyn<'py, f32>);

fn mismatch(py: Python<'_>, message: &str) -> PyErr {
    refuse(py, "ArrayMismatch", message)
}

fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.unbind()))?;
    Ok(module.bind(py))
}

/// The array itself, or a view of what it has behind `__dlpack__`.
fn as_array<'py>(object: &Bound<'py, PyAny>, what: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let py = object.py();
    if !object.hasattr("__dlpack__")? {
        let kind = object.get_type().name()?;
        let message = format!(
            "{what}: a {kind} came, an array is needed (NumPy's, or one with __dlpack__ such as \
             torch's and pyarrow's)"
        );
        return Err(mismatch(py, &message));
    }
    let (device, number): (i64, i64) = object.call_method0("__dlpack_device__")?.extract()?;
    if !DEVICES_READABLE.contains(&device) {
        let message = format!(
            "{what}: it lies on device {number} of DLPack's type {device}, memory of the CPU is \
             needed; use .cpu()"
        );
        return Err(mismatch(py, &message));
    }
    let array = match numpy(py)?.call_method1("from_dlpack", (object,)) {
        Ok(array) => array,
        Err(error) => {
            let message = format!("{what}: __dlpack__ refused: {}", error.value(py));
            let refused = mismatch(py, &message);
            refused.set_cause(py, Some(error));
            return Err(refused);
        }
    };
    Ok(array.cast_into::<PyUntypedArray>()?)
}

fn shape_of(shape: &[usize]) -> String {
    let lengths: Vec<String> = shape.iter().map(usize::to_string).collect();
    match &lengths[..] {
        [one] => format!("({one},)"),
        several => format!("({})", several.join(", ")),
    }
}

/// Checks layout and type; the array as one of `T`.
fn typed<'py, T: Element>(
    array: &Bound<'py, PyUntypedArray>,
    what: &str,
    needed: &str,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let py = array.py();
    let found = array.dtype();
    if !found.is_equiv_to(&dtype::<T>(py)) {
        let message = format!("{what}: dtype {found} came, {needed} is needed; use .astype");
        return Err(mismatch(py, &message));
    }
    if !array.is_c_contiguous() {
        let message = format!(
            "{what}: strides {:?} of shape {} came, C order without gaps is needed; use \
             numpy.ascontiguousarray",
            array.strides(),
            shape_of(array.shape())
        );
        return Err(mismatch(py, &message));
    }
    Ok(array.cast::<PyArrayDyn<T>>()?.clone())
}

fn check_shape(py: Python<'_>, what: &str, found: &[usize], needed: &[usize]) -> PyResult<()> {
    if found == needed {
        return Ok(());
    }
    let message = format!(
        "{what}: shape {} came, {} is needed",
        shape_of(found),
        shape_of(needed)
    );
    Err(mismatch(py, &message))
}

fn readonly<'py, T: Element>(
    array: Bound<'py, PyArrayDyn<T>>,
    what: &str,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    let py = array.py();
    let busy = |_| {
        mismatch(
            py,
            &format!("{what}: another call is writing to this array"),
        )
    };
    let array = array.try_into_readonly().map_err(busy)?;
    match array.as_slice() {
        Ok(_) => Ok(array),
        Err(_) => Err(not_aligned(py, what)),
    }
}

/// What is left once type and order are right: an array that begins in the middle of a number.
fn not_aligned(py: Python<'_>, what: &str) -> PyErr {
    let message = format!(
        "{what}: an array that is not aligned came; use numpy.require(array, requirements='A')"
    );
    mismatch(py, &message)
}

fn slice<'a, T: Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> &'a [T] {
    // That it is one was checked when it was made (`readonly`).
    array.as_slice().unwrap_or(&[])
}

impl<'py> Keys<'py> {
    /// Takes keys: 1-D, int64 or uint64.
    pub fn of(object: &Bound<'py, PyAny>, what: &str) -> PyResult<Keys<'py>> {
        let py = object.py();
        let mut array = as_array(object, what)?;
        if array.ndim() != 1 {
            let shape = shape_of(array.shape());
            let message =
                format!("{what}: shape {shape} came, one dimension is needed; use .ravel()");
            return Err(mismatch(py, &message));
        }
        if array.dtype().is_equiv_to(&dtype::<i64>(py)) {
            // The same 64 bits.
            let view = array.call_method1("view", (dtype::<u64>(py),))?;
            array = view.cast_into::<PyUntypedArray>()?;
        }
        let array = typed::<u64>(&array, what, "int64 or uint64")?;
        Ok(Keys(readonly(array, what)?))
    }

    pub fn as_slice(&self) -> &[u64] {
        slice(&self.0)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'py> Values<'py> {
    /// Takes float32 values of this shape.
    pub fn of(object: &Bound<'py, PyAny>, what: &str, shape: &[usize]) -> PyResult<Values<'py>> {
        let array = as_array(object, what)?;
        check_shape(object.py(), what, array.shape(), shape)?;
        let array = typed::<f32>(&array, what, "float32")?;
        Ok(Values(readonly(array, what)?))
    }

    pub fn as_slice(&self) -> &[f32] {
        slice(&self.0)
    }
}

impl<'py> Numbers<'py> {
    /// Takes uint32 numbers: `[count]`, or any count.
    pub fn of(
        object: &Bound<'py, PyAny>,
        what: &str,
        count: Option<usize>,
    ) -> PyResult<Numbers<'py>> {
        let py = object.py();
        let array = as_array(object, what)?;
        let needed = [count.unwrap_or_else(|| array.len())];
        check_shape(py, what, array.shape(), &needed)?;
        let array = typed::<u32>(&array, what, "uint32")?;
        Ok(Numbers(readonly(array, what)?))
    }

    pub fn as_slice(&self) -> &[u32] {
        slice(&self.0)
    }
}

impl<'py> Out<'py> {
    /// Takes an array to write to: float32, of this shape.
    pub fn of(object: &Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Out<'py>> {
        let py = object.py();
        let array = as_array(object, "out")?;
        check_shape(py, "out", array.shape(), shape)?;
        let array = typed::<f32>(&array, "out", "float32")?;
        let refused = |error: numpy::BorrowError| mismatch(py, &format!("out: {error}"));
        let mut array = array.try_into_readwrite().map_err(refused)?;
        match array.as_slice_mut() {
            Ok(_) => Ok(Out(array)),
            Err(_) => Err(not_aligned(py, "out")),
        }
    }

    pub fn as_slice(&mut self) -> &mut [f32] {
        self.0.as_slice_mut().unwrap_or(&mut [])
    }
}

/// Buffers of leases that were released.
#[derive(Default)]
pub struct Pool(Mutex<Vec<Py<PyArray1<f32>>>>);

/// Buffers that are kept.
const BUFFERS_MAX: usize = 16;

impl Pool {
    /// A buffer of at least this length.
    pub fn take<'py>(&self, py: Python<'py>, length: usize) -> Bound<'py, PyArray1<f32>> {
        let fits = |buffer: &Py<PyArray1<f32>>| {
            let found = buffer.bind(py).len();
            (length..=2 * length + 1024).contains(&found)
        };
        let mut free = lock(&self.0);
        if let Some(at) = free.iter().position(fits) {
            return free.swap_remove(at).into_bound(py);
        }
        drop(free);
        // A few sizes serve batches that differ little. The pages come when they are touched.
        let step = (length / 8).next_power_of_two().max(64);
        PyArray1::zeros(py, length.div_ceil(step) * step, false)
    }

    /// Takes a buffer back, unless somebody else has it, too.
    pub fn put(&self, py: Python<'_>, buffer: Py<PyArray1<f32>>) {
        #[expect(deprecated, reason = "its successor is unsafe; both read one number")]
        let owners = buffer.bind(py).get_refcnt();
        if owners != 1 {
            return;
        }
        let mut free = lock(&self.0);
        let oldest = (free.len() >= BUFFERS_MAX).then(|| free.remove(0));
        free.push(buffer);
        drop(free);
        drop(oldest);
    }
}
