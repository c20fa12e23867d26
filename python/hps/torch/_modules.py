"""Embedding modules whose rows are in a store."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .._errors import InvalidArgument, UnknownTable
from . import _state
from ._arrays import bags_of, device_of, integers, offsets_of, signed
from ._keyed import Bags, KeyedTensor, read_features, weights_of
from ._rows import Pulled, register_pending

_F = TypeVar("_F", bound=Callable[..., Any])


def _not_compiled(function: _F) -> _F:
    """torch.compile leaves the function as it is, and compiles what is around it."""
    compiler = getattr(torch, "compiler", None)
    if compiler is not None and hasattr(compiler, "disable"):
        return compiler.disable(function)
    if torch.__version__.startswith("2."):
        return importlib.import_module("torch._dynamo").disable(function)
    return function


def _dim_of(store: Any, table: str) -> int:
    tables = store.tables
    if table not in tables:
        known = sorted(tables)
        raise UnknownTable(
            f"no table {table!r}; there are: {', '.join(known)}", name=table, known=known
        )
    return tables[table].dim


def _pool(
    rows: torch.Tensor,
    places: np.ndarray,
    offsets: np.ndarray,
    mode: str,
    weights: Optional[torch.Tensor],
    device: torch.device,
) -> torch.Tensor:
    """Pools rows [m, dim] at places [n] to bags; offsets [bags + 1] end at n."""
    rows = rows.to(device)
    if not len(places):
        # Torch's own refuses a weight of no rows. The sum, of nothing, ties it to the graph.
        return rows.new_zeros(len(offsets) - 1, rows.shape[1]) + rows.sum()
    return functional.embedding_bag(
        torch.from_numpy(places).to(device),
        rows,
        torch.from_numpy(offsets[:-1]).to(device),
        mode=mode,
        per_sample_weights=weights,
    )


class Embeddings(nn.Module):
    """What embedding modules have in common: a store, and the rows of forwards since the last step.

    There are no `parameters()`: rows belong to the store. `state_dict()` has only which
    checkpoint of which store they are of. A module can't be copied or pickled; several may share
    a store or a table.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store
        self._pending: List[Pulled] = []
        register_pending(store, self)

    @property
    def store(self) -> Any:
        """Where the rows are."""
        return self._store

    @property
    def pending(self) -> List[Pulled]:
        """The rows of forwards that no step has pushed, in order."""
        return self._pending

    def pending_parameters(self) -> List[torch.Tensor]:
        """The leaf tensors of forwards since the last step, float32 [distinct rows, dim] each:
        their `.grad`, once backward filled it, may be read, clipped and scaled in place."""
        return [leaf for pulled in self._pending for leaf in pulled.leaves]

    def release(self) -> None:
        """Forgets forwards that no step has pushed: leases, rows and gradients."""
        for pulled in self._pending:
            pulled.release()
        self._pending = []

    def pass_over(self) -> None:
        """What a `zero_grad` does: ends the leases and drops gradients. A forward without a
        backward is kept until the next one, since its backward may still come."""
        kept = []
        for pulled in self._pending:
            if pulled.was_passed or pulled.has_gradients or pulled.is_over:
                pulled.release()
            else:
                pulled.was_passed = True
                pulled.release_lease()
                kept.append(pulled)
        self._pending = kept

    def shed(self) -> bool:
        """Ends the leases; rows and gradients stay, and a step pulls the rows again. Whether there
        were any."""
        return any([pulled.release_lease() for pulled in self._pending])

    def _pull(
        self, tables: Sequence[str], keys: Sequence[np.ndarray], dims: Sequence[int]
    ) -> Pulled:
        self._pending = [pulled for pulled in self._pending if not self._drop_over(pulled)]
        grad = self.training and torch.is_grad_enabled()
        return Pulled(self._store, tables, keys, dims, grad)

    @staticmethod
    def _drop_over(pulled: Pulled) -> bool:
        is_over = pulled.is_over
        if is_over:
            pulled.release()
        return is_over

    def _keep(self, pulled: Pulled, outputs: Sequence[torch.Tensor]) -> None:
        """Keeps rows for the step, or lets them go where no backward can come."""
        if any(leaf.requires_grad for leaf in pulled.leaves):
            pulled.watch(outputs)
            self._pending.append(pulled)
        else:
            pulled.release()

    def get_extra_state(self) -> Dict[str, Any]:
        return _state.current(self._store)

    def set_extra_state(self, state: Any) -> None:
        _state.check(self._store, state)

    def __deepcopy__(self, _memo: Any) -> Any:
        raise self._not_copied()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise self._not_copied()

    def _not_copied(self) -> TypeError:
        return TypeError(
            f"{type(self).__name__} can't be copied or pickled: its rows are in an open "
            "store. Make another one of the same store and table, and save with hps.torch.save"
        )


