#!/usr/bin/env bash
# What comes into the build: is it documented, may it be there, is it known to be broken?
#
#   tools/deny.sh
#
# - docs/DEPENDENCIES.md names each direct dependency of the workspace with its version and licence,
#   and no other. Needs python3.
# - deny.toml: licences, duplicates, sources. Needs cargo-deny; HPS_DENY_INSTALL=1 installs it where
#   it is missing, built for debugging (73 processor seconds; 200 for release).
# - Advisories of RustSec: needs the database, which is fetched from GitHub. Where that can't be
#   reached, the last copy is used, if it is not older than 90 days.
#
# What is not there is SKIPPED: said on stderr, and again in the last lines. Ends with 0 if all that
# ran has passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

export GIT_TERMINAL_PROMPT=0
# deny.toml has the keys of this series.
deny_version='^0.20'
fetch_seconds=${HPS_DENY_FETCH_SECONDS:-120}
skipped=()

skip() { # what, why
  echo "SKIPPED: $1: $2" >&2
  skipped+=("SKIPPED: $1: $2")
}

check_document() {
  if ! command -v python3 >/dev/null || ! python3 -c '' 2>/dev/null; then
    skip "the tables of docs/DEPENDENCIES.md" "python3 is not installed"
    return 0
  fi
  # Through a file: a pipe would hide that cargo failed, and python would see an empty text.
  local metadata
  metadata=$(mktemp)
  cargo metadata --locked --all-features --format-version 1 >"$metadata" 2>"$metadata.log" || {
    cat "$metadata.log" >&2
    rm -f "$metadata" "$metadata.log"
    return 1
  }
  local status=0
  compare_document "$metadata" docs/DEPENDENCIES.md || status=$?
  rm -f "$metadata" "$metadata.log"
  return "$status"
}

# A table stands after a line `<!-- dependencies: PACKAGE KIND -->`, and begins with the columns
# crate, version, licence.
compare_document() { # metadata, document
  python3 - "$1" "$2" <<'PYTHON'
import json, re, sys

with open(sys.argv[1], encoding="utf-8") as file:
    metadata = json.load(file)
packages = {package["id"]: package for package in metadata["packages"]}
members = set(metadata["workspace_members"])
resolved = {
    (node["id"], packages[dep["pkg"]]["name"]): packages[dep["pkg"]]["license"] or "none"
    for node in metadata["resolve"]["nodes"]
    for dep in node["deps"]
    if node["id"] in members
}
real = {}
for member in members:
    for dep in packages[member]["dependencies"]:
        kind = dep["kind"] or ("optional" if dep["optional"] else "cfg" if dep["target"] else "normal")
        version = "path" if dep.get("path") else dep["req"].removeprefix("^")
        licence = resolved.get((member, dep["name"]), "none").replace("/", " OR ")
        real[packages[member]["name"], kind, dep["name"]] = (version, licence)

written, table, faults = {}, None, []
with open(sys.argv[2], encoding="utf-8") as file:
    for line in file:
        marker = re.fullmatch(r"<!-- dependencies: (\S+) (\S+) -->", line.strip())
        if marker:
            table = marker.groups()
        elif line.startswith("#"):
            table = None
        elif table and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if cells[0] == "crate" or set(cells[0]) <= set("-: "):
                continue
            key = (*table, cells[0])
            if key in written:
                faults.append(f"{key}: stands there twice")
            if len(cells) < 4 or not all(cells):
                faults.append(f"{key}: an empty cell, or too few")
                cells += [""] * 3
            written[key] = (cells[1], cells[2])

for key in sorted(real.keys() | written.keys()):
    if key not in written:
        faults.append(f"{key}: is a dependency, but not in the table")
    elif key not in real:
        faults.append(f"{key}: in the table, but not a dependency")
    elif real[key] != written[key]:
        faults.append(f"{key}: is {real[key]}, the table has {written[key]}")
for fault in faults:
    print(f"{sys.argv[2]}: {fault}", file=sys.stderr)
if not faults:
    print(f"documented dependencies: {len(real)}")
sys.exit(bool(faults) or not real)
PYTHON
}

have_deny() {
  if cargo deny --version >/dev/null 2>&1; then
    return 0
  fi
  if [ -z "${HPS_DENY_INSTALL:-}" ]; then
    skip "licenses, bans, sources, advisories" \
      "cargo-deny is not installed (HPS_DENY_INSTALL=1 installs it)"
    return 1
  fi
  # Leaves the script: `set -e` is off in a condition.
  CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-deny --version "$deny_version" --locked --debug || exit 1
}

deny() { # arguments of cargo deny
  cargo deny --workspace --locked "$@"
}

check_advisories() {
  local log status=0 copies=("${CARGO_HOME:-$HOME/.cargo}"/advisory-dbs/advisory-db-*/.git)
  log=$(mktemp)
  timeout "$fetch_seconds" cargo deny fetch db >"$log" 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    rm -f "$log"
    deny check advisories
    return
  fi
  local why="the database could not be fetched (status $status)"
  why+=": $(grep -v '^$' "$log" | tail -n 1 | cut -c -160)"
  rm -f "$log"
  if [ ! -d "${copies[0]}" ]; then
    skip advisories "$why"
    return 0
  fi
  skip "newest advisories" "$why; the last copy is used"
  deny --offline check advisories
}

check_document
if have_deny; then
  deny check licenses bans sources
  check_advisories
fi
if [ "${#skipped[@]}" -gt 0 ]; then
  printf 'deny.sh: %s\n' "${skipped[@]}"
fi
echo "deny.sh: passed"
