#!/usr/bin/env python3
"""Writes a data set of Parquet files as NVTabular has them, with pyarrow: no code of hps.

    parquet_sets.py FOLDER --seed N --rows N

In FOLDER: part_N.parquet for each way of writing, _metadata.json, _file_list.txt; and of each file
FILE.expected: a line `field value` for each value that is there, values as numbers without sign.
Fields: c32, c64, u32, u64, list.
"""

import argparse
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FIELDS = ["c32", "c64", "u32", "u64", "list"]
WAYS = [
    {"compression": "none", "use_dictionary": True},
    {"compression": "snappy", "use_dictionary": True, "data_page_version": "2.0"},
    {"compression": "gzip", "use_dictionary": False},
    {"compression": "zstd", "use_dictionary": ["c32"], "data_page_size": 512},
    {"compression": "snappy", "use_dictionary": False, "version": "1.0"},
    {
        "compression": "zstd",
        "use_dictionary": False,
        "data_page_version": "2.0",
        "column_encoding": {"c32": "DELTA_BINARY_PACKED", "c64": "DELTA_BINARY_PACKED"},
    },
]


def column(rng, rows, bits, has_nulls):
    values = rng.integers(0, 50, rows).astype(np.uint64)
    wide = rng.random(rows) < 0.4
    values[wide] = rng.integers(0, 2**bits, int(wide.sum()), dtype=np.uint64)
    missing = (rng.random(rows) < 0.2) & has_nulls
    return [None if gone else int(value) for value, gone in zip(values, missing)]


def lists(rng, rows):
    made = []
    for _ in range(rows):
        count = int(rng.integers(-1, 5))
        made.append(None if count < 0 else column(rng, count, 32, True))
    return made


def write(folder, number, seed, rows):
    rng = np.random.default_rng([seed, number])
    columns = {
        "label": (rng.random(rows).astype(np.float32), pa.float32()),
        "c32": (column(rng, rows, 31, True), pa.int32()),
        "dense": (rng.random(rows).astype(np.float32), pa.float32()),
        "c64": (column(rng, rows, 32, False), pa.int64()),
        "u32": (column(rng, rows, 32, True), pa.uint32()),
        "u64": (column(rng, rows, 32, True), pa.uint64()),
        "list": (lists(rng, rows), pa.list_(pa.int64())),
    }
    table = pa.table({name: pa.array(*column) for name, column in columns.items()})
    name = f"part_{number}.parquet"
    pq.write_table(table, os.path.join(folder, name), row_group_size=777, **WAYS[number])
    with open(os.path.join(folder, name + ".expected"), "w", encoding="ascii") as file:
        for row in range(rows):
            for field, of in enumerate(FIELDS):
                value = columns[of][0][row]
                for one in value if isinstance(value, list) else [value]:
                    if one is not None:
                        file.write(f"{field} {one}\n")
    return name, list(columns)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=2000)
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    files = []
    for number in range(len(WAYS)):
        name, columns = write(args.folder, number, args.seed, args.rows)
        files.append(name)
    at = lambda names: [{"col_name": name, "index": columns.index(name)} for name in names]
    metadata = {
        "file_stats": [{"file_name": name, "num_rows": args.rows} for name in files],
        "labels": at(["label"]),
        "conts": at(["dense"]),
        "cats": at(FIELDS),
    }
    with open(os.path.join(args.folder, "_metadata.json"), "w", encoding="ascii") as file:
        json.dump(metadata, file)
    with open(os.path.join(args.folder, "_file_list.txt"), "w", encoding="ascii") as file:
        file.write("\n".join([str(len(files))] + files) + "\n")


main()
