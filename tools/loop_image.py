"""How do the scripts get a file system of their own, whose power can be cut?

- An image is a sparse file and a mount point below one temporary directory; its loop device is
  made by the mount and goes with it.
- `close` takes all of it away again, whatever state it is in; leaving the `with` block calls it, and
  SIGTERM ends a script through it.
- A script that is started by `unshare --mount` leaves no mount even where it is killed.
"""

import fcntl
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

# _IOR('X', 125, __u32) and the flag NOLOGFLUSH of the kernel's uapi headers: ext4 took XFS' number.
IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
NO_LOG_FLUSH = 2
BUSY_SECONDS = 120
# Kinds of file systems: how one is made and checked, and the least MiB that it takes.
KINDS = {
    "ext4": (("mkfs.ext4", "-q", "-F"), ("e2fsck", "-fn"), 16),
    "xfs": (("mkfs.xfs", "-q", "-f"), ("xfs_repair", "-n"), 320),
}
# Debian's place of tools for root, which a user's PATH may not have.
os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def missing(kind="ext4"):
    """Why there can be no image of a kind here; None where there can be one."""
    if os.geteuid() != 0:
        return "needs root, for loop devices and mounts"
    make, check, _ = KINDS[kind]
    for name in (make[0], check[0], "mount", "umount"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    if not os.path.exists("/dev/loop-control"):
        return "there is no /dev/loop-control"
    try:
        with Image(mib=16) as image:
            image.make(kind=kind)
            image.mount()
    except (OSError, RuntimeError) as error:
        return f"an image of {kind} can't be mounted: {error}"
    return None


def end_on_sigterm():
    """SIGTERM leaves `with` blocks as an exception does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def call(*command):
    """Runs a command; its output, or an error that quotes it."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.returncode}: {said}")
    return done.stdout.strip()


class Image:
    """A file system in a file."""

    def __init__(self, mib):
        self.mib = mib
        self.kind = "ext4"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="hps-image-"))
        self.file = self.directory / "image"
        self.place = self.directory / "mount"
        self.place.mkdir()
        self.mounted = False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def make(self, *options, kind="ext4"):
        """A new, empty file system in place of what was there."""
        self.unmount()
        self.kind = kind
        make, _, least = KINDS[kind]
        with open(self.file, "wb") as file:
            file.truncate(max(self.mib, least) << 20)
        call(*make, *options, self.file)

    def mount(self, options="defaults"):
        """Mounts it; this replays its journal."""
        call("mount", "-t", self.kind, "-o", f"loop,{options}", self.file, self.place)
        self.mounted = True

    def unmount(self):
        """Unmounts it, if it is mounted.

        The kernel lets go of the files of a ring only some time after its process is gone: while
        the mount is busy, this waits.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        while self.mounted:
            try:
                call("umount", self.place)
                self.mounted = False
            except RuntimeError as error:
                if "busy" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def cut_power(self):
        """From here on nothing gets to the device, the journal in memory included."""
        place = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(place, IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(place)

    def check(self):
        """What is found wrong in the unmounted file system; empty where it is clean."""
        check = [*KINDS[self.kind][1], self.file]
        done = subprocess.run(check, capture_output=True, text=True, errors="replace")
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def close(self):
        """Takes everything away again."""
        if self.mounted:
            # Lazily where somebody still holds it: a script that ends leaves no mount.
            if subprocess.run(["umount", self.place], capture_output=True).returncode != 0:
                subprocess.run(["umount", "--lazy", self.place], capture_output=True)
            self.mounted = False
        shutil.rmtree(self.directory, ignore_errors=True)
