"""hps.torch trains what torch's own modules and optimizers train."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="hps.torch needs torch")

import hps
import hps.torch

DIM, STEPS, BATCH = 8, 200, 16
# Every kind of key: small, negative, and the ends of int64.
KEYS = np.array([0, 1, 2, 3, -1, -2, 2**63 - 1, -(2**63), 10**12, *range(100, 131)], dtype=np.int64)
PADDING = 3
RULES = {
    "sgd": (hps.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (
        hps.AdaGrad(lr=0.1, initial_accumulator=0.1, eps=1e-8),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1, eps=1e-8),
    ),
    "adam": (hps.Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
}
FORMS = ["offsets", "last offset", "matrix", "weights", "padding"]


def opened(path, rule="sgd", tables=("t",), cache="16MiB", dims=None):
    optimizer = RULES[rule][0]
    dims = dims or {}
    described = [
        hps.Table(
            name, dim=dims.get(name, DIM), optimizer=optimizer, init=hps.Normal(0, 0.3), seed=at
        )
        for at, name in enumerate(tables)
    ]
    return hps.open(path / "store", tables=described, cache=cache)


def rows_of(store, table="t", keys=KEYS):
    with store.pull(table, keys) as lease:
        return lease.rows.copy()


class Twin:
    """Torch's own: a parameter for each row, each with an optimizer that steps when the row is
    used."""

    def __init__(self, store, rule, table="t"):
        rows = torch.from_numpy(rows_of(store, table))
        self.rows = [torch.nn.Parameter(row.clone()) for row in rows]
        self.optimizers = [RULES[rule][1]([row]) for row in self.rows]
        self.place = {int(key): at for at, key in enumerate(KEYS)}

    def bag(self, mode, form):
        weight = torch.stack(self.rows)
        padding = self.place[PADDING] if form == "padding" else None
        if mode is None:
            return (
                torch.nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=padding),
                weight,
            )
        bag = torch.nn.EmbeddingBag(
            *weight.shape, mode=mode, padding_idx=padding, include_last_offset=form == "last offset"
        )
        return bag, weight

    def places(self, keys):
        return torch.tensor([self.place[int(key)] for key in keys.reshape(-1)]).reshape(keys.shape)

    def forward(self, mode, form, keys, offsets=None, weights=None):
        bag, weight = self.bag(mode, form)
        del bag.weight
        bag.weight = weight
        places = self.places(keys)
        if mode is None:
            return torch.nn.functional.embedding(places, weight, bag.padding_idx)
        return bag(places, offsets, weights)

    def step(self, keys):
        for key in set(keys.reshape(-1).tolist()):
            self.optimizers[self.place[key]].step()
        for row in self.rows:
            row.grad = None


def arguments(chosen, form):
    """(keys, offsets, weights) of a batch, with empty bags and keys that come twice."""
    if form == "matrix":
        return torch.from_numpy(chosen.choice(KEYS, size=(BATCH, 3))), None, None
    lengths = chosen.integers(0, 5, size=BATCH)
    keys = torch.from_numpy(chosen.choice(KEYS, size=lengths.sum()))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    offsets = torch.from_numpy(offsets if form == "last offset" else offsets[:-1])
    weights = None
    if form == "weights":
        weights = torch.from_numpy(chosen.random(len(keys), dtype=np.float32))
    return keys, offsets, weights


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "mode, form",
    [
        (mode, form)
        for mode in ("sum", "mean", "max")
        for form in FORMS
        if form != "weights" or mode == "sum"
    ]
    + [(None, "matrix"), (None, "padding")],
)
def test_a_bag_trains_as_torchs_own(tmp_path, rule, mode, form):
    chosen = np.random.default_rng(5)
    store = opened(tmp_path, rule)
    padding = PADDING if form == "padding" else None
    bag = hps.torch.EmbeddingBag(
        store, "t", mode, padding_idx=padding, include_last_offset=form == "last offset"
    )
    optimizer, twin = hps.torch.Optimizer([bag]), Twin(store, rule)
    target = torch.from_numpy(chosen.standard_normal(DIM, dtype=np.float32))
    for _ in range(STEPS):
        keys, offsets, weights = arguments(chosen, form)
        if mode is None:
            offsets = None
        out, expected = bag(keys, offsets, weights), twin.forward(
            mode, form, keys, offsets, weights
        )
        if mode is None and padding is not None:
            # Torch's nn.Embedding reads the row of the padding; a table has none that is set apart.
            expected = expected * (keys != PADDING)[..., None]
        loss, wanted = ((out - target) ** 2).mean(), ((expected - target) ** 2).mean()
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-7)
        loss.backward()
        wanted.backward()
        optimizer.step()
        used = keys[keys != PADDING] if padding is not None else keys
        twin.step(used)
    found = rows_of(store)
    expected = torch.stack(twin.rows).detach().numpy()
    if padding is not None:
        assert not store.contains("t", np.array([PADDING]))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert abs(found - rows_of(opened(tmp_path / "other", rule))).max() > 0.01
    assert store.stats().leases == 0
    store.close(discard=True)


def jagged(chosen, features, most=4):
    found = {}
    for feature in features:
        lengths = chosen.integers(0, most, size=BATCH)
        keys = chosen.choice(KEYS, size=lengths.sum())
        found[feature] = (torch.from_numpy(keys), torch.from_numpy(lengths))
    return found


class KeyedJagged:
    """What TorchRec's KeyedJaggedTensor has."""

    def __init__(self, features, by_offsets=False, weights=None):
        self._keys = list(features)
        self._values = torch.cat([values for values, _ in features.values()])
        self._lengths = torch.cat([lengths for _, lengths in features.values()])
        self._weights = weights
        if by_offsets:
            self.lengths = None

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def offsets(self):
        return torch.cat([torch.zeros(1, dtype=torch.int64), self._lengths.cumsum(0)])

    def weights_or_none(self):
        return self._weights


