"""Does a trainer on ext4 or XFS resume at its last checkpoint, wherever the power goes?

Called by power_cut.sh. Each cut: the trainer runs on a loop image, with io_uring and O_DIRECT; the
file system is shut down without a flush of its journal; the journal is replayed by a mount, e2fsck
or xfs_repair must find nothing, hps-fsck must end with 0, and the newest checkpoint must be one that this
cut allows (promises P2 and P3). Then the trainer goes on. A run that gets to its end must have the
digest of one that was never stopped (P1).

What the trainer has acknowledged is known from its lines: when batch m + EVERY is printed, it has
waited for checkpoint m. Lines count that came before the cut.

Cuts come on both sides: some before the first checkpoint of a store, more after one, of which runs
then resume. Fewer of either than `Trial.enough` asks for is a failure: nothing would be tested.

The device under the file system keeps what it was given: a cut loses what the file system had not yet
written, not a cache inside the device.
"""

import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time

from loop_image import Image, call, end_on_sigterm, missing

IMAGE_MIB = 128
# (kind, mkfs options, mount options): small and large blocks, data in order and not.
FILE_SYSTEMS = [
    ("ext4", ["-b", "4096"], "defaults,commit=300"),
    ("xfs", [], "defaults"),
    ("ext4", ["-b", "4096"], "defaults,commit=1"),
    ("xfs", ["-b", "size=1024"], "defaults"),
    ("ext4", ["-b", "1024"], "defaults,commit=300"),
    ("ext4", ["-b", "4096"], "data=writeback,commit=300"),
]
# How long a trainer whose disk is gone may take to notice; longer than any wait for a busy machine.
END_SECONDS = 300


class Failure(Exception):
    """A promise that was broken."""


class Run:
    """One trainer, until the power goes or it ends."""

    def __init__(self, image, command, every):
        self.image, self.every = image, every
        self.lines = 0
        self.batch = 0
        self.first = None
        self.direct = self.ring = self.summed_up = False
        self.buffer = b""
        self.ended = False
        self.errors = image.directory / "stderr"
        with open(self.errors, "wb") as errors:
            self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)

    def read(self, until):
        """Reads lines until a moment or the end of the output; true if a batch was printed."""
        left = max(0.0, until - time.monotonic())
        pipe = self.child.stdout.fileno()
        if not select.select([pipe], [], [], left)[0]:
            return False
        data = os.read(pipe, 1 << 16)
        self.ended = not data
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            found = json.loads(line)
            if "batch" in found:
                self.batch = found["batch"]
                self.first = self.first or self.batch
                self.lines += 1
            self.summed_up |= "summary" in found
        return bool(lines)

    def look(self):
        """Whether it has a ring, and files on the image that are open with O_DIRECT."""
        place = str(self.image.place)
        try:
            for entry in os.scandir(f"/proc/{self.child.pid}/fd"):
                target = os.readlink(entry.path)
                self.ring |= "io_uring" in target
                if target.startswith(place):
                    info = pathlib.Path(f"/proc/{self.child.pid}/fdinfo/{entry.name}").read_text()
                    flags = int(info.split("flags:")[1].split()[0], 8)
                    self.direct |= bool(flags & os.O_DIRECT)
        except OSError:
            pass  # It ended, or closed the file meanwhile.

    def wait_for(self, seconds, batches):
        """Until `batches` were printed, then `seconds` on; false if the trainer ended."""
        while not self.ended and self.lines < batches:
            self.read(time.monotonic() + 60)
        deadline = time.monotonic() + seconds
        while not self.ended and time.monotonic() < deadline:
            self.read(deadline)
        return not self.ended

    def cut(self, wait):
        """Cuts the power, then kills the trainer or waits until it gives up."""
        self.look()
        while not self.ended and self.read(0.0):
            pass
        if self.ended:
            return False
        self.image.cut_power()
        if wait:
            try:
                # It must be read from, or it would wait for the pipe.
                self.child.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.communicate()
                raise Failure("the trainer did not end after its disk was gone") from None
            if self.child.returncode not in (0, 8):
                raise Failure(f"the trainer ended with {self.child.returncode}: {self.said()}")
        else:
            self.child.send_signal(signal.SIGKILL)
            self.child.communicate()
        return True

    def said(self):
        return self.errors.read_text(errors="replace")[-2000:]

    def acknowledged(self):
        """The last checkpoint that this run has waited for; 0 if none."""
        if self.summed_up:
            return self.batch
        last = self.begun()
        return last - self.every if self.first and last - self.every >= self.first else 0

    def begun(self):
        """The last checkpoint that was begun for sure; 0 if none."""
        last = self.batch // self.every * self.every
        return last if self.first and last >= self.first else 0


