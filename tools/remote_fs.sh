#!/bin/sh
# A store on a network file system: a folder served by sshd on this machine, and mounted twice by sshfs.
#
#   tools/remote_fs.sh [KILLS] [ROWS]
#
# KILLS (default 24) of the trainer, as in kill_resume.sh, with the store on the mount. Then what is
# special there: a writer through the other mount is kept out by the file WRITER; so is one after a crash
# of "another machine", until WRITER is removed; a connection that breaks ends the trainer with an error,
# and it resumes to the same digest; the tools read and write on the mount. Last hps-bench, with ROWS
# (default 200000, at least 1000) rows of 512 bytes, here and there: figures, no test.
# BIN: a directory with ctr, hps-fsck, hps-export, hps-import, hps-keyset and hps-bench, instead of
# building them. Needs /dev/fuse, sshfs and sshd (Debian: sshfs, openssh-server); where they are missing,
# it says SKIPPED.
# Exit codes: 0 all as it must be, or SKIPPED; 4 not; 8 could not run.
set -eu
cd "$(dirname "$0")/.."
kills=${1:-24}
rows=${2:-200000}

skip() {
    echo "remote_fs.sh: SKIPPED: $1; NO STORE WAS PUT ON A NETWORK FILE SYSTEM" >&2
    exit 0
}
wrong() {
    echo "remote_fs.sh: $1" >&2
    exit 4
}

sshd=$(command -v sshd || echo /usr/sbin/sshd)
[ -c /dev/fuse ] || skip "/dev/fuse is missing"
command -v sshfs > /dev/null || skip "sshfs is not installed"
[ -x "$sshd" ] || skip "sshd is not installed"

given=${BIN:-}
. tools/with_trainer.sh
binaries ctr hps-fsck hps-export hps-import hps-keyset hps-bench

