#!/bin/sh
# fake_sanitizer.sh: replaces compute-sanitizer in the rehearsal of tools/bench_gpu.py. It runs the
# program and then prints the summary of a check without errors. If FAKE_SANITIZER is set, and for
# racecheck, it does not run the program and prints that all tests passed.
# FAKE_SANITIZER=stops: the check of the tests of copies ends without a summary.
# FAKE_SANITIZER=errors: that check finds an error.
tool=$2
while [ "${1#--}" != "$1" ]; do shift 2; done
echo "========= COMPUTE-SANITIZER"
case "$*:$FAKE_SANITIZER" in
*cuda_copy*:stops) exit 1 ;;
*cuda_copy*:errors) errors=1 ;;
esac
[ "$errors" ] && echo "========= Invalid __global__ read of size 4 bytes"
case "$tool:$FAKE_SANITIZER" in
memcheck:) "$@" || exit ;;
*) echo "$(($# - 1)) passed, 0 failed, 0 skipped" ;;
esac
case "$tool" in
memcheck) echo "========= ERROR SUMMARY: ${errors:-0} errors" ;;
racecheck)
    n=${errors:-0}
    echo "========= RACECHECK SUMMARY: $n hazards displayed ($n errors, 0 warnings)"
    ;;
esac
[ -z "$errors" ] || exit 9
