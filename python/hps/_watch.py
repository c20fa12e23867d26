"""What a run looks like: a line in a terminal while it trains, and a plot of its log."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, Optional, TextIO

from ._errors import Error, InvalidArgument


def _human(number: float, unit: str) -> str:
    """A number with its unit: "1.28 M rows/s", "61.2 MB"."""
    gap = " " if unit != "B" else ""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {prefix}{gap}{unit}"
    return f"{number:.3g} {unit}"


class Watch:
    """Prints one line about a store, again and again; see `watch`."""

    def __init__(self, store: Any, seconds: float, file: Optional[TextIO], log: Optional[TextIO]):
        self._store = store
        self._seconds = seconds
        self._file = sys.stderr if file is None else file
        self._log = log
        self._is_terminal = bool(getattr(self._file, "isatty", lambda: False)())
        self._stop = threading.Event()
        self._since = time.monotonic()
        self._last = self._since
        self._before = store.stats()
        self._width = 0
        self._thread = threading.Thread(target=self._run, name="hps-watch", daemon=True)
        if self._is_terminal or log is not None:
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.update()
            except Error:
                # The store was closed.
                break

    def update(self) -> dict[str, float]:
        """Reads the counters, prints the line, and gives the figures since the last one."""
        now, stats = time.monotonic(), self._store.stats()
        seconds, before = max(now - self._last, 1e-9), self._before
        self._last, self._before = now, stats
        asked = stats.unique_asked - before.unique_asked
        hits = stats.unique_hits - before.unique_hits
        figures = {
            "seconds": now - self._since,
            "hit_rate": hits / asked if asked else 1.0,
            "rows_per_second": (stats.rows_read - before.rows_read) / seconds,
            "read_bytes": stats.read_bytes - before.read_bytes,
            "written_bytes": stats.written_bytes - before.written_bytes,
            "stall_share": (stats.stall_us - before.stall_us) / 1e6 / seconds,
        }
        if self._log is not None:
            self._log.write(json.dumps(figures) + "\n")
            self._log.flush()
        if self._is_terminal:
            self._print(figures)
        return figures

    def _print(self, figures: dict[str, float]) -> None:
        minutes, seconds = divmod(int(figures["seconds"]), 60)
        line = (
            f"hps {minutes:02d}:{seconds:02d}"
            f" | {100 * figures['hit_rate']:.1f} % hits"
            f" | {_human(figures['rows_per_second'], 'rows/s')}"
            f" | read {_human(figures['read_bytes'], 'B')}"
            f", written {_human(figures['written_bytes'], 'B')}"
            f" | stalled {100 * figures['stall_share']:.1f} %"
        )
        self._file.write("\r" + line.ljust(self._width))
        self._file.flush()
        self._width = len(line)

    def close(self) -> None:
        """Ends the line."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._is_terminal and self._width:
            self._file.write("\n")
            self._file.flush()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def watch(
    store: Any,
    seconds: float = 0.5,
    *,
    file: Optional[TextIO] = None,
    log: Optional[TextIO] = None,
) -> Watch:
    """Prints one line about the store every `seconds`, while it trains: hit rate, rows a second, bytes
    read and written, the share of the time that it stalled. To `file` (None: stderr) if that is a
    terminal; `log` gets the same as JSON lines, for `plot_run`. Ends with `close()` or `with`.
    """
    if not seconds > 0:
        raise InvalidArgument(f"seconds: {seconds} came, more than 0 is needed")
    return Watch(store, seconds, file, log)


def plot_run(log: Any, output: Optional[str] = None):
    """Draws hit rate, bytes read and written, and stalls of a run from the JSON lines that `watch`
    (or `ctr --json`) wrote. Needs matplotlib. Gives the figure; `output` is a file to save it to.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidArgument(
            "plot_run needs matplotlib: pip install matplotlib, or hps[plot]"
        ) from error
    points = _points(log)
    if not points:
        raise InvalidArgument(f"{log}: no line has a hit rate; write one with hps.watch(log=...)")
    figure = Figure(figsize=(8, 7), layout="constrained")
    hits, traffic, stalls = figure.subplots(3, 1, sharex=True)
    x = [point["x"] for point in points]
    hits.plot(x, [100 * point["hit_rate"] for point in points], color="tab:green")
    hits.set_ylabel("hit rate, %")
    hits.set_ylim(0, 101)
    for name, label in (("read_bytes", "read"), ("written_bytes", "written")):
        traffic.plot(x, [point[name] / 2**20 for point in points], label=label)
    traffic.set_ylabel("SSD, MiB")
    traffic.legend()
    stalls.plot(x, [point["stall"] for point in points], color="tab:red")
    stalls.set_ylabel(points[0]["stall_name"])
    stalls.set_ylim(0, max(1.0, 1.1 * max(point["stall"] for point in points)))
    stalls.set_xlabel(points[0]["x_name"])
    for axes in (hits, traffic, stalls):
        axes.grid(alpha=0.3)
    if output is not None:
        figure.savefig(output)
    return figure


def _points(log: Any) -> list[dict[str, Any]]:
    if hasattr(log, "read"):
        lines = log.read().splitlines()
    else:
        with open(log, encoding="utf-8") as file:
            lines = file.read().splitlines()
    points = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InvalidArgument(f"{log}: line {number} is no JSON: {error}") from error
        if not isinstance(found, dict) or "hit_rate" not in found:
            continue
        by_time = "seconds" in found
        points.append(
            {
                "x": found["seconds"] if by_time else found.get("batch", len(points)),
                "x_name": "seconds" if by_time else "batch",
                "hit_rate": found["hit_rate"],
                "read_bytes": found.get("read_bytes", 0),
                "written_bytes": found.get("written_bytes", 0),
                "stall": 100 * found["stall_share"] if "stall_share" in found else found.get("stall_us", 0),
                "stall_name": "stalled, %" if "stall_share" in found else "stalled, us",
            }
        )
    return points
