"""Arrays in and out: what is read in place, and what is refused with which words."""

from __future__ import annotations

import numpy as np
import pytest

import hps


class OnADevice:
    """What an array on a GPU looks like to whoever asks."""

    def __dlpack__(self, *_, **__):
        raise AssertionError("not to be asked for")

    def __dlpack_device__(self):
        return (2, 3)


class Foreign:
    """An array of another library, in the memory of the CPU."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, *args, **kwargs):
        return self.array.__dlpack__(*args, **kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Refusing(Foreign):
    def __dlpack__(self, *_, **__):
        raise RuntimeError("it needs gradients")


def test_int64_and_uint64_are_the_same_64_bits(store):
    signed = np.array([-1, -(2**63), 5], np.int64)
    store.push("t", signed, np.ones((3, 4), np.float32))
    assert store.contains("t", np.array([2**64 - 1, 2**63, 5], np.uint64)).all()


def test_anything_with_dlpack_is_read_in_place(store, keys):
    ones = np.ones((10, 4), np.float32)
    with store.pull("t", Foreign(keys)) as lease:
        lease.push(Foreign(ones), kind="weights")
        assert (lease.read() == 1.0).all()
    with store.pull("t", Foreign(keys.astype(np.int64))) as lease:
        assert (lease.rows == 1.0).all()


@pytest.mark.parametrize(
    "keys, words",
    [
        (np.arange(3, dtype=np.int32), "keys: dtype int32 came, int64 or uint64 is needed"),
        (np.arange(3, dtype=np.float64), "dtype float64 came"),
        (np.arange(3, dtype=">i8"), "dtype >i8 came"),
        (np.arange(6, dtype=np.int64)[::2], r"strides \[16\] of shape \(3,\) came"),
        (np.arange(6, dtype=np.int64).reshape(2, 3), r"shape \(2, 3\) came, one dimension is needed"),
        (np.int64(5), "keys: a int64 came, an array is needed"),
        ([1, 2, 3], "keys: a list came, an array is needed"),
        (None, "keys: a NoneType came"),
        (OnADevice(), "device 3 of DLPack's type 2, memory of the CPU is needed"),
        (Refusing(np.arange(3)), "__dlpack__ refused: it needs gradients"),
    ],
)
def test_keys_of_another_kind_are_refused(store, keys, words):
    for call in (store.pull, store.prefetch, store.contains, store.remove):
        with pytest.raises(hps.ArrayMismatch, match=words):
            call("t", keys)
    with pytest.raises(hps.ArrayMismatch, match=words):
        store.unique(keys)
    assert store.stats().leases == 0


@pytest.mark.parametrize(
    "values, words",
    [
        (np.ones((10, 4)), "gradients: dtype float64 came, float32 is needed"),
        (np.ones((10, 3), np.float32), r"gradients: shape \(10, 3\) came, \(10, 4\) is needed"),
        (np.ones(40, np.float32), r"shape \(40,\) came, \(10, 4\)"),
        (np.ones((10, 8), np.float32)[:, ::2], r"strides \[32, 8\]"),
        (np.ones((4, 10), np.float32).T, "C order"),
        ([[1.0] * 4] * 10, "a list came"),
        (OnADevice(), "use .cpu()"),
    ],
)
def test_values_of_another_kind_are_refused(store, keys, values, words):
    with store.pull("t", keys) as lease:
        before = lease.read()
        with pytest.raises(hps.ArrayMismatch, match=words):
            lease.push(values)
        assert (lease.read() == before).all()


def test_an_out_that_cannot_be_written_is_refused(store, keys):
    for out, words in (
        (np.zeros((10, 5), np.float32), r"out: shape \(10, 5\) came, \(10, 4\)"),
        (np.zeros((10, 4)), "dtype float64"),
        (np.zeros((10, 8), np.float32)[:, :4], "strides"),
    ):
        with pytest.raises(hps.ArrayMismatch, match=words):
            store.pull("t", keys, out=out)
    fixed = np.zeros((10, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(hps.ArrayMismatch, match="out: .*writ"):
        store.pull("t", keys, out=fixed)
    assert store.stats().leases == 0


def test_positions_and_counts_are_checked(store, keys):
    ones = np.ones((2, 4), np.float32)
    with store.pull("t", keys) as lease:
        with pytest.raises(hps.InvalidArgument) as refused:
            lease.push(ones, at=np.array([1, 10], np.uint32))
        assert (refused.value.kind, refused.value.position) == ("Position", 10)
        with pytest.raises(hps.ArrayMismatch, match="at: dtype int64"):
            lease.push(ones, at=np.array([1, 2]))
        with pytest.raises(hps.ArrayMismatch, match=r"clicks: shape \(3,\) came, \(2,\)"):
            counts = np.ones(2, np.uint32)
            lease.push(ones, at=counts, shows=counts, clicks=np.ones(3, np.uint32))
        with pytest.raises(hps.InvalidArgument, match="both are needed"):
            lease.push(np.ones((10, 4), np.float32), shows=np.ones(10, np.uint32))


def test_an_empty_batch_is_served(store):
    none = np.zeros(0, np.uint64)
    with store.pull("t", none) as lease:
        assert lease.rows.shape == (0, 4)
        assert lease.push(np.zeros((0, 4), np.float32)).rows == 0
    assert store.contains("t", none).shape == (0,)


def test_arrays_that_are_not_aligned_are_refused(store, keys):
    """They counted as empty: a put stored nothing, and said so only by 0 rows."""

    def unaligned(array):
        buffer = bytearray(array.nbytes + 1)
        found = np.frombuffer(buffer, array.dtype, offset=1).reshape(array.shape)
        found[:] = array
        assert not found.flags.aligned
        return found

    ones = np.ones((10, 4), np.float32)
    for call in (
        lambda: store.put("t", unaligned(keys), ones),
        lambda: store.put("t", keys, unaligned(ones)),
        lambda: store.push("t", keys, unaligned(ones)),
        lambda: store.contains("t", unaligned(keys)),
        lambda: store.remove("t", unaligned(keys)),
        lambda: store.unique(unaligned(keys)),
        lambda: store.pull("t", unaligned(keys)),
        lambda: store.pull("t", keys, out=unaligned(ones)),
    ):
        with pytest.raises(hps.ArrayMismatch, match="not aligned"):
            call()
    assert store.stats().leases == 0 and not store.has_changes
