"""Passes from Python: rows stay while one lasts, some stay longer, and files say which they are."""

from __future__ import annotations

import collections
import gc
import threading
import time

import numpy as np
import pytest

import hps

DIM = 16


def filled(directory, rows, **options):
    """A store whose table "t" has rows of keys 0 to `rows`, and whose memory has none."""
    with hps.open(directory, [hps.Table("t", dim=DIM, optimizer=hps.SGD(lr=1.0))], cache="64MiB") as store:
        keys = np.arange(rows)
        store.put("t", keys, np.repeat(keys.astype(np.float32)[:, None], DIM, axis=1))
        store.checkpoint(1)
    return hps.open(directory, **{"cache": "64MiB", **options})


def reads(store, keys):
    before = store.stats().read_bytes
    store.pull("t", keys).release()
    return store.stats().read_bytes > before


def test_a_pass_brings_its_rows_and_keeps_them_until_it_ends(directory):
    with filled(directory, 3000, policy=hps.Cached(0)) as store:
        ticket = store.begin_pass("t", np.arange(500, 1500))
        with ticket.wait() as first:
            report = first.report
            assert isinstance(report, hps.PassReport) and not first.ended
            assert (report.keys, report.known, report.hits, report.hit_rate) == (1000, 1000, 0, 0.0)
            assert report.bytes == 1000 * store.tables["t"].row_bytes and report.seconds > 0
            (of_table,) = report.tables
            assert (of_table.name, of_table.keys, of_table.known, of_table.hits) == ("t", 1000, 1000, 0)
            assert (of_table.bytes, of_table.is_block, of_table.hit_rate) == (report.bytes, False, 0.0)
            assert of_table.id == store.stats().tables["t"].id
            assert "keys=1000" in repr(report) and "is_block=False" in repr(of_table)
            assert store.stats().pinned_rows == 1000 and store.stats().leases == 1
            assert not reads(store, np.arange(500, 1500)) and reads(store, np.arange(10))
            # The next comes in beside it, and reads what it lacks.
            second = store.begin_pass("t", np.arange(1000, 1600)).wait()
            assert second.report.bytes == 100 * store.tables["t"].row_bytes
            store.push("t", np.arange(600, 602), np.ones((2, DIM), np.float32), lr=1.0)
            store.checkpoint(2)
        assert first.ended and first.end() is first.report and "ended" in repr(first)
        assert not reads(store, np.arange(1000, 1600)) and reads(store, np.arange(500, 600))
        del second
        gc.collect()
        assert store.stats().pinned_rows == 0 and reads(store, np.arange(1000, 1600))
        with store.pull("t", np.arange(600, 603)) as lease:
            assert lease.rows[:, 0].tolist() == [599, 600, 602]
        for fixed in (report, of_table):
            with pytest.raises(AttributeError):
                fixed.keys = 3


def test_rows_of_a_pass_are_read_and_put_in_the_order_of_its_keys(directory, tmp_path):
    file = tmp_path / "keys.keyset"
    np.array([7, 3, 2999, 3], "<i8").tofile(file)
    for policy in ("staged", "lru", hps.Cached(0)):
        with filled(directory / str(policy)[:6], 3000, policy=policy) as store:
            keys = np.random.default_rng(3).permutation(2000)
            with store.begin_pass(["t", "t"], [keys, hps.Keyset(file)]).wait() as begun:
                weights = begun.read()
                assert weights.shape == (2000, DIM) and (weights == keys[:, None]).all()
                assert begun.read(1)[:, 0].tolist() == [7, 3, 2999, 3]
                assert begun.read(1, first=2)[:, 0].tolist() == [2999, 3]
                out = np.zeros((5, DIM), np.float32)
                assert begun.read(first=10, out=out) is out and (out == keys[10:15, None]).all()
                rows = begun.read(kind="rows")
                assert rows.shape == (2000, store.tables["t"].row_f32s) and (rows[:, :DIM] == weights).all()
                # The last row of a key that is there twice counts.
                values = np.arange(4, dtype=np.float32)[:, None] * np.ones(DIM, np.float32) + 0.25
                report = begun.put(values, 1)
                assert (report.rows, report.non_finite) == (4, 0)
                with store.pull("t", np.array([7, 3, 2999])) as lease:
                    assert lease.rows[:, 0].tolist() == [0.25, 3.25, 2.25]
                begun.put(rows[5:7], kind="rows", first=5, verbatim=True)
                assert (begun.read(first=5, out=out[:2]) == rows[5:7, :DIM]).all()
                for asked in ({"part": 2}, {"first": 1999, "out": out}, {"kind": "sums"}):
                    with pytest.raises(hps.InvalidArgument):
                        begun.read(**asked)
                with pytest.raises(hps.ArrayMismatch):
                    begun.put(values[:, :3], 1)
                with pytest.raises(hps.InvalidArgument, match="has 4"):
                    begun.put(values, 1, first=1)
            with pytest.raises(hps.Closed, match="the pass has ended"):
                begun.read()
            store.close(discard=True)


