"""Types that the stubs of the native module name."""

from __future__ import annotations

from typing import Any, Dict, Protocol, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from ._passes import Keyset


class SupportsDLPack(Protocol):
    """An array of another library, such as a torch tensor on the CPU."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> Tuple[Any, int]: ...


Array = Union[NDArray[Any], SupportsDLPack]
"""Keys: int64 or uint64 [n]. Values: float32 [n, dim]."""
Names = Union[str, Sequence[str]]
Arrays = Union[Array, Sequence[Array]]
Keysets = Union[Array, Keyset, Sequence[Union[Array, Keyset]]]
"""Keys of a pass, each once."""
Rows = Any
"""float32 [n, dim]; of several tables a list of these."""
Rates = Union[float, Sequence[Union[float, None]]]
Chunk = Tuple[str, NDArray[np.uint64], NDArray[np.float32], Dict[str, NDArray[Any]]]
"""(table, keys, weights, state by column)."""
Changes = Tuple[
    str,
    NDArray[np.uint64],
    NDArray[np.float32],
    Dict[str, NDArray[Any]],
    NDArray[np.uint64],
]
"""(table, keys, weights, state by column, removed keys)."""
