"""Which keys does a batch have, and where do its bags begin?"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np
import torch

from .._errors import ArrayMismatch, InvalidArgument


def integers(array: Any, what: str) -> np.ndarray:
    """Integers of a tensor or an array as a contiguous int64 array of the same shape; uint64
    keeps its bits. A tensor in the memory of a GPU is copied.

    Raises `ArrayMismatch` for anything but integers.
    """
    if isinstance(array, torch.Tensor):
        if array.requires_grad or array.device.type != "cpu":
            array = array.detach().cpu()
        found = array.numpy()
    else:
        found = np.asarray(array)
    if found.dtype == np.int64:
        return found if found.flags.c_contiguous else np.ascontiguousarray(found)
    if found.dtype == np.uint64:
        return np.ascontiguousarray(found).view(np.int64)
    if found.dtype.kind not in "iu":
        raise ArrayMismatch(f"{what}: dtype {found.dtype} came, integers are needed")
    return found.astype(np.int64)


def signed(key: int) -> int:
    """The int64 with the same 64 bits."""
    return ((key + 2**63) % 2**64) - 2**63


def device_of(array: Any) -> torch.device:
    """Where the results for this input belong."""
    return array.device if isinstance(array, torch.Tensor) else torch.device("cpu")


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where bags of these lengths begin, and where the last one ends: int64 [bags + 1]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def check_offsets(offsets: np.ndarray, keys: int, what: str = "offsets") -> None:
    """Raises `InvalidArgument` unless the bags follow each other and end within the keys."""
    if offsets.ndim != 1:
        raise ArrayMismatch(f"{what}: shape {offsets.shape} came, one dimension is needed")
    if len(offsets) and (offsets[0] != 0 or offsets[-1] > keys or (np.diff(offsets) < 0).any()):
        raise InvalidArgument(
            f"{what}: they must begin at 0, not fall, and end within the {keys} keys"
        )


def bags_of(
    shape: Tuple[int, ...], offsets: Optional[Any], include_last_offset: bool
) -> np.ndarray:
    """Where the bags of an input of this shape begin, and where the last one ends: int64 [bags +
    1].

    Raises `InvalidArgument`, `ArrayMismatch`: what `nn.EmbeddingBag` refuses.
    """
    if len(shape) == 2:
        if offsets is not None:
            raise InvalidArgument("offsets: the input has two dimensions, each row is a bag: none")
        return np.arange(shape[0] + 1, dtype=np.int64) * shape[1]
    if len(shape) != 1:
        raise ArrayMismatch(f"input: shape {shape} came, one or two dimensions are needed")
    if offsets is None:
        raise InvalidArgument("offsets: none came, an input of one dimension needs them")
    begins = integers(offsets, "offsets")
    check_offsets(begins, shape[0])
    if not include_last_offset:
        return np.append(begins, shape[0])
    if not len(begins):
        raise InvalidArgument("offsets: none came, with include_last_offset at least one is needed")
    return begins
