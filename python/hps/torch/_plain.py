"""Writes nested states as tensors and a text, which the safe unpickler of every torch reads.

`torch.load(weights_only=True)` of torch 1.13 reads no floats, and no version reads NumPy's
numbers; a list of tensors and one text they all read. Floats keep their bits.
"""

from __future__ import annotations

import base64
import collections
import io
import json
import pickle
from typing import Any, Dict, List

import numpy as np
import torch

from .._errors import InvalidArgument

_MARK = "hps.torch 1"


def dumps(value: Any) -> memoryview:
    """Bytes of tensors, numbers, texts, bytes, None, and dicts, lists and tuples of them.

    Raises `InvalidArgument`, with where it is, for anything else.
    """
    tensors: List[torch.Tensor] = []
    text = json.dumps(_encoded(value, "state", tensors), separators=(",", ":"))
    buffer = io.BytesIO()
    torch.save([_MARK, text, tensors], buffer)
    return buffer.getbuffer()


def loads(data: bytes) -> Any:
    """What `dumps` was given; tensors in the memory of the CPU. Raises `ValueError` for other
    bytes."""
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (
        RuntimeError,
        EOFError,
        LookupError,
        ValueError,
        pickle.UnpicklingError,
    ) as error:
        raise ValueError("not what hps.torch.save writes") from error
    if not isinstance(found, list) or len(found) != 3 or found[0] != _MARK:
        raise ValueError("not what this version of hps.torch.save writes")
    return _decoded(json.loads(found[1]), found[2])


def _encoded(value: Any, where: str, tensors: List[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        pairs = [
            [_encoded(name, where, tensors), _encoded(item, f"{where}[{name!r}]", tensors)]
            for name, item in value.items()
        ]
        if isinstance(value, collections.Counter):
            return {"counter": pairs}
        # Modules keep the versions of their states there.
        metadata = getattr(value, "_metadata", None)
        if metadata is None:
            return {"dict": pairs}
        return {"state": pairs, "metadata": _encoded(metadata, f"{where}._metadata", tensors)}
    if isinstance(value, (list, tuple)):
        items = [_encoded(item, f"{where}[{at}]", tensors) for at, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    raise InvalidArgument(
        f"save: {where} is a {type(value).__name__}; tensors, numbers, texts, and dicts and "
        "lists of them are needed"
    )


def _decoded(value: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind, held = next(iter(value.items()))
    if kind == "tensor":
        return tensors[held]
    if kind == "bytes":
        return base64.b64decode(held)
    if kind == "tuple":
        return tuple(_decoded(held, tensors))
    pairs = {_decoded(name, tensors): _decoded(item, tensors) for name, item in held}
    if kind == "counter":
        return collections.Counter(pairs)
    if kind == "state":
        state: Dict[Any, Any] = collections.OrderedDict(pairs)
        state._metadata = _decoded(value["metadata"], tensors)  # type: ignore[attr-defined]
        return state
    return pairs
