#!/bin/bash
# test.sh: what `make test` runs after the build, in this order; ends with the sum of all. With TEST_LONG=1 (`make
# test-long`) every case of the sweeps that are else sampled: all layouts with all models.
#
#   the suite            build/run_tests, every test
#   the command lines    tests/cli.sh: each mistake gives one clear line
#   processes            tests/mpi.sh: ranks under mpirun, also on an emulated cluster; what ends them, and how
#   sanitizers           the tests of files, parsers and threads under ASan + UBSan, and those of threads under TSan
#   fuzzers              every reader of foreign bytes, 5 seconds each
#
# `make asan`, `make tsan` and `make fuzz-long` run all of it longer. Ranks under mpirun mostly wait: the builds of the
# last three stages use that time, behind everything else.
set -u -o pipefail
jobs=$(nproc)
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Runs a stage and adds its "N passed, N failed[, N skipped]" line; a stage without that line counts as failed.
stage() {
    local title=$1 start=$SECONDS status line
    shift
    echo "== $title"
    "$@" 2>&1 | tee "$log" | grep --line-buffered -v '^ok '
    status=${PIPESTATUS[0]}
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)? ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
        [ "$status" = 0 ] || [ "${BASH_REMATCH[2]}" != 0 ] || failed=$((failed + 1))
    else
        echo "FAIL $title ended with status $status and no result"
        failed=$((failed + 1))
    fi
    echo "   ($((SECONDS - start)) s)"
}

# CONFIG WORD...: builds the suite with a sanitizer and runs the tests that contain a word.
sanitized() {
    local config=$1
    shift
    make -s -j"$jobs" CONFIG="$config" "build-$config/run_tests" || return 1
    UBSAN_OPTIONS=print_stacktrace=1 "build-$config/run_tests" "$@"
}

# What one instruction set computes is tested by the suite; here it is memory and threads that matter.
files="batch checkpoint config corpus crc32c cuda_embedding cuda_emulation hellaswag json llmc logfile metrics opt progress report safetensors shard tfevents
    token utf8 vocab weights zscore"
threads="team attention_equals coll_ cuda_clock cuda_trace ranks_run ranks_are ranks_of_a die_of mesh_ plan_of_a_run"

build_the_rest() {
    make -s -j"$jobs" CONFIG=asan build-asan/run_tests
    make -s -j"$jobs" CONFIG=tsan build-tsan/run_tests
    make -s -j"$jobs" CONFIG=fuzz CC=clang fuzzers
}

stage "the suite" build/run_tests
if [ -x build/train_gpt ] && [ -f tests/cli.sh ]; then stage "the command lines" tests/cli.sh; fi
(renice -n 19 -p $BASHPID && build_the_rest) >/dev/null 2>&1 & # what fails is shown by its stage
if [ -x build/ranks_job ]; then stage "processes" tests/mpi.sh; fi
wait $!
# shellcheck disable=SC2086
stage "files and parsers under ASan and UBSan" sanitized asan $files
# shellcheck disable=SC2086
stage "threads under TSan" sanitized tsan $threads
stage "fuzzers" make -s -j"$jobs" fuzz SECONDS_EACH=5
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
