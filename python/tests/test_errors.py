"""Every error is a class with fields, tells the way out, and goes through pickle."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import hps


def raised(call):
    with pytest.raises(hps.Error) as caught:
        call()
    error = caught.value
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
    return error


def test_opening_what_is_not_there_or_not_a_store(tmp_path):
    error = raised(lambda: hps.open(tmp_path / "none"))
    assert isinstance(error, hps.InvalidArgument) and error.kind == "NotAStore"
    assert error.path.endswith("none")
    (tmp_path / "file").write_text("x")
    error = raised(lambda: hps.open(tmp_path / "file", [hps.Table("t", dim=1)]))
    assert isinstance(error, (hps.InvalidArgument, hps.Io))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("x")
    error = raised(lambda: hps.open(tmp_path / "full", [hps.Table("t", dim=1)]))
    assert "full" in str(error)


def test_a_second_writer_is_locked_out(store, directory):
    error = raised(lambda: hps.open(directory, cache="16MiB"))
    assert isinstance(error, hps.Locked) and error.holder == "writer"


def test_a_changed_table_is_refused(store, directory):
    store.checkpoint(1)
    store.close()
    for table, field in (
        (hps.Table("t", dim=5, seed=7), "dim"),
        (hps.Table("t", dim=4, seed=8), "seed"),
        (hps.Table("t", dim=4, seed=7, optimizer=hps.SGD()), "optimizer"),
        (hps.Table("t", dim=4, seed=7, init=hps.Zero()), "initialiser"),
        (hps.Table("t", dim=4, seed=7, metadata=("show",)), "metadata"),
        (hps.Table("t", dim=4, seed=7, optimizer=hps.AdaGrad(initial_accumulator=1)), "accumulator"),
    ):
        error = raised(lambda: hps.open(directory, [table], cache="16MiB"))
        assert (error.kind, error.name) == ("DescriptorChanged", "t")
        assert field[:5] in error.field, (field, error.field)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"cache": "8 parsecs"}, "cache: '8 parsecs' came"),
        ({"cache": 5}, "cache_bytes = 5"),
        ({"cache": "16MiB", "shards": 0}, "shards = 0"),
        ({"cache": "16MiB", "policy": "mru"}, "policy .*bilevel, lru, fifo, pin_all"),
        ({"cache": "16MiB", "io": "spdk"}, "uring, pread"),
        ({"cache": "16MiB", "non_finite": "drop"}, "skip, reject, apply"),
        ({"cache": "16MiB", "space_bound": 1.0}, "space_bound"),
        ({"cache": "16MiB", "checkpoint": 3}, "read_only=True"),
        ({"cache": "16MiB", "tables": ["t"]}, "hps.Table is needed"),
    ],
)
def test_options_out_of_range_are_named(tmp_path, options, words):
    tables = options.pop("tables", [hps.Table("t", dim=1)])
    with pytest.raises(hps.InvalidArgument, match=words):
        hps.open(tmp_path / "s", tables, **options)
    assert not (tmp_path / "s").exists() or not any((tmp_path / "s").iterdir())


def test_unknown_options_are_type_errors(tmp_path):
    with pytest.raises(TypeError, match="cache_bytes"):
        hps.open(tmp_path / "s", [hps.Table("t", dim=1)], cache_bytes=1 << 20)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"dim": 0}, "dim: 0 came, 1 to 8192"),
        ({"dim": 9000}, "dim"),
        ({"dim": "4"}, "dim: '4'"),
        ({"dim": 4, "optimizer": "adam"}, "hps.SGD, hps.AdaGrad"),
        ({"dim": 4, "init": 0.5}, "hps.Zero, hps.Uniform"),
        ({"dim": 4, "seed": -1}, "seed: -1"),
    ],
)
def test_tables_that_can_not_be_are_refused(arguments, words):
    with pytest.raises(hps.InvalidArgument, match=words):
        hps.Table("t", **arguments)


def test_other_tables_are_refused_by_the_store(tmp_path):
    for table, words in (
        (hps.Table("t", dim=1, dtype="f64"), "f32, f16, bf16"),
        (hps.Table("t", dim=1, metadata=("age",)), "show, click, count, last_step"),
        (hps.Table("t", dim=1, init=hps.Uniform(1.0, -1.0)), "initialiser"),
        (hps.Table("", dim=1), "name"),
    ):
        with pytest.raises(hps.InvalidArgument, match=words):
            hps.open(tmp_path / "s", [table], cache="16MiB")
    with pytest.raises(hps.UnsupportedTable) as refused:
        hps.open(tmp_path / "s", [hps.Table("t", dim=1, dtype="f16")], cache="16MiB")
    assert (refused.value.table, refused.value.dtype) == ("t", "f16")


def test_values_that_are_not_finite_are_skipped_or_refused(tmp_path):
    bad = np.array([[np.nan], [1.0]], np.float32)
    keys = np.array([4, 5], np.uint64)
    with hps.open(tmp_path / "a", [hps.Table("t", dim=1)], cache="16MiB") as store:
        report = store.push("t", keys, bad)
        assert (report.rows, report.non_finite) == (1, 1)
        store.close(discard=True)
    with hps.open(tmp_path / "b", [hps.Table("t", dim=1)], cache="16MiB", non_finite="reject") as store:
        error = raised(lambda: store.push("t", keys, bad))
        assert (error.kind, error.table, error.key, error.index) == ("NonFinite", "t", 4, 0)


def test_steps_rise(store, keys):
    store.checkpoint(5)
    error = raised(lambda: store.checkpoint(5))
    assert (error.kind, error.step, error.last) == ("StepNotRising", 5, 5)
    for meta, kind in ((7, "int"), (object(), "object"), ("text", "str")):
        with pytest.raises((hps.InvalidArgument, TypeError)):
            store.checkpoint(6, meta=meta)
    assert store.step == 5


def test_damage_is_named(directory):
    with hps.open(directory, [hps.Table("t", dim=64)], cache="16MiB") as store:
        store.put("t", np.arange(5000, dtype=np.uint64), np.ones((5000, 64), np.float32))
        store.checkpoint(1)
    for path in sorted(directory.glob("part-0/*.rows")):
        with open(path, "r+b") as file:
            file.seek(20_000)
            file.write(b"\xff" * 5000)
    with hps.open(directory, cache="16MiB") as store:
        error = raised(lambda: [store.pull("t", np.arange(at, at + 100)).release() for at in range(0, 5000, 100)])
        assert isinstance(error, hps.Corrupt)
        assert error.path.endswith(".rows") and error.offset > 0 and "checksum" in error.what


def test_a_missing_data_directory_is_told(tmp_path):
    parts = [tmp_path / "ssd-0", tmp_path / "ssd-1"]
    with hps.open(tmp_path / "s", [hps.Table("t", dim=1)], cache="16MiB", data_directories=parts) as store:
        store.put("t", np.arange(100, dtype=np.uint64), np.ones((100, 1), np.float32))
        store.checkpoint(1)
    os.rename(parts[1], tmp_path / "elsewhere")
    error = raised(lambda: hps.open(tmp_path / "s", cache="16MiB"))
    assert isinstance(error, hps.MissingDirectory) and (error.index, error.empty) == (1, False)
    moved = [parts[0], tmp_path / "elsewhere"]
    with hps.open(tmp_path / "s", cache="16MiB", moved_directories=moved) as store:
        assert store.contains("t", np.arange(100)).all()


def test_no_space_says_how_much(tmp_path):
    with hps.open(tmp_path / "s", [hps.Table("t", dim=256)], cache="4MiB", disk_bytes_max="8MiB") as store:
        error = raised(lambda: store.put("t", np.arange(50_000, dtype=np.uint64), np.ones((50_000, 256), np.float32)))
        assert isinstance(error, hps.NoSpace) and error.limit_bytes <= 8 << 20
        store.close(discard=True)


def test_io_errors_keep_their_number(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("x")
    error = raised(lambda: hps.open(blocked / "s", cache="16MiB"))
    assert isinstance(error, (hps.Io, hps.InvalidArgument))
    if isinstance(error, hps.Io):
        assert error.errno == errno.ENOTDIR


def test_sizes_are_read_as_people_write_them():
    parse = hps._tables.parse_bytes
    for text, size in (("8GiB", 8 << 30), ("1.5 MiB", 3 << 19), ("100MB", 10**8), ("64k", 65536), ("7", 7), (9, 9)):
        assert parse(text) == size
    for wrong in ("", "GiB", "1 2", "-5", None, 1.5, True):
        with pytest.raises(hps.InvalidArgument):
            parse(wrong)


def test_torch_is_not_imported_by_the_package():
    code = "import sys, hps; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hps.nothing