FEATURES = {"one": "narrow", "two": "wide", "three": "narrow", "four": "other"}
DIMS = {"narrow": 4, "wide": 8, "other": 4}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("form", ["dict", "lengths", "offsets"])
def test_a_collection_trains_as_bags_do(tmp_path, mode, form):
    chosen = np.random.default_rng(9)
    tables = ("wide", "narrow", "other")
    one = opened(tmp_path / "one", "adagrad", tables, dims=DIMS)
    other = opened(tmp_path / "other", "adagrad", tables, dims=DIMS)
    collection = hps.torch.EmbeddingBagCollection(one, FEATURES, mode)
    bags = {name: hps.torch.EmbeddingBag(other, table, mode) for name, table in FEATURES.items()}
    optimizers = [hps.torch.Optimizer(collection, 0.1), hps.torch.Optimizer(bags.values(), 0.1)]
    for _ in range(30):
        features = jagged(chosen, ["three", "unknown", *FEATURES])
        asked = features if form == "dict" else KeyedJagged(features, form == "offsets")
        found = collection(asked)
        assert one.stats().leases == 1
        expected = {}
        for name, bag in bags.items():
            keys, lengths = features[name]
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
            expected[name] = bag(keys, offsets)
        assert found.keys() == list(FEATURES) and list(found.to_dict()) == found.keys()
        torch.testing.assert_close(found.values(), torch.cat(list(expected.values()), 1))
        assert found.length_per_key() == [4, 8, 4, 4]
        for outputs in (found.to_dict(), expected):
            sum((out.cos() * (at + 1)).sum() for at, out in enumerate(outputs.values())).backward()
        for optimizer in optimizers:
            optimizer.step()
    for table in tables:
        np.testing.assert_allclose(rows_of(one, table), rows_of(other, table), rtol=1e-5, atol=1e-5)
    for store in (one, other):
        assert store.stats().leases == 0
        store.close(discard=True)


