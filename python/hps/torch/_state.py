"""Of which checkpoint of which store are the rows, and is that the one that is open?"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Dict, Iterator, Tuple

from .._errors import InvalidArgument, Uncheckpointed
from ._rows import shed_all

_FIELDS = ("store", "timeline", "checkpoint", "step", "unix_seconds")
_cut = threading.local()
# What a store was loaded from, and which timeline and checkpoint that made of it.
_loaded: "weakref.WeakKeyDictionary[Any, Tuple[Dict[str, Any], Tuple[Any, ...]]]" = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def one_cut(store: Any) -> Iterator[None]:
    """While `save` and `load` gather states of a store: its rows are of that checkpoint anyway. Modules
    of another store say theirs, as ever."""
    before = getattr(_cut, "store", None)
    _cut.store = store
    try:
        yield
    finally:
        _cut.store = before


def open_checkpoint(store: Any) -> Any:
    """The checkpoint that the store is at, or None: of a reader the one that it opened."""
    at = store.identity[2]
    return next((made for made in store.checkpoints() if made.id == at), None)


def current(store: Any) -> Dict[str, Any]:
    """Names the checkpoint that the rows are of: store, timeline (both hex), checkpoint, step and
    unix_seconds.

    Raises `Uncheckpointed` if rows changed after it.
    """
    if getattr(_cut, "store", None) is store:
        return {"store": store.identity[0]}
    if store.has_changes:
        rows = store.stats().uncheckpointed_rows
        raise Uncheckpointed(
            f"{rows} rows changed after the last checkpoint, so no file can name what they "
            "are now: call store.checkpoint first, or save all with hps.torch.save",
            rows=rows,
        )
    of_store, timeline, at = store.identity
    made = open_checkpoint(store)
    return {
        "store": of_store,
        "timeline": timeline,
        "checkpoint": at,
        "step": 0 if made is None else made.step,
        "unix_seconds": 0 if made is None else made.unix_seconds,
    }


def check(store: Any, state: Any, *, rollback: bool = False, any_timeline: bool = False) -> None:
    """Sees to it that the store is at the checkpoint that `state` names; see `StoreState`."""
    of_store, timeline, at = store.identity
    if not isinstance(state, dict) or "store" not in state:
        raise InvalidArgument("the state does not say of which store it is")
    if state["store"] != of_store:
        raise InvalidArgument(
            f"the state is of store {state['store']}, this one is {of_store}: open that one, at "
            f"{store.path} there is another"
        )
    if getattr(_cut, "store", None) is store:
        return
    if any(name not in state for name in _FIELDS):
        raise InvalidArgument("the state is part of a checkpoint of the store: use hps.torch.load")
    state = {name: state[name] for name in _FIELDS}
    if _loaded.get(store) == (state, (timeline, at)) and not store.has_changes:
        return
    wanted = state["checkpoint"]
    known = {made.id: made for made in store.checkpoints()}
    if state["timeline"] != timeline and not (any_timeline and _is_same(known.get(wanted), state)):
        raise InvalidArgument(
            f"the state is of timeline {state['timeline']}, the store is on {timeline}: it was "
            f"rolled back, exported or repaired since. If its checkpoint {wanted} is the one "
            "meant, load it with StoreState(store, any_timeline=True)"
        )
    if at == wanted and not store.has_changes:
        _loaded[store] = (state, (timeline, at))
        return
    if not rollback:
        _refuse(store, state, at, known)
    if wanted not in known:
        _refuse_gone(wanted, known)
    shed_all(store)
    store.rollback(wanted)
    _loaded[store] = (state, store.identity[1:])


def _is_same(made: Any, state: Dict[str, Any]) -> bool:
    return made is not None and (made.step, made.unix_seconds) == (
        state["step"],
        state["unix_seconds"],
    )


def _refuse_gone(wanted: Any, known: Dict[int, Any]) -> None:
    raise InvalidArgument(
        f"checkpoint {wanted} is not retained any more (there are: {sorted(known)}): open "
        "an export of it, or raise retain_checkpoints"
    )


def _refuse(store: Any, state: Dict[str, Any], at: Any, known: Dict[int, Any]) -> None:
    wanted = state["checkpoint"]
    if wanted not in known:
        _refuse_gone(wanted, known)
    way_out = (
        "StoreState(store, rollback=True).load_state_dict(state) goes back to it, and gives up "
        "what came after it"
    )
    if at == wanted:
        rows = store.stats().uncheckpointed_rows
        raise Uncheckpointed(f"{rows} rows changed after checkpoint {wanted}: {way_out}", rows=rows)
    raise InvalidArgument(f"the state is of checkpoint {wanted}, the store is at {at}: {way_out}")


class StoreState:
    """Ties files that others write to a checkpoint of the store: a `Stateful` of
    `torch.distributed.checkpoint`, or a part of any dict that is saved.

        store.checkpoint(step)
        torch.distributed.checkpoint.save({"model": model, "store": hps.torch.StoreState(store)},
        ...)

    The rows stay in the store: the state only names its checkpoint. With `rollback`, loading goes
    back to that checkpoint if the store is at another, or has changes; its leases are ended. With
    `any_timeline` it may be of a timeline that the store left by a rollback or an export, as long
    as number, step and time of the checkpoint are the same.
    """

    def __init__(self, store: Any, *, rollback: bool = False, any_timeline: bool = False) -> None:
        self._store = store
        self._rollback = rollback
        self._any_timeline = any_timeline

    def state_dict(self) -> Dict[str, Any]:
        """Which checkpoint of which store this is: store, timeline, checkpoint, step, unix_seconds.

        Raises `Uncheckpointed` if rows changed after it.
        """
        return current(self._store)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Sees to it that the store is at that checkpoint.

        Raises `InvalidArgument` for another store or timeline, for a checkpoint that is not
        retained any more, or one that the store is not at; `Uncheckpointed` if rows changed after
        it. The message names the way out.
        """
        check(self._store, state_dict, rollback=self._rollback, any_timeline=self._any_timeline)
