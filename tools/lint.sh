#!/bin/bash
# lint.sh [--light]: the rules of this tree that a machine can check; every violation is printed as file:line: rule.
#
#   sizes      a source has at most 600 lines, a header 150 (of device code, .cuh: 300); a function at most 100 lines (over 60 it is named, no failure);
#              a line at most 100 columns of code, 130 with its comment
#   rooms      #if and #ifdef only in base/; malloc and free only in base/, exit there and in programs; MPI_ and nccl only in parallel/
#   emulator   tests/device.c answers all that tests of CUDA kernels ask of it
#   leftovers  no #if 0, no folder old/, no TODO without a name: TODO(name)
#   format     clang-format
#   compilers  gcc and clang, warnings are errors; cppcheck; nvcc where it is: no spills        (not with --light)
set -u -o pipefail
shopt -s lastpipe # the last command of a pipe runs here, so that violations can count
light=0
[ "${1:-}" = --light ] && light=1
bad=0
cd "$(dirname "$0")/.." || exit 1

mapfile -t sources < <(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
if [ ${#sources[@]} = 0 ]; then mapfile -t sources < <(find . -name build\* -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print | sed 's|^\./||'); fi

# Functions that are longer than 100 lines for a reason: file:function
exceptions='^(none)$'

# Prints each violation that awk or grep found on stdin, and remembers that there was one.
violations() {
    local lines
    lines=$(cat)
    [ -z "$lines" ] && return
    echo "$lines"
    bad=$((bad + $(wc -l <<<"$lines")))
}
in_rooms() { printf '%s\n' "${sources[@]}" | grep -Ev "$1" | tr '\n' '\0' | xargs -0 -r "${@:2}"; }

# --- sizes
wc -l "${sources[@]}" | awk '$2 != "total" && ($1 > 600 || ($2 ~ /\.h$/ && $1 > 150) || ($2 ~ /\.cuh$/ && $1 > 300)) && $2 !~ /^(base\/simd|data\/unicode_table)\.h$/ {
    print $2 ":" $1 ": longer than " ($2 ~ /\.h$/ ? 150 : $2 ~ /\.cuh$/ ? 300 : 600) " lines" }' | violations
awk 'FNR == 1 { start = 0 }
    /^[a-zA-Z_].*\) *\{$/ || /^ .*\) *\{$/ && !start && head { if (!start) { start = FNR; name = head ? head : $0 } }
    /^[a-zA-Z_].*\($|^[a-zA-Z_].*,$/ { head = $0 } /^\}/ || /;$/ && !start { head = "" }
    /^\}/ && start { n = FNR - start + 1; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
        if (n > 60) print FILENAME ":" start ": " name " has " n " lines"; start = 0; head = "" }' "${sources[@]}" >/tmp/lint.$$
awk '{ n = $(NF - 1); if (n > 100) print }' /tmp/lint.$$ | grep -Ev "$exceptions" | violations
awk '{ n = $(NF - 1); if (n <= 100) print "note: " $0 }' /tmp/lint.$$
rm -f /tmp/lint.$$
LC_ALL=C.UTF-8 awk '{ code = $0; sub(/ *\/\/.*/, "", code) }
    length(code) > 100 && code !~ /^ *(\/\*|\*)/ && code !~ /^[^"]*"[^"]*",?;?$/ && FILENAME !~ /unicode_table/ {
        print FILENAME ":" FNR ": " length(code) " columns" }
    length($0) > 130 { print FILENAME ":" FNR ": " length($0) " columns" }' "${sources[@]}" | violations

# --- rooms
in_rooms '^base/' awk '/^# *(if|ifdef|ifndef|elif)/ && !(FILENAME ~ /\.(h|cuh)$/ && /^#ifndef [A-Z0-9_]*_(H|CUH)$/) {
    print FILENAME ":" FNR ": " $1 " outside base/" }' | violations
not_in_base='   <- only base\/ does this: mem.h, die.h'
in_rooms '^(base|tests)/' grep -nE '(^|[^a-zA-Z0-9_.>])(malloc|calloc|realloc|aligned_alloc|free|strdup)\(' |
    grep -vE '^[^:]*:[0-9]+: *(\*|//|/\*)' | sed "s/\$/$not_in_base/" | violations
in_rooms '^(base|tests|tools)/|^train_gpt.c' grep -nE '(^|[^a-zA-Z0-9_.>])(exit|_exit|abort)\(' | # programs may end themselves
    grep -vE '^[^:]*:[0-9]+: *(\*|//|/\*)' | sed "s/\$/$not_in_base/" | violations
in_rooms '^parallel/|^base/die\.|^tests/nccl_headers\.cu' grep -nE '\bMPI_[A-Z]|\bnccl[A-Z]' | violations

# --- what tests ask of the emulator has an answer where a device runs them
grep -ohE '\bemu_[a-z_]+\b' tests/cuda.h tests/test_*.c tests/mesh_run.c | sort -u | while read -r name; do
    grep -qw "$name" tests/device.c || echo "tests/device.c: $name, which tests of CUDA kernels use, is not there"
done | violations

# --- leftovers
grep -nE '^ *# *if 0' "${sources[@]}" | violations
grep -nE '\b(TODO|FIXME|XXX)\b' "${sources[@]}" | grep -vE 'TODO\([a-z]+\)|XXXXXX' | violations
find . -type d \( -name old -o -name backup \) -not -path './.git/*' -not -path './run/*' -not -path './build*' | sed 's/$/: no folder of old code/' | violations
in_rooms '^$' grep -nE '[[:space:]]+$' | sed 's/$/   <- space at the end of the line/' | violations

# --- format
if command -v clang-format >/dev/null; then
    clang-format --dry-run -Werror "${sources[@]}" 2>&1 | grep -E 'error' | violations
else
    echo "note: no clang-format here; tools/setup.sh test installs it"
fi

# --- how big it is
awk '{ all++ } FILENAME ~ /^(tests|tools)\// { apart++ }
    { line = $0; gsub(/^ +/, "", line) }
    line ~ /^\/\*/ { block = 1 } block || line ~ /^\/\// { comment++ } line ~ /\*\/ *$/ { block = 0 }
    END { printf "%d lines, %d of them outside tests/ and tools/; %.0f %% comment lines\n", all, all - apart, 100 * comment / all }' "${sources[@]}"

# --- compilers
if [ $light = 0 ]; then
    jobs=$(nproc)
    for cc in gcc clang; do
        make -s -k -j"$jobs" CC=$cc CONFIG=lint-$cc OPT_lint-$cc=-O2 WERROR=-Werror all "build-lint-$cc/run_tests" 2>&1 |
            grep -E 'error:|warning:|undefined reference' | sort -u | sed "s/\$/   <- $cc/" | violations
        [ -x build-lint-$cc/run_tests ] || echo "build-lint-$cc: the suite does not build with $cc" | violations
    done
    cppcheck -q -j"$jobs" --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=3 -I. -D__x86_64__ \
        --library=tools/cppcheck.cfg --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=uninitvar --suppress=nullPointerRedundantCheck --suppress=nullPointerArithmeticRedundantCheck \
        --template='{file}:{line}: {message} ({id})' base data parallel tools train_*.c 2>&1 | violations
    make -s cuda-check >/tmp/lint.$$ 2>&1 || violations </tmp/lint.$$
    rm -f /tmp/lint.$$
fi
[ $bad = 0 ] && echo "lint: no violation" && exit 0
echo "lint: $bad violations"
exit 1