def test_keys_of_a_pass_come_from_arrays_and_files_of_several_tables(directory, tmp_path):
    tables = [hps.Table("a", dim=2), hps.Table("b", dim=3), hps.Table("c", dim=1)]
    longs, ints = tmp_path / "longs.keyset", tmp_path / "ints.keyset"
    np.array([5, -7], "<i8").tofile(longs)
    np.array([5, 2**32 - 1, 9], "<u4").tofile(ints)
    with hps.open(directory, tables, cache="16MiB") as store:
        for name, dim in (("a", 2), ("b", 3)):
            keys = np.array([5, -7, 2**32 - 1])
            store.put(name, keys, np.ones((3, dim), np.float32))
        keys = [hps.Keyset(longs), hps.Keyset(str(ints), dtype="u32"), np.arange(4, dtype=np.uint64)]
        with store.begin_pass(["a", "b", "c"], keys).wait() as begun:
            found = [(t.name, t.keys, t.known) for t in begun.report.tables]
            assert found == [("a", 2, 2), ("b", 3, 2), ("c", 4, 0)]
            assert (begun.report.keys, begun.report.known, begun.report.hit_rate) == (9, 4, 1.0)
        assert store.begin_pass("b", hps.Keyset(ints, "u32")).wait().end().known == 2
        assert store.begin_pass(("a",), (hps.Keyset(longs),)).wait().end().known == 2
        # Not the type that it has.
        with pytest.raises(hps.InvalidArgument, match="ints.keyset.*12 bytes.*offset 8"):
            store.begin_pass("b", hps.Keyset(ints))
        with pytest.raises(hps.Io) as missing:
            store.begin_pass("b", hps.Keyset(tmp_path / "none"))
        assert missing.value.path.endswith("none")
        (tmp_path / "empty").touch()
        with pytest.raises(hps.InvalidArgument, match="no keys"):
            store.begin_pass("b", hps.Keyset(tmp_path / "empty"))
        with pytest.raises(hps.InvalidArgument, match="at least one part"):
            store.begin_pass([], [])
        with pytest.raises(hps.InvalidArgument, match="a list of 1 came, one of 2"):
            store.begin_pass(["a", "b"], keys[:1])
        with pytest.raises(hps.ArrayMismatch, match=r"keys\[1\]: dtype float64"):
            store.begin_pass(["a", "b"], [keys[0], np.ones(2)])
        with pytest.raises(hps.ArrayMismatch, match="keys: a str came"):
            store.begin_pass("a", str(longs))
        with pytest.raises(hps.UnknownTable):
            store.begin_pass("d", keys[0])
        with pytest.raises(hps.InvalidArgument, match='"i64" or "u32"'):
            hps.Keyset(longs, dtype="i32")
        with pytest.raises(hps.InvalidArgument, match="path"):
            hps.Keyset(3)
        assert hps.Keyset("x") == hps.Keyset("x", dtype="i64") and store.stats().leases == 0
        store.close(discard=True)


class Model:
    """HugeCTR's Cached-PS, on sets of keys."""

    def __init__(self, policy):
        self.policy, self.blocks, self.evictions = policy, collections.deque(), 0

    def begin(self, keys):
        hits = len(keys & set().union(*self.blocks))
        is_full = len(self.blocks) == self.policy.num_blocks
        evicts = (
            is_full and self.policy.num_blocks > 0 and self.evictions < self.policy.max_num_evict
            and hits < self.policy.target_hit_rate * len(keys)
        )
        if evicts:
            self.blocks.popleft()
            self.evictions += 1
        if not is_full or evicts:
            self.blocks.append(keys)
        return hits, not is_full or evicts


