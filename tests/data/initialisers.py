"""Writes initialisers.tsv: weights of keys never pushed, as f32 bits, computed apart from Rust.

Integers of Python for the generator, single operations rounded to f32 by `struct` for the
uniform, `statistics.NormalDist().inv_cdf` (AS 241 with libm's log) for the normal.

Run: python3 initialisers.py [output]
"""

import itertools
import pathlib
import statistics
import struct
import sys

MASK = 2**64 - 1
KEYS = [0, 1, 2, 0x0123456789ABCDEF, MASK]
SEEDS = [0, 1, 0xDEADBEEF]
INDEXES = [0, 1, 2, 15, 16, 63, 8191]
UNIFORMS = [(-0.01, 0.01), (0.0, 1.0), (1.0, 1.0000001)]
NORMALS = [(0.0, 1.0), (0.5, 0.05)]
QUANTILES = [2.0**-53, 1e-300, 1e-20, 1e-9, 0.0001, 0.02, 0.0749, 0.075, 0.0751, 0.1, 0.3,
             0.499999, 0.5, 0.7, 0.925, 0.9251, 0.99, 0.9999999, 1 - 2.0**-53]


def mix64(x):
    for _ in range(2):
        x ^= x >> 32
        x = x * 0xD6E8FEB86659FD93 & MASK
    return x ^ x >> 32


def element(seed, key, index):
    seed = mix64((seed + 0x243F6A8885A308D3) & MASK)
    stream = mix64(seed ^ mix64((key + 0x13198A2E03707344) & MASK))
    return mix64((stream + (index + 1) * 0x9E3779B97F4A7C15) & MASK)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(x):
    return "%08x" % struct.unpack("<I", struct.pack("<f", x))[0]


def uniform(element_bits, low, high):
    """Each operation is done in double and rounded to f32: rounding twice changes nothing there."""
    low, high = f32(low), f32(high)
    unit = (element_bits >> 40) / 2**24
    value = f32(low + f32(unit * f32(high - low)))
    if value >= high:  # the f32 below a positive bound
        value = struct.unpack("<f", struct.pack("<I", int(bits(high), 16) - 1))[0]
    return value


def normal(element_bits, mean, deviation):
    p = (2 * (element_bits >> 12) + 1) / 2**53
    return f32(f32(mean) + f32(deviation) * statistics.NormalDist().inv_cdf(p))


def main():
    default = pathlib.Path(__file__).with_suffix(".tsv")
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    text = "# made by initialisers.py\n"
    text += "# kind, two parameters (f32 bits), seed, key (hex), index, weight (f32 bits)\n"
    cases = [(uniform, *pair) for pair in UNIFORMS] + [(normal, *pair) for pair in NORMALS]
    for (rule, a, b), seed, key, index in itertools.product(cases, SEEDS, KEYS, INDEXES):
        weight = rule(element(seed, key, index), a, b)
        text += f"{rule.__name__}\t{bits(a)}\t{bits(b)}\t{seed:x}\t{key:x}\t{index}\t"
        text += bits(weight) + "\n"
    text += "# quantile, p, z (f64)\n"
    for p in QUANTILES:
        text += f"quantile\t{p!r}\t{statistics.NormalDist().inv_cdf(p)!r}\n"
    output.write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
