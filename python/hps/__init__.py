"""hps: an embedded, SSD-first store for the sparse parameters of embedding models that do not fit
in memory.

    store = hps.open("run/store", tables=[hps.Table("c1", dim=64)], cache="8GiB")
    with store.pull("c1", keys) as lease:         # keys: an int64 or uint64 array
        lease.push(gradients(lease.rows))         # rows: a float32 array [n, 64]
    store.checkpoint(step, meta=b"...")           # survives any crash from here on
    store.close()

`hps.torch` has embedding modules, an optimizer and checkpoints for PyTorch. Guide: docs/PYTHON.md.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import _hps
from ._errors import (
    ArrayMismatch,
    Cancelled,
    Closed,
    Corrupt,
    Deadline,
    Error,
    Forked,
    InternalError,
    InvalidArgument,
    Io,
    Locked,
    MissingDirectory,
    NoSpace,
    OverBudget,
    Poisoned,
    ReadOnly,
    Uncheckpointed,
    UnknownTable,
    Unsupported,
    UnsupportedTable,
)
from ._hps import (
    Checkpoint,
    CheckpointTicket,
    Delta,
    Hold,
    Lease,
    Pass,
    PassReport,
    PassTable,
    PassTicket,
    PushReport,
    RowChunks,
    Store,
    Ticket,
)
from ._open import Stats, open
from ._passes import Cached, Keyset
from ._tables import (
    FTRL,
    SGD,
    AdaGrad,
    Adam,
    Constant,
    Initialiser,
    Momentum,
    Nesterov,
    Normal,
    Optimizer,
    RowwiseAdaGrad,
    Table,
    TableInfo,
    Uniform,
    Zero,
)
from ._watch import plot_run, watch

__version__ = _hps.VERSION
__all__ = [
    name
    for name in dir()
    if not name.startswith("_") and name not in ("annotations", "Any", "importlib")
]


def __getattr__(name: str) -> Any:
    # torch is imported only by who uses it.
    if name == "torch":
        return importlib.import_module("hps.torch")
    raise AttributeError(f"module 'hps' has no attribute {name!r}")
