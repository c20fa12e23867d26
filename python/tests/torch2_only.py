"""What only torch 2 has: torch.compile, distributed checkpoints, gradient scaling on the CPU. Run
by torch2.sh."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hps
import hps.torch


@pytest.fixture
def store(tmp_path):
    tables = [hps.Table("t", dim=4, optimizer=hps.AdaGrad()), hps.Table("u", dim=8)]
    opened = hps.open(tmp_path / "store", tables=tables, cache="8MiB")
    yield opened
    opened.close(discard=True)


class Model(torch.nn.Module):
    def __init__(self, store):
        super().__init__()
        torch.manual_seed(1)
        self.bag = hps.torch.EmbeddingBag(store, "t", "sum")
        self.bags = hps.torch.EmbeddingBagCollection(store, {"a": "t", "b": "u"})
        self.top = torch.nn.Linear(4 + 12, 1)

    def forward(self, keys, features):
        found = torch.cat([self.bag(keys), self.bags(features).values()], 1)
        return torch.sigmoid(self.top(found * 2)).mean()


def batch(step):
    keys = torch.from_numpy(np.random.default_rng(step).integers(-50, 50, (6, 3)))
    lengths = torch.tensor([1, 2, 0, 3, 0, 0])
    return keys, {"a": (keys[:, 0], lengths), "b": (keys[:, 1], lengths)}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_the_model(tmp_path, backend):
    losses = []
    for name in ("plain", "compiled"):
        tables = [hps.Table("t", dim=4), hps.Table("u", dim=8)]
        with hps.open(tmp_path / name, tables=tables, cache="8MiB") as store:
            model = Model(store)
            called = torch.compile(model, backend=backend) if name == "compiled" else model
            optimizers = [
                hps.torch.Optimizer(called, 0.5),
                torch.optim.SGD(model.parameters(), 0.5),
            ]
            losses.append([])
            for step in range(5):
                loss = called(*batch(step))
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                losses[-1].append(loss.item())
            assert store.has_changes and store.stats().leases == 0
            store.close(discard=True)
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_distributed_checkpoint_names_the_stores(store, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.stateful import Stateful

    model, state = Model(store), hps.torch.StoreState(store)
    assert isinstance(state, Stateful)
    model(*batch(0)).backward()
    hps.torch.Optimizer(model, 0.1).step()
    with pytest.raises(hps.Uncheckpointed):
        dcp.save({"store": state}, checkpoint_id=tmp_path / "refused")
    store.checkpoint(7)
    dcp.save({"top": model.top.state_dict(), "store": state}, checkpoint_id=tmp_path / "file")
    expected = model.top.weight.detach().clone()
    torch.nn.init.zeros_(model.top.weight)
    dcp.load({"top": model.top.state_dict(), "store": state}, checkpoint_id=tmp_path / "file")
    assert torch.equal(model.top.weight, expected)
    model(*batch(1)).backward()
    hps.torch.Optimizer(model, 0.1).step()
    store.checkpoint(8)
    with pytest.raises(Exception, match="the store is at"):
        dcp.load({"store": state}, checkpoint_id=tmp_path / "file")
    back = hps.torch.StoreState(store, rollback=True)
    dcp.load({"store": back}, checkpoint_id=tmp_path / "file")
    assert store.step == 7


def test_scaled_gradients_are_unscaled_and_infinite_ones_skipped(store):
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, 1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(bag(torch.tensor([[1, 2]])).sum()).backward()
    scaler.unscale_(optimizer)
    assert torch.equal(bag.pending_parameters()[0].grad, torch.ones(2, 4))
    scaler.step(optimizer)
    scaler.update()
    assert store.has_changes
    store.checkpoint(1)
    optimizer.zero_grad()
    scaler.scale(bag(torch.tensor([[1, 2]])).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert not store.has_changes and store.stats().leases == 0


def test_unsigned_tensors_are_keys(store):
    bag = hps.torch.EmbeddingBag(store, "t", None).eval()
    signed, unsigned = torch.tensor([-1, 5]), torch.tensor([-1, 5]).view(torch.uint64)
    assert torch.equal(bag(signed), bag(unsigned))