@pytest.mark.parametrize("of_store", [True, False], ids=["of the store", "of its table"])
@pytest.mark.parametrize("policy", [hps.Cached(2, 0.5, 3), hps.Cached(1, 1.0, 2), hps.Cached(3), hps.Cached(0, 1)])
def test_passes_become_blocks_as_a_model_of_sets_says(directory, policy, of_store):
    rows, random, model = 2000, np.random.default_rng(7), Model(policy)
    tables = [hps.Table("t", dim=DIM, optimizer=hps.SGD(lr=1.0), policy=None if of_store else policy)]
    with filled(directory, rows, tables=tables, policy=policy if of_store else "lru") as store:
        assert store.stats().tables["t"].policy == "cached"
        evicted = 0
        for number in range(12):
            if number == 8:
                store.unfreeze("t")
                model.evictions = 0
            popular = random.integers(number * 40, number * 40 + 300, 250)
            keys = np.unique(np.concatenate([popular, random.integers(0, rows, 100)]))
            hits, is_block = model.begin(set(keys.tolist()))
            report = store.begin_pass("t", keys).wait().end()
            assert (report.hits, report.tables[0].is_block) == (hits, is_block), number
            of_table = store.stats().tables["t"]
            assert (of_table.blocks, of_table.block_evictions) == (len(model.blocks), model.evictions)
            evicted = max(evicted, model.evictions)
        assert evicted == (policy.max_num_evict if policy.num_blocks else 0), "nothing was tried"
        for block in model.blocks:
            assert not reads(store, np.array(sorted(block)))


def test_a_staged_table_is_in_memory_when_the_store_is_open(directory):
    with filled(directory, 30_000, policy="staged") as store:
        assert store.stats().tables["t"].policy == "staged" and store.stats().resident_rows == 30_000
        assert not reads(store, np.arange(30_000))
        assert store.begin_pass("t", np.arange(30_000)).wait().end().hit_rate == 1.0
    with pytest.raises(hps.OverBudget) as over:
        hps.open(directory, cache="1MiB", policy="staged", shards=2)
    hps.open(directory, cache=over.value.needed_bytes, policy="staged", shards=2).close()


def test_a_policy_that_is_none_is_refused(directory):
    for bad, what in [
        (dict(num_blocks=-1), "num_blocks: -1"), (dict(num_blocks=1.5), "num_blocks: 1.5"),
        (dict(num_blocks=2**32), "num_blocks"), (dict(num_blocks=1, target_hit_rate=1.5), "target_hit_rate: 1.5"),
        (dict(num_blocks=1, target_hit_rate=float("nan")), "target_hit_rate: nan"),
        (dict(num_blocks=1, max_num_evict=-1), "max_num_evict: -1"), (dict(num_blocks=True), "num_blocks: True"),
    ]:
        with pytest.raises(hps.InvalidArgument, match=what):
            hps.Cached(**bad)
    for bad, what in [("cached", r"hps\.Cached"), ("stage", "staged"), (7, r"hps\.Cached"), (hps.Cached, "hps")]:
        with pytest.raises(hps.InvalidArgument, match=what):
            hps.open(directory, [hps.Table("t", dim=1)], cache="16MiB", policy=bad)
        with pytest.raises(hps.InvalidArgument, match=what):
            hps.open(directory, [hps.Table("t", dim=1, policy=bad)], cache="16MiB")


