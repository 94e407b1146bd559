#!/bin/sh
# A compute-sanitizer that sees nothing, for the rehearsal of tools/bench_gpu.py: it prints a
# last line as the true one does, after it has run the program; in a mood, and for races, it says
# instead that all tests passed. FAKE_SANITIZER=stops: where copies are tested it ends before that;
# errors: it has seen one there.
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
