"""Any sequence of calls leaves what a dictionary holds: hypothesis against a model in NumPy."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hps

DIM = 2
TABLES = {
    "sgd": hps.Table("sgd", dim=DIM, optimizer=hps.SGD(lr=0.5), init=hps.Constant(1.0)),
    "ada": hps.Table("ada", dim=DIM, optimizer=hps.AdaGrad(lr=0.5), init=hps.Zero()),
}
KEYS = st.lists(st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1, *range(100, 130)]), max_size=8)


def initial(table):
    return np.full(DIM, 1.0 if table == "sgd" else 0.0, np.float32)


class Machine(RuleBasedStateMachine):
    """`rows`: of (table, key), weights and AdaGrad's sums, in float32 like the store."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="hps-model-")
        self.rows = {}
        self.saved = {0: {}}
        self.step = 0
        self.leases = []

    @initialize()
    def begin(self):
        self.open()

    def open(self):
        path = f"{self.directory}/store"
        self.store = hps.open(path, list(TABLES.values()), cache="2MiB", shards=2, threads=2, retain_checkpoints=3)

    def teardown(self):
        if hasattr(self, "store"):
            self.leases.clear()
            self.store.close(discard=True)
        shutil.rmtree(self.directory)

    def weights(self, table, key):
        return self.rows.get((table, key), (initial(table), None))[0]

    def expected(self, table, keys):
        rows = [self.weights(table, key) for key in keys]
        return np.array(rows, np.float32).reshape(len(keys), DIM)

    def change(self, table, keys, gradients):
        summed = {}
        for key, gradient in zip(keys, gradients):
            summed[key] = summed[key] + gradient if key in summed else gradient
        for key, gradient in summed.items():
            weights, sums = self.rows.get((table, key), (initial(table), np.zeros(DIM, np.float32)))
            rate = np.float32(0.5)
            if table == "sgd":
                weights = weights - rate * gradient
            else:
                sums = sums + gradient * gradient
                weights = weights - rate * gradient / (np.sqrt(sums) + np.float32(1e-8))
            self.rows[table, key] = (weights, sums)

    @rule(table=st.sampled_from(list(TABLES)), keys=KEYS, seed=st.integers(0, 99), ahead=st.booleans())
    def train(self, table, keys, seed, ahead):
        array = np.array(keys, np.uint64)
        lease = self.store.prefetch(table, array).wait() if ahead else self.store.pull(table, array)
        with lease:
            np.testing.assert_array_equal(lease.rows, self.expected(table, keys))
            shape = (len(keys), DIM)
            gradients = np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)
            lease.push(gradients)
            self.change(table, keys, gradients)

    @rule(first=KEYS, second=KEYS)
    def train_both(self, first, second):
        arrays = [np.array(first, np.uint64), np.array(second, np.uint64).view(np.int64)]
        with self.store.pull(["sgd", "ada"], arrays) as lease:
            for table, keys, rows in zip(("sgd", "ada"), (first, second), lease.rows):
                np.testing.assert_array_equal(rows, self.expected(table, keys))
            ones = [np.ones((len(keys), DIM), np.float32) for keys in (first, second)]
            lease.push(ones)
            self.change("sgd", first, ones[0])
            self.change("ada", second, ones[1])

    @rule(table=st.sampled_from(list(TABLES)), keys=KEYS)
    def put(self, table, keys):
        whole = np.full((len(keys), DIM), 3.0, np.float32)
        self.store.put(table, np.array(keys, np.uint64), whole)
        for key in keys:
            sums = self.rows.get((table, key), (None, np.zeros(DIM, np.float32)))[1]
            # A put of weights begins the row's state anew.
            self.rows[table, key] = (np.full(DIM, 3.0, np.float32), np.zeros_like(sums))

    @rule(table=st.sampled_from(list(TABLES)), keys=KEYS)
    def remove(self, table, keys):
        gone = {key for key in keys if (table, key) in self.rows}
        found = self.store.remove(table, np.array(keys, np.uint64))
        assert found == len(gone)
        for key in gone:
            del self.rows[table, key]

    @rule(keys=KEYS)
    def hold_on_to_a_lease(self, keys):
        self.leases.append(self.store.pull("sgd", np.array(keys, np.uint64)))
        del self.leases[:-3]

    @rule()
    def let_go(self):
        self.leases.clear()

    @rule()
    def checkpoint(self):
        self.step += 1
        made = self.store.checkpoint(self.step, meta=str(self.step).encode())
        self.saved[made.id] = dict(self.rows)
        assert made.meta == str(self.step).encode()

    @precondition(lambda self: len(self.saved) > 1)
    @rule(back=st.integers(0, 2))
    def roll_back(self, back):
        self.leases.clear()
        retained = self.store.checkpoints()
        chosen = retained[max(0, len(retained) - 1 - back)]
        self.store.rollback(chosen.id)
        self.rows, self.step = dict(self.saved[chosen.id]), chosen.step
        self.saved = {id: rows for id, rows in self.saved.items() if id <= chosen.id}

    @rule(discard=st.booleans())
    def reopen(self, discard):
        self.leases.clear()
        if not discard and self.store.has_changes:
            try:
                self.store.close()
                raise AssertionError("it had changes")
            except hps.Uncheckpointed:
                pass
        last = self.store.last_checkpoint
        self.store.close(discard=True)
        self.rows = dict(self.saved[last.id]) if last else {}
        self.open()

    @invariant()
    def it_has_the_keys_of_the_model(self):
        if not hasattr(self, "store"):
            return
        for table in TABLES:
            keys = [0, 1, 2, 3, 2**63, 2**64 - 1, 100, 101]
            found = self.store.contains(table, np.array(keys, np.uint64))
            assert found.tolist() == [(table, key) in self.rows for key in keys]
        assert self.store.stats().leases == len(self.leases)


TestModel = Machine.TestCase
TestModel.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
