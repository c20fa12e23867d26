"""Pushes the gradients that backward left on the rows."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import numpy as np
import torch

from .._errors import InvalidArgument
from ._modules import Embeddings
from ._rows import Pulled, push


class Optimizer(torch.optim.Optimizer):
    """Updates the rows of embedding modules, by the rule of their tables.

        optimizer = hps.torch.Optimizer(model, lr=0.05)       # or a list of modules

    `modules`: modules, each an embedding module of this package or one that has some. `lr`: the
    learning rate of all their tables, which LR schedulers change; None: each table's own (and no
    schedulers).

    `step` pushes each table once. Gradients of several forwards are summed by key: in the order
    of the modules, then in that of the forwards. So accumulation over batches is one update of a
    row, as in torch; a row that no backward reached is not touched, not even its momentum. Where
    features of a collection share a table, a backward of one of them reaches the rows of all.

    The one parameter group has, after a placeholder, the leaf tensors of the forwards since the
    last step, so that `GradScaler.unscale_` and `clip_grad_norm_` find their gradients.
    """

    def __init__(
        self, modules: Union[torch.nn.Module, Iterable[torch.nn.Module]], lr: Optional[float] = None
    ) -> None:
        roots = [modules] if isinstance(modules, torch.nn.Module) else list(modules)
        found: Dict[int, Embeddings] = {}
        for root in roots:
            if not isinstance(root, torch.nn.Module):
                raise InvalidArgument(f"modules: a {type(root).__name__} came, modules are needed")
            for module in root.modules():
                if isinstance(module, Embeddings):
                    found.setdefault(id(module), module)
        if not found:
            raise InvalidArgument(
                "modules: none of them is, or has, an embedding module of hps.torch"
            )
        if lr is not None and not float(lr) >= 0:
            raise InvalidArgument(f"lr: {lr} came, 0 or more is needed")
        self._modules = list(found.values())
        self._placeholder = torch.nn.Parameter(torch.zeros(0))
        self._groups: List[Dict[str, Any]] = []
        super().__init__([{"params": [self._placeholder]}], {"lr": lr})

    @property
    def param_groups(self) -> List[Dict[str, Any]]:  # type: ignore[override]
        """One group, whose "params" are as of now."""
        for group in self._groups:
            group["params"] = [self._placeholder, *self.pending_parameters()]
        return self._groups

    @param_groups.setter
    def param_groups(self, groups: List[Dict[str, Any]]) -> None:
        self._groups = groups

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Raises `InvalidArgument`: another learning rate is another `Optimizer`."""
        if self._groups:
            raise InvalidArgument("rows have one parameter group; make an Optimizer for each rate")
        super().add_param_group(param_group)

    def pending_parameters(self) -> List[torch.Tensor]:
        """The leaf tensors of all modules since the last step, in the order of a push."""
        return [leaf for module in self._modules for leaf in module.pending_parameters()]

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Pushes gradients and ends the leases; gives what `closure`, if any, gave.

        Raises what `Store.push` does; then nothing of that store was changed, and its gradients are
        there until `zero_grad`. Only where the rows do not fit into the cache at once, and are
        pushed in parts, some parts may be done: then call `zero_grad`, not `step` again.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lr = self._groups[0]["lr"]
        lr = None if lr is None else float(lr)
        for store, modules in self._by_store():
            pending = [pulled for module in modules for pulled in module.pending]
            _push_all(store, pending, lr)
            del pending
            for module in modules:
                # The backward of a forward that had none may still come.
                module.pass_over()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Ends the leases and drops gradients; `set_to_none` is as if true.

        A backward may still come for a forward that had none, as in the order forward, `zero_grad`,
        `backward`, `step`: its rows are then pulled once more by the step. The next `zero_grad` or
        `step` forgets it.
        """
        for module in self._modules:
            module.pass_over()

    def _by_store(self) -> List[Tuple[Any, List[Embeddings]]]:
        stores: Dict[int, Tuple[Any, List[Embeddings]]] = {}
        for module in self._modules:
            stores.setdefault(id(module.store), (module.store, []))[1].append(module)
        return list(stores.values())

    def state_dict(self) -> Dict[str, Any]:
        """The learning rate and what schedulers keep with it; the rows' state is in the store."""
        kept = {name: value for name, value in self._groups[0].items() if name != "params"}
        return {"state": {}, "param_groups": [{**copy.deepcopy(kept), "params": [0]}]}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes what `state_dict` gave. Raises `InvalidArgument` for another optimizer's."""
        groups = state_dict["param_groups"]
        if len(groups) != 1 or len(groups[0]["params"]) != 1 or state_dict["state"]:
            raise InvalidArgument("this is not the state of an hps.torch.Optimizer")
        kept = {name: value for name, value in groups[0].items() if name != "params"}
        self._groups[0].update(copy.deepcopy(kept))

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("an hps.torch.Optimizer can't be copied or pickled; keep its state_dict")


def _push_all(store: Any, pending: List[Pulled], lr: Optional[float]) -> None:
    reached = [pulled for pulled in pending if pulled.has_gradients]
    if len(reached) == 1 and reached[0].lease is not None:
        # The rows are pinned: no look-up, no copies.
        reached[0].lease.push(reached[0].gradients(), lr)
        return
    parts: Dict[str, Tuple[List[np.ndarray], List[np.ndarray]]] = {}
    for pulled in reached:
        for table, keys, gradients in zip(pulled.tables, pulled.keys, pulled.gradients()):
            if gradients is not None:
                of_table = parts.setdefault(table, ([], []))
                of_table[0].append(keys)
                of_table[1].append(gradients)
    if parts:
        all_keys = [np.concatenate(of_table[0]) for of_table in parts.values()]
        summands = [np.concatenate(of_table[1]) for of_table in parts.values()]
        push(store, list(parts), all_keys, summands, lr)
