#!/usr/bin/env bash
# Ends the process that has started it, with all that this one has started, when it takes too long.
#
#   tools/watchdog.sh NAME SECONDS PULSE
#
# Watches its parent. Every PULSE seconds a line says that NAME goes on, and what it runs. After SECONDS it
# prints what runs and, if gdb is there, where each thread waits; then it sends TERM to everything, and
# KILL half a minute later. Ends when its parent has ended.
set -u
name=$1 limit=$2 pulse=$3
watched=$PPID
# How often it looks.
step=2

# Of a process: its number first, then those that it has started.
tree() { # process
  local child
  [ "$1" != $$ ] || return 0
  echo "$1"
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    tree "$child"
  done
}

command_of() { # process
  tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | tr -s '\n ' ' ' | cut -c -160
}

# Processes that wait for no other one.
leaves() {
  local process
  for process in $(tree "$watched"); do
    if [ -z "$(cat "/proc/$process/task/"*/children 2>/dev/null)" ]; then
      echo "$process"
    fi
  done
}

# Where the threads of a process are.
stacks() { # process
  if command -v gdb >/dev/null; then
    timeout 60 gdb -p "$1" -batch -ex 'thread apply all bt 20' 2>/dev/null |
      grep -E '^(Thread|#)' | cut -c -200 | head -n 300
  else
    grep -H . "/proc/$1/task/"*/{comm,wchan} 2>/dev/null | head -n 60
  fi
}

pulsed=0
while kill -0 "$watched" 2>/dev/null; do
  sleep "$step"
  waited=$SECONDS
  if [ "$waited" -ge "$limit" ]; then
    break
  fi
  if [ $((waited - pulsed)) -ge "$pulse" ]; then
    pulsed=$waited
    echo "-- $name goes on, $waited s: $(leaves | while read -r p; do command_of "$p"; done | cut -c -80 | paste -sd '|')"
  fi
done
kill -0 "$watched" 2>/dev/null || exit 0

{
  echo "watchdog.sh: $name takes longer than $limit s; what runs:"
  for process in $(leaves); do
    echo "$process: $(command_of "$process")"
    stacks "$process"
  done
  echo "watchdog.sh: $name is ended"
} >&2
signal=TERM
for _ in $(seq 15); do
  # shellcheck disable=SC2046 # numbers
  kill -s "$signal" $(tree "$watched" | tail -n +2) 2>/dev/null
  sleep "$step"
  kill -0 "$watched" 2>/dev/null || exit 0
done
# shellcheck disable=SC2046 # numbers
kill -s KILL $(tree "$watched") 2>/dev/null
