#!/bin/bash
# fuzz.sh SECONDS: runs every fuzzer of build-fuzz for SECONDS, on all cores; called by `make fuzz`
# and `make fuzz-long`. Inputs that reach new code are kept in build-fuzz/corpus/NAME, to which each
# fuzzer first writes its seeds (tests/fuzz/seeds.h).
set -u
seconds=${1:-10}
top=build-fuzz
run_one() {
    name=$1
    corpus=$top/corpus/$name
    mkdir -p "$corpus"
    if timeout $((seconds + 120)) "$top/fuzz_$name" -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=2048 \
        -artifact_prefix="$top/crash_${name}_" "$corpus" >"$top/$name.log" 2>&1; then
        echo "ok   fuzz_$name: $(grep -o 'Done [0-9]* runs' "$top/$name.log" |
            grep -o '[0-9]*') inputs"
    else
        tail -25 "$top/$name.log"
        echo "FAIL fuzz_$name: the input is in $top/crash_${name}_*; again: $top/fuzz_$name FILE"
    fi
}
export -f run_one
export seconds top
shopt -s nullglob
names=()
for f in tests/fuzz/fuzz_*.c; do
    f=${f##*/fuzz_}
    names+=("${f%.c}")
done
[ ${#names[@]} -gt 0 ] || { echo "no fuzzer was found; 0 passed, 1 failed"; exit 1; }
out=$(printf '%s\n' "${names[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_one {}')
echo "$out"
passed=$(grep -c '^ok ' <<<"$out") failed=$(grep -c '^FAIL' <<<"$out")
failed=$((${#names[@]} - passed > failed ? ${#names[@]} - passed : failed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
