"""Writes optimizers.tsv: five steps of each update rule, computed with NumPy in float64.

Written from the papers, in vector form, apart from the Rust code: SGD with momentum and Nesterov
(as PyTorch states them), AdaGrad (Duchi et al. 2011), row-wise AdaGrad (FBGEMM), Adam (Kingma and
Ba 2015, algorithm 1), FTRL-Proximal (McMahan et al. 2013, algorithm 1).

Run: python3 optimizers.py [output]     (needs numpy)
"""

import pathlib
import sys

import numpy as np

GRADIENTS = np.array(
    [
        [0.5, -1.25, 0.0, 2.0, -0.0625],
        [0.25, 0.75, -0.5, 1.5, 0.03125],
        [-1.0, 0.125, 0.25, -3.0, 0.5],
        [0.375, -0.25, 4.0, 0.0, -0.75],
        [-0.125, 1.0, -0.0625, 0.875, 0.25],
    ]
)
WEIGHTS = np.array([0.5, -0.25, 0.125, 1.0, -0.03125])
DEFAULTS = {
    "lr": 0.05,
    "momentum": 0.9,
    "epsilon": 1e-8,
    "beta1": 0.9,
    "beta2": 0.999,
    "ftrl_beta": 1.0,
    "lambda1": 0.0,
    "lambda2": 0.0,
    "accumulator": 0.0,
}
NAMES = list(DEFAULTS)


def sgd(w, state, g, h):
    return w - h["lr"] * g, {}


def momentum(w, state, g, h):
    v = h["momentum"] * state["v"] + g
    return w - h["lr"] * v, {"v": v}


def nesterov(w, state, g, h):
    v = h["momentum"] * state["v"] + g
    return w - h["lr"] * (g + h["momentum"] * v), {"v": v}


def adagrad(w, state, g, h):
    a = state["a"] + np.square(g)
    return w - h["lr"] * g / (np.sqrt(a) + h["epsilon"]), {"a": a}


def adagrad_rowwise(w, state, g, h):
    a = state["a"] + np.mean(np.square(g))
    return w - h["lr"] * g / (np.sqrt(a) + h["epsilon"]), {"a": a}


def adam(w, state, g, h):
    t = state["t"] + 1
    m = h["beta1"] * state["m"] + (1 - h["beta1"]) * g
    v = h["beta2"] * state["v"] + (1 - h["beta2"]) * np.square(g)
    m_hat = m / (1 - np.power(h["beta1"], t))
    v_hat = v / (1 - np.power(h["beta2"], t))
    return w - h["lr"] * m_hat / (np.sqrt(v_hat) + h["epsilon"]), {"m": m, "v": v, "t": t}


def ftrl(w, state, g, h):
    n = state["n"] + np.square(g)
    sigma = (np.sqrt(n) - np.sqrt(state["n"])) / h["lr"]
    z = state["z"] + g - sigma * w
    shrunk = -(z - np.sign(z) * h["lambda1"])
    step = (h["ftrl_beta"] + np.sqrt(n)) / h["lr"] + h["lambda2"]
    return np.where(np.abs(z) <= h["lambda1"], 0.0, shrunk / step), {"z": z, "n": n}


def start(*columns, **filled):
    """State columns at 0, or filled with the named hyperparameter."""
    return lambda h: {c: np.full(5, h[filled[c]] if c in filled else 0.0) for c in columns}


def scalar(column, filled=None):
    return lambda h: {column: np.array([h[filled] if filled else 0.0])}


def both(*parts):
    return lambda h: {k: v for part in parts for k, v in part(h).items()}


CASES = [
    ("sgd", sgd, start(), {}),
    ("momentum", momentum, start("v"), {}),
    ("momentum", momentum, start("v"), {"momentum": 0.5, "lr": 0.25}),
    ("nesterov", nesterov, start("v"), {}),
    ("adagrad", adagrad, start("a", a="accumulator"), {}),
    ("adagrad", adagrad, start("a", a="accumulator"), {"accumulator": 0.1, "epsilon": 0.01}),
    ("adagrad_rowwise", adagrad_rowwise, scalar("a", "accumulator"), {}),
    ("adagrad_rowwise", adagrad_rowwise, scalar("a", "accumulator"), {"accumulator": 0.5}),
    ("adam", adam, both(start("m", "v"), scalar("t")), {"lr": 0.001}),
    ("adam", adam, both(start("m", "v"), scalar("t")), {"beta1": 0.5, "beta2": 0.9}),
    ("ftrl", ftrl, start("z", "n", n="accumulator"), {}),
    ("ftrl", ftrl, start("z", "n", n="accumulator"),
     {"accumulator": 0.1, "lambda1": 0.75, "lambda2": 0.5, "ftrl_beta": 0.25}),
]


def line(name, values):
    return "\t".join([name, *("%.12g" % value for value in values)]) + "\n"


def main():
    default = pathlib.Path(__file__).with_suffix(".tsv")
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    text = "# made by optimizers.py; float64\n"
    text += "\t".join(["# case", "optimizer", *NAMES]) + "\n"
    for name, rule, initial, changed in CASES:
        # What the store is given is f32: the computation starts from the same numbers.
        h = {k: np.float64(np.float32(v)) for k, v in {**DEFAULTS, **changed}.items()}
        text += line("case\t" + name, [h[k] for k in NAMES])
        w, state = WEIGHTS, initial(h)
        text += line("row", np.concatenate([w, *state.values()]))
        for g in GRADIENTS:
            w, state = rule(w, state, g, h)
            text += line("gradient", g) + line("row", np.concatenate([w, *state.values()]))
    output.write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
