"""`hps.open`: the front door."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, Optional, Sequence, Union

from . import _hps, _log
from ._errors import InvalidArgument
from ._passes import Policy, check_policy
from ._tables import Bytes, Table, TableInfo, parse_bytes

Path = Union[str, "os.PathLike[str]"]


class Stats(SimpleNamespace):
    """A reading of all counters; `tables` has one for each table by its name."""


def _stats(counted: dict[str, Any]) -> Stats:
    tables = {}
    for name, of_table in counted["tables"].items():
        waits = {cause: SimpleNamespace(**wait) for cause, wait in of_table["waits"].items()}
        tables[name] = Stats(**{**of_table, "waits": waits})
    return Stats(**{**counted, "tables": tables})


def _tables(described: dict[str, dict[str, Any]]) -> dict[str, TableInfo]:
    return {name: TableInfo(**of_table) for name, of_table in described.items()}


def open(
    path: Path,
    tables: Sequence[Table] = (),
    *,
    cache: Bytes = "1GiB",
    create: bool = False,
    read_only: bool = False,
    checkpoint: Optional[int] = None,
    data_directories: Sequence[Path] = (),
    moved_directories: Sequence[Path] = (),
    threads: Optional[int] = None,
    shards: Optional[int] = None,
    policy: Optional[Policy] = None,
    retain_checkpoints: Optional[int] = None,
    non_finite: Optional[str] = None,
    io: Optional[str] = None,
    io_depth: Optional[int] = None,
    file_bytes: Optional[Bytes] = None,
    flush_step_rows: Optional[int] = None,
    space_bound: Optional[float] = None,
    compaction_threads: Optional[int] = None,
    open_files_max: Optional[int] = None,
    disk_bytes_max: Optional[Bytes] = None,
    inline: Optional[bool] = None,
    warm: Optional[bool] = None,
) -> _hps.Store:
    """Opens a store at its last checkpoint, for writing.

    With `tables`, the store and those of its tables that are missing are made; one that is there with
    another description is an error, and so is a store that is not there when no table is given, unless
    `create=True` makes an empty one, for `apply_delta`.
    `read_only=True` opens a retained `checkpoint` (None: the last) beside the writer or without one.

    `cache` is the memory for rows and buffers, as a number of bytes or a text like "8GiB"; the index
    is beside it, up to 13 bytes a key. `data_directories`, one per SSD, are fixed when the store is
    made. What the other options mean, and when to change them: docs/TUNING.md.

    Raises `InvalidArgument`, `Locked`, `Corrupt`, `MissingDirectory`, `Unsupported`, `Io`.
    """
    options: dict[str, Any] = {"cache_bytes": parse_bytes(cache, "cache")}
    check_policy(policy, "policy")
    plain = {
        "threads": threads,
        "shards": shards,
        "policy": policy,
        "retain_checkpoints": retain_checkpoints,
        "non_finite": non_finite,
        "io": io,
        "io_depth": io_depth,
        "flush_step_rows": flush_step_rows,
        "space_bound": space_bound,
        "compaction_threads": compaction_threads,
        "open_files_max": open_files_max,
        "inline": inline,
        "warm": warm,
    }
    options.update((name, value) for name, value in plain.items() if value is not None)
    for name, size in (("file_bytes", file_bytes), ("disk_bytes_max", disk_bytes_max)):
        if size is not None:
            options[name] = parse_bytes(size, name)
    if moved_directories:
        options["moved_directories"] = [os.fspath(path) for path in moved_directories]
    for table in tables:
        if not isinstance(table, Table):
            raise InvalidArgument(f"tables: {table!r} came, hps.Table is needed")
    if (tables or create) and not read_only:
        parent = os.path.dirname(os.path.abspath(os.fspath(path)))
        os.makedirs(parent, exist_ok=True)
    store = _hps.open(
        os.fspath(path),
        [table._spec() for table in tables],
        options,
        [os.fspath(path) for path in data_directories],
        create,
        read_only,
        checkpoint,
    )
    _log.start()
    return store
