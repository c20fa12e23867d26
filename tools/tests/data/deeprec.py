"""Writes checkpoints of DeepRec by TensorFlow itself, and reads those that hps-export writes.

    python3 deeprec.py write FOLDER     makes FOLDER/model.ckpt-30, the sample in data/deeprec
    python3 deeprec.py read PREFIX      prints each tensor, and fails where its checksum is wrong

The tensors are those that DeepRec saves of an EmbeddingVariable (docs/docs_en/Embedding-Variable-Export-Format.md there):
TensorFlow writes and reads them as any tensors, so DeepRec itself is not needed. Needs tensorflow (made with 2.21.0).
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf

DIM = 4
STEP = 30


def value(key, column):
    """Each number another, exact in float32."""
    return (key % 4099 * 8 + column) / 64.0


def values(keys, first):
    rows = [[value(key, first + column) for column in range(DIM)] for key in keys]
    return np.array(rows, np.float32).reshape(len(keys), DIM)


def variable(name, keys, slots=(), freqs=True, versions=True):
    """Tensors of one variable: keys in the order of key % 1000, as DeepRec saves them; what it does not keep is empty."""
    keys = sorted(keys, key=lambda key: key % 1000)
    array = np.array(keys, np.int64)
    none = np.array([], np.int64)
    tensors = {
        f"{name}-keys": array,
        f"{name}-values": values(keys, 0),
        f"{name}-freqs": array % 7 + 1 if freqs else none,
        f"{name}-versions": array % 31 if versions else none,
    }
    for index, slot in enumerate(slots):
        tensors |= {
            f"{name}/{slot}-keys": array,
            f"{name}/{slot}-values": values(keys, 100 * (index + 1)),
            f"{name}/{slot}-freqs": none,
            f"{name}/{slot}-versions": none,
        }
    return tensors


def write(folder):
    tensors = {"global_step": np.array(STEP, np.int64), "dense/kernel": np.ones((3, 2), np.float32)}
    # A variable as a whole, with keys that a filter has not admitted, and all tensors that DeepRec writes.
    keys = [3, 1003, 5, 1 << 40, 998]
    tensors |= variable("user", keys, ["Adagrad"])
    counts = np.bincount(np.array(keys) % 1000, minlength=1000)
    tensors |= {
        "user-keys_filtered": np.array([77, 78], np.int64),
        "user-freqs_filtered": np.array([1, 1], np.int64),
        "user-versions_filtered": np.array([0, 0], np.int64),
        "user-partition_offset": np.concatenate([[0], counts.cumsum()]).astype(np.int32),
    }
    # One in two partitions.
    for part in range(2):
        keys = [key for key in range(20) if key % 2 == part]
        tensors |= variable(f"deep/item/part_{part}", keys, ["Adam", "Adam_1"], versions=False)
    # One of an optimizer that hps does not have, without counts.
    slots = ["AdagradDecay", "AdagradDecay_1"]
    tensors |= variable("shop", [1, 2], slots, freqs=False, versions=False)
    names = sorted(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / f"model.ckpt-{STEP}"
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )


def read(prefix):
    reader = tf.train.load_checkpoint(prefix)
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        # Reading a tensor checks its checksum.
        tensor = reader.get_tensor(name)
        print(name, tensor.dtype, shape, tensor.ravel()[:8].tolist())


if __name__ == "__main__":
    what, where = sys.argv[1:]
    write(pathlib.Path(where)) if what == "write" else read(where)
