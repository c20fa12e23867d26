"""The rows of one forward: who has them, and until when?

- Whoever holds rows for a store is in its register, so that a pull that finds no room can ask for
  it: first those who read ahead, then those who wait for a backward. Values don't depend on it.
- A leaf lies in the lease's buffer, which is used again only when nothing refers to it any more.
- A forward whose output is gone without a backward is dropped by the next forward of its module.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple, TypeVar

import numpy as np
import torch

from .._errors import OverBudget

_METADATA = "hps"
_READ_AHEAD, _PENDING = 0, 1
T = TypeVar("T")

_holders: "weakref.WeakKeyDictionary[Any, List[weakref.WeakSet[Any]]]" = weakref.WeakKeyDictionary()


def _register(store: Any, holder: Any, stage: int) -> None:
    stages = _holders.setdefault(store, [weakref.WeakSet(), weakref.WeakSet()])
    stages[stage].add(holder)


def register_ahead(store: Any, holder: Any) -> None:
    """Registers who reads ahead: its `shed()` gives up what it holds, and says whether it had
    any."""
    _register(store, holder, _READ_AHEAD)


def register_pending(store: Any, holder: Any) -> None:
    """Registers who keeps leases for a later push; `shed()` as above."""
    _register(store, holder, _PENDING)


def shed_all(store: Any) -> None:
    """Ends all leases that this package has of a store."""
    for holders in _holders.get(store, ()):
        for holder in list(holders):
            holder.shed()


def with_room(store: Any, call: Callable[[], T]) -> T:
    """Calls, and again whenever that was `OverBudget` and leases of this package could be ended."""
    try:
        return call()
    except OverBudget as error:
        last = error
    for holders in _holders.get(store, ()):
        if not any([holder.shed() for holder in list(holders)]):
            continue
        try:
            return call()
        except OverBudget as error:
            last = error
    raise last


class _Token:
    """Lives as long as the graph of a forward."""

    __slots__ = ("__weakref__",)


class Pulled:
    """Distinct rows of some tables, as one leaf for each width.

    `tables`, `keys`: names, and uint64 [n] of each; equal widths must follow each other. `leaves`:
    float32 [sum of n, dim] of each width. Without `grad` the rows are only read, and
    `release` is to be called when they were.
    """

    __slots__ = (
        "store",
        "tables",
        "keys",
        "leaves",
        "_lease",
        "_spans",
        "_token",
        "was_passed",
        "_unreached",
    )

    def __init__(
        self,
        store: Any,
        tables: Sequence[str],
        keys: Sequence[np.ndarray],
        dims: Sequence[int],
        grad: bool,
    ) -> None:
        self.store = store
        self.tables = list(tables)
        self.keys = list(keys)
        self.leaves: List[torch.Tensor] = []
        self._token: Any = None
        # Tables that have a part of a leaf, as far as no backward came to them.
        self._unreached: Set[int] = set()
        # Whether a zero_grad came between the forward and its backward.
        self.was_passed = False
        self._lease: Any = None
        self._lease = with_room(store, lambda: store.pull(self.tables, self.keys))
        # (leaf, begin, end) of each table.
        self._spans: List[Tuple[int, int, int]] = []
        views = self._lease.rows
        base, begin = views[0].base, 0
        for first, last in _runs(dims):
            count = 0
            for view in views[first:last]:
                self._spans.append((len(self.leaves), count, count + len(view)))
                count += len(view)
            end = begin + count * dims[first]
            whole = base[begin:end].reshape(count, dims[first])
            assert _address(whole) == _address(views[first]), "parts of a lease follow each other"
            begin = end
            self.leaves.append(torch.from_numpy(whole).requires_grad_(grad))

    def __enter__(self) -> Pulled:
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        # Pooling may fail, and who keeps the error keeps what the frames had.
        if error is not None:
            self.release()

    def begin_of(self, table: int) -> int:
        """The first row of a table within its leaf."""
        return self._spans[table][1]

    def watch(self, outputs: Sequence[torch.Tensor]) -> None:
        """Ties the rows to the graph of these outputs; see `is_over`."""
        token = _Token()
        self._token = weakref.ref(token)
        for output in outputs:
            if output.grad_fn is not None:
                output.grad_fn.metadata[_METADATA] = token

    def watch_table(self, table: int, outputs: Sequence[torch.Tensor]) -> None:
        """Says which outputs a table has, where its leaf is also another table's: their gradients
        tell whether a backward reached it."""
        unreached = self._unreached
        unreached.add(table)

        def reach(grad: Optional[torch.Tensor]) -> None:
            # Torch calls this for each output of an unbind, if any has a gradient.
            if grad is not None:
                unreached.discard(table)

        for output in outputs:
            if output.requires_grad:
                output.register_hook(reach)

    @property
    def has_gradients(self) -> bool:
        return any(leaf.grad is not None for leaf in self.leaves)

    @property
    def is_over(self) -> bool:
        """Whether no backward came and none can come any more."""
        return self._token() is None and not self.has_gradients

    @property
    def lease(self) -> Any:
        """The lease, or None once it was released."""
        return self._lease

    def gradients(self) -> List[Optional[np.ndarray]]:
        """float32 [n, dim] of each table; None where no backward reached it."""
        grads = [_array_of(leaf.grad) for leaf in self.leaves]
        found = []
        for table, (leaf, begin, end) in enumerate(self._spans):
            of_leaf = grads[leaf]
            is_reached = of_leaf is not None and begin < end and table not in self._unreached
            found.append(of_leaf[begin:end] if of_leaf is not None and is_reached else None)
        return found

    def release_lease(self) -> bool:
        """Unpins the rows; a push pulls them again. Whether they were pinned."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
        return lease is not None

    def release(self) -> None:
        """Lets rows, gradients and lease go; the buffer is used again if nothing else refers to
        it."""
        self.leaves.clear()
        self.release_lease()


def _array_of(grad: Optional[torch.Tensor]) -> Optional[np.ndarray]:
    if grad is None:
        return None
    return (grad.to_dense() if grad.is_sparse else grad).detach().contiguous().numpy()


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _runs(dims: Sequence[int]) -> List[Tuple[int, int]]:
    """(first, last + 1) of neighbours of equal width."""
    begins = [at for at in range(len(dims)) if at == 0 or dims[at] != dims[at - 1]]
    return list(zip(begins, begins[1:] + [len(dims)]))


def push(
    store: Any,
    tables: Sequence[str],
    keys: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    lr: Optional[float],
    bit: int = 0,
) -> None:
    """Pushes gradients without a lease; equal keys of a table are summed in their order.

    What does not fit into the cache at once is pushed in parts, each key in one of them.
    """
    try:
        with_room(store, lambda: store.push(list(tables), list(keys), list(gradients), lr))
        return
    except OverBudget:
        if bit == 64 or sum(map(len, keys)) < 2:
            raise
    for half in (0, 1):
        chosen = [
            (_mixed(of_table) >> np.uint64(63 - bit)) & np.uint64(1) == half for of_table in keys
        ]
        push(
            store,
            tables,
            [of_table[at] for of_table, at in zip(keys, chosen)],
            [of_table[at] for of_table, at in zip(gradients, chosen)],
            lr,
            bit + 1,
        )


def _mixed(keys: np.ndarray) -> np.ndarray:
    """Spreads keys over all bits."""
    return keys * np.uint64(0x9E3779B97F4A7C15)
