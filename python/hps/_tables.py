"""Tables, update rules and initial rows, as `hps.open` takes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional, Tuple, Union

from ._errors import InvalidArgument
from ._passes import Policy, check_policy

Bytes = Union[int, str]

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS[_letter] = _UNITS[_letter + "ib"] = 1024**_power
    _UNITS[_letter + "b"] = 1000**_power


def parse_bytes(size: Bytes, what: str = "size") -> int:
    """Bytes from a number or a text: "8GiB", "512 MiB", "1.5T" (binary), "100MB" (decimal)."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", size) if isinstance(size, str) else None
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InvalidArgument(
            f'{what}: {size!r} came, a number of bytes or a text like "8GiB" or "500MB" is needed'
        )
    return int(float(match.group(1)) * unit)


@dataclass(frozen=True)
class Optimizer:
    """An update rule, applied by the store when gradients are pushed. `lr` may be given to each push
    instead."""

    lr: float = 0.01
    _rule: ClassVar[str] = ""

    def _hyper(self) -> dict[str, float]:
        return {}

    def _accumulator(self) -> float:
        return 0.0


@dataclass(frozen=True)
class SGD(Optimizer):
    """`w -= lr * g`; no state."""

    _rule: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(Optimizer):
    """`v = momentum * v + g; w -= lr * v`; state `v` [dim]."""

    momentum: float = 0.9
    _rule: ClassVar[str] = "momentum"

    def _hyper(self) -> dict[str, float]:
        return {"momentum": self.momentum}


@dataclass(frozen=True)
class Nesterov(Momentum):
    """`v = momentum * v + g; w -= lr * (g + momentum * v)`; state `v` [dim]."""

    _rule: ClassVar[str] = "nesterov"


@dataclass(frozen=True)
class AdaGrad(Optimizer):
    """`a += g * g; w -= lr * g / (sqrt(a) + eps)`; state `a` [dim], at first
    `initial_accumulator`."""

    eps: float = 1e-8
    initial_accumulator: float = 0.0
    _rule: ClassVar[str] = "adagrad"

    def _hyper(self) -> dict[str, float]:
        return {"epsilon": self.eps}

    def _accumulator(self) -> float:
        return self.initial_accumulator


@dataclass(frozen=True)
class RowwiseAdaGrad(AdaGrad):
    """`a += mean(g * g); w -= lr * g / (sqrt(a) + eps)`; state `a` [1]."""

    _rule: ClassVar[str] = "rowwise_adagrad"


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with a step count of each row, raised when the row is pushed; state `m` [dim], `v` [dim],
    `t` [1]."""

    lr: float = 0.001
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    _rule: ClassVar[str] = "adam"

    def _hyper(self) -> dict[str, float]:
        return {"beta1": self.betas[0], "beta2": self.betas[1], "epsilon": self.eps}


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal; state `z` [dim], `n` [dim], the latter at first `initial_accumulator`."""

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    initial_accumulator: float = 0.0
    _rule: ClassVar[str] = "ftrl"

    def _hyper(self) -> dict[str, float]:
        return {"ftrl_beta": self.beta, "lambda1": self.l1, "lambda2": self.l2}

    def _accumulator(self) -> float:
        return self.initial_accumulator


@dataclass(frozen=True)
class Initialiser:
    """The row of a key that was never pushed: a function of the table's seed and the key."""

    def _parts(self) -> tuple[str, float, float]:
        raise NotImplementedError


@dataclass(frozen=True)
class Zero(Initialiser):
    """All weights zero."""

    def _parts(self):
        return ("zero", 0.0, 0.0)


@dataclass(frozen=True)
class Constant(Initialiser):
    """All weights `value`."""

    value: float

    def _parts(self):
        return ("constant", self.value, 0.0)


@dataclass(frozen=True)
class Uniform(Initialiser):
    """Weights uniform in [low, high)."""

    low: float = -0.01
    high: float = 0.01

    def _parts(self):
        return ("uniform", self.low, self.high)


@dataclass(frozen=True)
class Normal(Initialiser):
    """Normal weights."""

    mean: float = 0.0
    deviation: float = 0.01

    def _parts(self):
        return ("normal", self.mean, self.deviation)


@dataclass(frozen=True)
class Table:
    """A table of rows of `dim` float32 weights and the state of its optimizer.

    `name`, `dim`, `dtype`, the rule of `optimizer` with its initial accumulator, `init`, `seed` and
    `metadata` are stored with the table and never change; `lr` and the other numbers of the rule,
    `policy` and the cache bounds may differ at each open.

    `metadata`: columns kept per row and changed by pushes: "show", "click", "count", "last_step".
    `policy`: which rows leave memory first ("bilevel", "lru", "fifo", "pin_all", "staged", or
    `hps.Cached`); None: as the store.
    `cache_min`, `cache_max`: memory that the table keeps while others need it, and takes at most.
    """

    name: str
    dim: int
    optimizer: Optimizer = field(default_factory=AdaGrad)
    init: Initialiser = field(default_factory=Uniform)
    seed: int = 0
    dtype: str = "f32"
    metadata: Tuple[str, ...] = ()
    policy: Optional[Policy] = None
    cache_min: Bytes = 0
    cache_max: Optional[Bytes] = None

    def __post_init__(self) -> None:
        def check(good: bool, name: str, needed: str) -> None:
            if not good:
                raise InvalidArgument(f"Table {name}: {getattr(self, name)!r} came, {needed} is needed")

        check(isinstance(self.name, str), "name", "a text")
        check(isinstance(self.dim, int) and 1 <= self.dim <= 8192, "dim", "1 to 8192")
        check(isinstance(self.optimizer, Optimizer) and self.optimizer._rule, "optimizer", "one of hps.SGD, hps.AdaGrad, ...")
        check(isinstance(self.init, Initialiser), "init", "one of hps.Zero, hps.Uniform, ...")
        check_policy(self.policy, "Table policy")
        check(isinstance(self.seed, int) and 0 <= self.seed < 2**64, "seed", "0 to 2**64 - 1")

    def _spec(self) -> dict[str, Any]:
        init, a, b = self.init._parts()
        cache_max = None if self.cache_max is None else parse_bytes(self.cache_max, "cache_max")
        return {
            "name": self.name,
            "dim": self.dim,
            "dtype": self.dtype,
            "optimizer": self.optimizer._rule,
            "lr": float(self.optimizer.lr),
            "hyper": {name: float(value) for name, value in self.optimizer._hyper().items()},
            "init": init,
            "init_a": float(a),
            "init_b": float(b),
            "seed": self.seed,
            "accumulator": float(self.optimizer._accumulator()),
            "metadata": list(self.metadata),
            "policy": self.policy,
            "cache_bytes_min": parse_bytes(self.cache_min, "cache_min"),
            "cache_bytes_max": cache_max,
        }


@dataclass(frozen=True)
class TableInfo:
    """What is stored of a table, and the learning rate of this open (None without an `hps.Table`)."""

    name: str
    dim: int
    dtype: str
    optimizer: str
    init: str
    init_a: float
    init_b: float
    seed: int
    accumulator: float
    metadata: list
    row_f32s: int
    row_bytes: int
    lr: Optional[float]