def test_a_collection_weighs_its_keys(tmp_path):
    store = opened(tmp_path, tables=("t", "u"))
    chosen = np.random.default_rng(2)
    features = jagged(chosen, ["a", "b"])
    weights = torch.rand(sum(len(values) for values, _ in features.values()))
    collection = hps.torch.EmbeddingBagCollection(store, {"b": "u", "a": "t"}, is_weighted=True)
    found = collection(KeyedJagged(features, weights=weights))
    split = dict(zip(features, weights.split([len(values) for values, _ in features.values()])))
    same = collection({name: (*features[name], split[name]) for name in features})
    for name, table in (("a", "t"), ("b", "u")):
        keys, lengths = features[name]
        bag = hps.torch.EmbeddingBag(store, table, "sum")
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
        expected = bag(keys, offsets, split[name])
        torch.testing.assert_close(found[name], expected)
        torch.testing.assert_close(same[name], expected)
    with pytest.raises(hps.InvalidArgument, match="weights"):
        collection(KeyedJagged(features))
    with pytest.raises(hps.InvalidArgument, match="weights"):
        collection(features)
    store.close(discard=True)


def test_gradients_of_forwards_before_a_step_are_one_update(tmp_path):
    store = opened(tmp_path, "adam")
    bags = [hps.torch.EmbeddingBag(store, "t", "sum") for _ in range(2)]
    collection = hps.torch.EmbeddingBagCollection(store, {"a": "t", "b": "t"})
    # A module that is named twice is one.
    modules = [torch.nn.ModuleList(bags), collection, bags[0]]
    optimizer, twin = hps.torch.Optimizer(modules, 0.01), Twin(store, "adam")
    keys = torch.from_numpy(KEYS[:6])
    for _ in range(3):
        pushed = store.stats().rows_pushed
        whole = torch.cat([keys, keys[:3]])
        outs = [bags[0](keys[None]), bags[1](whole[None]), bags[0](keys[None, 2:])]
        found = collection({"a": (keys, torch.tensor([6])), "b": (keys[:2], torch.tensor([2]))})
        out = torch.cat([*outs, found["a"], found["b"]])
        weight = torch.stack(twin.rows)
        places = [twin.places(part) for part in (keys, whole, keys[2:], keys, keys[:2])]
        expected = torch.stack([weight[part].sum(0) for part in places])
        torch.testing.assert_close(out, expected)
        (out**2).sum().backward()
        (expected**2).sum().backward()
        optimizer.step()
        twin.step(keys)
        assert store.stats().rows_pushed == pushed + 6
    np.testing.assert_allclose(
        rows_of(store), torch.stack(twin.rows).detach().numpy(), rtol=1e-5, atol=1e-6
    )
    with store.pull("t", KEYS[:1]) as lease:
        assert lease.state()["t"] == 3.0
    store.close(discard=True)


@pytest.mark.parametrize("dim", [4, DIM])
def test_tables_that_no_backward_reached_stay_as_they_are(tmp_path, dim):
    """Tables of one width share a leaf, and so its gradient."""
    store = opened(tmp_path, "adam", ("t", "u"), dims={"u": dim})
    collection = hps.torch.EmbeddingBagCollection(store, {"a": "t", "b": "u"})
    optimizer = hps.torch.Optimizer(collection, 0.1)
    keys, lengths = torch.tensor([1, 2]), torch.tensor([1, 1])
    collection({"a": (keys, lengths), "b": (keys, lengths)})["a"].sum().backward()
    optimizer.step()
    assert store.contains("t", keys.numpy()).all() and not store.contains("u", keys.numpy()).any()
    optimizer.step()
    assert store.stats().leases == 0
    store.close(discard=True)


