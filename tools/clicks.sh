#!/bin/sh
# Prints 60 000 made-up clicks in Criteo layout, the same ones each time.
#
#   tools/clicks.sh WIDE IDS
#
# WIDE - 1 of the 26 categorical columns have up to IDS ids, the others few. The first one tells
# clicks apart.
set -eu
awk -v wide="$1" -v ids="$2" 'BEGIN {
    srand(7)
    for (row = 0; row < 60000; row++) {
        click = int(rand() * 50)
        printf "%d", rand() < (click < 10 ? 0.6 : 0.1)
        for (i = 0; i < 13; i++) printf "\t%d", rand() * rand() * 100
        printf "\t%08x", click
        for (i = 1; i < 26; i++) printf "\t%x", rand() * rand() * (i < wide ? ids : 10 * i)
        printf "\n"
    }
}'
