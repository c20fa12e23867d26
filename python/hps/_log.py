"""Hands what the store logs to `logging`: loggers "hps" and below."""

from __future__ import annotations

import logging
import os
import threading
import time

from . import _hps

_LOGGER = logging.getLogger("hps")
_LOGGER.addHandler(logging.NullHandler())
_SECONDS = 0.2
_thread: threading.Thread | None = None
_pid = 0


def handle(level: int, target: str, text: str) -> None:
    """Called for each line."""
    logging.getLogger(target.replace("::", ".")).log(level, "%s", text)


def refresh() -> None:
    """Tells the store which lines anybody wants."""
    _hps.set_log_level(_LOGGER.getEffectiveLevel())


def _forward() -> None:
    while True:
        time.sleep(_SECONDS)
        refresh()
        _hps.drain_log()


def start() -> None:
    """Starts the thread that hands on what is logged between calls; once in a process."""
    global _thread, _pid
    refresh()
    if _thread is not None and _pid == os.getpid():
        return
    _pid = os.getpid()
    _thread = threading.Thread(target=_forward, name="hps-log", daemon=True)
    _thread.start()
