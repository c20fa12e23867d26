"""What a hostile reading of hps.torch found."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="hps.torch needs torch")

import hps
import hps.torch

TABLE = hps.Table("t", dim=2, optimizer=hps.SGD(lr=1.0), init=hps.Zero())


@pytest.fixture
def store(tmp_path):
    opened = hps.open(tmp_path / "store", [TABLE], cache="8MiB")
    yield opened
    opened.close(discard=True)


def rows(store, keys):
    with store.pull("t", np.array(keys)) as lease:
        return lease.rows[:, 0].tolist()


def test_a_backward_that_comes_after_a_step_is_pushed_by_the_next(store):
    """Its rows were forgotten by the first step, and its gradients lost."""
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, lr=1.0)
    first, second = bag(torch.tensor([[1]])), bag(torch.tensor([[2]]))
    first.sum().backward()
    optimizer.step()
    assert store.stats().leases == 0
    second.sum().backward()
    optimizer.step()
    assert rows(store, [1, 2]) == [-1.0, -1.0]


def test_each_feature_has_as_many_weights_as_keys(store):
    """A surplus of one feature was taken for the next one."""
    bags = hps.torch.EmbeddingBagCollection(store, {"a": "t", "b": "t"}, is_weighted=True)
    keys, lengths = torch.tensor([1, 2]), torch.tensor([2])
    with pytest.raises(hps.InvalidArgument, match="'a' has weights of shape \\(3,\\) for 2 keys"):
        bags({"a": (keys, lengths, torch.ones(3)), "b": (keys, lengths, torch.ones(1))})
    assert store.stats().leases == 0


def test_a_cut_is_of_one_store(store, tmp_path):
    """Modules of another store were saved as if they were part of the cut."""
    with hps.open(tmp_path / "other", [TABLE], cache="8MiB") as other:
        bags = [hps.torch.EmbeddingBag(of, "t", "sum") for of in (store, other)]
        other.push("t", np.array([1]), np.ones((1, 2), np.float32))
        with pytest.raises(hps.Uncheckpointed):
            hps.torch.save(store, 1, bags)
        other.checkpoint(1)
        hps.torch.save(store, 1, bags)
        hps.torch.load(store, bags)
        other.push("t", np.array([1]), np.ones((1, 2), np.float32))
        with pytest.raises(hps.Uncheckpointed):
            hps.torch.load(store, bags)
        other.close(discard=True)


@pytest.mark.parametrize("meta", [b"", b"x", b"anything of yours", bytes(1000)])
def test_a_meta_of_somebody_else_is_told(store, meta):
    store.checkpoint(1, meta=meta)
    with pytest.raises(hps.InvalidArgument, match="the meta of checkpoint 1"):
        hps.torch.load(store, [])
