"""Trains a DLRM on click logs in Criteo's format, with its embeddings in a store.

    python train_criteo.py [FILE] [--store DIRECTORY] [--resume] [--dense] ...

FILE has a click a line, separated by tabs: the label, 13 integers, 26 categories in hexadecimal;
what is empty is missing; .gz is read, too. Without FILE, a small data set with planted weights is
written and used. Each batch is evaluated before it is trained on, so AUC and log loss are those
of unseen clicks.

All 26 columns share one table, under keys of column and value. They have one width and one rule,
so one table is less to describe, and a batch is one look-up and one push; tables of their own are
for columns that differ in those. `--dense` trains the same model with `nn.EmbeddingBag` from the
same initial rows.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import pathlib
import tempfile
import time
from typing import Any, Iterator, NamedTuple

import numpy as np
import torch
from torch import nn

import hps
import hps.torch

NUMBERS, CATEGORIES = 13, 26
COLUMNS = [f"C{column}" for column in range(1, CATEGORIES + 1)]


class Batch(NamedTuple):
    labels: torch.Tensor  # float32 [batch]
    numbers: torch.Tensor  # float32 [batch, 13]
    keys: torch.Tensor  # int64 [batch, 26]


def opened(path: pathlib.Path, mode: str) -> Any:
    return gzip.open(path, mode) if path.suffix == ".gz" else open(path, mode)


def read(path: pathlib.Path, size: int, skipped: int = 0) -> Iterator[Batch]:
    """Batches of a file, without the first lines."""
    with opened(path, "rb") as file:
        lines = itertools.islice(file, skipped, None)
        while chunk := list(itertools.islice(lines, size)):
            yield parse(chunk)


def parse(lines: list[bytes]) -> Batch:
    fields = b"\t".join(line.rstrip(b"\r\n") for line in lines).split(b"\t")
    table = np.array(fields, dtype="S16").reshape(len(lines), 1 + NUMBERS + CATEGORIES)
    labels = table[:, 0].astype(np.float32)
    numbers = np.where(table == b"", b"0", table)[:, 1 : 1 + NUMBERS].astype(np.float32)
    numbers = np.log1p(np.maximum(numbers, 0))
    letters = (
        np.ascontiguousarray(table[:, 1 + NUMBERS :]).view(np.uint8).reshape(len(lines), -1, 16)
    )
    values = np.zeros((len(lines), CATEGORIES), dtype=np.int64)
    for at in range(8):
        digits = (letters[:, :, at] & 15) + 9 * (letters[:, :, at] >> 6)
        values = np.where(letters[:, :, at] == 0, values, values * 16 + digits)
    # What is missing is a value of its own.
    values[letters[:, :, 0] == 0] = 1 << 32
    keys = values + (np.arange(CATEGORIES, dtype=np.int64) << 33)
    return Batch(*map(torch.from_numpy, (labels, numbers, keys)))


def write_planted(path: pathlib.Path, lines: int = 20_000) -> None:
    """Clicks that depend on weights of the categories, which follow a power law."""
    chosen = np.random.default_rng(1)
    values = np.minimum(chosen.random((lines, CATEGORIES)) ** -3.3, 1e15).astype(np.int64) % 1000
    weights = chosen.normal(0, 1, size=(CATEGORIES, 1000))
    numbers = chosen.integers(-1, 50, size=(lines, NUMBERS))
    logits = weights[np.arange(CATEGORIES), values].sum(1) + 0.02 * (numbers[:, 0] - 25) - 1
    labels = chosen.random(lines) < 1 / (1 + np.exp(-logits))
    with opened(path, "wt") as file:
        for label, integers, categories in zip(labels, numbers, values):
            fields = [str(int(label)), *("" if x < 0 else str(x) for x in integers)]
            fields += ["" if x == 0 else f"{x * 2654435761 % 2**32:08x}" for x in categories]
            file.write("\t".join(fields) + "\n")


def mlp(*widths: int) -> nn.Sequential:
    layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in zip(widths, widths[1:])]
    return nn.Sequential(*itertools.chain(*layers))


class Dlrm(nn.Module):
    """Facebook's model: an MLP for the numbers, embeddings, their inner products, another MLP."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bottom = mlp(NUMBERS, 64, dim)
        pairs = (CATEGORIES + 1) * CATEGORIES // 2
        self.top = nn.Sequential(mlp(dim + pairs, 128, 64), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(CATEGORIES + 1, CATEGORIES + 1, -1), False)

    def forward(self, numbers: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """numbers: [batch, 13], embedded: [batch, 26, dim]; gives logits [batch]."""
        bottom = self.bottom(numbers)
        vectors = torch.cat([bottom[:, None], embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, crossed], dim=1))[:, 0]


