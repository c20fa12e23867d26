#!/bin/sh
# hps-keyset extract beside sort -u, on the same text in the same run: equal keys, memory, and figures.
#
#   tools/keyset_figures.sh [MB] [MEMORY]
#
# MB (default 330) of text in Criteo's layout, with as many distinct keys as such text has, and the MEMORY
# (default 16MiB) that extract may use. BIN: a directory with hps-keyset, instead of building it. Needs python3.
# Exit codes: 0 equal, and the peak is within the bound and 32 MiB; 4 not; 8 could not run.
set -eu
cd "$(dirname "$0")/.."
megabytes=${1:-330}
memory=${2:-16MiB}
. tools/with_trainer.sh
binaries hps-keyset
work_folder keyset-figures

python3 - "$megabytes" "$work/data.tsv" << 'EOF'
import random, sys
left, random = int(sys.argv[1]) * 10**6, random.Random(7)
with open(sys.argv[2], "w") as out:
    while left > 0:
        # Columns from a few values to a few million, the frequent ones first.
        values = [int(random.paretovariate(0.35)) % (4 << i) for i in range(1, 25)]
        values += [random.getrandbits(32), random.getrandbits(22)]
        hexes = ["%08x" % (v * 2654435761 & 0xffffffff) if random.random() < 0.97 else "" for v in values]
        line = "\t".join(["0"] + ["7"] * 13 + hexes) + "\n"
        left -= len(line)
        out.write(line)
EOF

python3 - "$work" "$BIN/hps-keyset" "$memory" << 'EOF'
import os, subprocess, sys, time
work, tool, memory = sys.argv[1:]
text, keys, found = (os.path.join(work, name) for name in ("data.tsv", "ours.keyset", "keys.txt"))
unit = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[memory[-3:]]
bound = int(memory[:-3]) * unit

def spend(command, **more):
    since = time.monotonic()
    process = subprocess.Popen(command, **more)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(8)
    return time.monotonic() - since, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024

size = os.path.getsize(text)
awk = (r"""BEGIN { FS = "\t" } { for (i = 15; i <= 40; i++) if ($i != "") printf "%08x%s\n", i - 15, $i }""")
ours, sorts = [], []
for turn in range(3):
    if os.path.exists(keys):
        os.remove(keys)
    ours.append(spend([tool, "extract", "--quiet", "--from", "criteo-tsv", "--memory", memory, "-o", keys, text]))
    script = "awk '%s' %s | LC_ALL=C sort -u -S %d -T %s -o %s" % (awk, text, bound, work, found)
    if turn == 0:
        sorts.append(spend(["sh", "-c", script]))
ours.sort()
seconds, cores, peak = ours[1][0], ours[1][1], max(run[2] for run in ours)
with open(keys, "rb") as mine, open(found) as theirs:
    data = mine.read()
    count = len(data) // 8
    equal = all(
        int.from_bytes(data[8 * i : 8 * i + 8], "little") == int(line, 16) for i, line in enumerate(theirs)
    ) and sum(1 for _ in open(found)) == count
print(
    "keyset_figures: %.0f MB, %d keys, %s; extract %.2f s (%.2f of processors, %.0f MB/s a core), peak %.1f MB;"
    " awk, sort -u %.1f s: %.1f x"
    % (size / 1e6, count, "equal" if equal else "NOT EQUAL", seconds, cores, size / 1e6 / cores, peak / 1e6,
       sorts[0][0], sorts[0][0] / seconds)
)
sys.exit(0 if equal and peak <= bound + (32 << 20) else 4)
EOF
