# For scripts that run the trainer on a disk of their own: what they need, or why they do nothing.
# Sourced, after `set -eu`, from the project's directory.
#
#   with_trainer NAME WHAT   sets `ctr`, the trainer, and `BIN`, a directory with hps-fsck (both are
#                            built unless BIN is given), and `work`, a directory that goes at the end;
#                            without python3 it says SKIPPED and WHAT, and ends

with_trainer() {
    if ! command -v python3 > /dev/null; then
        echo "$1: SKIPPED: python3 is not installed; $2" >&2
        exit 0
    fi
    if [ -z "${BIN:-}" ]; then
        cargo build --release --quiet --example ctr || exit 8
        cargo build --release --quiet -p hps-tools --bin hps-fsck || exit 8
        BIN=${CARGO_TARGET_DIR:-target}/release
        ctr=$BIN/examples/ctr
    else
        ctr=$BIN/ctr
    fi
    work=$(mktemp -d "${TMPDIR:-/tmp}/$1-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
}
