"""A model of 1 000 items that learns what they are worth; run it twice: it goes on where it was."""

import numpy as np

import hps

items = hps.Table("items", dim=8, optimizer=hps.AdaGrad(lr=0.1), init=hps.Uniform(-0.01, 0.01))
with hps.open("quickstart-store", tables=[items], cache="64MiB") as store:
    for step in range(store.step + 1, store.step + 101):
        keys = np.random.default_rng(step).integers(0, 1000, size=256)
        with store.pull("items", keys) as lease:  # resident and pinned
            error = lease.rows - np.sin(keys)[:, None].astype(np.float32)  # rows: float32 [256, 8]
            lease.push(error)  # AdaGrad in the store; equal keys are summed
        if step % 50 == 0:
            store.checkpoint(step, meta=b"anything of yours")  # survives a crash from here on
            print(f"step {step}: mean error {abs(error).mean():.4f}, {store.stats().hit_rate:.0%} hits")
