"""Bags of several features: as they come in, and as they go out."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from .._errors import ArrayMismatch, InvalidArgument
from ._arrays import check_offsets, device_of, integers, offsets_of


class Bags(NamedTuple):
    """The bags of one feature: keys int64 [n], lengths int64 [batch], weights float32 [n] or
    None."""

    keys: np.ndarray
    lengths: np.ndarray
    weights: Optional[torch.Tensor]


def weights_of(bags: Bags) -> torch.Tensor:
    """The weights of bags that were read with `is_weighted`."""
    assert bags.weights is not None, "read_features refuses bags without weights"
    return bags.weights


class KeyedTensor:
    """Pooled embeddings by feature, as TorchRec's KeyedTensor: `found["C1"]` is float32 [batch,
    dim], `found.values()` all of them side by side, [batch, sum of dims], in the order of
    `found.keys()`.
    """

    def __init__(self, pooled: Dict[str, torch.Tensor]) -> None:
        self._pooled = pooled

    def keys(self) -> List[str]:
        """The features, in the order in which the collection was given them."""
        return list(self._pooled)

    def values(self) -> torch.Tensor:
        """float32 [batch, sum of dims]; a copy, made by each call."""
        return torch.cat(list(self._pooled.values()), dim=1)

    def stack(self) -> torch.Tensor:
        """float32 [batch, features, dim] of features of one width; a copy, made by each call."""
        return torch.stack(list(self._pooled.values()), dim=1)

    def to_dict(self) -> Dict[str, torch.Tensor]:
        """feature: float32 [batch, dim]."""
        return dict(self._pooled)

    def length_per_key(self) -> List[int]:
        """dim of each feature."""
        return [pooled.shape[1] for pooled in self._pooled.values()]

    def __getitem__(self, feature: str) -> torch.Tensor:
        return self._pooled[feature]

    def __contains__(self, feature: object) -> bool:
        return feature in self._pooled

    def __len__(self) -> int:
        return len(self._pooled)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pooled)

    def __repr__(self) -> str:
        return f"KeyedTensor({', '.join(self._pooled)})"


def read_features(
    features: Any, wanted: Sequence[str], is_weighted: bool
) -> Tuple[List[Bags], torch.device]:
    """The bags of each feature of `wanted`, and where the results belong.

    `features`: a dict, or anything with TorchRec's `keys()`, `values()` and `lengths()` or
    `offsets()`. Raises `InvalidArgument` for a feature that is missing or bags that don't fit the
    keys.
    """
    if isinstance(features, dict):
        found, device = _from_dict(features, wanted, is_weighted)
    elif all(callable(getattr(features, name, None)) for name in ("keys", "values")):
        found, device = _from_keyed(features, wanted, is_weighted)
    else:
        raise ArrayMismatch(
            f"features: a {type(features).__name__} came, a dict from feature to (values, lengths) "
            "or a KeyedJaggedTensor is needed"
        )
    batch = len(found[0].lengths)
    for feature, bags in zip(wanted, found):
        if len(bags.lengths) != batch:
            raise InvalidArgument(
                f"features: {feature!r} has {len(bags.lengths)} bags, {wanted[0]!r} has "
                f"{batch}: all need as many"
            )
    # All at once: there may be many features, and small batches.
    lengths = np.stack([bags.lengths for bags in found])
    fits = lengths.sum(axis=1) == [len(bags.keys) for bags in found]
    fits &= (lengths >= 0).all(axis=1)
    for feature, bags, is_fit in zip(wanted, found, fits):
        if not is_fit:
            raise InvalidArgument(
                f"features: the lengths of {feature!r} are not those of bags of "
                f"{len(bags.keys)} keys"
            )
        # Those of one feature would count for the next one.
        if is_weighted and tuple(weights_of(bags).shape) != bags.keys.shape:
            raise InvalidArgument(
                f"features: {feature!r} has weights of shape {tuple(weights_of(bags).shape)} for "
                f"{len(bags.keys)} keys: one for each key is needed"
            )
    return found, device


def _missing(feature: str, known: Iterable[Any]) -> InvalidArgument:
    names = ", ".join(map(str, known))
    return InvalidArgument(f"features: {feature!r} is missing; there are: {names}")


def _from_dict(
    features: Dict[str, Any], wanted: Sequence[str], is_weighted: bool
) -> Tuple[List[Bags], torch.device]:
    found, device = [], torch.device("cpu")
    for feature in wanted:
        if feature not in features:
            raise _missing(feature, features)
        given = features[feature]
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
            raise InvalidArgument(f"features: {feature!r} needs (values, lengths)")
        values, lengths = given[:2]
        if is_weighted and len(given) != 3:
            raise InvalidArgument(f"features: {feature!r} needs (values, lengths, weights)")
        device = device_of(values)
        keys = integers(values, feature)
        counts = integers(lengths, f"lengths of {feature}")
        if keys.ndim != 1 or counts.ndim != 1:
            raise ArrayMismatch(f"features: {feature!r} needs values and lengths of one dimension")
        weights = torch.as_tensor(given[2]) if is_weighted else None
        found.append(Bags(keys, counts, weights))
    return found, device


def _from_keyed(
    features: Any, wanted: Sequence[str], is_weighted: bool
) -> Tuple[List[Bags], torch.device]:
    names, values = list(features.keys()), features.values()
    keys = integers(values, "values")
    if callable(getattr(features, "lengths", None)):
        lengths = integers(features.lengths(), "lengths")
    else:
        given = integers(features.offsets(), "offsets")
        check_offsets(given, len(keys))
        lengths = np.diff(given)
    weights = features.weights_or_none() if is_weighted else None
    if is_weighted and weights is None:
        raise InvalidArgument("features: weights are missing, and is_weighted was given")
    if not names or lengths.ndim != 1 or len(lengths) % len(names):
        raise InvalidArgument(
            f"lengths: shape {lengths.shape} came, as many bags of each of the {len(names)} "
            "features are needed"
        )
    stride = len(lengths) // len(names)
    begins = offsets_of(lengths)[::stride] if stride else np.zeros(len(names) + 1, dtype=np.int64)
    place = {name: at for at, name in enumerate(names)}
    found = []
    for feature in wanted:
        at = place.get(feature)
        if at is None:
            raise _missing(feature, names)
        part = slice(begins[at], begins[at + 1])
        found.append(
            Bags(
                keys[part],
                lengths[at * stride : (at + 1) * stride],
                None if weights is None else weights[part],
            )
        )
    return found, device_of(values)
