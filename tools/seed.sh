# Sourced by scripts, from the project's directory: `fresh_seed` prints HPS_SEED; without it the first
# digits of the commit, so that each commit is tested with seeds of its own; without both 1.
# tests/common/seed.rs does the same.
# `draw_delay MOST` sets `delay`, below MOST, from `state`, which it moves on.

fresh_seed() {
    if [ -n "${HPS_SEED:-}" ]; then
        echo "$HPS_SEED"
        return 0
    fi
    commit=$(git rev-parse HEAD 2> /dev/null | cut -c -7) || commit=
    printf '%d\n' "0x${commit:-1}"
}

draw_delay() {
    state=$(((state * 1103515245 + 12345) % 2147483648))
    # shellcheck disable=SC2034
    delay=$(((state / 128) % $1))
}