@pytest.mark.parametrize("mode", ["sum", "mean", "max", None])
def test_a_batch_may_be_empty(tmp_path, mode):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", mode, padding_idx=7)
    optimizer = hps.torch.Optimizer(bag, 0.1)
    none = torch.zeros(0, dtype=torch.int64)
    inputs = [(none.reshape(0, 3), None, 0)]
    if mode is not None:
        inputs += [
            (none, torch.zeros(4, dtype=torch.int64), 4),
            (none, none, 0),
            (none.reshape(2, 0), None, 2),
        ]
        inputs += [(torch.tensor([[7, 7], [7, 7]]), None, 2)]
    for keys, offsets, bags in inputs:
        out = bag(keys, offsets)
        assert out.shape == ((bags, DIM) if mode is not None else (0, 3, DIM)) and not out.any()
        out.sum().backward()
        optimizer.step()
    assert store.stats().leases == 0 and not store.has_changes
    collection = hps.torch.EmbeddingBagCollection(store, {"a": "t", "b": "t"})
    assert collection({"a": (none, none), "b": (none, none)}).values().shape == (0, 2 * DIM)
    some = torch.zeros(2, dtype=torch.int64)
    found = collection({"a": (none, some), "b": (torch.tensor([1]), torch.tensor([0, 1]))})
    assert not found["a"].any() and found["b"][1].any() and found.stack().shape == (2, 2, DIM)
    store.close(discard=True)


def test_keys_may_be_of_any_kind_of_integer(tmp_path):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", None).eval()
    wide = bag(torch.tensor([-1, 5]))
    for dtype in (torch.int32, torch.int16, torch.int8):
        assert torch.equal(bag(torch.tensor([-1, 5], dtype=dtype)), wide)
    assert torch.equal(bag(np.array([2**64 - 1, 5], dtype=np.uint64)), wide)
    assert torch.equal(bag(torch.tensor([[-1, 0], [5, 0]])[:, 0]), wide)
    with pytest.raises(hps.ArrayMismatch, match="float32"):
        bag(torch.tensor([1.0]))
    store.close(discard=True)


def test_what_does_not_fit_is_refused(tmp_path):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "mean")
    keys = torch.arange(4)
    for offsets in ([1, 2], [0, 3, 2], [0, 5]):
        with pytest.raises(hps.InvalidArgument, match="offsets"):
            bag(keys, torch.tensor(offsets))
    for call in (
        lambda: bag(keys),
        lambda: bag(keys[None], torch.tensor([0])),
        lambda: bag(keys, torch.tensor([0]), torch.ones(4)),
        lambda: bag(keys[None, None]),
        lambda: hps.torch.EmbeddingBag(store, "t", "sum")(keys, torch.tensor([0]), torch.ones(3)),
        lambda: hps.torch.EmbeddingBag(store, "t", None)(keys, torch.tensor([0])),
        lambda: hps.torch.EmbeddingBag(store, "t", "median"),
        lambda: hps.torch.EmbeddingBagCollection(store, {}),
        lambda: hps.torch.EmbeddingBagCollection(store, {"a": "t"}, "mean", is_weighted=True),
        lambda: hps.torch.Optimizer([torch.nn.Linear(1, 1)], 0.1),
        lambda: hps.torch.Optimizer([bag], -0.1),
    ):
        with pytest.raises(hps.InvalidArgument):
            call()
    with pytest.raises(hps.UnknownTable):
        hps.torch.EmbeddingBag(store, "missing")
    collection = hps.torch.EmbeddingBagCollection(store, {"a": "t", "b": "t"})
    one = (keys, torch.tensor([4]))
    for features, what in (
        ({"a": one}, "'b' is missing"),
        ({"a": one, "b": (keys, torch.tensor([2, 2]))}, "'b' has 2 bags"),
        ({"a": one, "b": (keys, torch.tensor([3]))}, "lengths of 'b'"),
        ({"a": one, "b": keys}, "'b' needs"),
        (KeyedJagged({"a": one}), "'b' is missing"),
        (7, "KeyedJaggedTensor"),
    ):
        with pytest.raises(hps.InvalidArgument, match=what):
            collection(features)
    assert store.stats().leases == 0
    store.close()
    with pytest.raises(hps.Closed):
        bag(keys[None])


