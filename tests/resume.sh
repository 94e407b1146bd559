#!/bin/bash
# A run that was stopped and resumed is the run that was never stopped, bit for bit: losses, weights and moments.
# Usage: tests/resume.sh [path of train_gpt]   Prints "N passed, N failed"; status 1 when one failed.
set -u
bin=${1:-build/train_gpt}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { # check WHAT COMMAND...
    local what=$1
    shift
    if "$@" >"$dir/out" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAIL resume: $what"
        head -5 "$dir/out"
    fi
}
losses() { grep -o '"step":[0-9]*,"loss":[^,]*.*"norm":[^,]*' "$1"; }

head -c 40000 README.md >"$dir/text" # any bytes will do: nanoGPT's raw format reads them as uint16
head -c 20000 /dev/urandom >>"$dir/text"
tr -d '\200-\377' <"$dir/text" | od -An -v -tu1 | awk '{for (i = 1; i <= NF; i++) printf "%c%c", $i % 64 + 1, 0}' \
    >/dev/null # awk cannot print NUL everywhere; see below
python_free_shard() { # two bytes per token, every id below 256
    od -An -v -tx1 "$1" | tr -s ' ' '\n' | sed -n 's/^\(..\)$/\\x\1\\x00/p' | tr -d '\n' | xargs -0 printf '%b' >"$2"
}
head -c 20000 "$dir/text" >"$dir/small"
python_free_shard "$dir/small" "$dir/train.bin"
