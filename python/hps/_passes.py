"""What a pass is told: keyset files, and which passes stay."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Union

from ._errors import InvalidArgument


@dataclass(frozen=True)
class Keyset:
    """A keyset file, as HugeCTR has them: keys one after the other, little-endian, each once.
    `Store.begin_pass` takes it where it takes an array of keys, and reads it piece by piece.

    `dtype`: "i64" (HugeCTR's `long long`, the bits of a uint64 key) or "u32" (`unsigned int`).
    """

    path: Union[str, os.PathLike[str]]
    dtype: str = "i64"

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise InvalidArgument(f"Keyset path: {self.path!r} came, a path is needed")
        if self.dtype not in ("i64", "u32"):
            raise InvalidArgument(f'Keyset dtype: {self.dtype!r} came, "i64" or "u32" is needed')


@dataclass(frozen=True)
class Cached:
    """A policy for tables that are trained pass by pass (HugeCTR's Cached-PS): rows of some passes stay in
    memory when their pass ends, a *block* each; others leave.

    A pass becomes a block while its table has fewer than `num_blocks` (0: none ever does). Later it does
    only if fewer than `target_hit_rate` (0 to 1) of its known keys lie in blocks, and the oldest block
    leaves for it, `max_num_evict` times at most; `Store.unfreeze` begins that count anew. The cache needs
    room for `num_blocks` + 1 passes, and for one more where the next comes in meanwhile.
    """

    num_blocks: int
    target_hit_rate: float = 0.8
    max_num_evict: int = 0

    def __post_init__(self) -> None:
        def check(good: bool, name: str, needed: str) -> None:
            if not good:
                raise InvalidArgument(f"Cached {name}: {getattr(self, name)!r} came, {needed} is needed")

        def whole(value: object, bits: int) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**bits

        check(whole(self.num_blocks, 32), "num_blocks", "0 to 2**32 - 1")
        rate = self.target_hit_rate
        check(isinstance(rate, (int, float)) and 0 <= rate <= 1, "target_hit_rate", "0 to 1")
        check(whole(self.max_num_evict, 64), "max_num_evict", "0 to 2**64 - 1")


Policy = Union[str, Cached]


def check_policy(policy: object, what: str) -> None:
    """Refuses what is neither a name nor `Cached`; None is as nothing given."""
    if policy is not None and not isinstance(policy, (str, Cached)):
        raise InvalidArgument(f"{what}: {policy!r} came, a name or hps.Cached(...) is needed")