def test_leases_end_with_the_step(tmp_path):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, 0.1)
    leases = lambda: store.stats().leases
    keys = torch.arange(6).reshape(2, 3)

    out = bag(keys)
    assert leases() == 1
    out.sum().backward()
    assert leases() == 1
    optimizer.step()
    assert leases() == 0

    kept = [bag(keys), bag(keys)]
    assert leases() == 2
    optimizer.zero_grad()
    assert leases() == 0
    kept += [bag(keys)]
    optimizer.step()
    assert leases() == 0
    optimizer.zero_grad()

    # Nobody can call backward for an output that is gone.
    for _ in range(5):
        bag(keys)
    assert leases() == 1
    with torch.no_grad():
        bag(keys)
    assert leases() == 0
    with torch.inference_mode():
        assert not bag(keys).requires_grad
    assert leases() == 0
    bag.eval()
    assert not bag(keys).requires_grad and leases() == 0
    bag.train()

    out = bag(keys)
    del optimizer, bag, out
    gc.collect()
    assert leases() == 0
    store.close(discard=True)


def test_an_error_on_the_way_leaves_no_lease(tmp_path):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, 0.1)
    out = bag(torch.arange(4)[None])
    with pytest.raises(RuntimeError):
        out.backward(torch.ones(3))
    optimizer.zero_grad()
    assert store.stats().leases == 0
    # Torch wants weights of the type of the rows; the error is kept, the lease is not.
    wide = torch.ones(1, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError) as refused:
        bag(torch.arange(4)[None], None, wide)
    assert store.stats().leases == 0 and refused.traceback
    collection = hps.torch.EmbeddingBagCollection(store, {"a": "t"}, is_weighted=True)
    with pytest.raises(RuntimeError) as refused:
        collection({"a": (torch.arange(4), torch.tensor([4]), wide[0])})
    assert store.stats().leases == 0 and refused.traceback
    store.close(discard=True)


def test_rows_of_an_output_are_not_written_over(tmp_path):
    """A leaf lies in a lease's buffer; while a graph needs it, no later pull may gather into it."""
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, 0.1)
    keys = torch.arange(8)[None]
    weights = torch.ones(1, 8, requires_grad=True)
    out = bag(keys, None, weights)
    expected = torch.from_numpy(rows_of(store, keys=np.arange(8))).sum(1)
    optimizer.zero_grad()
    for begin in range(100, 200, 8):
        with torch.no_grad():
            bag(torch.arange(begin, begin + 8)[None])
    out.sum().backward()
    torch.testing.assert_close(weights.grad[0], expected)
    store.close(discard=True)


def test_a_backward_after_zero_grad_counts(tmp_path):
    """`zero_grad` between forward and backward is as common as before them both."""
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, 0.5)
    keys = torch.arange(4)[None]
    before = rows_of(store, keys=np.arange(4))
    for _ in range(2):
        out = bag(keys)
        optimizer.zero_grad()
        out.sum().backward()
        optimizer.step()
    np.testing.assert_allclose(rows_of(store, keys=np.arange(4)), before - 1, rtol=1e-6)
    assert store.stats().leases == 0
    bag(keys).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    np.testing.assert_allclose(rows_of(store, keys=np.arange(4)), before - 1, rtol=1e-6)
    store.close(discard=True)


