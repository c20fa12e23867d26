"""The store from Python: every call, and what it leaves."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import hps


def test_rows_are_pulled_changed_and_there_after_a_checkpoint(directory, keys):
    table = hps.Table("t", dim=4, optimizer=hps.SGD(lr=0.5), init=hps.Constant(1.0))
    with hps.open(directory, [table], cache="16MiB") as store:
        with store.pull("t", keys) as lease:
            assert lease.rows.shape == (10, 4) and lease.rows.dtype == np.float32
            assert (lease.rows == 1.0).all()
            report = lease.push(np.full((10, 4), 2.0, np.float32))
            assert (report.rows, report.non_finite) == (10, 0)
            assert (lease.rows == 1.0).all(), "as they were pulled"
            assert (lease.read() == 0.0).all(), "as they are now"
        assert store.step == 0 and store.last_checkpoint is None
        made = store.checkpoint(7, b"dense")
        assert (made.step, made.meta, made.meta_bytes) == (7, b"dense", 5)
    with hps.open(directory, cache="16MiB") as store:
        assert store.step == 7
        assert [(c.step, c.meta) for c in store.checkpoints()] == [(7, b"dense")]
        with store.pull("t", keys) as lease:
            assert (lease.rows == 0.0).all()


@pytest.mark.parametrize(
    "optimizer, columns",
    [
        (hps.SGD(), {}),
        (hps.Momentum(momentum=0.5), {"v": (10, 4)}),
        (hps.Nesterov(), {"v": (10, 4)}),
        (hps.AdaGrad(initial_accumulator=0.25), {"a": (10, 4)}),
        (hps.RowwiseAdaGrad(), {"a": (10,)}),
        (hps.Adam(), {"m": (10, 4), "v": (10, 4), "t": (10,)}),
        (hps.FTRL(l1=0.1), {"z": (10, 4), "n": (10, 4)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_optimizer_keeps_its_state(directory, keys, optimizer, columns):
    metadata = ("show", "click", "count", "last_step")
    table = hps.Table("t", dim=4, optimizer=optimizer, metadata=metadata)
    with hps.open(directory, [table], cache="16MiB") as store:
        with store.pull("t", keys) as lease:
            shows = np.arange(10, dtype=np.uint32)
            gradients = np.full((10, 4), 0.5, np.float32)
            lease.push(gradients, shows=shows, clicks=shows // 2, step=9)
            state = lease.state()
            assert {n: a.shape for n, a in state.items() if n not in metadata} == columns
            assert (state["show"] == shows).all() and (state["click"] == shows // 2).all()
            assert (state["count"] == 1).all() and (state["last_step"] == 9).all()
            if isinstance(optimizer, hps.RowwiseAdaGrad):
                assert (state["a"] == 0.25).all()
            elif isinstance(optimizer, hps.AdaGrad):
                assert (state["a"] == 0.5).all(), "0.25 at first, and 0.5 * 0.5"
            if isinstance(optimizer, hps.Adam):
                assert (state["t"] == 1).all()
            rows = lease.read_rows()
            assert rows.shape == (10, store.tables["t"].row_f32s)
            assert (rows[:, :4] == lease.read()).all()
        store.close(discard=True)


def test_the_tables_learning_rate_is_that_of_a_push_that_names_none(directory):
    table = hps.Table("t", dim=1, optimizer=hps.SGD(lr=0.25), init=hps.Zero())
    one = np.array([1], np.uint64)
    with hps.open(directory, [table], cache="16MiB") as store:
        store.push("t", one, np.ones((1, 1), np.float32))
        store.push("t", one, np.ones((1, 1), np.float32), lr=1.0)
        with store.pull("t", one) as lease:
            assert lease.rows[0, 0] == -1.25
        store.checkpoint(1)
    with hps.open(directory, cache="16MiB") as store:
        with pytest.raises(hps.InvalidArgument, match="'t'|\"t\".*lr|lr"):
            store.push("t", one, np.ones((1, 1), np.float32))
        store.push("t", one, np.ones((1, 1), np.float32), lr=1.0)
        store.close(discard=True)


def test_several_tables_are_pulled_and_pushed_in_one_call(directory):
    tables = [hps.Table(n, dim=d, init=hps.Zero(), optimizer=hps.SGD(lr=1.0)) for n, d in (("a", 2), ("b", 3))]
    with hps.open(directory, tables, cache="16MiB") as store:
        asked = [np.array([1, 2, 2], np.int64), np.array([5], np.int64)]
        with store.pull(["a", "b"], asked) as lease:
            assert [rows.shape for rows in lease.rows] == [(3, 2), (1, 3)]
            assert lease.table == ["a", "b"] and len(lease) == 4
            ones = [np.ones((3, 2), np.float32), None]
            assert [report.rows for report in lease.push(ones)] == [2, 0]
            first, second = lease.read()
            assert first.tolist() == [[-1, -1], [-2, -2], [-2, -2]] and (second == 0).all()
            assert lease.state() == [{}, {}]
        with store.prefetch(["a", "b"], asked).wait() as lease:
            assert lease.rows[0].tolist() == first.tolist()
        reports = store.push(["a", "b"], asked, [None, np.ones((1, 3), np.float32)], lr=[None, 2.0])
        assert [report.rows for report in reports] == [0, 1]
        with store.pull("b", asked[1]) as lease:
            assert lease.rows.tolist() == [[-2, -2, -2]]
        with pytest.raises(hps.InvalidArgument, match="a list of 1 came, one of 2"):
            store.pull(["a", "b"], asked[:1])
        store.close(discard=True)


def test_kinds_of_changes(store, keys):
    with store.pull("t", keys) as lease:
        fours = np.full((10, 4), 4.0, np.float32)
        lease.push(fours, kind="weights")
        lease.push(fours, kind="deltas")
        assert (lease.read() == 8.0).all()
        at = np.array([3, 1], np.uint32)
        lease.push(np.zeros((2, 4), np.float32), kind="weights", at=at)
        assert lease.read().sum(axis=1).tolist() == [32, 0, 32, 0] + [32] * 6
        rows = lease.read_rows()
        rows[:, 4:] = 9.0
        lease.push(rows, kind="rows", verbatim=True)
        assert (lease.state()["a"] == 9.0).all()
        with pytest.raises(hps.InvalidArgument, match="gradients, deltas, weights or rows"):
            lease.push(fours, kind="grads")


def test_put_contains_remove_and_unique(store, keys):
    assert not store.contains("t", keys).any()
    weights = np.arange(40, dtype=np.float32).reshape(10, 4)
    assert store.put("t", keys, weights).rows == 10
    whole = np.concatenate([weights, weights], axis=1)
    store.put("t", keys[:5], whole[:5], kind="rows", verbatim=True)
    assert store.contains("t", keys).all() and store.contains("t", keys).dtype == bool
    with store.pull("t", keys) as lease:
        assert (lease.rows == weights).all()
        assert (lease.state()["a"][:5] == weights[:5]).all()
    assert store.remove("t", keys[:3]) == 3
    assert store.contains("t", keys).sum() == 7
    both = [keys[3:5], keys[:1]]
    assert [found.tolist() for found in store.contains(["t", "t"], both)] == [[True, True], [False]]
    assert store.remove(["t", "t"], both) == [2, 0]
    reports = store.put(["t", "t"], both, [weights[3:5], weights[:1]])
    assert [report.rows for report in reports] == [2, 1] and store.contains("t", keys).sum() == 8
    with pytest.raises(hps.ArrayMismatch, match="weights: shape"):
        store.put("t", keys, weights[:3])
    with pytest.raises(hps.InvalidArgument, match="weights or rows"):
        store.put("t", keys, weights, kind="gradients")
    distinct, inverse = store.unique(np.array([5, -1, 5, 5], np.int64))
    assert sorted(distinct.tolist()) == [5, 2**64 - 1] and inverse.dtype == np.int64
    assert (distinct[inverse] == np.array([5, 2**64 - 1, 5, 5], np.uint64)).all()


def test_rows_are_listed_by_chunks(directory):
    tables = [hps.Table("a", dim=2), hps.Table("b", dim=1, optimizer=hps.Adam(), metadata=("count",))]
    with hps.open(directory, tables, cache="16MiB") as store:
        with pytest.raises(hps.InvalidArgument, match="no checkpoint yet"):
            store.rows()
        store.put("a", np.arange(1000, dtype=np.uint64), np.ones((1000, 2), np.float32))
        store.put("b", np.arange(7, dtype=np.uint64), np.ones((7, 1), np.float32))
        first = store.checkpoint(1)
        store.put("a", np.arange(1000, 1001, dtype=np.uint64), np.ones((1, 2), np.float32))
        store.checkpoint(2)
        found = list(store.rows(first.id, chunk=300))
        assert [(table, len(keys)) for table, keys, _, _ in found] == [
            ("a", 300), ("a", 300), ("a", 300), ("a", 100), ("b", 7),
        ]
        assert sorted(np.concatenate([keys for _, keys, _, _ in found[:4]])) == list(range(1000))
        assert found[0][2].shape == (300, 2) and found[0][3]["a"].shape == (300, 2)
        assert found[4][3]["t"].shape == (7,) and found[4][3]["count"].dtype == np.uint32
        assert sum(len(keys) for _, keys, _, _ in store.rows(table="b")) == 7
        assert sum(len(keys) for _, keys, _, _ in store.rows()) == 1008
        with pytest.raises(hps.UnknownTable):
            store.rows(table="c")
        with pytest.raises(hps.InvalidArgument, match="chunk"):
            store.rows(chunk=0)


def test_checkpoints_are_retained_rolled_back_to_held_dropped_and_exported(directory, tmp_path, keys):
    table = hps.Table("t", dim=1, init=hps.Zero())
    with hps.open(directory, [table], cache="16MiB", retain_checkpoints=3) as store:
        made = []
        for step in (1, 2, 3):
            store.push("t", keys, np.full((10, 1), step, np.float32), kind="weights")
            made.append(store.checkpoint_begin(step, meta=bytearray(b"m%d" % step)).wait())
        assert [(c.step, c.meta) for c in store.checkpoints()] == [(1, b"m1"), (2, b"m2"), (3, b"m3")]
        timeline = store.identity[1]
        with store.pull("t", keys):
            with pytest.raises(hps.InvalidArgument, match="outstanding") as refused:
                store.rollback(made[1].id)
            assert refused.value.kind == "LeasesOutstanding"
        with pytest.raises(hps.InvalidArgument) as refused:
            store.rollback(99)
        assert refused.value.kind == "UnknownCheckpoint" and refused.value.retained == [1, 2, 3]
        store.rollback(made[1].id)
        assert store.step == 2 and store.identity[1] != timeline
        with store.pull("t", keys) as lease:
            assert (lease.rows == 2.0).all()
        with store.hold(made[0].id) as hold:
            assert hold.checkpoint == made[0].id and store.stats().holds == 1
            assert store.drop_checkpoints([made[0].id]) == [], "it is held"
            assert len(store.checkpoints()) == 2
        assert store.drop_checkpoints([made[0].id]) == [made[0].id]
        store.export(made[1].id, tmp_path / "copy")
        with hps.open(tmp_path / "copy", [table], cache="16MiB", read_only=True) as copy:
            with copy.pull("t", keys) as lease:
                assert (lease.rows == 2.0).all()


def test_a_reader_sees_its_checkpoint_beside_the_writer(directory, keys):
    table = hps.Table("t", dim=1, init=hps.Zero())
    with hps.open(directory, [table], cache="16MiB") as writer:
        writer.push("t", keys, np.ones((10, 1), np.float32), kind="weights")
        first = writer.checkpoint(1)
        writer.push("t", keys, np.full((10, 1), 2, np.float32), kind="weights")
        writer.checkpoint(2)
        with hps.open(directory, cache="8MiB", read_only=True, checkpoint=first.id) as reader:
            assert reader.read_only and reader.identity[2] == first.id
            with reader.pull("t", keys) as lease:
                assert (lease.rows == 1.0).all()
                with pytest.raises(hps.ReadOnly):
                    lease.push(np.ones((10, 1), np.float32), lr=1.0)
            # It opened the store for writing instead.
            with pytest.raises(hps.ReadOnly):
                reader.rollback(first.id)
            assert reader.identity[2] == first.id
        with pytest.raises(hps.InvalidArgument) as changed:
            hps.open(directory, [hps.Table("t", dim=2)], read_only=True, cache="8MiB")
        assert (changed.value.kind, changed.value.field) == ("DescriptorChanged", "dim")
        with pytest.raises(hps.UnknownTable):
            hps.open(directory, [hps.Table("u", dim=2)], read_only=True, cache="8MiB")


def test_tables_are_made_renamed_and_dropped(store):
    store.create_table(hps.Table("u", dim=2, optimizer=hps.SGD(lr=0.5)))
    assert list(store.tables) == ["t", "u"] and store.tables["u"].lr == 0.5
    store.rename_table("u", "v")
    assert list(store.tables) == ["t", "v"] and store.tables["v"].lr == 0.5
    store.drop_table("v")
    assert list(store.tables) == ["t"]
    with pytest.raises(hps.UnknownTable) as unknown:
        store.pull("v", np.array([1]))
    assert unknown.value.known == ["t"]


def test_a_store_with_changes_does_not_close_unless_told_to(directory, keys):
    store = hps.open(directory, [hps.Table("t", dim=1)], cache="16MiB")
    store.push("t", keys, np.ones((10, 1), np.float32))
    with pytest.raises(hps.Uncheckpointed) as refused:
        store.close()
    assert refused.value.rows == 10 and not store.closed
    store.checkpoint(1)
    store.close()
    store.close()
    assert store.closed and "closed" in repr(store)
    with pytest.raises(ZeroDivisionError):
        with hps.open(directory, cache="16MiB") as store:
            store.push("t", keys, np.ones((10, 1), np.float32), lr=0.1)
            1 / 0
    assert store.closed


def test_closed_things_say_so(directory, keys):
    store = hps.open(directory, [hps.Table("t", dim=1)], cache="16MiB")
    lease = store.pull("t", keys)
    ticket = store.prefetch("t", keys)
    released = store.pull("t", keys)
    released.release()
    released.release()
    with pytest.raises(hps.Closed, match="released"):
        released.rows
    with pytest.raises(hps.Closed, match="released"):
        released.push(np.ones((10, 1), np.float32))
    spent = store.prefetch("t", keys)
    spent.wait().release()
    with pytest.raises(hps.Closed):
        spent.wait()
    store.close()
    for call in (
        lambda: lease.rows, lambda: lease.read(), lambda: lease.push(np.ones((10, 1), np.float32)),
        lambda: lease.state(), lambda: ticket.wait(), lambda: ticket.ready,
        lambda: store.pull("t", keys), lambda: store.push("t", keys, np.ones((10, 1), np.float32)),
        lambda: store.put("t", keys, np.ones((10, 1), np.float32)), lambda: store.remove("t", keys),
        lambda: store.contains("t", keys), lambda: store.unique(keys), lambda: store.checkpoint(1),
        lambda: store.checkpoints(), lambda: store.step, lambda: store.rows(), lambda: store.stats(),
        lambda: store.metrics(), lambda: store.tables, lambda: store.identity, lambda: store.has_changes,
        lambda: store.rollback(1), lambda: store.hold(1), lambda: store.set_cache("32MiB"),
        lambda: store.flush(), lambda: store.create_table(hps.Table("u", dim=1)),
    ):
        with pytest.raises(hps.Closed):
            call()


def test_a_lease_keeps_its_store_and_its_rows_outlive_it(directory, keys):
    lease = hps.open(directory, [hps.Table("t", dim=4, init=hps.Constant(3.0))], cache="16MiB").pull("t", keys)
    gc.collect()
    rows = lease.rows
    lease.push(np.ones((10, 4), np.float32))
    del lease
    gc.collect()
    assert (rows == 3.0).all()
    # The store is closed with its last lease: another may be opened.
    hps.open(directory, [hps.Table("t", dim=4, init=hps.Constant(3.0))], cache="16MiB").close()


def test_buffers_are_reused_but_never_under_an_array_that_is_kept(store, keys):
    lease = store.pull("t", keys)
    address = lease.rows.__array_interface__["data"][0]
    lease.release()
    with store.pull("t", keys) as lease:
        assert lease.rows.__array_interface__["data"][0] == address
        kept = lease.rows[2:3]
    before = kept.copy()
    for _ in range(20):
        with store.pull("t", keys + np.uint64(100)) as lease:
            assert not np.shares_memory(lease.rows, kept)
    assert (kept == before).all()


def test_rows_go_into_the_callers_array(store, keys):
    out = np.zeros((10, 4), np.float32)
    with store.pull("t", keys, out=out) as lease:
        assert lease.rows is out and out.any()
        again = np.zeros_like(out)
        assert lease.read(out=again) is again and (again == out).all()
    with store.prefetch("t", keys).wait() as lease:
        assert (lease.rows == out).all()
    outs = [np.zeros((10, 4), np.float32), np.zeros((2, 4), np.float32)]
    with store.pull(["t", "t"], [keys, keys[:2]], out=outs) as lease:
        assert (outs[0] == out).all() and (outs[1] == out[:2]).all()
        lease.read(out=outs)


def test_a_prefetch_is_waited_for_polled_and_cancelled(store, keys):
    ticket = store.prefetch("t", keys)
    lease = ticket.wait(timeout=30)
    assert lease.rows.shape == (10, 4)
    lease.release()
    ticket = store.prefetch("t", keys)
    ticket.cancel()
    with pytest.raises(hps.Error):
        ticket.wait()
    ticket = store.prefetch("t", keys)
    for _ in range(10_000):
        if ticket.ready:
            break
        threading.Event().wait(0.001)
    assert ticket.ready
    del ticket
    with pytest.raises(hps.InvalidArgument, match="timeout"):
        store.prefetch("t", keys).wait(timeout=-1)


def test_a_checkpoint_that_a_thread_waits_for_is_done_when_it_is_durable(directory):
    with hps.open(directory, [hps.Table("t", dim=1024)], cache="64MiB") as store:
        with store.pull("t", np.arange(5000)) as lease:
            lease.push(np.ones((5000, 1024), np.float32), lr=0.1)
        ticket = store.checkpoint_begin(1)
        thread = threading.Thread(target=ticket.wait)
        thread.start()
        while not ticket.done:
            pass
        assert store.last_checkpoint is not None
        thread.join()
        with pytest.raises(hps.Closed):
            ticket.wait()


def test_what_does_not_fit_says_how_much_memory_would_do(directory):
    with hps.open(directory, [hps.Table("t", dim=1024)], cache="4MiB") as store:
        with pytest.raises(hps.OverBudget) as over:
            store.pull("t", np.arange(4000))
        assert over.value.table == "t" and over.value.needed_bytes > 4 << 20
        # The rows of one shard times the shards.
        assert 3600 < over.value.asked_rows < 4400 and over.value.leases == []
        assert over.value.capacity_rows < over.value.asked_rows
        store.set_cache(over.value.needed_bytes)
        with store.pull("t", np.arange(4000)) as lease:
            assert lease.rows.shape == (4000, 1024)
            ticket = store.prefetch("t", np.arange(4000, 8000))
            with pytest.raises(hps.Deadline) as late:
                ticket.wait(timeout=0.2)
            assert late.value.waited_ms >= 200
            with pytest.raises(hps.OverBudget) as over:
                ticket.wait()
            assert over.value.leases == [lease.id]


def test_stats_and_metrics_count(store, keys):
    with store.pull("t", keys) as lease:
        stats = store.stats()
        assert (stats.leases, stats.rows_read, stats.pinned_rows) == (1, 10, 10)
        assert stats.tables["t"].pinned_rows == 10 and stats.tables["t"].policy == "bilevel"
        assert stats.tables["t"].waits["device"].count >= 0
        lease.push(np.ones((10, 4), np.float32))
    stats = store.stats()
    assert (stats.leases, stats.rows_pushed, stats.uncheckpointed_rows) == (0, 10, 10)
    assert 0 <= stats.hit_rate <= 1 and stats.write_amplification >= 0
    text = store.metrics()
    line = [l for l in text.splitlines() if l.startswith("hps_rows_pushed_total{") and str(store.path) in l]
    assert len(line) == 1 and line[0].endswith(" 10"), text
