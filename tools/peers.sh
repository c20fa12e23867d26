#!/bin/sh
# Builds hps-bench with the other stores (feature `peers`), for `hps-bench compare`.
#
#   tools/peers.sh              build; what is missing of RocksDB is installed where it can be
#   tools/peers.sh test         build, then run the tests of the feature
#   tools/peers.sh -- ARGS      build, then run `hps-bench compare ARGS`
#
# RocksDB is linked from the system where its headers and library are there (Debian, Ubuntu:
# librocksdb-dev and, for the bindings, libclang-dev; both are installed when this runs as root).
# Else the C++ that comes with the crate is compiled: 20 minutes and more on two cores, and it
# still needs libclang and a C++ compiler. LMDB comes with its crate: a C compiler is enough.
set -eu
cd "$(dirname "$0")/.."

need() {
    command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 1
    apt-get install -y --no-install-recommends "$@" ||
        { apt-get update && apt-get install -y --no-install-recommends "$@"; }
}

# The directory of the shared library, by asking the C compiler for it.
library() {
    file=$(cc -print-file-name=librocksdb.so 2>/dev/null) || return 1
    case $file in
    /*) (cd "$(dirname "$file")" && pwd) ;;
    *) return 1 ;;
    esac
}

# libclang-cpp, which compilers bring along, is another library.
clang() {
    [ -n "${LIBCLANG_PATH:-}" ] || ldconfig -p 2>/dev/null | grep -Eq 'libclang(-[0-9.]+)?\.so' ||
        ls /usr/lib/llvm-*/lib/libclang.so* /usr/lib/llvm-*/lib/libclang-[0-9]*.so* 2>/dev/null | grep -q .
}

if [ -z "${ROCKSDB_LIB_DIR:-}" ]; then
    library >/dev/null || need librocksdb-dev || true
    if [ -f /usr/include/rocksdb/c.h ] && ROCKSDB_LIB_DIR=$(library); then
        ROCKSDB_INCLUDE_DIR=${ROCKSDB_INCLUDE_DIR:-/usr/include}
        export ROCKSDB_LIB_DIR ROCKSDB_INCLUDE_DIR
    else
        unset ROCKSDB_LIB_DIR
        echo "peers.sh: no RocksDB here; compiling the crate's own, 20 minutes and more" >&2
    fi
fi
clang || need libclang-dev || {
    echo "peers.sh: libclang is missing (Debian: libclang-dev)" >&2
    exit 8
}

cargo build --release -p hps-bench --features peers
case ${1:-} in
test)
    cargo test --release -p hps-bench --features peers --lib peers
    cargo test --release -p hps-bench --features peers --test peers_contract --test peers_compare
    ;;
--)
    shift
    exec "${CARGO_TARGET_DIR:-target}/release/hps-bench" compare "$@"
    ;;
esac
