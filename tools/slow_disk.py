"""Do memory, descriptors and disk stay flat where the disk is slow?

Called by slow_disk.sh. The trainer runs on a loop image which a cgroup holds to 10 MiB/s, then to 200
requests a second, on data that comes again and again: after the first pass over it (the
warm-up) nothing may grow. What is asked has room for the waves of compaction, and none for a leak:
see `Flat`. No rate is asked from below: a busy machine trains less, and passes.

How many files there are goes up and down with compaction, and with them the descriptors: ten seconds
of a busy machine are a piece of one wave. So a half of a phase is a number of batches, not of seconds,
and descriptors count beside those of the files that are there; the files have a bound of their own.
"""

import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

from loop_image import Image, end_on_sigterm, missing

IMAGE_MIB = 512
BYTES_PER_S = 10 << 20
REQUESTS_PER_S = 200
ROOT = pathlib.Path("/sys/fs/cgroup")
# How often the data comes: more than a run can take.
PASSES = 2000
# A phase is at least so many batches, two checkpoints, unless it takes this many times its seconds.
PHASE_BATCHES = 20
PHASE_TIMES_MAX = 3
# The engine's bound on the number of files: 2 x live / file size + 64.
FILES_ROOM = 64
FILE_BYTES = 1 << 20


class Failure(Exception):
    """Something grew, or broke."""


class Throttle:
    """A cgroup, version 1 or 2, that limits one device."""

    def __init__(self, device):
        self.device = f"{os.major(device)}:{os.minor(device)}"
        self.first = (ROOT / "blkio/blkio.throttle.read_bps_device").exists()
        self.place = None
        if self.first:
            root = ROOT / "blkio"
        else:
            root = ROOT
            if "io" not in (root / "cgroup.controllers").read_text().split():
                raise OSError("no blkio controller, and none named io")
            (root / "cgroup.subtree_control").write_text("+io")
        place = root / f"hps-slow-{os.getpid()}"
        place.mkdir()
        self.place = place

    def limit(self, bytes_per_s, requests_per_s):
        """0: no limit."""
        if not self.first:
            words = []
            for name, value in (("bps", bytes_per_s), ("iops", requests_per_s)):
                words += [f"{way}{name}={value or 'max'}" for way in "rw"]
            (self.place / "io.max").write_text(f"{self.device} {' '.join(words)}")
            return
        for name, value in (("bps", bytes_per_s), ("iops", requests_per_s)):
            for way in ("read", "write"):
                file = self.place / f"blkio.throttle.{way}_{name}_device"
                file.write_text(f"{self.device} {value}")

    def enter(self):
        (self.place / "cgroup.procs").write_text(str(os.getpid()))

    def done(self):
        """Bytes and requests so far."""
        if self.first:
            bytes_read = self.sum("blkio.throttle.io_service_bytes")
            return bytes_read, self.sum("blkio.throttle.io_serviced")
        words = [w for w in (self.place / "io.stat").read_text().split() if "=" in w]
        found = [(k, int(v)) for k, v in (w.split("=") for w in words)]
        total = lambda names: sum(v for k, v in found if k in names)
        return total(("rbytes", "wbytes")), total(("rios", "wios"))

    def sum(self, name):
        lines = (line.split() for line in (self.place / name).read_text().splitlines())
        return sum(int(w[2]) for w in lines if len(w) == 3 and w[1] in ("Read", "Write")
                   and w[0] == self.device)

    def close(self):
        # Only an empty one can go; its last process is being taken apart.
        for _ in range(500):
            try:
                if self.place:
                    self.place.rmdir()
                return
            except OSError:
                time.sleep(0.01)


class Trainer:
    """The process, and how far it is."""

    def __init__(self, command, throttle, errors):
        self.batches = self.examples = 0
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, preexec_fn=throttle.enter
        )
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.child.stdout:
            found = json.loads(line)
            self.batches = found.get("batch", self.batches)
            self.examples = found.get("examples", self.examples)

    def sample(self, store):
        """Memory, descriptors that are not of a file that is there, disk in bytes."""
        if self.child.poll() is not None:
            raise Failure(f"the trainer ended with {self.child.returncode}")
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        memory = int(status.split("VmRSS:")[1].split()[0]) << 10
        others = sum(not self.is_of_rows(name) for name in os.listdir(self.descriptors()))
        disk = files = 0
        for directory, _, names in os.walk(store):
            for name in names:
                try:
                    disk += os.stat(os.path.join(directory, name)).st_blocks * 512
                except FileNotFoundError:
                    continue  # Compacted meanwhile.
                files += name.endswith(".rows")
        if files > FILES_ROOM + 2 * disk / FILE_BYTES:
            raise Failure(f"{files} parameter files for {disk >> 20} MiB")
        return memory, others, disk

    def descriptors(self):
        return f"/proc/{self.child.pid}/fd"

    def is_of_rows(self, descriptor):
        """Whether it is of a parameter file that is still there."""
        try:
            return os.readlink(f"{self.descriptors()}/{descriptor}").endswith(".rows")
        except OSError:
            return True  # Closed meanwhile.


