#!/usr/bin/env python3
"""Writes files as HugeCTR has them, from the description of its formats alone: no code of hps.

    hugectr.py keyset OUT --dtype i64|u32 --seed N --keys N
    hugectr.py norm FOLDER --check none|sum --dtype i64|u32 --seed N --samples N --slots N
    hugectr.py raw OUT --seed N --samples N --labels N --dense N --slots N

Beside each data file stands FILE.expected: a line `field value` for each value, in their order
(keyset: `0 key`). Norm also gets its list of files, FOLDER/file_list.txt.
"""

import argparse
import os
import struct

import numpy as np

KEY_TYPES = {"i64": np.dtype("<i8"), "u32": np.dtype("<u4")}


def draw(rng, count, dtype):
    """Keys with many repeats, and the ends of the type's range."""
    top = 2**63 if dtype == "i64" else 2**32
    keys = rng.integers(0, 50, count).astype(np.uint64)
    wide = rng.random(count) < 0.4
    keys[wide] = rng.integers(0, top, int(wide.sum()), dtype=np.uint64)
    return keys.astype(KEY_TYPES[dtype])


def write_expected(path, pairs):
    with open(path + ".expected", "w", encoding="ascii") as file:
        for field, value in pairs:
            file.write(f"{field} {int(value)}\n")


def keyset(path, dtype, seed, count):
    keys = draw(np.random.default_rng(seed), count, dtype)
    keys.tofile(path)
    write_expected(path, ((0, key) for key in keys))


def unit(payload, check):
    """What one write is on disk: with a sum, length before and checksum behind it."""
    if check == "none":
        return payload
    total = int(np.frombuffer(payload, np.uint8).sum()) & 0xFF
    return struct.pack("<i", len(payload)) + payload + bytes([total])


def norm(folder, check, dtype, seed, samples, slots, files=3, labels=1, dense=2):
    rng = np.random.default_rng(seed)
    os.makedirs(folder, exist_ok=True)
    names = []
    for number in range(files):
        path = os.path.join(folder, f"{number}.data")
        names.append(f"{number}.data")
        pairs = []
        with open(path, "wb") as file:
            header = struct.pack("<8q", int(check == "sum"), samples, labels, dense, slots, 0, 0, 0)
            file.write(unit(header, check))
            for _ in range(samples):
                sample = rng.random(labels + dense, np.float32).astype("<f4").tobytes()
                for slot in range(slots):
                    keys = draw(rng, int(rng.integers(0, 4)), dtype)
                    sample += struct.pack("<i", len(keys)) + keys.tobytes()
                    pairs.extend((slot, key) for key in keys)
                file.write(unit(sample, check))
        write_expected(path, pairs)
    with open(os.path.join(folder, "file_list.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join([str(files), *names]) + "\n")


def raw(path, seed, samples, labels, dense, slots):
    rng = np.random.default_rng(seed)
    front = rng.integers(0, 100, (samples, labels + dense)).astype("<i4")
    keys = draw(rng, samples * slots, "u32").reshape(samples, slots)
    np.concatenate([front, keys.view("<i4")], axis=1).tofile(path)
    write_expected(path, ((slot, row[slot]) for row in keys for slot in range(slots)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("keyset", "norm", "raw"):
        command = commands.add_parser(name)
        command.add_argument("path")
        command.add_argument("--seed", type=int, default=1)
        if name != "raw":
            command.add_argument("--dtype", choices=sorted(KEY_TYPES), required=True)
        if name == "keyset":
            command.add_argument("--keys", type=int, default=1000)
        else:
            command.add_argument("--samples", type=int, default=1000)
            command.add_argument("--slots", type=int, default=5)
        if name == "norm":
            command.add_argument("--check", choices=["none", "sum"], required=True)
        if name == "raw":
            command.add_argument("--labels", type=int, default=1)
            command.add_argument("--dense", type=int, default=3)
    args = parser.parse_args()
    if args.command == "keyset":
        keyset(args.path, args.dtype, args.seed, args.keys)
    elif args.command == "norm":
        norm(args.path, args.check, args.dtype, args.seed, args.samples, args.slots)
    else:
        raw(args.path, args.seed, args.samples, args.labels, args.dense, args.slots)


if __name__ == "__main__":
    main()
