"""The DLRM of examples/train_criteo.py: as good as the same in memory, and it goes on where it
was."""

from __future__ import annotations

import gzip
import importlib.util
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="hps.torch needs torch")

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "train_criteo.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_criteo", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def clicks(example, tmp_path_factory):
    path = tmp_path_factory.mktemp("clicks") / "clicks.tsv.gz"
    example.write_planted(path, lines=4000)
    return path


def run(*arguments):
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def figures(done):
    assert done.returncode == 0, done.stdout
    found = re.search(r"AUC ([\d.]+), log loss ([\d.]+)", done.stdout)
    return float(found[1]), float(found[2])


def test_a_line_is_parsed(example):
    categories = [b"05db9164", b"", b"ffffffff", *[b"0000000a"] * 23]
    lines = [b"\t".join([b"1", b"", b"-1", b"3", *[b"0"] * 10, *categories]) + b"\n"] * 2
    batch = example.parse(lines)
    assert batch.labels.tolist() == [1, 1]
    np.testing.assert_allclose(batch.numbers[1, :3], [0, 0, np.log(4)], rtol=1e-6)
    keys = batch.keys[1].tolist()
    assert keys[:4] == [0x05DB9164, (1 << 33) + (1 << 32), (2 << 33) + 0xFFFFFFFF, (3 << 33) + 10]
    assert len(set(keys)) == 26


def test_auc_counts_pairs(example):
    chosen = np.random.default_rng(1)
    labels, scores = chosen.integers(0, 2, 80), chosen.integers(0, 10, 80)
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
    assert example.auc(labels, scores) == pytest.approx(np.mean(pairs))


def test_it_is_as_good_as_in_memory(clicks, tmp_path):
    shared = (clicks, "--store", tmp_path / "store", "--lr", "0.3", "--dense-lr", "0.01")
    shared += ("--batch", "32", "--dim", "8")
    found, expected = figures(run(*shared, "--cache", "4MiB")), figures(run(*shared, "--dense"))
    assert abs(found[0] - expected[0]) < 0.001 and abs(found[1] - expected[1]) < 0.001
    # It learns: log loss falls below that of the share of clicks alone.
    with gzip.open(clicks, "rt") as file:
        share = np.mean([line[0] == "1" for line in file])
    assert found[0] > 0.6
    assert found[1] < -(share * np.log(share) + (1 - share) * np.log(1 - share))
    again = run(*shared)
    assert again.returncode == 1 and "--resume" in again.stdout


def test_a_run_goes_on_with_the_same_figures(clicks, tmp_path):
    shared = ("--batch", "64", "--cache", "4MiB", "--checkpoint-every", "10")
    whole = run(clicks, "--store", tmp_path / "whole", *shared)
    figures(whole)
    figures(
        run(clicks, "--store", tmp_path / "parts", *shared, "--stop-after", "25", "--depth", "0")
    )
    rest = run(clicks, "--store", tmp_path / "parts", *shared, "--resume")
    figures(rest)
    assert "resumed at batch 25" in rest.stdout
    import hps
    import hps.torch

    states = []
    for name in ("whole", "parts"):
        with hps.open(tmp_path / name, read_only=True, cache="8MiB") as store:
            assert store.step == -(-4000 // 64)
            rows = [
                array for _, keys, rows, state in store.rows() for array in (keys, rows, state["a"])
            ]
            states.append((rows, hps.torch._saving.loads(store.last_checkpoint.meta)["model"]))
    for one, other in zip(*(rows for rows, _ in states)):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(*(models for _, models in states)):
        for name in one:
            assert not isinstance(one[name], torch.Tensor) or torch.equal(
                one[name], other[name]
            ), name


def test_without_clicks_it_plants_some(tmp_path):
    done = run("--store", tmp_path / "new" / "store", "--stop-after", "5")
    assert figures(done) and (tmp_path / "new" / "store.planted.tsv").exists()
    assert run("--dense", "--resume").returncode == 2
