"""Fixtures of all tests."""

from __future__ import annotations

import numpy as np
import pytest

import hps


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(directory):
    """A store with the table "t": 4 weights, AdaGrad, initial rows from seed 7."""
    opened = hps.open(directory, [hps.Table("t", dim=4, seed=7)], cache="16MiB")
    yield opened
    opened.close(discard=True)


@pytest.fixture
def keys():
    return np.arange(10, dtype=np.uint64)