work=$(mktemp -d "${TMPDIR:-/tmp}/remote-fs-XXXXXX")
server= trainer=
end() {
    [ -z "$trainer" ] || kill -9 "$trainer" 2> /dev/null || true
    for mount in "$work/one" "$work/two"; do
        fusermount3 -u -q -z "$mount" 2> /dev/null || fusermount -u -q -z "$mount" 2> /dev/null || true
    done
    [ -z "$server" ] || kill "$server" 2> /dev/null || true
    # Not through a mount that did not go.
    rm -rf --one-file-system "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

mkdir "$work/served" "$work/one" "$work/two" "$work/here"
ssh-keygen -q -t ed25519 -N '' -f "$work/host"
ssh-keygen -q -t ed25519 -N '' -f "$work/user"
cp "$work/user.pub" "$work/authorized"
[ "$(id -u)" -ne 0 ] || mkdir -p /run/sshd
serve() { # port
    cat > "$work/sshd_config" << EOF
ListenAddress 127.0.0.1
Port $1
HostKey $work/host
PidFile $work/sshd.pid
AuthorizedKeysFile $work/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
Subsystem sftp internal-sftp
EOF
    "$sshd" -D -e -f "$work/sshd_config" 2> "$work/sshd.log" &
    server=$!
    sleep 0.3
    kill -0 "$server" 2> /dev/null
}
# Below the ports that the system gives to connections; another one where this is taken.
port=$((10000 + $$ % 20000))
until serve "$port"; do
    port=$((port + 1))
    [ "$port" -lt 32000 ] && grep -q 'already in use' "$work/sshd.log" || { cat "$work/sshd.log" >&2; exit 8; }
done

# Nothing is remembered of names and lengths: else a look through the other mount sees for 20 seconds what was there
# before.
mount_at() { # folder
    sshfs -p "$port" -o "dir_cache=no,attr_timeout=0,entry_timeout=0,negative_timeout=0" \
        -o "IdentityFile=$work/user,UserKnownHostsFile=$work/known,StrictHostKeyChecking=no,BatchMode=yes" \
        "127.0.0.1:$work/served" "$1"
}
tries=0
until mount_at "$work/one" 2> "$work/mount.log"; do
    tries=$((tries + 1))
    if [ "$tries" -ge 50 ] || ! kill -0 "$server" 2> /dev/null; then
        cat "$work/sshd.log" "$work/mount.log" >&2
        exit 8
    fi
    sleep 0.1
done
mount_at "$work/two" || exit 8
one=$work/one two=$work/two

# Kills: digests and figures as of a run that was never killed.
TMPDIR=$one BIN=$given tools/kill_resume.sh "$kills"

flags="--batch 64 --checkpoint-every 5 --cache-mib 2 --depth 1"
tools/clicks.sh 4 40000 | head -n 12000 > "$work/data.tsv"
train() { # store, more
    # shellcheck disable=SC2086
    "$ctr" --dir "$@" --json --digest $flags "$work/data.tsv"
}
digest_of() {
    tail -n 1 "$1" | tr ',{}' '\n\n\n' | grep '"digest"'
}
train "$work/here/store" > "$work/here.out"
expected=$(digest_of "$work/here.out")

# A trainer at work through one mount, from when it has made a checkpoint.
start() { # store, more
    at=$1
    shift
    : > "$work/one.out"
    # Not by train: of a function the shell would be killed, and the trainer live on.
    # shellcheck disable=SC2086
    "$ctr" --dir "$one/$at" "$@" --json --digest $flags "$work/data.tsv" > "$work/one.out" 2> "$work/one.err" &
    trainer=$!
    until [ "$(wc -l < "$work/one.out")" -ge 30 ]; do
        kill -0 "$trainer" 2> /dev/null || wrong "the trainer ended: $(cat "$work/one.err")"
        sleep 0.01
    done
}
refused() { # store, what is tried, output
    grep -q "$two/$1/WRITER: the process that this file names" "$3" || wrong "$2: $(cat "$3")"
}

# The other mount knows nothing of the lock.
start store
if train "$two/store" --resume > "$work/two.out" 2>&1; then
    wrong "two writers at the same time"
fi
refused store "a second writer" "$work/two.out"
wait "$trainer" || wrong "the first writer failed: $(cat "$work/one.err")"
[ "$(digest_of "$work/one.out")" = "$expected" ] || wrong "another digest beside a second writer"
[ ! -e "$one/store/WRITER" ] || wrong "WRITER stayed after a close"
"$BIN/hps-fsck" "$two/store" > "$work/fsck.out" 2>&1 || wrong "hps-fsck found damage: $(cat "$work/fsck.out")"

# The tools through the other mount: a model out, in again, and its keys.
"$BIN/hps-export" --quiet "$two/store" "$two/model" --format npy --table ctr || wrong "the export failed"
"$BIN/hps-import" --quiet "$two/copy" "$two/model" --format npy --table ctr --create --optimizer adagrad ||
    wrong "the import failed"
"$BIN/hps-export" --quiet --threads 1 "$two/copy" "$work/here/again" --format npy --table ctr
"$BIN/hps-export" --quiet --threads 1 "$work/here/store" "$work/here/model" --format npy --table ctr
for file in "$work"/here/model/*; do
    cmp "$file" "$work/here/again/$(basename "$file")" || wrong "a model that went through the mount differs"
done
cp "$work/data.tsv" "$two/data.tsv"
for from in "$two" "$work"; do
    "$BIN/hps-keyset" extract --quiet --from criteo-tsv --dtype i64 --memory 16MiB -o "$from/here.keys" "$from/data.tsv"
done
cmp "$two/here.keys" "$work/here.keys" || wrong "keys that were read and written on the mount differ"
rm -rf "$one/store" "$one/copy" "$one/model"

# A machine that crashed: whoever goes on elsewhere removes WRITER.
start crashed
kill -9 "$trainer"
wait "$trainer" 2> /dev/null || true
[ -e "$one/crashed/WRITER" ] || wrong "no WRITER beside a trainer at work"
sed 's/^boot .*/boot of-another-machine/' "$work/served/crashed/WRITER" > "$work/changed"
cp "$work/changed" "$work/served/crashed/WRITER"
if train "$two/crashed" --resume > "$work/two.out" 2>&1; then
    wrong "the store of another machine's process was opened"
fi
refused crashed "a store of another machine" "$work/two.out"
rm "$two/crashed/WRITER"
train "$two/crashed" --resume > "$work/two.out"
[ "$(digest_of "$work/two.out")" = "$expected" ] || wrong "another digest after WRITER was removed"
rm -rf "$two/crashed"

# The connection breaks.
broken=0
while [ "$broken" -lt 3 ]; do
    start broken --resume
    # Of this mount alone: the process that sshfs started for it.
    pkill -9 -f "sshfs .*$one\$" || wrong "no process of the mount"
    code=0
    wait "$trainer" || code=$?
    [ "$code" -eq 8 ] && grep -q '^ctr: error: ' "$work/one.err" || wrong "exit code $code: $(cat "$work/one.err")"
    broken=$((broken + 1))
    fusermount3 -u -q -z "$one" 2> /dev/null || true
    mount_at "$one" || exit 8
done
train "$one/broken" --resume > "$work/one.out"
[ "$(digest_of "$work/one.out")" = "$expected" ] || wrong "another digest after broken connections"
"$BIN/hps-fsck" --quiet "$one/broken" || wrong "hps-fsck found damage after broken connections"
rm -rf "$one/broken"
echo "remote_fs: 2 writers kept apart, $broken broken connections resumed, all digests equal"

for place in "$work/here" "$one"; do
    echo "hps-bench in $([ "$place" = "$one" ] && echo "the mount" || echo "the served folder's disk")"
    "$BIN/hps-bench" load pull-miss --rows "$rows" --cache-mib 32 --seconds 2 --rounds 1 --dir "$place/bench"
    rm -rf "$place/bench"
done
