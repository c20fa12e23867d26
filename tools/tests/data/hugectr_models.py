"""HugeCTR's files by NumPy alone: what the tests compare the tools of hps with.

Nothing here knows hps. `model` writes a sparse model folder, `read_model` reads one.
"""

import argparse
import pathlib
import sys

import numpy as np

# The state files of each optimizer, in the order that `Rule.state` has them.
STATE = {
    "sgd": [],
    "momentum": ["MomentumSGD.momtentum"],
    "nesterov": ["Nesterov.accm"],
    "adagrad": ["AdaGrad.accm"],
    "adam": ["Adam.m", "Adam.v"],
    "ftrl": ["Ftrl.n", "Ftrl.z"],
}


def model(folder, keys, weights, state, optimizer, slots=None):
    """Writes a sparse model folder: row i of each file is of key i."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    keys.astype("<i8").tofile(folder / "key")
    weights.astype("<f4").tofile(folder / "emb_vector")
    if slots is not None:
        slots.astype("<u8").tofile(folder / "slot_id")
    for name, values in zip(STATE[optimizer], state, strict=True):
        values.astype("<f4").tofile(folder / name)


def read_model(folder):
    """Reads a folder: the optimizer, and each file as an array, rows in the order of the keys."""
    folder = pathlib.Path(folder)
    names = {path.name for path in folder.iterdir()} - {"key", "emb_vector", "slot_id"}
    optimizer = next(rule for rule, files in STATE.items() if set(files) == names)
    keys = np.fromfile(folder / "key", "<i8")
    assert len(np.unique(keys)) == len(keys), "a key stands twice"
    order = np.argsort(keys)
    files = {"key": keys[order]}
    for name in ["emb_vector", *STATE[optimizer]]:
        values = np.fromfile(folder / name, "<f4")
        assert len(values) % len(keys) == 0, f"{name}: {len(values)} values for {len(keys)} keys"
        files[name] = values.reshape(len(keys), -1)[order]
    if (folder / "slot_id").exists():
        files["slot_id"] = np.fromfile(folder / "slot_id", "<u8")[order]
    return optimizer, files


class Rule:
    """One optimizer of HugeCTR in float32, every row updated at every step."""

    beta1, beta2, epsilon, mu = np.float32([0.9, 0.999, 1e-7, 0.9])
    ftrl_beta, lambda1, lambda2 = np.float32([1.0, 0.01, 0.001])

    def __init__(self, optimizer, weights, lr):
        self.optimizer, self.weights, self.lr = optimizer, weights, np.float32(lr)
        self.state = [np.zeros_like(weights) for _ in STATE[optimizer]]
        self.steps = 0

    def step(self, gradient):
        self.steps += 1
        getattr(self, self.optimizer)(gradient, *self.state)

    def sgd(self, g):
        self.weights -= self.lr * g

    def momentum(self, g, m):
        m[:] = self.mu * m - self.lr * g
        self.weights += m

    def nesterov(self, g, accm):
        before = accm.copy()
        accm[:] = self.mu * accm - self.lr * g
        self.weights += -self.mu * before + (1 + self.mu) * accm

    def adagrad(self, g, accm):
        accm += g * g
        self.weights -= self.lr * g / (np.sqrt(accm) + self.epsilon)

    def adam(self, g, m, v):
        m[:] = self.beta1 * m + (1 - self.beta1) * g
        v[:] = self.beta2 * v + (1 - self.beta2) * g * g
        low, high = (1 - float(beta) ** self.steps for beta in (self.beta1, self.beta2))
        rate = np.float32(float(self.lr) * np.sqrt(high) / low)
        self.weights -= rate * m / (np.sqrt(v) + self.epsilon)

    def ftrl(self, g, n, z):
        grown = n + g * g
        sigma = (np.sqrt(grown) - np.sqrt(n)) / self.lr
        z += g - sigma * self.weights
        n[:] = grown
        scale = (self.ftrl_beta + np.sqrt(n)) / self.lr + self.lambda2
        shrunk = (np.sign(z) * self.lambda1 - z) / scale
        self.weights[:] = np.where(np.abs(z) <= self.lambda1, 0, shrunk)


def train(arguments):
    """Writes a model after some steps, the gradients of some more, and the model after these."""
    random = np.random.default_rng(arguments.seed)
    rows, dim = arguments.rows, arguments.dim
    keys = np.unique(random.integers(-(2**63), 2**63 - 1, rows, np.int64))
    random.shuffle(keys)
    shape = (len(keys), dim)
    weights = random.uniform(-0.1, 0.1, shape).astype(np.float32)
    rule = Rule(arguments.optimizer, weights, arguments.lr)
    draw = lambda: random.normal(0, 0.5, shape).astype(np.float32)
    slots = random.integers(0, 26, len(keys)) if arguments.localized else None
    for _ in range(arguments.before):
        rule.step(draw())
    out = pathlib.Path(arguments.out)
    model(out / "before", keys, rule.weights, rule.state, arguments.optimizer, slots)
    gradients = [draw() for _ in range(arguments.after)]
    np.stack(gradients).astype("<f4").tofile(out / "gradients")
    for gradient in gradients:
        rule.step(gradient)
    model(out / "after", keys, rule.weights, rule.state, arguments.optimizer, slots)


def compare(arguments):
    """Fails where two folders differ by more than a tolerance (0: in any bit)."""
    (one, first), (other, second) = read_model(arguments.first), read_model(arguments.second)
    assert one == other, f"{one} and {other}"
    assert arguments.slots or first.keys() == second.keys(), f"{[*first]} and {[*second]}"
    for name in first.keys() & second.keys():
        a, b = first[name], second[name]
        assert a.shape == b.shape, f"{name}: {a.shape} and {b.shape}"
        if arguments.tolerance == 0 or a.dtype != np.float32:
            same = a.tobytes() == b.tobytes()
        else:
            same = np.allclose(a, b, rtol=arguments.tolerance, atol=arguments.tolerance / 10)
        assert same, f"{name}: differs by {np.abs(a - b).max()}"
    print(f"{one}: {len(first['key'])} rows of {first['emb_vector'].shape[1]} weights")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("train", help=train.__doc__)
    verb.set_defaults(run=train)
    verb.add_argument("out")
    verb.add_argument("--optimizer", choices=STATE, required=True)
    verb.add_argument("--rows", type=int, default=500)
    verb.add_argument("--dim", type=int, default=7)
    verb.add_argument("--lr", type=float, default=0.05)
    verb.add_argument("--before", type=int, default=4)
    verb.add_argument("--after", type=int, default=3)
    verb.add_argument("--seed", type=int, default=1)
    verb.add_argument("--localized", action="store_true")
    verb = verbs.add_parser("compare", help=compare.__doc__)
    verb.set_defaults(run=compare)
    verb.add_argument("first")
    verb.add_argument("second")
    verb.add_argument("--tolerance", type=float, default=0)
    verb.add_argument("--slots", action="store_true", help="one of them may have no slots")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
