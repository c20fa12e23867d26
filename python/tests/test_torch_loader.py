"""PrefetchLoader: reading ahead changes when rows are read, and nothing else."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="hps.torch needs torch")

import hps
import hps.torch

DIM, ROWS, BATCHES = 8, 30_000, 30


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A store whose rows are on disk, many more than fit into the cache."""
    path = tmp_path_factory.mktemp("loader") / "store"
    table = hps.Table("t", dim=DIM, optimizer=hps.AdaGrad(lr=0.1))
    with hps.open(path, tables=[table], cache="16MiB") as store:
        keys = np.arange(ROWS)
        store.put("t", keys, np.random.default_rng(0).random((ROWS, DIM), dtype=np.float32))
        store.checkpoint(1)
    return path


def opened(path, cache="4MiB"):
    return hps.open(
        path, tables=[hps.Table("t", dim=DIM, optimizer=hps.AdaGrad(lr=0.1))], cache=cache
    )


def batches(size=400):
    chosen = np.random.default_rng(1)
    return [torch.from_numpy(chosen.integers(0, ROWS, (size, 2))) for _ in range(BATCHES)]


def keys_of(batch):
    return {"t": batch}


def trained(path, loader_of):
    """Losses, and the rows, of a run over some loader."""
    with opened(path) as store:
        bag = hps.torch.EmbeddingBag(store, "t", "sum")
        optimizer = hps.torch.Optimizer(bag, 0.1)
        loader, losses = loader_of(store), []
        for batch in loader:
            loss = (bag(batch) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert store.stats().leases == 0 and store.stats().pinned_rows == 0
        with store.pull("t", np.arange(2000)) as lease:
            rows = lease.rows.copy()
        store.close(discard=True)
    return losses, rows


def test_any_depth_gives_the_same_bits(path):
    expected = trained(path, lambda store: batches())
    assert len(expected[0]) == BATCHES
    for depth in (0, 1, 2, 5, 100):
        loaders = []

        def loader_of(store):
            loaders.append(hps.torch.PrefetchLoader(batches(), store, keys_of, depth=depth))
            return loaders[0]

        losses, rows = trained(path, loader_of)
        assert losses == expected[0], depth
        np.testing.assert_array_equal(rows, expected[1])
        assert len(loaders[0]) == BATCHES


class Batches(torch.utils.data.Dataset):
    def __init__(self, made, fails_at=None):
        self.made, self.fails_at = made, fails_at

    def __len__(self):
        return len(self.made)

    def __getitem__(self, at):
        if at == self.fails_at:
            raise LookupError("no such batch")
        return self.made[at]


def test_workers_of_a_data_loader_do_not_touch_the_store(path):
    expected = trained(path, lambda store: batches())

    def loader_of(store):
        workers = torch.utils.data.DataLoader(
            Batches(batches()), batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
        return hps.torch.PrefetchLoader(workers, store, keys_of, depth=3)

    losses, rows = trained(path, loader_of)
    assert losses == expected[0]
    np.testing.assert_array_equal(rows, expected[1])


def test_rows_are_resident_before_they_are_pulled(path):
    def hits(depth):
        with opened(path, "8MiB") as store:
            bag = hps.torch.EmbeddingBag(store, "t", "sum").eval()
            # Batches that share no key: a pull finds only what was read ahead.
            made = torch.arange(BATCHES * 400).reshape(BATCHES, 400, 1)
            loader = hps.torch.PrefetchLoader(list(made), store, bag.keys_of, depth)
            for batch in loader:
                bag(batch)
                assert store.stats().leases >= 1 or depth == 0
            return store.stats().unique_hits

    assert hits(0) == 0
    assert hits(1) == hits(2) == BATCHES * 400


def test_a_batch_stays_pinned_until_the_next_is_asked_for(path):
    with opened(path) as store:
        pinned = []

        def source():
            for at in range(5):
                pinned.append(store.stats().pinned_rows)
                yield torch.arange(at * 100, at * 100 + 100)

        for _ in hps.torch.PrefetchLoader(source(), store, keys_of, depth=1):
            assert store.stats().pinned_rows >= 100
        # Two are taken before the first is handed out; then one is let go before each.
        assert pinned[0] == 0 and max(pinned) <= 100
        assert store.stats().pinned_rows == 0


def test_the_depth_shrinks_where_the_cache_is_full(path):
    with opened(path) as store:
        capacity = store.stats().capacity_rows
        bag = hps.torch.EmbeddingBag(store, "t", "sum")
        optimizer = hps.torch.Optimizer(bag, 0.1)
        size = capacity * 2 // 5
        made = [torch.arange(at * size, (at + 1) * size) for at in range(6)]
        loader = hps.torch.PrefetchLoader(made, store, keys_of, depth=4)
        for epoch in range(2):
            seen = 0
            for batch in loader:
                bag(batch[:, None]).sum().backward()
                optimizer.step()
                seen += 1
            assert seen == 6
        assert store.stats().leases == 0
        # Leases of gradients that pile up leave no room for reading ahead: that gives way, not
        # they.
        for batch in loader:
            bag(batch[:, None]).sum().backward()
        assert loader.depth_now < 4
        optimizer.step()
        assert store.stats().leases == 0
        # Keys that were not foretold find room, too.
        loader = hps.torch.PrefetchLoader(
            made, store, lambda batch: {"t": batch + 6 * size}, depth=4
        )
        for batch in loader:
            bag(batch[:, None]).sum().backward()
            optimizer.step()
        assert loader.depth_now < 4
        store.close(discard=True)


def test_a_loop_that_is_left_leaves_nothing(path):
    with opened(path) as store:
        loader = hps.torch.PrefetchLoader(batches(), store, keys_of, depth=3)
        for _ in loader:
            break
        gc.collect()
        assert store.stats().leases == 0
        held = iter(loader)
        next(held)
        assert store.stats().leases >= 1
        held.close()
        assert store.stats().leases == 0
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                1 / 0
        gc.collect()
        assert store.stats().leases == 0
        assert sum(1 for _ in loader) == BATCHES
        # A rollback wants every ticket gone.
        store.rollback(store.last_checkpoint.id)


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_what_a_loader_raises_comes_in_its_place(path, depth):
    with opened(path) as store:
        source = torch.utils.data.DataLoader(Batches(batches(), fails_at=7), batch_size=None)
        seen = 0
        with pytest.raises(LookupError, match="no such batch"):
            for _ in hps.torch.PrefetchLoader(source, store, keys_of, depth):
                seen += 1
        assert seen == 7 and store.stats().leases == 0

        def picky(batch):
            if batch[0, 0] == batches()[4][0, 0]:
                raise KeyError("keys_of")
            return {"t": batch}

        seen = 0
        loader = hps.torch.PrefetchLoader(batches(), store, picky, depth)
        if depth == 0:
            assert sum(1 for _ in loader) == BATCHES
        else:
            with pytest.raises(KeyError, match="keys_of"):
                for _ in loader:
                    seen += 1
            assert seen == 4
        gc.collect()
        assert store.stats().leases == 0


def test_keys_of_modules_are_those_they_pull(path, tmp_path):
    tables = [hps.Table("t", dim=4), hps.Table("u", dim=8)]
    with hps.open(tmp_path / "store", tables=tables, cache="8MiB") as store:
        bag = hps.torch.EmbeddingBag(store, "t", "sum", padding_idx=-1)
        assert bag.keys_of(torch.tensor([[1, -1], [2, 1]]))["t"].tolist() == [1, 2, 1]
        collection = hps.torch.EmbeddingBagCollection(store, {"a": "u", "b": "t", "c": "u"})
        lengths = torch.tensor([1, 1])
        features = {name: (torch.tensor([at, at + 10]), lengths) for at, name in enumerate("abc")}
        found = {table: keys.tolist() for table, keys in collection.keys_of(features).items()}
        assert found == {"t": [1, 11], "u": [0, 10, 2, 12]}
        loader = hps.torch.PrefetchLoader([features] * 3, store, collection.keys_of)
        assert sum(1 for _ in loader) == 3
        nothing = hps.torch.PrefetchLoader([features] * 3, store, lambda _: {})
        assert sum(1 for _ in nothing) == 3
        with pytest.raises(hps.InvalidArgument, match="depth"):
            hps.torch.PrefetchLoader([], store, collection.keys_of, depth=-1)