def table(dim: int, lr: float) -> hps.Table:
    rule = hps.AdaGrad(lr=lr, initial_accumulator=0.1)
    return hps.Table("categories", dim=dim, optimizer=rule, init=hps.Normal(0, 0.02), seed=1)


class StoreEmbeddings(nn.Module):
    """[batch, 26] keys to [batch, 26, dim] rows of a store."""

    def __init__(self, store: hps.Store, lr: float) -> None:
        super().__init__()
        self.bags = hps.torch.EmbeddingBagCollection(store, dict.fromkeys(COLUMNS, "categories"))
        self.optimizer = hps.torch.Optimizer(self.bags, lr)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        lengths = torch.ones(len(keys), dtype=torch.int64)
        return self.bags({name: (keys[:, at], lengths) for at, name in enumerate(COLUMNS)}).stack()


class DenseEmbeddings(nn.Module):
    """The same in memory, from the same initial rows."""

    def __init__(self, distinct: np.ndarray, described: hps.Table) -> None:
        super().__init__()
        weight = np.empty((len(distinct), described.dim), dtype=np.float32)
        with tempfile.TemporaryDirectory() as directory:
            with hps.open(directory + "/store", [described], cache="64MiB") as store:
                for begin in range(0, len(distinct), 50_000):
                    part = slice(begin, begin + 50_000)
                    with store.pull("categories", distinct[part]) as lease:
                        weight[part] = lease.rows
        self.distinct = distinct
        self.bag = nn.EmbeddingBag(*weight.shape, mode="sum", sparse=True)
        self.bag.weight.data.copy_(torch.from_numpy(weight))
        self.optimizer = torch.optim.Adagrad(
            self.bag.parameters(),
            lr=described.optimizer.lr,
            initial_accumulator_value=described.optimizer.initial_accumulator,
            eps=described.optimizer.eps,
        )

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        places = torch.from_numpy(np.searchsorted(self.distinct, keys.numpy().reshape(-1, 1)))
        return self.bag(places).view(*keys.shape, -1)


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a click has a higher score than what is none; ties count half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    clicks = labels.sum()
    rest = len(labels) - clicks
    return float((ranks[labels == 1].sum() - clicks * (clicks + 1) / 2) / max(clicks * rest, 1))


class Score:
    """AUC, log loss and speed of what was predicted."""

    def __init__(self) -> None:
        self.labels: list[np.ndarray] = []
        self.logits: list[np.ndarray] = []
        self.since = time.perf_counter()

    def add(self, labels: torch.Tensor, logits: torch.Tensor) -> None:
        self.labels.append(labels.numpy())
        self.logits.append(logits.detach().numpy())

    def figures(self) -> dict[str, float]:
        labels, logits = np.concatenate(self.labels), np.concatenate(self.logits).astype(np.float64)
        loss = np.logaddexp(0, np.where(labels == 1, -logits, logits)).mean()
        speed = len(labels) / (time.perf_counter() - self.since)
        return {"auc": auc(labels, logits), "log_loss": float(loss), "examples_per_second": speed}


