#!/usr/bin/env python3
"""Writes models as Parquet in the ways of pyarrow, and reads those of hps: no code of hps.

    parquet_models.py write NPY FOLDER WAY    the arrays of NPY as a folder of Parquet files
    parquet_models.py lz4 NPY FOLDER          the same, compressed as hps does not read it
    parquet_models.py compare NPY FOLDER      fails unless the files of FOLDER have the arrays of NPY to the bit
    parquet_models.py ways                    the number of ways

NPY: keys.npy, weights.npy, and an array for each column of state and metadata.
"""

import glob
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METADATA = ["show", "click", "count", "last_step"]


def variable(values):
    offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel(), pa.float32()))


def fixed(values):
    flat = pa.array(values.ravel(), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def large(values):
    offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int64)
    return pa.LargeListArray.from_arrays(offsets, pa.array(values.ravel(), pa.float32()))


# How lists are made, whether columns may have nulls, files, and options of the writer.
WAYS = [
    (variable, True, 1, {"compression": "snappy"}),
    (variable, False, 3, {"compression": "zstd", "row_group_size": 171, "data_page_version": "2.0"}),
    (fixed, True, 2, {"compression": "gzip", "row_group_size": 250, "use_dictionary": True}),
    (fixed, False, 1, {"compression": "none", "use_dictionary": False, "data_page_size": 1000}),
    (large, True, 2, {"compression": "zstd", "use_compliant_nested_type": False}),
    (
        variable,
        True,
        1,
        {
            "compression": "snappy",
            "use_dictionary": False,
            "column_encoding": {"key": "DELTA_BINARY_PACKED", "weights.list.element": "BYTE_STREAM_SPLIT"},
        },
    ),
]


def arrays(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "*.npy")):
        found[os.path.basename(path)[: -len(".npy")]] = np.load(path)
    keys = found.pop("keys")
    return keys, found


def write(npy, folder, way):
    lists, is_nullable, files, options = WAYS[way]
    keys, others = arrays(npy)
    # Signed or not, the bits are those of the key.
    keys = pa.array(keys) if is_nullable else pa.array(keys.view(np.int64))
    columns = {"key": keys}
    for name, values in sorted(others.items(), reverse=way % 2 == 0):
        is_list = values.ndim == 2
        columns[name] = lists(values) if is_list else pa.array(values)
    fields = [pa.field(name, column.type, is_nullable) for name, column in columns.items()]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    os.mkdir(folder)
    each = -(-len(table) // files)
    for number in range(files):
        path = os.path.join(folder, f"{number}.parquet")
        pq.write_table(table.slice(number * each, each), path, **options)


def compare(npy, folder):
    keys, others = arrays(npy)
    removed = others.pop("removed", None)
    paths = sorted(glob.glob(os.path.join(folder, "part-*.parquet")))
    # Each by itself, and all as the data set that they are.
    table = pa.concat_tables([pq.read_table(path) for path in paths])
    assert pq.read_table(paths).equals(table), "read as one data set"
    assert table.schema.field("key").type == pa.uint64(), table.schema
    assert set(table.schema.names) == {"key", *others}, table.schema
    assert not any(field.nullable for field in table.schema), table.schema
    there = table["key"].to_numpy()
    order, expected = np.argsort(there), np.argsort(keys)
    assert np.array_equal(there[order], keys[expected]), "keys"
    for name, values in others.items():
        column = table[name].combine_chunks()
        kind = pa.uint32() if name in METADATA else pa.float32()
        if values.ndim == 2:
            assert pa.types.is_list(column.type) and column.type.value_type == kind, column.type
            lengths = column.value_lengths().to_numpy()
            assert (lengths == values.shape[1]).all(), name
            found = column.flatten().to_numpy().reshape(values.shape)
        else:
            assert column.type == kind, column.type
            found = column.to_numpy()
        same = found[order].view(np.uint32) == values[expected].view(np.uint32)
        assert same.all(), name
    footer = pq.read_schema(paths[0]).metadata
    assert footer[b"hps.dim"] == str(others["weights"].shape[1]).encode(), footer
    if removed is not None:
        there = pq.read_table(os.path.join(folder, "removed.parquet"))
        assert np.array_equal(np.sort(there["key"].to_numpy()), np.sort(removed)), "removed"


def main():
    match sys.argv[1:]:
        case ["write", npy, folder, way]:
            write(npy, folder, int(way))
        case ["lz4", npy, folder]:
            WAYS.append((variable, True, 1, {"compression": "lz4"}))
            write(npy, folder, len(WAYS) - 1)
        case ["compare", npy, folder]:
            compare(npy, folder)
        case ["ways"]:
            print(len(WAYS))
        case _:
            sys.exit(__doc__)


main()
