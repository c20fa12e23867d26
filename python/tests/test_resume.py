"""A killed run goes on and ends with the rows of one that was not, and of the same run in Rust."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

import hps

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "resume.py"
STEPS = 200


def run(directory):
    command = [sys.executable, str(EXAMPLE), str(directory), str(STEPS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def dump(directory):
    """All rows of the last checkpoint: keys, then weights and state, as the twin writes them."""
    with hps.open(directory, read_only=True, cache="8MiB") as store:
        assert store.step == STEPS
        parts = []
        for _, keys, weights, state in store.rows():
            values = np.concatenate([weights, state["a"]], axis=1)
            record = np.zeros(len(keys), dtype=[("key", "<u8"), ("values", "<f4", values.shape[1])])
            record["key"], record["values"] = keys, values
            parts.append(record.tobytes())
        return b"".join(parts)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "store"
    process = run(directory)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and out.startswith("begins at step 0")
    return dump(directory)


def test_a_killed_run_ends_with_the_same_bits(tmp_path, whole):
    seed = int(os.environ.get("HPS_SEED", "1"))
    print(f"seed {seed} (HPS_SEED)")
    chosen = random.Random(seed)
    kills = 0
    while True:
        process = run(tmp_path / "store")
        process.stdout.readline()
        lines = chosen.randrange(0, 4)
        for _ in range(lines):
            process.stdout.readline()
        if kills < 4 and process.poll() is None:
            process.kill()
            kills += 1
            process.communicate()
            continue
        process.communicate(timeout=300)
        assert process.returncode == 0
        break
    assert kills > 0
    assert dump(tmp_path / "store") == whole


def test_it_is_what_the_same_run_leaves_in_rust(tmp_path, whole):
    twin = os.environ.get("HPS_TWIN")
    if not twin:
        pytest.skip("HPS_TWIN does not name the program of tests/twin.rs; tools/python.sh builds it")
    out = tmp_path / "dump"
    subprocess.run([twin, str(tmp_path / "store"), str(STEPS), str(out)], check=True)
    found = out.read_bytes()
    assert len(found) > 200_000 * (8 + 2 * 16 * 4) * 0.9
    assert found == whole


def test_the_quickstart_runs_twice(tmp_path):
    quickstart = EXAMPLE.parent / "quickstart.py"
    for first in (50, 150):
        out = subprocess.run(
            [sys.executable, str(quickstart)], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        assert out.startswith(f"step {first}: mean error"), out