def test_a_pass_without_room_says_so_at_once_or_waits_as_long_as_told(directory):
    with filled(directory, 40_000, cache="3MiB") as store:
        keys = np.arange(40_000)
        with pytest.raises(hps.OverBudget, match="split") as over:
            store.begin_pass("t", keys)
        assert over.value.needed_bytes > 3 << 20
        fits = next(n for n in range(38_000, 0, -1000) if opens(store, keys[:n]))
        small, held = [store.begin_pass("t", keys[:size]).wait() for size in (1, fits // 2)]
        late = store.begin_pass("t", keys[-fits + 1000 :])
        assert not late.ready
        since = time.monotonic()
        with pytest.raises(hps.Deadline) as passed:
            late.wait(timeout=0.3)
        assert 300 <= passed.value.waited_ms < 20_000 and time.monotonic() - since >= 0.3
        stuck = store.begin_pass("t", keys[-fits + 1000 :])
        late.cancel()
        since = time.monotonic()
        with pytest.raises(hps.OverBudget) as over:
            stuck.wait()
        assert time.monotonic() - since < 20 and over.value.leases
        with pytest.raises(hps.Closed, match="has given its pass"):
            stuck.wait()
        late = store.begin_pass("t", keys[-fits + 1000 :])
        threading.Timer(0.2, held.end).start()
        with late.wait(timeout=60) as come:
            assert come.report.keys == fits - 1000
        small.end()
        with pytest.raises(hps.InvalidArgument, match="timeout"):
            store.begin_pass("t", keys[:3]).wait(timeout=-1)
        wait_until(lambda: store.stats().leases == 0)


def opens(store, keys):
    try:
        store.begin_pass("t", keys).wait().end()
    except hps.OverBudget:
        return False
    return True


def wait_until(is_so):
    for _ in range(10_000):
        if is_so():
            return
        time.sleep(0.001)
    assert is_so()


def test_a_ticket_is_polled_cancelled_and_dropped(directory):
    with filled(directory, 1000) as store:
        ticket = store.begin_pass(["t", "t"], [np.arange(500), np.arange(400, 600)])
        wait_until(lambda: ticket.ready)
        assert repr(ticket) == "PassTicket(t, t)"
        ticket.wait(timeout=30).end()
        for call in (lambda: ticket.wait(), lambda: ticket.ready):
            with pytest.raises(hps.Closed):
                call()
        ticket = store.begin_pass("t", np.arange(500))
        ticket.cancel()
        ticket.cancel()
        with pytest.raises(hps.Closed, match="cancelled"):
            ticket.wait()
        ticket = store.begin_pass("t", np.arange(500))
        del ticket
        gc.collect()
        wait_until(lambda: store.stats().leases == 0)
        assert store.stats().pinned_rows == 0


def test_passes_of_a_closed_store_say_so(directory):
    store = filled(directory, 1000)
    ticket, begun = store.begin_pass("t", np.arange(10)), store.begin_pass("t", np.arange(20)).wait()
    store.close()
    for call in (
        lambda: ticket.wait(), lambda: ticket.ready, lambda: store.begin_pass("t", np.arange(10)),
        lambda: store.unfreeze("t"),
    ):
        with pytest.raises(hps.Closed):
            call()
    assert begun.end().keys == 20
    with pytest.raises(hps.Error):
        store.begin_pass("t", np.arange(10))


def test_a_pass_keeps_its_store(directory):
    begun = filled(directory, 1000).begin_pass("t", np.arange(10)).wait()
    gc.collect()
    with pytest.raises(hps.Locked):
        hps.open(directory, cache="16MiB")
    del begun
    gc.collect()
    hps.open(directory, cache="16MiB").close()


def test_other_threads_of_python_run_while_a_pass_comes_in(directory):
    with hps.open(directory, [hps.Table("t", dim=1)], cache="256MiB", inline=True) as store:
        ticks, ended = [], threading.Event()

        def tick():
            while not ended.wait(0.0005):
                ticks.append(None)

        thread = threading.Thread(target=tick)
        thread.start()
        # Inline, begin_pass itself brings the rows in.
        before, ticket = len(ticks), store.begin_pass("t", np.arange(1_000_000))
        during = len(ticks) - before
        ended.set()
        thread.join()
        assert during > 3, "the GIL was not released"
        assert ticket.wait().end().keys == 1_000_000


def trained(directory, policy, batches_of_pass=None):
    """Trains pass by pass, or without passes, and gives all rows."""
    random, table = np.random.default_rng(3), hps.Table("t", dim=DIM, optimizer=hps.Adam(lr=0.01))
    batches = [np.unique(random.integers(0, 8000, 200)) for _ in range(40)]
    with hps.open(directory, [table], cache="3MiB", shards=2, policy=policy) as store:
        def keyset(number):
            part = batches[number * batches_of_pass : (number + 1) * batches_of_pass]
            return np.unique(np.concatenate(part)) if part else None

        following = begun = None
        if batches_of_pass:
            following = store.begin_pass("t", keyset(0))
        for step, batch in enumerate(batches):
            if batches_of_pass and step % batches_of_pass == 0:
                if begun:
                    begun.end()
                begun, more = following.wait(), keyset(step // batches_of_pass + 1)
                following = None if more is None else store.begin_pass("t", more)
            with store.pull("t", batch) as lease:
                lease.push(lease.rows - np.float32(step))
        store.checkpoint(1)
        return [(keys.tobytes(), rows.tobytes(), state["v"].tobytes()) for _, keys, rows, state in store.rows()]


def test_rows_do_not_depend_on_passes(tmp_path):
    wanted = trained(tmp_path / "wanted", "bilevel")
    assert len(wanted) > 0
    for number, policy in enumerate(["bilevel", hps.Cached(1, 0.9, 2), hps.Cached(0)]):
        for size in (4, 10):
            assert trained(tmp_path / f"{number}-{size}", policy, size) == wanted, (policy, size)
