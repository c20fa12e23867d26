"""Rows and dense state in one atomic cut: the dense state is the meta of the store's checkpoint."""

from __future__ import annotations

import random
from typing import Any, Dict, List

import numpy as np
import torch

from .._errors import InvalidArgument, Uncheckpointed
from ._modules import Embeddings
from ._plain import dumps, loads
from ._rows import shed_all
from ._state import one_cut, open_checkpoint


def save(
    store: Any, step: int, model: Any = None, optimizers: Any = (), *, rng: bool = True
) -> Any:
    """Makes a checkpoint of the rows with the dense state in it, and waits until it survives a
    crash.

    `model`: a module, or a list. `optimizers`: one or a list of anything that has `state_dict` and
    `load_state_dict`: optimizers, LR schedulers, a `GradScaler`, a stateful loader. `rng`: the
    states of the random numbers of torch, NumPy's old functions and Python, too. `step` rises
    with each checkpoint.

    Gives the `hps.Checkpoint`. Raises what `Store.checkpoint` does, and `InvalidArgument` for a
    state that `load` could not read: other than tensors, numbers, texts, and dicts and lists of
    them.
    """
    with one_cut(store):
        states: Dict[str, Any] = {
            "model": [part.state_dict() for part in _list(model)],
            "optimizers": [part.state_dict() for part in _list(optimizers)],
            "rng": _rng() if rng else None,
        }
        meta = dumps(states)
    return store.checkpoint(step, meta=meta)


def load(
    store: Any,
    model: Any = None,
    optimizers: Any = (),
    *,
    rollback: bool = False,
    rng: bool = True,
) -> int:
    """Gives dense state and random numbers what `save` put into the checkpoint that the store is
    at, and returns its step. What is left out, model or optimizers, is left as it is.

    The rows are at that checkpoint when the store was opened; if they changed since, this raises
    `Uncheckpointed`, or with `rollback` gives the changes up. Nothing is unpickled but tensors
    and plain values. Raises `InvalidArgument` where there is no checkpoint, or not one of `save`.
    """
    made = open_checkpoint(store)
    if made is None:
        raise InvalidArgument("load: the store has no checkpoint yet; begin at step 0")
    if store.has_changes:
        if not rollback:
            rows = store.stats().uncheckpointed_rows
            raise Uncheckpointed(
                f"load: {rows} rows changed after checkpoint {made.id}: open the store again, "
                "or give them up with rollback=True",
                rows=rows,
            )
        shed_all(store)
        store.rollback(made.id)
        made = open_checkpoint(store)
    states = _read(made)
    pairs = []
    for name, parts in (("model", _list(model)), ("optimizers", _list(optimizers))):
        found = states[name]
        if parts and len(parts) != len(found):
            raise InvalidArgument(
                f"load: {len(parts)} {name} came, checkpoint {made.id} has {len(found)}"
            )
        pairs += list(zip(parts, found))
    with one_cut(store):
        for part, state in pairs:
            part.load_state_dict(state)
    for part in _list(model):
        if isinstance(part, torch.nn.Module):
            for module in part.modules():
                if isinstance(module, Embeddings):
                    module.release()
    if rng and states["rng"] is not None:
        _set_rng(states["rng"])
    return made.step


def _list(parts: Any) -> List[Any]:
    if parts is None:
        return []
    return list(parts) if isinstance(parts, (list, tuple)) else [parts]


def _read(made: Any) -> Dict[str, Any]:
    try:
        states = loads(made.meta)
    except ValueError as error:
        raise InvalidArgument(f"load: the meta of checkpoint {made.id} is {error}") from error
    return states


def _rng() -> Dict[str, Any]:
    state: Any = np.random.get_state(legacy=True)
    name, numbers, *rest = state
    states = {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(numbers.astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _set_rng(states: Dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    name, numbers, *rest = states["numpy"]
    np.random.set_state((name, numbers.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        if len(states["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(states["cuda"])
