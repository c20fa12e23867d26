"""How fast is a DLRM whose embeddings are in a store, against nn.EmbeddingBag in memory? Not a
test.

    python bench_torch.py FILE [--directory DIRECTORY] [--batch N] [--rounds N]

FILE has clicks in Criteo's format. They are parsed before the clock starts. Three figures, each
the best of some rounds that take turns:

- examples/s with a cache of an eighth of the table, against the same model with nn.EmbeddingBag
  (sparse gradients, Adagrad) from the same initial rows, and both AUCs;
- seconds of a second pass over the file, whose rows are on disk by then, reading 0 and 2 batches
  ahead.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import shutil
import tempfile
import time

import numpy as np
import torch

import hps
import hps.torch

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "train_criteo.py"
spec = importlib.util.spec_from_file_location("train_criteo", EXAMPLE)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


def model_of(dim):
    torch.manual_seed(0)
    model = example.Dlrm(dim)
    return model, torch.optim.Adam(model.parameters(), lr=0.001)


def train(loader, embeddings, dim):
    model, dense = model_of(dim)
    score = example.Score()
    for batch in loader:
        score.add(batch.labels, example.train_step(model, embeddings, dense, batch))
    return score.figures()


def keys_of(batch):
    return {"categories": batch.keys}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--directory", type=pathlib.Path, help="where stores are made")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=int, default=8, help="the table is so many caches")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    batches = list(example.read(chosen.file, chosen.batch))
    distinct = np.unique(np.concatenate([batch.keys.numpy().reshape(-1) for batch in batches]))
    clicks = sum(len(batch.labels) for batch in batches)
    described = example.table(chosen.dim, 0.05)
    directory = pathlib.Path(tempfile.mkdtemp(dir=chosen.directory))
    try:
        with hps.open(directory / "probe", [described], cache="32MiB") as store:
            row_bytes = store.tables["categories"].row_bytes
        # Not less than a store needs, beside the rows of three batches.
        least = (4 << 20) + 4 * chosen.batch * example.CATEGORIES * row_bytes
        cache = max(len(distinct) * row_bytes // chosen.share, least)
        print(
            f"{clicks} clicks, {len(distinct)} rows of {row_bytes} bytes: "
            f"{len(distinct) * row_bytes >> 20} MiB, cache {cache >> 20} MiB"
        )
        rates = {"store": 0.0, "dense": 0.0}
        for at in range(chosen.rounds):
            with hps.open(directory / f"store{at}", [described], cache=cache) as store:
                loader = hps.torch.PrefetchLoader(batches, store, keys_of, 2)
                embeddings = example.StoreEmbeddings(store, 0.05)
                if chosen.profile:
                    import cProfile

                    profile = cProfile.Profile()
                    profile.enable()
                of_store = train(loader, embeddings, chosen.dim)
                if chosen.profile:
                    profile.disable()
                    profile.print_stats("tottime")
                hits = store.stats().hit_rate
                store.checkpoint(1)
            of_dense = train(batches, example.DenseEmbeddings(distinct, described), chosen.dim)
            rates["store"] = max(rates["store"], of_store["examples_per_second"])
            rates["dense"] = max(rates["dense"], of_dense["examples_per_second"])
            print(f"round {at}: store {of_store}, {hits:.1%} hits; dense {of_dense}", flush=True)
        print(
            f"store {rates['store']:.0f} examples/s, dense {rates['dense']:.0f}: "
            f"{rates['store'] / rates['dense']:.2f}; "
            f"AUC differs by {of_store['auc'] - of_dense['auc']:+.5f}"
        )
        seconds = {0: np.inf, 2: np.inf}
        for _ in range(chosen.rounds):
            for depth in seconds:
                with hps.open(directory / "store0", [described], cache=cache) as store:
                    loader = hps.torch.PrefetchLoader(batches, store, keys_of, depth)
                    embeddings = example.StoreEmbeddings(store, 0.05)
                    since = time.perf_counter()
                    train(loader, embeddings, chosen.dim)
                    seconds[depth] = min(seconds[depth], time.perf_counter() - since)
                    waited = store.stats().tables["categories"].waits["device"].us / 1e6
                    print(
                        f"depth {depth}: {seconds[depth]:.2f} s, device {waited:.2f} s, "
                        f"{store.stats().hit_rate:.1%}"
                    )
                    store.close(discard=True)
        print(f"depth 2 is {seconds[0] / seconds[2]:.2f} times depth 0")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
