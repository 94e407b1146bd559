#!/bin/bash
# test.sh: the stages that `make test` runs after the build, in this order; ends with their totals.
# With TEST_LONG=1 (`make test-long`) the sweeps run every case instead of a sample: all layouts
# with all models.
#
#   the suite            build/run_tests, every test
#   the command lines    tests/cli.sh: each mistake gives one clear line
#   the record           tests/steps.py: losses and weights of 71 configurations, bit for bit (needs
#                        python3)
#   processes            tests/mpi.sh: ranks under mpirun, also on an emulated cluster, and the ways
#                        in which they end
#   sanitizers           the tests of files, parsers and threads under ASan + UBSan, and those of
#                        threads under TSan
#   fuzzers              every reader of foreign bytes, for 1 second each
#
# `make asan`, `make tsan` and `make fuzz-long` run these stages for longer. The last three stages
# run at the same time, since tests of failing disks and of threads mostly wait; their output is
# shown when all have ended. They share with build/ the CUDA kernels that their tests do not launch,
# or that TSan does not see (Makefile). They are built while the command lines and the processes
# run, which mostly wait.
#
# No tests run beside the processes. If the threads of one session wake each other all the time and
# no processor is idle, Linux 6.18 can stop another session, such as that of ranks under mpirun, for
# up to a minute (seen with sched_autogroup_enabled, not without).
set -u -o pipefail
jobs=$(nproc)
scratch=$(mktemp -d)
trap 'trap - TERM; kill 0' INT TERM # also ends the stages that run in the background
trap 'rm -rf "$scratch"' EXIT

summary=build/test.txt # results of the stages; tools/readme_examples.py reads it
: >$summary

# Limits the time of a stage. At a terminal there is no limit, since timeout puts a stage into a
# process group of its own, which Ctrl-C does not reach.
limited=(timeout --kill-after=30 "${TEST_LIMIT:-15m}")
if [ -n "${TEST_LONG:-}" ] || [ -t 1 ]; then limited=(); fi

# Runs a stage and records its line "N passed, N failed[, N skipped]". A stage without that line, or
# with a status other than 0, counts as failed.
stage() {
    local title=$1 start=$SECONDS status line log
    shift
    log=$(mktemp -p "$scratch")
    echo "== $title"
    "${limited[@]}" bash -c '"$@"' "$title" "$@" 2>&1 | tee "$log" | grep --line-buffered -v '^ok '
    status=${PIPESTATUS[0]}
    case $status in
    124 | 137) echo "FAIL $title was killed, or did not end within ${limited[2]:-its time}" ;;
    esac
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
    if [ -z "$line" ]; then
        echo "FAIL $title ended with status $status and no result"
        line="0 passed, 1 failed"
    elif [ "$status" != 0 ] && [[ $line =~ ,\ 0\ failed ]]; then
        echo "FAIL $title ended with status $status"
        line=${line/, 0 failed/, 1 failed}
    fi
    echo "   ($((SECONDS - start)) s)"
    printf '== %s\n%s\n   (%d s)\n' "$title" "$line" $((SECONDS - start)) >>$summary
}

# CONFIG WORD...: builds with a sanitizer the test files whose tests contain a word, the programs
# that these tests run, and the portable kernels.
build_sanitized() {
    local emulated=none
    [ "$1" != asan ] || emulated="layers/embedding.cu tests/test_cuda_emu.cu"
    make -s -j"$jobs" CONFIG="$1" SETS=portable TESTED="${*:2}" EMULATED="$emulated" \
        TEST_PROGRAMS="train_gpt tokenize" "build-$1/run_tests"
}

# CONFIG WORD...: builds the suite with a sanitizer and runs the tests that contain a word. The
# build has portable kernels only, and would refuse another set in TRAIN_GPT_KERNELS.
sanitized() {
    local config=$1
    shift
    build_sanitized "$config" "$@" || return 1
    if [ -n "${TRAIN_GPT_KERNELS:-}" ]; then
        echo "TRAIN_GPT_KERNELS=$TRAIN_GPT_KERNELS has no effect here: the kernels are portable"
        unset TRAIN_GPT_KERNELS
    fi
    UBSAN_OPTIONS=print_stacktrace=1 "build-$config/run_tests" "$@"
}

# One instruction set suffices: the suite tests the results of all; here memory and threads are
# tested.
files="^batch ^checkpoint ^config ^corpus ^crc32c ^cuda_embedding ^cuda_emulation faults_changed
    faults_trunc ^hellaswag ^hf_config ^hostile_ ^llmc ^logfile ^metrics ^opt ^plan_as_json
    ^progress ^report ^safetensors ^shard ^tfevents ^token utf8 ^weights ^zscore"
threads="^team for_any_team attention_equals ^audit_names coll_ cuda_clock cuda_trace ranks_run
    ranks_are ^ranks_of_a die_of ^mesh_ cuda_mesh_of_2 cuda_mesh_of_fused_matmuls_between
    cuda_mesh_by_nccl_trains cuda_mesh_by_nccl_replays train_evaluates train_profiles"

export jobs
export -f build_sanitized sanitized # a stage is a shell of its own

# NAME COMMAND...: runs a stage at the same time as others.
beside() {
    summary=$scratch/$1.summary "${@:2}" >"$scratch/$1.said" 2>&1 &
}

stage "the suite" build/run_tests
# shellcheck disable=SC2086
nice -n 19 bash -c 'build_sanitized asan $1; build_sanitized tsan $2
    make -s -j"$jobs" CONFIG=fuzz CC=clang fuzzers' build "$files" "$threads" \
    >/dev/null 2>&1 & # if a build fails, its stage repeats it and prints the errors
builds=$!
if [ -x build/train_gpt ] && [ -f tests/cli.sh ]; then stage "the command lines" tests/cli.sh; fi
if command -v python3 >/dev/null; then stage "losses and weights against the record" \
    tests/steps.py; fi
if [ -x build/ranks_job ]; then QUIET_AFTER=$builds stage "processes" tests/mpi.sh; fi
wait
# shellcheck disable=SC2086
beside asan stage "files and parsers under ASan and UBSan" sanitized asan $files
# shellcheck disable=SC2086
beside tsan stage "threads under TSan" sanitized tsan $threads
beside fuzz stage "fuzzers" make -s fuzz SECONDS_EACH=1
wait
cat "$scratch"/{asan,tsan,fuzz}.said
cat "$scratch"/{asan,tsan,fuzz}.summary >>$summary ||
    echo "0 passed, 1 failed" >>$summary # a stage without a result
awk '/ passed, / { passed += $1; failed += $3; skipped += $5 }
    END { print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped"
        exit failed > 0 || passed == 0 }' $summary >"$scratch/sum"
status=$?
tee -a $summary <"$scratch/sum"
exit $status