def train_step(
    model: Dlrm, embeddings: Any, dense: torch.optim.Optimizer, batch: Batch
) -> torch.Tensor:
    """Predicts, then trains; gives the logits."""
    logits = model(batch.numbers, embeddings(batch.keys))
    loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
    for optimizer in (dense, embeddings.optimizer):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (dense, embeddings.optimizer):
        optimizer.step()
    return logits


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "file", nargs="?", type=pathlib.Path, help="clicks; without it, planted ones"
    )
    parser.add_argument("--store", type=pathlib.Path, default=pathlib.Path("criteo-store"))
    parser.add_argument(
        "--resume", action="store_true", help="go on at the store's last checkpoint"
    )
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="BATCHES")
    parser.add_argument("--dense", action="store_true", help="nn.EmbeddingBag instead of a store")
    parser.add_argument("--cache", default="64MiB", help="memory of the store")
    parser.add_argument("--depth", type=int, default=2, help="batches that are read ahead")
    parser.add_argument("--batch", type=int, default=128, help="clicks a batch")
    parser.add_argument("--dim", type=int, default=16, help="width of an embedding")
    parser.add_argument("--lr", type=float, default=0.1, help="of the embeddings")
    parser.add_argument("--dense-lr", type=float, default=0.003, help="of the MLPs")
    parser.add_argument(
        "--stop-after", type=int, metavar="BATCHES", help="end before the file does"
    )
    chosen = parser.parse_args()
    if chosen.dense and chosen.resume:
        parser.error("--dense keeps nothing to resume from")
    if chosen.file is None:
        chosen.file = chosen.store.with_suffix(".planted.tsv")
        chosen.file.parent.mkdir(parents=True, exist_ok=True)
        if not chosen.file.exists():
            write_planted(chosen.file)
    return chosen


def main() -> None:
    chosen = arguments()
    torch.manual_seed(0)
    model = Dlrm(chosen.dim)
    dense = torch.optim.Adam(model.parameters(), lr=chosen.dense_lr)
    described = table(chosen.dim, chosen.lr)
    if chosen.dense:
        distinct = np.unique(
            np.concatenate([np.unique(part.keys) for part in read(chosen.file, 8192)])
        )
        embeddings, score = DenseEmbeddings(distinct, described), Score()
        for batch in itertools.islice(read(chosen.file, chosen.batch), chosen.stop_after):
            score.add(batch.labels, train_step(model, embeddings, dense, batch))
        report(score.figures())
        return
    with hps.open(chosen.store, [described], cache=chosen.cache) as store:
        embeddings = StoreEmbeddings(store, chosen.lr)
        kept = ([model, embeddings], [dense, embeddings.optimizer])
        step = 0
        if chosen.resume and store.last_checkpoint:
            step = hps.torch.load(store, *kept)
            print(f"resumed at batch {step}")
        elif store.last_checkpoint:
            raise SystemExit(
                f"{chosen.store} has a run at batch {store.step}: --resume goes on with it"
            )
        batches = itertools.islice(
            read(chosen.file, chosen.batch, step * chosen.batch), chosen.stop_after
        )
        score = Score()
        with hps.watch(store):
            loader = hps.torch.PrefetchLoader(
                batches, store, lambda batch: {"categories": batch.keys}, chosen.depth
            )
            for step, batch in enumerate(loader, step + 1):
                score.add(batch.labels, train_step(model, embeddings, dense, batch))
                if step % chosen.checkpoint_every == 0:
                    hps.torch.save(store, step, *kept)
        if not score.labels:
            raise SystemExit(f"{chosen.file} has no more clicks after batch {step}")
        figures = score.figures()
        if store.has_changes:
            hps.torch.save(store, step, *kept)
        report({**figures, "hit_rate": store.stats().hit_rate})


def report(figures: dict[str, float]) -> None:
    formats = {"auc": "AUC {:.4f}", "log_loss": "log loss {:.4f}"}
    formats.update(examples_per_second="{:.0f} examples/s", hit_rate="{:.1%} hits")
    print(", ".join(formats[name].format(value) for name, value in figures.items()))


if __name__ == "__main__":
    main()