class EmbeddingBag(Embeddings):
    """`nn.EmbeddingBag` over the rows of a table: forward takes the same arguments and gives the
    same figures. Keys are any int64, so there is no number of embeddings; a key never seen has
    the table's initial row.

    `mode`: "mean" (as torch's default), "sum", "max", or None for one row a key, as `nn.Embedding`.
    `padding_idx`: a key that counts for nothing: it is left out of its bag (with mode None its
    row is zero), gets no gradient, and is not asked of the store.

    In training, rows stay pinned until `Optimizer.step` or `zero_grad`; in `eval()` and under
    `torch.no_grad()` the lease ends with the forward, and the output needs no gradient.
    """

    def __init__(
        self,
        store: Any,
        table: str,
        mode: Optional[str] = "mean",
        *,
        padding_idx: Optional[int] = None,
        include_last_offset: bool = False,
    ) -> None:
        super().__init__(store)
        if mode not in ("sum", "mean", "max", None):
            raise InvalidArgument(f"mode: {mode!r} came, sum, mean, max or None is needed")
        self.table = table
        self.mode = mode
        self.padding_idx = padding_idx
        self.include_last_offset = include_last_offset
        self.embedding_dim = _dim_of(store, table)

    @_not_compiled
    def forward(
        self,
        input: Any,
        offsets: Optional[Any] = None,
        per_sample_weights: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Pools the rows of `input`, integers [n] with `offsets` [bags] or [bags, n], to float32
        [bags, dim] on the device of `input`; with mode None [*input.shape, dim] of any shape.
        `per_sample_weights`, float32 and shaped as `input`, need mode "sum".

        Raises what `Store.pull` does, and `InvalidArgument` for offsets that don't fit.
        """
        keys = integers(input, "input")
        if self.mode is None:
            if offsets is not None or per_sample_weights is not None:
                raise InvalidArgument("mode None has no bags: no offsets, no per_sample_weights")
            return self._unpooled(keys, device_of(input))
        begins = bags_of(keys.shape, offsets, self.include_last_offset)
        weights = self._check_weights(per_sample_weights, keys.shape)
        end = begins[-1]
        keys = keys.reshape(-1)[:end]
        weights = None if weights is None else weights.reshape(-1)[:end]
        kept = self._kept(keys)
        if kept is not None:
            begins = offsets_of(kept)[begins]
            keys = keys[kept]
            weights = (
                None if weights is None else weights[torch.from_numpy(kept).to(weights.device)]
            )
        distinct, places = self._store.unique(keys)
        with self._pull([self.table], [distinct], [self.embedding_dim]) as pulled:
            pooled = _pool(pulled.leaves[0], places, begins, self.mode, weights, device_of(input))
            self._keep(pulled, [pooled])
        return pooled

    def _check_weights(
        self, weights: Optional[torch.Tensor], shape: Tuple[int, ...]
    ) -> Optional[torch.Tensor]:
        if weights is None:
            return None
        if self.mode != "sum":
            raise InvalidArgument(f"per_sample_weights: mode {self.mode!r} has none, only sum has")
        if tuple(weights.shape) != shape:
            raise InvalidArgument(
                f"per_sample_weights: shape {tuple(weights.shape)} came, {shape} is needed"
            )
        return weights

    def _kept(self, keys: np.ndarray) -> Optional[np.ndarray]:
        """Which keys are not the padding: bool [n], or None if all are."""
        if self.padding_idx is None:
            return None
        kept = keys != signed(self.padding_idx)
        return None if kept.all() else kept

    def _unpooled(self, keys: np.ndarray, device: torch.device) -> torch.Tensor:
        shape, keys = keys.shape, keys.reshape(-1)
        kept = self._kept(keys)
        distinct, places = self._store.unique(keys if kept is None else keys[kept])
        with self._pull([self.table], [distinct], [self.embedding_dim]) as pulled:
            rows = pulled.leaves[0].to(device)
            found = functional.embedding(torch.from_numpy(places).to(device), rows)
            del rows  # so that the buffer can be used again
            if kept is not None:
                at = torch.from_numpy(np.flatnonzero(kept)).to(device)
                found = found.new_zeros(len(keys), found.shape[1]).index_copy(0, at, found)
            self._keep(pulled, [found])
        return found.reshape(*shape, self.embedding_dim)

    def keys_of(self, input: Any) -> Dict[str, np.ndarray]:
        """{table: keys} of an input, for `PrefetchLoader`."""
        keys = integers(input, "input").reshape(-1)
        kept = self._kept(keys)
        return {self.table: keys if kept is None else keys[kept]}

    def extra_repr(self) -> str:
        return f"{self.table!r}, {self.embedding_dim}, mode={self.mode!r}"


class EmbeddingBagCollection(Embeddings):
    """Pooled embeddings of several features, as TorchRec's: all their tables are pulled in one
    call.

    `features`: which table has the rows of a feature; features may share one, and then equal keys
    are one row. `mode`: "sum" (as TorchRec's default), "mean" or "max". `is_weighted`: keys have
    weights, which need mode "sum". Leases end as those of `EmbeddingBag`.
    """

    def __init__(
        self, store: Any, features: Dict[str, str], mode: str = "sum", *, is_weighted: bool = False
    ) -> None:
        super().__init__(store)
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgument(f"mode: {mode!r} came, sum, mean or max is needed")
        if is_weighted and mode != "sum":
            raise InvalidArgument(f"is_weighted: mode {mode!r} has no weights, only sum has")
        if not features:
            raise InvalidArgument("features: none came, at least one is needed")
        self.features = dict(features)
        self.mode = mode
        self.is_weighted = is_weighted
        dims = {table: _dim_of(store, table) for table in dict.fromkeys(features.values())}
        # Tables of one width follow each other: their rows are one leaf.
        self._tables = sorted(dims, key=lambda table: dims[table])
        self._dims = [dims[table] for table in self._tables]
        of_table: Dict[str, List[int]] = {table: [] for table in self._tables}
        for at, table in enumerate(features.values()):
            of_table[table].append(at)
        # Numbers of the features, table by table.
        self._of_table = [of_table[table] for table in self._tables]

    @property
    def embedding_dims(self) -> Dict[str, int]:
        """The width of each feature."""
        dims = dict(zip(self._tables, self._dims))
        return {feature: dims[table] for feature, table in self.features.items()}

    @_not_compiled
    def forward(self, features: Any) -> KeyedTensor:
        """Pools a batch: `features` is {feature: (values [n], lengths [batch])}, with `is_weighted`
        (values, lengths, weights [n]), or anything shaped as TorchRec's KeyedJaggedTensor. Features
        that the collection does not have are passed over. Gives a `KeyedTensor` on the device of
        the values.

        Raises what `Store.pull` does, and `InvalidArgument` for features that don't fit.
        """
        bags, device = read_features(features, list(self.features), self.is_weighted)
        distinct, places = self._distinct(bags)
        with self._pull(self._tables, distinct, self._dims) as pulled:
            pooled = self._pooled(pulled, bags, places, device)
        return KeyedTensor({name: pooled[at] for at, name in enumerate(self.features)})

    def _pooled(
        self, pulled: Pulled, bags: List[Bags], places: List[np.ndarray], device: torch.device
    ) -> Dict[int, torch.Tensor]:
        """The pooled rows of each feature, by its number."""
        batch = len(bags[0].lengths)
        pooled: Dict[int, torch.Tensor] = {}
        outputs = []
        first = 0
        for leaf in pulled.leaves:
            last = first
            while last < len(self._tables) and self._dims[last] == leaf.shape[1]:
                places[last] += pulled.begin_of(last)
                last += 1
            numbers = [at for table in self._of_table[first:last] for at in table]
            weights = None
            if self.is_weighted:
                weights = torch.cat([weights_of(bags[at]) for at in numbers]).to(device)
            offsets = offsets_of(np.concatenate([bags[at].lengths for at in numbers]))
            found = _pool(
                leaf, np.concatenate(places[first:last]), offsets, self.mode, weights, device
            )
            outputs.append(found)
            parts = found.view(len(numbers), batch, leaf.shape[1]).unbind(0)
            pooled.update(zip(numbers, parts))
            if last - first > 1:
                for table in range(first, last):
                    pulled.watch_table(table, [pooled[at] for at in self._of_table[table]])
            first = last
        del leaf  # so that the buffer can be used again
        self._keep(pulled, outputs)
        return pooled

    def _distinct(self, bags: Sequence[Any]) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        """Of each table the distinct keys, and where the keys of its features are among them."""
        distinct, places = [], []
        for numbers in self._of_table:
            keys = [bags[at].keys for at in numbers]
            of_table, at = self._store.unique(keys[0] if len(keys) == 1 else np.concatenate(keys))
            distinct.append(of_table)
            places.append(at)
        return distinct, places

    def keys_of(self, features: Any) -> Dict[str, np.ndarray]:
        """{table: keys} of a batch, for `PrefetchLoader`."""
        bags, _ = read_features(features, list(self.features), False)
        return {
            table: np.concatenate([bags[at].keys for at in numbers])
            for table, numbers in zip(self._tables, self._of_table)
        }

    def extra_repr(self) -> str:
        return f"{self.features}, mode={self.mode!r}"