class Trial:
    """Cuts, until there were enough of them."""

    def __init__(self, image, systems, trainer, fsck, flags, data, every, seed):
        self.image, self.trainer, self.fsck = image, trainer, fsck
        self.systems = systems
        # File systems made, and cuts on this one.
        self.made = self.cuts_here = 0
        self.flags = [*flags, "--io", "uring"]
        self.data, self.shortest, self.every = data, every, every
        self.random = random.Random(seed)
        self.newest = self.last = 0
        self.options = None
        self.seconds = 1.0
        self.counts = dict.fromkeys(
            ("cuts", "before", "after", "resumed", "inside", "unacknowledged", "half_created",
             "ended", "waited", "direct", *(kind for kind, _, _ in systems)), 0
        )

    def command(self, directory, *more):
        every = ["--checkpoint-every", str(self.every)]
        return [self.trainer, "--dir", directory, "--json", *every, *self.flags, *more, *self.data]

    def figures(self, directory, *more):
        """What must be the same for a run that gets to its end."""
        done = subprocess.run(
            self.command(directory, "--digest", *more), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Failure(f"a run to the end: {done.returncode}: {done.stderr[-2000:]}")
        self.counts["resumed"] += "resuming after batch" in done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.last = max((line.get("batch", 0) for line in lines), default=0) or self.last
        summary = lines[-1]
        names = ("digest", "auc", "auc_tail", "logloss", "examples", "skipped_lines")
        return {name: summary[name] for name in names}

    def begin(self):
        """A new file system, of the next kind; checkpoints without a pause, or with one."""
        self.every = self.shortest * self.random.choice((1, 2, 5))
        kind, make, self.options = self.systems[self.made % len(self.systems)]
        self.made += 1
        self.image.make(*make, kind=kind)
        self.image.mount(self.options)
        self.newest = self.cuts_here = 0

    def store(self):
        return self.image.place / "store"

    def cycle(self, expected):
        """One run that is cut off, and what must hold after it."""
        run = Run(self.image, self.command(self.store(), "--resume"), self.every)
        try:
            # The first on a file system at once, before a checkpoint; then every other one soon
            # after a checkpoint was begun; the rest at any time.
            if self.cuts_here == 0:
                alive = run.wait_for(self.random.uniform(0, 0.03), 0)
            elif self.cuts_here % 2 == 0:
                alive = run.wait_for(self.random.uniform(0, self.seconds / 3), 0)
            else:
                batches = self.every * self.random.randrange(1, 8)
                alive = run.wait_for(self.random.uniform(0, 0.006), batches)
            wait = self.random.random() < 0.2
            cut = alive and run.cut(wait)
        finally:
            run.child.kill()
            run.child.wait()
        if not cut:
            if run.child.returncode not in (0, -signal.SIGKILL):
                raise Failure(f"the trainer ended with {run.child.returncode}: {run.said()}")
            self.end(expected)
            return
        self.counts["cuts"] += 1
        self.counts[self.image.kind] += 1
        self.cuts_here += 1
        self.counts["resumed"] += "resuming after batch" in run.errors.read_text(errors="replace")
        self.counts["waited"] += wait
        self.counts["direct"] += run.direct and run.ring
        self.recover()
        self.compare(run)

    def recover(self):
        """As after a power cut: the journal is replayed, the file system checked."""
        self.image.unmount()
        self.image.mount(self.options)
        self.image.unmount()
        found = self.image.check()
        if found:
            raise Failure(f"the file system is damaged: {found}")
        self.image.mount(self.options)

    def compare(self, run):
        """The newest checkpoint on disk against those that the run may leave."""
        must = max(self.newest, run.acknowledged())
        if not (self.store() / "STORE").exists():
            if must or run.lines:
                raise Failure(f"no store, and checkpoint {must} was acknowledged")
            self.counts["half_created"] += 1
            self.counts["before"] += 1
            return
        done = subprocess.run([self.fsck, "--json", self.store()], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"hps-fsck: {done.returncode}: {done.stdout}{done.stderr}")
        found = max((c["step"] for c in json.loads(done.stdout)["checkpoints"]), default=0)
        if found < must:
            raise Failure(f"checkpoint {found} is the newest, {must} was acknowledged")
        made = found % self.every == 0 or found == self.last
        if not made or found > max(must, run.batch + self.every):
            raise Failure(f"checkpoint {found} was never made; batch {run.batch}")
        self.counts["after" if found else "before"] += 1
        self.counts["inside"] += run.begun() > found
        self.counts["unacknowledged"] += found > must
        self.newest = found

    def end(self, expected):
        """Runs to the end and compares; then begins anew."""
        found = self.figures(self.store(), "--resume")
        if found != expected:
            raise Failure(f"{found} instead of {expected}")
        self.counts["ended"] += 1
        self.begin()

    def run(self, cuts):
        """All of it; the figures of a run never stopped."""
        self.begin()
        start = time.monotonic()
        expected = self.figures(self.image.place / "whole")
        self.seconds = time.monotonic() - start
        self.begin()
        # Each file system gets its share of the cuts, or several where there are many.
        share = max(4, min(20, cuts // len(self.systems)))
        for cut in range(cuts):
            if self.cuts_here >= share:
                self.end(expected)
            while self.counts["cuts"] <= cut:
                self.cycle(expected)
        self.end(expected)
        self.enough(cuts)
        return expected

    def enough(self, cuts):
        """Whether the cuts came where something is at stake."""
        done = self.counts
        least = {"before": cuts // 20, "after": cuts // 4, "resumed": cuts // 5}
        few = [f"{done[name]} {name}" for name, count in least.items() if done[name] < count]
        if few:
            raise Failure(f"too few on a side of the first checkpoint: {', '.join(few)}")


def keep(image):
    """Puts the image of a failure aside."""
    kept = pathlib.Path(os.environ.get("KEEP", image.directory.parent / "hps-power-cut-failed"))
    try:
        image.unmount()
        call("cp", "--sparse=always", image.file, kept)
    except RuntimeError as error:
        return f"no: {error}"
    return kept


def main():
    end_on_sigterm()
    why = missing()
    if why:
        print(f"power_cut: SKIPPED: {why}; NO POWER WAS CUT", file=sys.stderr)
        return 0
    systems = []
    for kind in dict.fromkeys(kind for kind, _, _ in FILE_SYSTEMS):
        why = missing(kind)
        if why:
            print(f"power_cut: SKIPPED: {kind}: {why}; NO POWER WAS CUT THERE", file=sys.stderr)
        else:
            systems += [system for system in FILE_SYSTEMS if system[0] == kind]
    systems.sort(key=FILE_SYSTEMS.index)
    cuts, seed, every = (int(x) for x in sys.argv[1:4])
    trainer, fsck, data, *flags = sys.argv[4:]
    start = time.monotonic()
    with Image(IMAGE_MIB) as image:
        trial = Trial(image, systems, trainer, fsck, flags, [data], every, seed)
        status, expected = 0, {}
        try:
            expected = trial.run(cuts)
            if cuts and not trial.counts["direct"]:
                raise Failure("no run was seen with io_uring and O_DIRECT")
        except (Failure, RuntimeError) as failure:
            status = 4
            print(f"power_cut: FAILED: after {trial.counts}: {failure}", file=sys.stderr)
            print(f"power_cut: the image is kept: {keep(image)}", file=sys.stderr)
    done = trial.counts
    seconds = time.monotonic() - start
    print(
        f"power_cut: {done['cuts']} cuts, {seconds:.1f} s, {seconds / max(1, done['cuts']):.2f} s a "
        f"cut; {done['inside']} lost a checkpoint that was being written, {done['unacknowledged']} "
        f"kept one that was not yet acknowledged, {done['half_created']} while the store was made; "
        f"{done['before']} before the first checkpoint, {done['after']} after one, "
        f"{done['resumed']} runs resumed; "
        f"{done['direct']} seen with io_uring and O_DIRECT, {done['waited']} not killed; "
        f"{', '.join(f'{k} {done[k]}' for k in dict.fromkeys(s[0] for s in systems))}; "
        f"{done['ended']} runs ended equal; seed {seed}; {expected}"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