def test_schedulers_change_the_rate(tmp_path):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    keys = torch.tensor([[1]])
    before = rows_of(store, keys=np.array([1]))
    for _ in range(3):
        bag(keys).sum().backward()
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(rows_of(store, keys=np.array([1])), before - 1.75, rtol=1e-5)
    again = hps.torch.Optimizer(bag, lr=1.0)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == 0.125 and again.param_groups[0]["initial_lr"] == 1.0
    with pytest.raises(hps.InvalidArgument):
        again.load_state_dict(torch.optim.Adam(torch.nn.Linear(1, 1).parameters()).state_dict())
    with pytest.raises(hps.InvalidArgument):
        again.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    own = hps.torch.Optimizer(bag)
    bag(keys).sum().backward()
    own.step()
    np.testing.assert_allclose(rows_of(store, keys=np.array([1])), before - 1.85, rtol=1e-5)
    store.close(discard=True)


def test_step_takes_a_closure(tmp_path):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, lr=1.0)
    before = rows_of(store, keys=np.array([1]))

    def closure():
        optimizer.zero_grad()
        loss = bag(torch.tensor([[1]])).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    np.testing.assert_allclose(loss.item(), before.sum(), rtol=1e-5)
    np.testing.assert_allclose(rows_of(store, keys=np.array([1])), before - 1, rtol=1e-5)
    store.close(discard=True)


def test_gradients_can_be_clipped_and_scaled(tmp_path):
    store = opened(tmp_path)
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, lr=1.0)
    before = rows_of(store, keys=np.array([1]))
    bag(torch.tensor([[1]])).sum().backward()
    (leaf,) = bag.pending_parameters()
    assert leaf.is_leaf and leaf.shape == (1, DIM) and torch.equal(leaf.grad, torch.ones(1, DIM))
    assert optimizer.param_groups[0]["params"][1] is leaf
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5 * DIM**0.5)
    asked = store.stats().unique_asked
    optimizer.step()
    # The rows were pinned: a step looks nothing up.
    assert store.stats().unique_asked == asked
    np.testing.assert_allclose(rows_of(store, keys=np.array([1])), before - 0.5, rtol=1e-4)
    assert len(optimizer.param_groups[0]["params"]) == 1 and not bag.pending
    store.close(discard=True)


def test_gradients_accumulate_over_more_rows_than_the_cache_holds(tmp_path):
    store = opened(tmp_path, cache="4MiB")
    bag = hps.torch.EmbeddingBag(store, "t", "sum")
    optimizer = hps.torch.Optimizer(bag, lr=1.0)
    # As many as fit.
    with pytest.raises(hps.OverBudget) as refused:
        store.pull("t", np.arange(1 << 20))
    count = refused.value.capacity_rows * 2 // 3
    keys = [torch.arange(at * count, (at + 1) * count) for at in range(3)]
    for part in keys:
        bag(part[None]).sum().backward()
    bag(keys[0][None]).sum().backward()
    optimizer.step()
    assert store.stats().leases == 0
    initial = hps.open(
        tmp_path / "fresh", tables=[hps.Table("t", DIM, RULES["sgd"][0], hps.Normal(0, 0.3))]
    )
    for at, part in enumerate(keys):
        change = rows_of(initial, keys=part.numpy()) - rows_of(store, keys=part.numpy())
        np.testing.assert_allclose(change, 2 if at == 0 else 1, rtol=1e-5)
    store.close(discard=True)
    initial.close()


def test_modules_have_no_parameters_and_no_copies(tmp_path):
    store = opened(tmp_path)
    modules = [
        hps.torch.EmbeddingBag(store, "t", "sum"),
        hps.torch.EmbeddingBagCollection(store, {"a": "t"}),
    ]
    for module in modules:
        assert not list(module.parameters()) and "'t'" in repr(module)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="store and table"):
                copied(module)
    optimizer = hps.torch.Optimizer(modules, 0.1)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="state_dict"):
            copied(optimizer)
    store.close()


def test_hps_imports_torch_only_when_asked():
    code = "import sys, hps; assert 'torch' not in sys.modules; hps.torch; sys.modules['torch']"
    subprocess.run([sys.executable, "-c", code], check=True)
