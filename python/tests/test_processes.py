"""Forked children, killed trainers, signals, threads and the log."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import hps

# A shell without a terminal starts what is beside it with SIGINT ignored, and Python leaves that so.
HEAD = (
    "import os, signal, sys, time, threading\nimport numpy as np\nimport hps\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
)


def python(code, *arguments, **options):
    """Runs a program of its own."""
    program = HEAD + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )


def ended(process, seconds=60):
    out, errors = process.communicate(timeout=seconds)
    return process.returncode, out, errors


def test_in_a_forked_child_every_call_is_an_error_and_its_end_does_not_hang(directory):
    code = """
        store = hps.open(sys.argv[1], [hps.Table("t", dim=4)], cache="16MiB")
        keys = np.arange(10)
        lease = store.pull("t", keys)
        ticket = store.prefetch("t", keys)
        begun = store.checkpoint_begin(1)
        entered = store.begin_pass("t", keys).wait()
        next_pass = store.begin_pass("t", keys)
        child = os.fork()
        if child == 0:
            calls = [
                lambda: store.pull("t", keys), lambda: store.prefetch("t", keys), lambda: lease.rows,
                lambda: lease.read(), lambda: lease.push(np.ones((10, 4), np.float32)),
                lambda: ticket.wait(), lambda: ticket.ready, lambda: begun.wait(),
                lambda: store.checkpoint(2), lambda: store.contains("t", keys), lambda: store.stats(),
                lambda: store.rows(), lambda: store.step, lambda: store.close(), lambda: store.unique(keys),
                lambda: store.close(discard=True), lambda: store.rollback(1), lambda: store.metrics(),
                lambda: store.begin_pass("t", keys), lambda: store.unfreeze("t"),
                lambda: next_pass.wait(), lambda: next_pass.wait(timeout=1), lambda: next_pass.ready,
            ]
            for number, call in enumerate(calls):
                try:
                    call()
                except hps.Forked as error:
                    assert "forked" in str(error)
                else:
                    print("call", number, "did not raise", flush=True)
                    os._exit(3)
            lease.release()
            next_pass.cancel()
            assert entered.end().keys == 10
            repr(store), repr(lease), repr(ticket), repr(entered), repr(next_pass), store.closed
            del store, lease, ticket, begun, entered, next_pass
            # The interpreter ends as usual, with all that it cleans up.
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        begun.wait()
        lease.push(np.ones((10, 4), np.float32))
        assert ticket.wait(timeout=30).rows.shape == (10, 4)
        del ticket
        lease.release()
        assert store.stats().pinned_rows == 10, "what the child ended is not ended here"
        assert next_pass.wait(timeout=30).end().keys == entered.end().keys == 10
        store.checkpoint(2)
        store.close()
        print("well")
    """
    status, out, errors = ended(python(code, directory))
    assert (status, out) == (0, "well\n"), errors


def test_a_killed_trainers_store_opens_at_once_while_its_worker_lives(directory):
    code = """
        store = hps.open(sys.argv[1], [hps.Table("t", dim=1, init=hps.Zero())], cache="16MiB")
        store.push("t", np.arange(5), np.ones((5, 1), np.float32), kind="weights")
        store.checkpoint(3)
        store.push("t", np.arange(5), np.zeros((5, 1), np.float32), kind="weights")
        begun, begins = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(begins, b".")
            time.sleep(60)
            os._exit(0)
        # A child that never ran has closed nothing yet.
        os.read(begun, 1)
        print(child, flush=True)
        time.sleep(60)
    """
    process = python(code, directory)
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)
        since = time.monotonic()
        with hps.open(directory, cache="16MiB") as store:
            assert time.monotonic() - since < 20
            assert store.step == 3
            with store.pull("t", np.arange(5)) as lease:
                assert (lease.rows == 1.0).all()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("wait", ["ticket", "checkpoint", "join", "pass"])
def test_control_c_ends_a_wait(directory, wait):
    code = """
        store = hps.open(sys.argv[1], [hps.Table("t", dim=1024)], cache="24MiB")
        if sys.argv[2] == "ticket":
            lease = store.pull("t", np.arange(2000))
            ticket = store.prefetch("t", np.arange(3000, 5000))
            wait = lambda: ticket.wait(timeout=50)
        elif sys.argv[2] == "pass":
            # 300 passes come in before it.
            rows = np.arange(1 << 20)
            rows.tofile(sys.argv[1] + ".keyset")
            store.set_cache("256MiB")
            store.create_table(hps.Table("narrow", dim=1, optimizer=hps.SGD()))
            tickets = [store.begin_pass("narrow", hps.Keyset(sys.argv[1] + ".keyset")) for _ in range(300)]
            wait = tickets[-1].wait
        elif sys.argv[2] == "checkpoint":
            wait = lambda: [store.checkpoint(step) for step in range(1, 10**9)]
        else:
            wait = lambda: [store.pull("t", np.arange(500)).release() for _ in range(10**9)]
        print("ready", flush=True)
        since = time.monotonic()
        try:
            wait()
        except KeyboardInterrupt:
            assert time.monotonic() - since < 20
            print("interrupted", flush=True)
        if sys.argv[2] == "ticket":
            lease.release()
            assert ticket.wait(timeout=30).rows.shape == (2000, 1024)
            del ticket
        store.close(discard=True)
        print("closed")
    """
    process = python(code, directory, wait)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    status, out, errors = ended(process)
    assert (status, out) == (0, "interrupted\nclosed\n"), errors


def test_closing_inside_another_call_of_the_thread_is_refused(directory):
    code = """
        store = hps.open(sys.argv[1], [hps.Table("t", dim=4)], cache="16MiB")
        first = store.checkpoint(1)

        ones = np.ones((10, 4), np.float32)

        class Values:
            def __dlpack_device__(self):
                return ones.__dlpack_device__()

            def __dlpack__(self, **options):
                for call in [lambda: store.close(discard=True), lambda: store.rollback(first.id)]:
                    try:
                        call()
                    except hps.InvalidArgument as error:
                        print(error)
                return ones.__dlpack__(**options)

        with store.pull("t", np.arange(10)) as lease:
            lease.push(Values())
        assert not store.closed and store.contains("t", np.arange(10)).all()
        store.rollback(first.id)
        store.close()
    """
    status, out, errors = ended(python(code, directory))
    assert status == 0, errors
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["close", "inside", "another"], ["rollback", "inside", "another"]
    ]


def test_an_interpreter_ends_with_an_open_store(directory):
    code = """
        store = hps.open(sys.argv[1], [hps.Table("t", dim=4)], cache="16MiB")
        lease = store.pull("t", np.arange(10))
        ticket = store.prefetch("t", np.arange(10))
        entered, next_pass = store.begin_pass("t", np.arange(9)).wait(), store.begin_pass("t", np.arange(8))
        rows = store.checkpoint(1) and store.rows()
        threading.Thread(target=lambda: [store.stats() and time.sleep(0.01) for _ in range(10**6)], daemon=True).start()
        print("end")
    """
    status, out, errors = ended(python(code, directory))
    assert (status, out, errors) == (0, "end\n", ""), errors


def test_what_the_store_logs_comes_to_logging(directory, caplog):
    with caplog.at_level(logging.INFO, logger="hps"):
        hps._log.refresh()
        with hps.open(directory, [hps.Table("t", dim=4)], cache="16MiB") as store:
            store.checkpoint(1)
            store.push("t", np.arange(3), np.ones((3, 4), np.float32))
            store.close(discard=True)
        hps._hps.drain_log()
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("hps")]
    assert any("durable" in message for message in messages), messages
    caplog.clear()
    with caplog.at_level(logging.ERROR, logger="hps"):
        hps._log.refresh()
        with hps.open(directory, cache="16MiB") as store:
            store.checkpoint(2)
        hps._hps.drain_log()
    assert not caplog.records


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_handler_that_raises_does_not_break_a_call(directory, capfd):
    class Broken(logging.Handler):
        def emit(self, record):
            raise ValueError("a broken handler")

    logger, handler = logging.getLogger("hps"), Broken()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        hps._log.refresh()
        with hps.open(directory, [hps.Table("t", dim=4)], cache="16MiB") as store:
            store.checkpoint(1)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        hps._log.refresh()
        hps._hps.drain_log()


def trained(directory, threads, rounds):
    """Trains each range of keys by a stream of its own, and gives all rows."""
    streams = 8
    with hps.open(directory, [hps.Table("t", dim=8)], cache="2MiB", shards=2, threads=2) as store:
        def work(numbers):
            for number in numbers:
                generator = np.random.default_rng(number)
                for _ in range(rounds):
                    keys = generator.integers(0, 20_000, 200) * streams + number
                    lease = store.prefetch("t", keys).wait() if generator.random() < 0.5 else store.pull("t", keys)
                    with lease:
                        lease.push(generator.standard_normal((200, 8), np.float32) + lease.rows)

        failed = []

        def guarded(numbers):
            try:
                work(numbers)
            except BaseException as error:
                failed.append(error)

        parts = [range(at, streams, threads) for at in range(threads)]
        workers = [threading.Thread(target=guarded, args=(part,)) for part in parts]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        assert not failed, failed
        store.checkpoint(1)
        found = [(keys, weights.copy(), state["a"].copy()) for _, keys, weights, state in store.rows()]
    return [np.concatenate(column) for column in zip(*found)]


def test_eight_threads_leave_the_rows_of_one(tmp_path):
    rounds = int(os.environ.get("HPS_THREAD_ROUNDS", "40"))
    one = trained(tmp_path / "one", 1, rounds)
    eight = trained(tmp_path / "eight", 8, rounds)
    for left, right in zip(one, eight):
        np.testing.assert_array_equal(left, right)


def test_other_threads_of_python_run_during_a_call(directory):
    with hps.open(directory, [hps.Table("t", dim=64)], cache="16MiB") as store:
        ticks, ended = [], threading.Event()

        def tick():
            while not ended.wait(0.0005):
                ticks.append(None)

        thread = threading.Thread(target=tick)
        thread.start()
        values = np.ones((200_000, 64), np.float32)
        before = len(ticks)
        store.put("t", np.arange(200_000), values)
        during = len(ticks) - before
        ended.set()
        thread.join()
        assert during > 3, "the GIL was not released"
        store.close(discard=True)


def test_calls_keep_no_memory(store):
    def held():
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

    def calls(count):
        for at in range(count):
            some = np.arange(at, at + 500)
            with store.pull("t", some) as lease:
                lease.push(lease.rows)
                lease.state(), lease.read()
            store.prefetch(["t", "t"], [some, some]).wait().release()
            store.begin_pass(["t", "t"], [some, some]).wait().end(), store.begin_pass("t", some).cancel()
            store.unique(some), store.contains("t", some), store.stats()
            try:
                store.pull("t", some.astype(np.float64))
            except hps.ArrayMismatch:
                pass

    calls(300)
    before = held()
    calls(3000)
    assert held() - before < 8 << 10, "KiB: 3 000 batches of 8 KB keep nothing"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_tells_how_a_run_goes(store, keys, tmp_path):
    terminal, log = Terminal(), tmp_path / "run.jsonl"
    with open(log, "w") as file:
        with hps.watch(store, seconds=30, file=terminal, log=file) as watch:
            for _ in range(3):
                store.pull("t", keys).release()
                figures = watch.update()
            assert figures["rows_per_second"] > 0 and 0 <= figures["hit_rate"] <= 1
    shown = terminal.getvalue()
    assert shown.count("\r") == 3 and shown.endswith("\n") and "rows/s" in shown and "% hits" in shown
    assert [set(json.loads(line)) for line in log.read_text().splitlines()] == [set(figures)] * 3
    quiet = io.StringIO()
    with hps.watch(store, seconds=0.01, file=quiet):
        time.sleep(0.05)
    assert quiet.getvalue() == ""
    with pytest.raises(hps.InvalidArgument, match="seconds"):
        hps.watch(store, seconds=0)


def test_a_watch_ends_with_its_store(directory):
    store = hps.open(directory, [hps.Table("t", dim=4)], cache="16MiB")
    watch = hps.watch(store, seconds=0.01, file=Terminal())
    store.close()
    time.sleep(0.1)
    watch.close()


def test_a_run_is_drawn(tmp_path):
    log = tmp_path / "run.jsonl"
    line = {"seconds": 1.0, "hit_rate": 0.9, "read_bytes": 1e6, "written_bytes": 2e6, "stall_share": 0.01}
    log.write_text("".join(json.dumps({**line, "seconds": at}) + "\n" for at in range(5)))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(hps.InvalidArgument, match="pip install matplotlib"):
            hps.plot_run(log)
        return
    figure = hps.plot_run(log, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000 and len(figure.axes) == 3
    log.write_text("no json\n")
    with pytest.raises(hps.InvalidArgument, match="line 1 is no JSON"):
        hps.plot_run(log)
    log.write_text("{}\n")
    with pytest.raises(hps.InvalidArgument, match="no line has a hit rate"):
        hps.plot_run(log)
