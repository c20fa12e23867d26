"""Writes a sparse table as Paddle's parameter server saves it: the sample in data/paddle.

    python3 paddle.py FOLDER

By Paddle's CtrCommonAccessor::ParseToString (paddle/fluid/distributed/ps/table/ctr_accessor.cc): numbers as C++ prints floats, the
embedx part from a score on. Rules: SparseAdaGradSGDRule of embed_w, SparseAdamSGDRule of embedx_w. Needs nothing but Python.
"""

import gzip
import pathlib
import struct
import sys

DIM = 3
SHARDS = 3
THRESHOLD = 10
NONCLK, CLICK = 0.1, 1.0


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def weight(key, column):
    return f32(((key % 1009) * 7 + column) / 31 - 3)


def line(key):
    show, click = f32(key % 50 * 0.98), key % 5
    state = [f32(0.25 * key % 3)]
    numbers = [100 + key % 7, key % 3, f32(0.5 * show), show, click, weight(key, 0), *state]
    if (show - click) * NONCLK + click * CLICK >= THRESHOLD * NONCLK:
        numbers += [weight(key, 1 + column) for column in range(DIM)]
        # gsum, g2sum, and the powers of both betas.
        numbers += [0.001] * DIM + [1e-05] * DIM + [0.81, 0.998001]
    # As an ostream prints floats: six digits, and an exponent where that is shorter.
    return " ".join([str(key)] + ["%g" % number for number in numbers]) + "\n"


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    keys = [0, 2**64 - 1, 2**63] + list(range(1, 60)) + [key << 40 | 5 for key in range(1, 20)]
    for shard in range(SHARDS):
        text = "".join(line(key) for key in keys if key % SHARDS == shard).encode()
        path = folder / ("part-000-%05d" % shard)
        if shard == 1:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(text, mtime=0))
        else:
            path.write_bytes(text)


main(pathlib.Path(sys.argv[1]))
