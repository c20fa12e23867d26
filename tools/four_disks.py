"""Are four disks four times one?

Called by four_disks.sh. Each disk is a loop image that a cgroup holds to 8 000 reads and 60 MB a second. The same work is
measured with data directories on one of them and on all, by turns; the median of each is compared.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys

from loop_image import Image, end_on_sigterm, missing
from slow_disk import Throttle

IMAGE_MIB = 6 << 10
DISKS = 4
READS_PER_S = 8000
BYTES_PER_S = 60_000_000
WORKLOADS = ("load", "pull-miss", "compaction")
TARGET = 3.5
FLAGS = (
    "--rows 2000000 --memory-mib 256 --rounds 1 --seconds 40 --warmup-seconds 20 --churn-seconds 20 --json"
).split()


def measure(bench, images, throttle, folder, flags):
    """Rows a second of each workload, with a data directory in each of these images."""
    command = [bench, *WORKLOADS, *FLAGS, *flags, "--dir", os.path.join(folder, "store")]
    for image in images:
        command += ["--data-dir", image.place]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=throttle.enter)
    if done.returncode != 0:
        sys.exit(8)
    found = json.loads(done.stdout.splitlines()[-1])
    return {outcome["workload"]: outcome["rows_per_s"] for outcome in found}


def main():
    rounds, bench, folder, *flags = sys.argv[1:]
    lacks = missing()
    if lacks:
        print(f"four_disks: SKIPPED: {lacks}; NOTHING RAN ON FOUR DISKS", file=sys.stderr)
        return 0
    with contextlib.ExitStack() as stack:
        images = [stack.enter_context(Image(mib=IMAGE_MIB)) for _ in range(DISKS)]
        devices = []
        for image in images:
            image.make()
            image.mount()
            devices.append(os.stat(image.place).st_dev)
        try:
            throttle = Throttle(devices[0])
        except OSError as error:
            print(f"four_disks: SKIPPED: {error}; NOTHING RAN ON FOUR DISKS", file=sys.stderr)
            return 0
        stack.callback(throttle.close)
        for device in devices:
            throttle.device = f"{os.major(device)}:{os.minor(device)}"
            throttle.limit(BYTES_PER_S, READS_PER_S)
        rates = {1: [], DISKS: []}
        for _ in range(int(rounds)):
            for disks in rates:
                rates[disks].append(measure(bench, images[:disks], throttle, folder, flags))
    short = False
    for workload in WORKLOADS:
        one, four = (
            statistics.median(found[workload] for found in rates[disks]) for disks in rates
        )
        short |= four < TARGET * one
        print(f"{workload}: {one:.0f} rows/s on one disk, {four:.0f} on {DISKS}: "
              f"{four / one:.2f} x (asked: {TARGET})")
    return 4 if short else 0


if __name__ == "__main__":
    end_on_sigterm()
    try:
        sys.exit(main())
    except (OSError, RuntimeError) as error:
        print(f"four_disks: {error}", file=sys.stderr)
        sys.exit(8)
