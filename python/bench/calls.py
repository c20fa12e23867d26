"""How much do the calls cost from Python, beside the same calls from Rust?

    python python/bench/calls.py [--rounds N] [--directory DIR]

All rows are in memory. Both sides run in one process, on one store, by turns; each figure is the
median. A pull is a pull and the release of its lease.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time

import numpy as np

import hps
from hps import _hps


def python_calls(store, tables, keys, zeros, rounds):
    clock, times = time.perf_counter, []
    for _ in range(rounds):
        begin = clock()
        lease = store.pull(tables, keys)
        lease.rows
        pulled = clock()
        lease.push(zeros, 0.01)
        pushed = clock()
        lease.release()
        times.append((pulled - begin + clock() - pushed, pushed - pulled))
    return times


def compare(store, name, tables, keys, rounds):
    zeros = [np.full((len(k), store.tables[t].dim), 0.0, np.float32) for t, k in zip(tables, keys)]
    one = len(tables) == 1
    asked = (tables[0], keys[0], zeros[0]) if one else (tables, keys, zeros)
    found = {"python": [], "rust": []}
    python_calls(store, *asked, 3)
    for _ in range(10):
        found["rust"] += _hps.time_rust_calls(store, asked[0], asked[1], rounds)
        found["python"] += python_calls(store, *asked, rounds)
    medians = {
        side: [statistics.median(column) * 1e6 for column in zip(*times)]
        for side, times in found.items()
    }
    for what, python, rust in zip(("pull", "push"), medians["python"], medians["rust"]):
        print(
            f"{name:24} {what}  python {python:9.1f} us  rust {rust:9.1f} us"
            f"  ratio {python / rust:6.3f}  more {python - rust:7.1f} us"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--directory", help="where the store is made; default: a temporary one")
    options = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        names = [f"c{i}" for i in range(26)]
        tables = [hps.Table(name, dim=64) for name in names]
        store = hps.open(f"{directory}/store", tables, cache="512MiB")
        generator = np.random.default_rng(1)
        many = generator.permutation(200_000)[:32_768]
        compare(store, "32768 keys", ["c0"], [many], options.rounds)
        compare(store, "1 key", ["c0"], [many[:1]], options.rounds * 50)
        some = [generator.permutation(20_000)[:1024] for _ in names]
        compare(store, "26 tables x 1024 keys", names, some, options.rounds)
        store.close(discard=True)


if __name__ == "__main__":
    main()
