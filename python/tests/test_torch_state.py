"""Checkpoints of a model and a store: one cut, whatever is killed when, and no file that lies."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="hps.torch needs torch")

import hps
import hps.torch

TABLES = [hps.Table("t", dim=4, optimizer=hps.Adam(), init=hps.Normal(0, 0.1))]
KEYS = np.arange(50)
# A run as users write it. It prints the step that it begins at, then a line for each checkpoint.
TRAINING = """
import sys
import numpy as np, torch, hps, hps.torch

torch.set_num_threads(1)
directory, steps = sys.argv[1], int(sys.argv[2])
table = hps.Table("t", dim=4, optimizer=hps.Adam(), init=hps.Normal(0, 0.1))
with hps.open(directory, tables=[table], cache="8MiB") as store:
    torch.manual_seed(1)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    parts = {"bag": bag, "drop": torch.nn.Dropout(0.3), "top": torch.nn.Linear(4, 1)}
    model = torch.nn.ModuleDict(parts)
    dense = torch.optim.Adam(model.parameters(), lr=0.01)
    sparse = hps.torch.Optimizer(model, lr=0.01)
    schedulers = [torch.optim.lr_scheduler.MultiStepLR(o, [9, 20]) for o in (dense, sparse)]
    optimizers = [dense, sparse, *schedulers]
    begin = hps.torch.load(store, model, optimizers) if store.last_checkpoint else 0
    print("begins at", begin, flush=True)
    for step in range(begin + 1, steps + 1):
        keys = torch.from_numpy(np.random.default_rng(step).integers(0, 3000, (64, 4)))
        out = model["top"](model["drop"](bag(keys)))
        loss = ((out - (keys % 5).sum(1, keepdim=True)) ** 2).mean()
        for optimizer in (dense, sparse):
            optimizer.zero_grad()
        loss.backward()
        for stepped in optimizers:
            stepped.step()
        if step % 5 == 0:
            hps.torch.save(store, step, model, optimizers)
            print("step", step, flush=True)
    store.close(discard=True)
