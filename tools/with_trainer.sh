# For scripts that run the trainer and the tools: where these are, and a folder to work in.
# Sourced, after `set -eu`, from the project's directory.
#
#   binaries NAME...         sets `BIN`, a directory with these tools, and `ctr`, the trainer, if it is among
#                            them: built in release mode unless BIN is given
#   work_folder NAME         sets `work`, a directory that goes at the end, with the process `child`, if it
#                            is set by then
#   kill_child MICROSECONDS  kills `child` after so long; sets `code`, how it ended
#   with_trainer NAME WHAT   both for the trainer and hps-fsck; without python3 it says SKIPPED and WHAT, and
#                            ends

binaries() {
    if [ -n "${BIN:-}" ]; then
        ctr=$BIN/ctr
        return 0
    fi
    for name; do
        case $name in
        ctr) cargo build --release --quiet -p hps --example ctr || exit 8 ;;
        hps-bench) cargo build --release --quiet -p hps-bench --bin hps-bench || exit 8 ;;
        *) cargo build --release --quiet -p hps-tools --bin "$name" || exit 8 ;;
        esac
    done
    BIN=${CARGO_TARGET_DIR:-target}/release
    # shellcheck disable=SC2034
    ctr=$BIN/examples/ctr
}

work_folder() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/$1-XXXXXX")
    child=
    trap '[ -z "$child" ] || kill -9 "$child" 2> /dev/null || true; rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
}

kill_child() {
    sleep "$(printf '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000)))"
    kill -9 "$child" 2> /dev/null || true
    code=0
    # shellcheck disable=SC2034
    wait "$child" 2> /dev/null || code=$?
    child=
}

with_trainer() {
    if ! command -v python3 > /dev/null; then
        echo "$1: SKIPPED: python3 is not installed; $2" >&2
        exit 0
    fi
    binaries ctr hps-fsck
    work_folder "$1"
}
