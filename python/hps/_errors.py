"""What can go wrong: one class for each variant of the Rust library's error, with its fields."""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """Anything that the store reports. `str(error)` says what happened and the way out."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self._fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self):
        return (_rebuild, (type(self), str(self), self._fields))


def _rebuild(cls, message, fields):
    return cls(message, **fields)


class InvalidArgument(Error, ValueError):
    """The caller passed something that can't be served; nothing changed. `kind` says what:
    "Length", "DescriptorChanged", "Option", "StepNotRising", "UnknownCheckpoint", ..."""

    kind = "Other"


class UnknownTable(InvalidArgument, LookupError):
    """No table has this `name`; `known` are those that there are."""

    kind = "UnknownTable"


class Closed(InvalidArgument):
    """The store, the lease or the ticket was closed."""

    kind = "Closed"


class ArrayMismatch(InvalidArgument, TypeError):
    """An array of another dtype, shape, layout or device than is needed."""

    kind = "ArrayMismatch"


class Corrupt(Error):
    """Bytes on disk are not what was written: `path`, `offset`, `what`. Other rows stay readable."""


class MissingDirectory(Error):
    """A data directory is not there: `path`, `index`, `empty`."""


class Io(Error, OSError):
    """The operating system refused an `operation` on `path`: `errno`."""


class NoSpace(Error):
    """Writing would exceed `disk_bytes_max`, or the file system is full: `path`, `used_bytes`,
    `asked_bytes`, `limit_bytes`. The store stays readable."""


class OverBudget(Error):
    """A batch does not fit beside the outstanding leases: `table`, `pinned_rows`, `asked_rows`,
    `capacity_rows`, `needed_bytes` (a cache that would do), `leases`."""


class Locked(Error):
    """Somebody else has the store, or the checkpoint: `path`, `holder`."""


class Unsupported(Error):
    """A file of a newer format: `path`, `found`, `supported`."""


class UnsupportedTable(Error):
    """The weights of `table` are of a `dtype` that this build can't compute with."""


class Poisoned(Error):
    """The store refuses writes since an earlier failure, the `cause`; open it again."""


class Uncheckpointed(Error):
    """`rows` changed after the last checkpoint."""


class Cancelled(Error):
    """A long call was asked to stop."""


class ReadOnly(Error):
    """The store at `path` was opened read-only."""


class Deadline(Error, TimeoutError):
    """What was waited for has not come: `waited_ms`. The ticket stays valid."""


class Forked(Error):
    """The store belongs to the process that this one was forked from."""


class InternalError(Error):
    """A bug of hps: what it panicked with. The store is to be opened again."""