"""


def dump(directory):
    """All rows, optimizer state and dense state of the last checkpoint."""
    with hps.open(directory, read_only=True, cache="8MiB") as store:
        parts = [(keys, weights, *state.values()) for _, keys, weights, state in store.rows()]
        model = torch.nn.ModuleDict(
            {
                "bag": hps.torch.EmbeddingBag(store, "t"),
                "drop": torch.nn.Dropout(),
                "top": torch.nn.Linear(4, 1),
            }
        )
        before = torch.get_rng_state()
        step = hps.torch.load(store, model)
        numbers = torch.get_rng_state().numpy().copy()
        torch.set_rng_state(before)
        dense = [value.detach().numpy() for value in model.parameters()]
        return [np.array([step]), numbers, *dense, *(array for part in parts for array in part)]


def started(script, *arguments):
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    seed = int(os.environ.get("HPS_SEED", "1"))
    print(f"seed {seed} (HPS_SEED)")
    chosen = random.Random(seed)
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    whole = started(script, tmp_path / "whole", 30)
    assert whole.communicate(timeout=300)[0].startswith("begins at 0") and whole.returncode == 0
    # Checkpoints that a run may make before it is killed; at least one run makes one, and is resumed.
    checkpoints = [chosen.randrange(1, 3), chosen.randrange(0, 3), chosen.randrange(0, 3)]
    chosen.shuffle(checkpoints)
    begins = []
    for awaited in (*checkpoints, None):
        process = started(script, tmp_path / "killed", 30)
        begins.append(int(process.stdout.readline().split()[-1]))
        if awaited is not None:
            for _ in range(awaited):
                process.stdout.readline()
            process.kill()
        process.communicate(timeout=300)
    assert process.returncode == 0 and begins[0] == 0 and max(begins) > 0
    expected, found = dump(tmp_path / "whole"), dump(tmp_path / "killed")
    assert len(expected) == len(found) > 6
    for one, other in zip(expected, found):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def store(tmp_path):
    opened = hps.open(tmp_path / "store", tables=TABLES, cache="8MiB", retain_checkpoints=2)
    yield opened
    opened.close(discard=True)


def train(store, bag=None):
    bag = bag or hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, 0.1)
    bag(torch.from_numpy(KEYS)[None]).sum().backward()
    optimizer.step()


def rows_of(store):
    with store.pull("t", KEYS) as lease:
        return lease.rows.copy()


def test_save_and_load_are_one_cut(store):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    adam = torch.optim.Adam(model.parameters(), lr=np.float64(0.1))
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    with pytest.raises(hps.InvalidArgument, match="no checkpoint"):
        hps.torch.load(store, model)
    train(store, bag)
    (model(torch.rand(4, 3)) * torch.rand(4, 2)).sum().backward()
    adam.step()
    made = hps.torch.save(store, 3, [model, bag], adam)
    assert made.step == 3 and store.step == 3
    expected_rows, expected = rows_of(store), {k: v.clone() for k, v in model.state_dict().items()}
    next_random = (torch.rand(1), np.random.random(), random.random())

    train(store, bag)
    (model(torch.rand(4, 3)) * torch.rand(4, 2)).sum().backward()
    adam.step()
    pending = bag(torch.tensor([[1]]))
    assert store.stats().leases == 1
    with pytest.raises(hps.Uncheckpointed, match="rollback=True") as refused:
        hps.torch.load(store, [model, bag], adam)
    assert refused.value.rows == len(KEYS)
    loader = iter(hps.torch.PrefetchLoader([torch.arange(3)] * 3, store, bag.keys_of))
    next(loader)
    assert hps.torch.load(store, [model, bag], [adam], rollback=True) == 3
    assert (torch.rand(1), np.random.random(), random.random()) == next_random
    np.testing.assert_array_equal(rows_of(store), expected_rows)
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name])
    assert adam.state_dict()["state"][0]["exp_avg"].any() and adam.param_groups[0]["lr"] == 0.1
    assert (
        store.stats().leases == 0 and not bag.pending_parameters() and pending.grad_fn is not None
    )
    for wrong in ([model], [model, bag, bag]):
        with pytest.raises(hps.InvalidArgument, match="model came"):
            hps.torch.load(store, wrong)
    # What is left out stays.
    assert hps.torch.load(store) == 3


def test_states_keep_their_kinds(store):
    class Anything:
        def __init__(self, value=None):
            self.value = value

        def state_dict(self):
            return self.value

        def load_state_dict(self, value):
            self.value = value

    value = {
        1: [0.1, float("inf"), -(2**80), True, None, "text"],
        "pair": (torch.arange(3), b"\0\xff", np.float32(0.5)),
        "counter": collections.Counter({3: 1}),
        "shape": torch.Size([2]),
        "half": torch.ones(2, dtype=torch.float16),
    }
    hps.torch.save(store, 1, optimizers=Anything(value), rng=False)
    found = Anything()
    assert hps.torch.load(store, optimizers=[found]) == 1
    assert found.value[1] == value[1] and found.value[1][3] is True
    assert torch.equal(found.value["pair"][0], torch.arange(3)) and found.value["pair"][1:] == (
        b"\0\xff",
        0.5,
    )
    assert found.value["counter"].most_common() == [(3, 1)]
    assert tuple(found.value["shape"]) == (2,) and found.value["half"].dtype == torch.float16
    with pytest.raises(hps.InvalidArgument, match=r"\['a'\]\[1\] is a set"):
        hps.torch.save(store, 2, optimizers=Anything({"a": [1, {2}]}))
    assert store.step == 1


@pytest.mark.parametrize("meta", [b"", b"no such thing", b"PK\3\4 broken"])
def test_the_meta_of_others_is_refused(store, meta):
    store.checkpoint(1, meta=meta)
    with pytest.raises(hps.InvalidArgument, match="not what hps.torch.save writes"):
        hps.torch.load(store)


def test_nothing_is_unpickled_but_tensors(store, tmp_path):
    import io
    import pickle

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made by a pickle"),))

    for meta in (pickle.dumps(Evil()), io.BytesIO()):
        if not isinstance(meta, bytes):
            torch.save(["hps.torch 1", "{}", Evil()], meta)
            meta = meta.getvalue()
        store.checkpoint(store.step + 1, meta=meta)
        with pytest.raises(hps.InvalidArgument):
            hps.torch.load(store)
    assert not (tmp_path / "made by a pickle").exists()


def test_a_state_names_the_checkpoint(store):
    state, bag = hps.torch.StoreState(store), hps.torch.EmbeddingBag(store, "t")
    first = state.state_dict()
    assert first["checkpoint"] is None and first["step"] == 0
    train(store)
    for call in (state.state_dict, bag.state_dict, torch.nn.ModuleList([bag]).state_dict):
        with pytest.raises(hps.Uncheckpointed, match="store.checkpoint") as refused:
            call()
        assert refused.value.rows == len(KEYS)
    made = store.checkpoint(5)
    named = state.state_dict()
    identity = store.identity
    assert named == {
        "store": identity[0],
        "timeline": identity[1],
        "checkpoint": made.id,
        "step": 5,
        "unix_seconds": made.unix_seconds,
    }
    assert dict(bag.state_dict()) == {"_extra_state": named}
    state.load_state_dict(named)
    bag.load_state_dict(bag.state_dict())
    with hps.open(store.path, read_only=True, cache="8MiB") as reader:
        assert hps.torch.StoreState(reader).state_dict() == named
        hps.torch.EmbeddingBag(reader, "t").load_state_dict(bag.state_dict())


def test_a_state_of_another_checkpoint_is_refused(store):
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    train(store)
    store.checkpoint(1)
    rows = rows_of(store)
    first = hps.torch.StoreState(store).state_dict()
    files = torch.nn.ModuleList([bag, bag]).state_dict()
    train(store)
    with pytest.raises(hps.Uncheckpointed, match="rollback=True"):
        hps.torch.StoreState(store).load_state_dict(first)
    store.checkpoint(2)
    second = hps.torch.StoreState(store).state_dict()
    for load in (hps.torch.StoreState(store).load_state_dict, bag.set_extra_state):
        with pytest.raises(
            hps.InvalidArgument, match="checkpoint 1, the store is at 2.*rollback=True"
        ):
            load(first)
    assert not np.array_equal(rows_of(store), rows)

    pending = bag(torch.from_numpy(KEYS)[None])
    hps.torch.StoreState(store, rollback=True).load_state_dict(first)
    assert pending.requires_grad and np.array_equal(rows_of(store), rows) and store.step == 1
    # The modules' own states of that checkpoint now pass, though the timeline is a new one.
    torch.nn.ModuleList([bag, bag]).load_state_dict(files)
    with pytest.raises(hps.InvalidArgument, match="timeline"):
        hps.torch.StoreState(store, rollback=True).load_state_dict(second)
    train(store)
    with pytest.raises(hps.InvalidArgument, match="any_timeline"):
        hps.torch.StoreState(store, rollback=True).load_state_dict(first)
    again = hps.torch.StoreState(store, rollback=True, any_timeline=True)
    again.load_state_dict(first)
    assert np.array_equal(rows_of(store), rows)
    with pytest.raises(hps.InvalidArgument, match="timeline"):
        again.load_state_dict(second)


def test_a_state_of_a_checkpoint_that_is_gone_is_refused(store):
    train(store)
    store.checkpoint(1)
    first = hps.torch.StoreState(store).state_dict()
    for step in (2, 3, 4):
        train(store)
        store.checkpoint(step)
    with pytest.raises(hps.InvalidArgument, match="not retained any more"):
        hps.torch.StoreState(store, rollback=True).load_state_dict(first)
    assert store.step == 4


def test_a_state_of_another_store_is_refused(store, tmp_path):
    train(store)
    made = store.checkpoint(1)
    state = hps.torch.StoreState(store).state_dict()
    with hps.open(tmp_path / "other", tables=TABLES, cache="8MiB") as other:
        with pytest.raises(hps.InvalidArgument, match="of store"):
            hps.torch.StoreState(other, rollback=True, any_timeline=True).load_state_dict(state)
        for wrong in ({}, None, {"store": other.identity[0]}):
            with pytest.raises(hps.InvalidArgument):
                hps.torch.StoreState(other).load_state_dict(wrong)
    # An export is on a timeline of its own, at the same checkpoint.
    store.export(made.id, tmp_path / "export")
    with hps.open(tmp_path / "export", cache="8MiB") as export:
        with pytest.raises(hps.InvalidArgument, match="any_timeline"):
            hps.torch.StoreState(export).load_state_dict(state)
        hps.torch.StoreState(export, any_timeline=True).load_state_dict(state)
        hps.torch.EmbeddingBag(export, "t").set_extra_state(state)
        assert np.array_equal(rows_of(export), rows_of(store))


def test_the_state_of_a_cut_is_only_for_load(store):
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    train(store, bag)
    hps.torch.save(store, 1, bag)
    with hps.open(store.path, read_only=True, cache="8MiB") as reader:
        other = hps.torch.EmbeddingBag(reader, "t")
        assert hps.torch.load(reader, other) == 1
        with pytest.raises(hps.InvalidArgument, match="hps.torch.load"):
            other.set_extra_state({"store": reader.identity[0]})
