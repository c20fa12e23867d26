"""Trains a table that is larger than its cache; killed at any time, it goes on from its last checkpoint
and ends with the same rows, to the bit, as a run that nobody killed.

    python resume.py DIRECTORY [STEPS]
"""

import sys

import numpy as np

import hps

KEYS, BATCH, DIM = 200_000, 4096, 16


def batch(step):
    """A function of the step alone: a resumed run sees the same keys."""
    at = np.arange(BATCH, dtype=np.uint64) + np.uint64(step * BATCH)
    return (at * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) % np.uint64(KEYS)


def gradients(step, keys, rows):
    wanted = ((keys * np.uint64(31) + np.uint64(step)) % np.uint64(17)).astype(np.float32)
    return rows * np.float32(0.5) + (wanted[:, None] - np.float32(8)) / np.float32(16)


def main(directory, steps):
    table = hps.Table("t", dim=DIM, optimizer=hps.AdaGrad(lr=0.05), seed=3)
    with hps.open(directory, tables=[table], cache="4MiB", threads=2) as store:
        print(f"begins at step {store.step}", flush=True)
        for step in range(store.step + 1, steps + 1):
            keys = batch(step)
            with store.pull("t", keys) as lease:
                lease.push(gradients(step, keys, lease.rows))
            if step % 20 == 0:
                store.checkpoint(step)
                print(f"step {step}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400)
