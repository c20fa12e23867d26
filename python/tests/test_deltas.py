"""What changed since a checkpoint, and copies that follow by deltas."""

import numpy as np
import pytest

import hps


def contents(store):
    """All rows of the last checkpoint, by table and key."""
    found = {}
    for table, keys, weights, state in store.rows():
        for i, key in enumerate(keys.tolist()):
            columns = {name: column[i].tobytes() for name, column in state.items()}
            found[table, key] = (weights[i].tobytes(), columns)
    return found


def of(keys):
    return np.asarray(keys, np.uint64)


def train(store, step, changed, removed):
    with store.pull("users", of(changed)) as lease:
        lease.push(lease.rows * 0.5 + 0.25)
    store.remove("users", of(removed))
    return store.checkpoint(step=step, meta=b"dense %d" % step)


def opened(path, **options):
    tables = [hps.Table("users", 3, optimizer=hps.Adam(lr=0.1))]
    return hps.open(path, tables, cache="16MiB", retain_checkpoints=2, **options)


def test_changes_are_told_by_chunk(tmp_path):
    with opened(tmp_path / "store") as store:
        keys = np.arange(1000, dtype=np.uint64)
        first = train(store, 1, keys, [])
        store.create_table(hps.Table("ads", 2))
        store.put("ads", of([5, 6]), np.ones((2, 2), np.float32))
        second = train(store, 2, keys[100:300], keys[500:550])
        for chunk in (64, 1 << 20):
            found, gone = {}, []
            for table, changed, weights, state, removed in store.incremental(first.id, chunk=chunk):
                assert len(changed) + len(removed) <= chunk
                assert weights.shape[0] == len(changed) == len(next(iter(state.values())))
                found.setdefault(table, []).extend(changed.tolist())
                gone.extend(removed.tolist())
            assert sorted(found["users"]) == list(range(100, 300))
            assert sorted(found["ads"]) == [5, 6]
            assert sorted(gone) == list(range(500, 550))
        only = list(store.incremental(first.id, second.id, table="ads"))
        assert [sorted(chunk[1].tolist()) for chunk in only] == [[5, 6]]
        everything = sum(len(chunk[1]) for chunk in store.incremental(0))
        assert everything == 952
        with pytest.raises(hps.InvalidArgument) as told:
            store.incremental(77)
        assert (told.value.kind, told.value.since) == ("HistoryGone", 77)


def test_cursors_keep_what_a_reader_lacks(tmp_path):
    with opened(tmp_path / "store") as store:
        first = train(store, 1, [1, 2, 3], [])
        store.set_cursor("serving", first.id)
        for step in range(2, 6):
            train(store, step, [step], [1])
        assert [checkpoint.id for checkpoint in store.checkpoints()] == [4, 5]
        assert store.cursors() == {"serving": first.id}
        chunks = list(store.incremental(first.id))
        changed = sorted(key for chunk in chunks for key in chunk[1].tolist())
        assert changed == [2, 3, 4, 5]
        assert [key for chunk in chunks for key in chunk[4].tolist()] == [1]
        store.remove_cursor("serving")
        assert store.cursors() == {}
        with pytest.raises(hps.InvalidArgument, match="is not kept"):
            store.incremental(first.id)
        with pytest.raises(hps.InvalidArgument, match="1 to 255 bytes"):
            store.set_cursor("", 5)


def test_a_copy_follows_by_deltas(tmp_path):
    folder = [tmp_path / f"delta-{n}" for n in range(4)]
    with opened(tmp_path / "store") as store, hps.open(
        tmp_path / "copy", cache="16MiB", create=True
    ) as copy:
        keys = np.arange(2000, dtype=np.uint64)
        train(store, 1, keys, [])
        delta = store.write_delta(folder[0])
        assert (delta.sequence, delta.since, delta.rows, delta.removed) == (0, 0, 2000, 0)
        for n in range(1, 4):
            store.set_cursor("copy", store.last_checkpoint.id)
            train(store, 10 * n, keys[100 * n : 100 * n + 50], keys[-n * 10 :])
            delta = store.write_delta(folder[n], after=folder[n - 1])
            assert (delta.sequence, delta.rows, delta.is_new) == (n, 50, True)
        for n, path in enumerate(folder):
            if n == 1:
                with pytest.raises(hps.InvalidArgument, match="deltas are missing") as told:
                    copy.apply_delta(folder[2])
                assert told.value.kind == "Delta"
            assert copy.apply_delta(path).is_new
            assert not copy.apply_delta(str(path)).is_new
        assert contents(copy) == contents(store)
        assert copy.step == store.step == 30
        assert copy.last_checkpoint.meta == b"dense 30"
        # A table that came with a delta is one like any other.
        assert copy.tables["users"].dim == 3
        assert copy.contains("users", of([0, 1999])).tolist() == [True, False]
        with pytest.raises(hps.InvalidArgument, match="one of them is needed"):
            store.write_delta(tmp_path / "x", after=folder[0], since=1)
        with pytest.raises(hps.InvalidArgument, match="no checkpoint yet"):
            hps.open(tmp_path / "empty", cache="16MiB", create=True).write_delta(tmp_path / "y")