class Flat:
    """The rule for one figure: the second half's peak, or its median, against the first half's peak.

    The median is for what has peaks of a moment: files that were unlinked and are not yet closed.
    """

    def __init__(self, name, unit, share, room, later=max):
        self.name, self.unit, self.share, self.room = name, unit, share, room
        self.later = later

    def check(self, points, half):
        """Says how it went; a failure where it grew. The first `half` points are the first half."""
        before = max(v for _, v in points[:half])
        after = self.later(v for _, v in points[half:])
        bound = before * self.share + self.room
        # Least squares.
        mean_t = sum(t for t, _ in points) / len(points)
        mean_v = sum(v for _, v in points) / len(points)
        spread = sum((t - mean_t) ** 2 for t, _ in points)
        slope = sum((t - mean_t) * (v - mean_v) for t, v in points) / max(spread, 1e-9)
        text = (
            f"{self.name} {before / self.unit:.1f} then {after / self.unit:.1f} (bound "
            f"{bound / self.unit:.1f}), slope {slope * 3600 / self.unit:+.1f} an hour"
        )
        if after > bound:
            raise Failure(f"grows: {text}")
        return text


FIGURES = (
    Flat("memory MiB", 1 << 20, 1.15, 8 << 20),
    Flat("descriptors beside files", 1, 1.0, 8, statistics.median),
    Flat("disk MiB", 1 << 20, 1.25, 8 << 20),
)


def phase(trainer, throttle, store, seconds, limits):
    """Samples for a while; the lines to print."""
    name = f"{limits[0] >> 20} MiB/s" if limits[0] else f"{limits[1]} requests/s"
    throttle.limit(*limits)
    start, begun, points = time.monotonic(), throttle.done(), []
    batches, at = trainer.batches, []
    while (took := time.monotonic() - start) < seconds * PHASE_TIMES_MAX:
        done_batches = trainer.batches - batches
        if took >= seconds and done_batches >= PHASE_BATCHES:
            break
        points.append((took, trainer.sample(store)))
        at.append(done_batches)
        time.sleep(0.5)
    took = time.monotonic() - start
    # Halves of the work; each has a point, however long a batch took.
    half = sum(done_batches < at[-1] / 2 for done_batches in at)
    half = min(max(1, half), len(points) - 1)
    rates = [(now - then) / took for now, then in zip(throttle.done(), begun)]
    for rate, limit in zip(rates, limits):
        # What was let through beforehand counts a little.
        if limit and rate > limit * 1.3:
            raise Failure(f"{name}: not in force, {rate:.0f} a second")
    if trainer.batches == batches:
        raise Failure(f"{name}: nothing was trained in {took:.0f} s")
    print(
        f"{name}: {trainer.batches - batches} batches in {took:.0f} s, {rates[0] / 2**20:.1f} "
        f"MiB/s, {rates[1]:.0f} requests/s"
    )
    for i, flat in enumerate(FIGURES):
        print(f"{name}: {flat.check([(t, values[i]) for t, values in points], half)}")


def warm_up(trainer, store, rows):
    """Until all data was seen once, and the disk has had room to wave."""
    while trainer.examples < rows * 3 // 2:
        trainer.sample(store)
        time.sleep(0.2)


def run(image, throttle, seconds, trainer, fsck, data, flags):
    """All of it; the seconds of the warm-up."""
    store = image.place / "store"
    rows = sum(1 for _ in open(data, "rb"))
    command = [trainer, "--dir", store, "--json", *flags, *itertools.repeat(data, PASSES)]
    throttle.limit(BYTES_PER_S, 0)
    start = time.monotonic()
    with open(image.directory / "stderr", "wb") as errors:
        running = Trainer(command, throttle, errors)
    try:
        warm_up(running, store, rows)
        warm = time.monotonic() - start
        phase(running, throttle, store, seconds / 2, (BYTES_PER_S, 0))
        phase(running, throttle, store, seconds / 2, (0, REQUESTS_PER_S))
    finally:
        throttle.limit(0, 0)
        running.child.send_signal(signal.SIGKILL)
        running.child.wait()
    done = subprocess.run([fsck, "--json", store], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"hps-fsck: {done.returncode}: {done.stdout}{done.stderr}")
    return warm


def main():
    end_on_sigterm()
    seconds = int(sys.argv[1])
    trainer, fsck, data, *flags = sys.argv[2:]
    why = missing()
    with Image(IMAGE_MIB) as image:
        throttle = None
        if not why:
            try:
                image.make("-b", "4096")
                image.mount()
                throttle = Throttle(os.stat(image.place).st_dev)
            except OSError as error:
                why = f"no cgroup that limits a device: {error}"
        if why:
            print(f"slow_disk: SKIPPED: {why}; NOTHING RAN ON A SLOW DISK", file=sys.stderr)
            return 0
        try:
            warm = run(image, throttle, seconds, trainer, fsck, data, flags)
        except Failure as failure:
            said = (image.directory / "stderr").read_text(errors="replace")[-1000:]
            print(f"slow_disk: FAILED: {failure}\n{said}", file=sys.stderr)
            return 4
        finally:
            throttle.close()
    print(f"slow_disk: {seconds} seconds, after {warm:.0f} s of warm-up: flat")
    return 0


if __name__ == "__main__":
    sys.exit(main())
