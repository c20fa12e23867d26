#!/usr/bin/env bash
# Builds the C library and installs it: PREFIX/lib/libhps.{so,a}, PREFIX/include/hps.{h,hpp},
# hps_passes.hpp and hps_storage.hpp beside them, and PREFIX/lib/pkgconfig/hps.pc.
#
#   tools/install_c.sh [--profile NAME] PREFIX
#
# --profile dev builds faster, and slower code; the default is release. With DESTDIR in the environment the
# files go below it, while hps.pc names PREFIX: for packages. Exit codes: 0 done, 8 could not, 16 wrong
# arguments.
set -euo pipefail
exec </dev/null

profile=release
if [ "${1:-}" = --profile ]; then
  profile=${2:-}
  shift "$(($# < 2 ? $# : 2))"
fi
if [ $# -ne 1 ] || [ -z "$1" ] || [ -z "$profile" ] || [ "${1#-}" != "$1" ]; then
  sed -n '2,10s/^# \?//p' "${BASH_SOURCE[0]}" >&2
  exit 16
fi
prefix=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The targets' own directory has the name of the profile, but for dev.
cargo build --quiet --profile "$profile" -p hps-capi || exit 8
built=${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' capi/Cargo.toml | head -n 1)
# What a program that links libhps.a needs beside it.
private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

to=${DESTDIR:-}$prefix
install -d "$to/lib/pkgconfig" "$to/include"
install -m 755 "$built/libhps.so" "$to/lib/libhps.so.$version"
# What a debugger reads is five sixths of it.
[ "$profile" = dev ] || strip --strip-debug "$to/lib/libhps.so.$version"
ln -sf "libhps.so.$version" "$to/lib/libhps.so.0"
ln -sf libhps.so.0 "$to/lib/libhps.so"
install -m 644 "$built/libhps.a" "$to/lib/libhps.a"
install -m 644 capi/include/hps.h capi/include/hps{,_passes,_storage}.hpp "$to/include/"
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" -e "s|@private@|$private|" \
  capi/hps.pc.in >"$to/lib/pkgconfig/hps.pc"
echo "install_c.sh: hps $version is in $to; pkg-config finds it with PKG_CONFIG_PATH=$prefix/lib/pkgconfig"
