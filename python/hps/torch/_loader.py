"""Reads the rows of coming batches ahead."""

from __future__ import annotations

import collections
import logging
from typing import Any, Callable, Deque, Dict, Generic, Iterator, Optional, TypeVar

from .._errors import InvalidArgument, OverBudget
from ._arrays import integers
from ._rows import register_ahead

_LOGGER = logging.getLogger("hps.torch")
Batch = TypeVar("Batch")


class PrefetchLoader(Generic[Batch]):
    """Iterates over `loader`, and has the rows of the next `depth` batches read meanwhile.

    `keys_of(batch)` gives {table: integers}; `EmbeddingBag.keys_of` and
    `EmbeddingBagCollection.keys_of` make it. Rows of a batch stay in memory until the next one is
    asked for. Which values a batch reads never depends on `depth`, and 0 reads nothing ahead:
    batches only pass through.

    The loader is ahead of the training by `depth` batches, in this process whatever workers it
    has; its exceptions come where they would have come without. What does not fit into the cache
    is not read ahead: the depth shrinks, to `depth_now`, until the next loop, and no
    forward or step of this package fails because of it. A `Store.pull` of your own in the loop
    needs room beside what is read ahead.
    """

    def __init__(
        self,
        loader: Any,
        store: Any,
        keys_of: Callable[[Batch], Dict[str, Any]],
        depth: int = 2,
    ) -> None:
        if depth < 0:
            raise InvalidArgument(f"depth: {depth} came, 0 or more is needed")
        self.loader = loader
        self.store = store
        self.keys_of = keys_of
        self.depth = depth
        self.depth_now = depth

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        ahead = _Ahead(self)
        try:
            yield from ahead.batches(iter(self.loader))
        finally:
            ahead.close()


class _Item:
    """A batch that was taken from the loader, or what was raised instead of one."""

    def __init__(self, batch: Any = None, error: Optional[Exception] = None) -> None:
        self.batch = batch
        self.error = error
        self.ticket: Any = None


class _Ahead:
    """One loop over the loader."""

    def __init__(self, owner: PrefetchLoader[Any]) -> None:
        self._owner = owner
        self._queue: Deque[_Item] = collections.deque()
        # Of the batch that the caller has.
        self._lease: Any = None
        self._is_at_end = False
        owner.depth_now = owner.depth
        register_ahead(owner.store, self)

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._release()
            while len(self._queue) <= self._owner.depth_now and not self._is_at_end:
                self._take(source)
            if not self._queue:
                return
            item = self._queue.popleft()
            if item.error is not None:
                raise item.error
            if item.ticket is not None:
                self._wait(item)
            batch = item.batch
            del item
            yield batch

    def _take(self, source: Iterator[Any]) -> None:
        try:
            item = _Item(next(source))
            if self._owner.depth_now:
                self._begin(item)
        except StopIteration:
            self._is_at_end = True
            return
        except Exception as error:
            # Batches before it come first.
            self._is_at_end = True
            item = _Item(error=error)
        self._queue.append(item)

    def _begin(self, item: _Item) -> None:
        keys = self._owner.keys_of(item.batch)
        arrays = [integers(of_table, table).reshape(-1) for table, of_table in keys.items()]
        if not arrays:
            return
        try:
            item.ticket = self._owner.store.prefetch(list(keys), arrays)
        except OverBudget:
            self._shrink()

    def _wait(self, item: _Item) -> None:
        try:
            self._lease = item.ticket.wait()
        except OverBudget:
            # The forward reads them, with nobody ahead of it.
            self.close()
            self._shrink()

    def _release(self) -> bool:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
        return lease is not None

    def _shrink(self) -> None:
        if self._owner.depth_now:
            self._owner.depth_now -= 1
            _LOGGER.info(
                "read-ahead shrinks to %d batches: the cache is full", self._owner.depth_now
            )

    def shed(self) -> bool:
        """Makes room, and reads less far ahead from now on. Whether there was anything to give
        up."""
        had_any = self.close()
        if had_any:
            self._shrink()
        return had_any

    def close(self) -> bool:
        """Gives up what is pinned, or on its way. Whether there was any."""
        had_lease = self._release()
        tickets = [item.ticket for item in self._queue if item.ticket is not None]
        for item in self._queue:
            item.ticket = None
        for ticket in tickets:
            ticket.cancel()
        return had_lease or bool(tickets)
