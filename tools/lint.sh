#!/bin/bash
# lint.sh [--light]: checks the rules of this tree that a program can check. Prints every violation
# as file:line: rule.
#
#   sizes      a function has at most 100 lines (over 60 lines it is printed, without failure);
#              a line at most 100 columns, comments included, also in Python and shell
#   clock      CLOCK_REALTIME only for dates: setting the clock must not change a duration
#   places     #if and #ifdef only in base/ and tests/emu/sanitize.h; malloc and free only in base/;
#              exit only in base/ and in programs; MPI_ and nccl only in parallel/
#   folders    a file includes headers of its own folder and of those below it: base, layers, data,
#              parallel/comm, mesh, step, plan, train
#   names      no two files have the same name; no function has one of a library linked statically
#   emulator   tests/device.c has all functions of the emulator that tests of CUDA kernels call
#   links      the links of a document lead to existing files
#   examples   git apply accepts the diffs of CONTRIBUTING.md
#   leftovers  no #if 0, no folder old/, no TODO without a name: TODO(name)
#   format     clang-format
#   compilers  gcc and clang, warnings are errors; cppcheck; nvcc if installed: no spills
#              (not with --light)
set -u -o pipefail
shopt -s lastpipe # the last command of a pipe runs here, so that violations can count
light=0
[ "${1:-}" = --light ] && light=1
bad=0
cd "$(dirname "$0")/.." || exit 1

mapfile -t sources < <(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
if [ ${#sources[@]} = 0 ]; then mapfile -t sources < <(find . -name build\* -prune -o \( \
    -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print | sed 's|^\./||'); fi

# Functions that are longer than 100 lines for a reason: file:function
exceptions='^(none)$'

# Prints each violation, found by awk or grep, from stdin, and counts it.
violations() {
    local lines
    lines=$(cat)
    [ -z "$lines" ] && return
    echo "$lines"
    bad=$((bad + $(wc -l <<<"$lines")))
}
# Runs a command on the sources whose paths do not match.
in_others() { printf '%s\n' "${sources[@]}" | grep -Ev "$1" | tr '\n' '\0' | xargs -0 -r "${@:2}"; }

# --- sizes
awk 'FNR == 1 { start = 0 }
    /^[a-zA-Z_].*\) *\{$/ || /^ .*\) *\{$/ && !start && head {
        if (!start) { start = FNR; name = head ? head : $0 } }
    /^[a-zA-Z_].*\($|^[a-zA-Z_].*,$/ { head = $0 } /^\}/ || /;$/ && !start { head = "" }
    /^\}/ && start { n = FNR - start + 1; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
        if (n > 60) print FILENAME ":" start ": " name " has " n " lines"; start = 0; head = "" }' \
        "${sources[@]}" >/tmp/lint.$$
awk '{ n = $(NF - 1); if (n > 100) print }' /tmp/lint.$$ | grep -Ev "$exceptions" | violations
awk '{ n = $(NF - 1); if (n <= 100) print "note: " $0 }' /tmp/lint.$$
rm -f /tmp/lint.$$
# grep counts characters, not bytes, where the locale says so; the table is made by a program
{ printf '%s\n' "${sources[@]}"; git ls-files '*.py' '*.sh' .ci/run tools/completion.bash; } |
    grep -vxF data/unicode_table.c | tr '\n' '\0' |
    LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{101}' /dev/null |
    sed 's/:\([0-9]*\):.*/:\1: over 100 columns/' | violations

# --- places
in_others '^(base/|tests/emu/sanitize\.h)' awk '/^# *(if|ifdef|ifndef|elif)/ &&
    !(FILENAME ~ /\.(h|cuh)$/ && /^#ifndef [A-Z0-9_]*_(H|CUH)$/) {
    print FILENAME ":" FNR ": " $1 " outside base/" }' | violations
not_in_base='   <- only base\/ does this: mem.h, die.h'
in_others '^(base|tests)/' grep \
    -nE '(^|[^a-zA-Z0-9_.>])(malloc|calloc|realloc|aligned_alloc|free|strdup)\(' |
    grep -vE '^[^:]*:[0-9]+: *(\*|//|/\*)' | sed "s/\$/$not_in_base/" | violations
# programs may end themselves
in_others '^(base|tests|tools)/|^train_gpt.c' grep -nE '(^|[^a-zA-Z0-9_.>])(exit|_exit|abort)\(' |
    grep -vE '^[^:]*:[0-9]+: *(\*|//|/\*)' | sed "s/\$/$not_in_base/" | violations
in_others '^parallel/|^base/die\.|^tests/nccl_headers\.cu' grep -nE '\bMPI_[A-Z]|\bnccl[A-Z]' |
    violations

# --- folders
grep -nE '^#include "' /dev/null "${sources[@]}" | awk -F'[:"]' '
    function folder(path) {
        if (path !~ /^parallel\//) sub(/\/.*/, "", path)
        sub(/\/[^\/]*$/, "", path); return path }
    BEGIN { n = split("base layers data parallel/comm parallel/mesh parallel/step " \
                      "parallel/plan parallel/train", below, " ")
        for (i = 1; i <= n; i++) level[below[i]] = i }
    { from = folder($1); to = folder($4) }
    from in level && to == "parallel" || from == "parallel" {
        print $1 ":" $2 ": " $4 " is in no folder of parallel/" }
    from in level && to in level && level[to] > level[from] {
        print $1 ":" $2 ": " $4 " is of " to "/, which lies above " from "/" }' | violations
# files of tests/emu/include replace the files whose names they have
printf '%s\n' "${sources[@]}" | grep -v ^tests/emu/include/ | sed 's|.*/||' | sort | uniq -d |
    sed 's/$/: more than one file has this name/' | violations
in_others '^data/stamp\.c|^tests/hostile' grep -nE '\bCLOCK_REALTIME|\bgettimeofday\(' |
    sed 's/$/   <- durations are of the clock that only counts on (base\/clock.h)/' | violations

# --- programs for other machines are linked with libjansson.a, which has functions of its own
names() { nm -g --defined-only "$1" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u; }
comm -12 <(names build/libgpt.a) <(names "$(gcc -print-file-name=libjansson.a)") |
    sed 's/$/: libjansson.a has this function, too/' | violations

# --- functions of the emulator that tests call exist in tests/device.c
grep -ohE '\bemu_[a-z_]+\b' tests/cuda_test.h tests/test_*.c tests/mesh_run.c | sort -u |
    while read -r name; do
    grep -qw "$name" tests/device.c ||
        echo "tests/device.c: $name, which tests of CUDA kernels use, is not there"
done | violations

# --- leftovers
grep -nE '^ *# *if 0' "${sources[@]}" | violations
grep -nE '\b(TODO|FIXME|XXX)\b' "${sources[@]}" | grep -vE 'TODO\([a-z]+\)|XXXXXX' | violations
find . -type d \( -name old -o -name backup \) -not -path './.git/*' -not -path './run/*' -not \
    -path './build*' | sed 's/$/: no folder of old code/' | violations
in_others '^$' grep -nE '[[:space:]]+$' | sed 's/$/   <- space at the end of the line/' | violations

# --- links between documents
git ls-files '*.md' | while read -r page; do
    grep -noE '(\]\(|src=")[^):"#]+' "$page" | sed -E 's/(\]\(|src=")//' |
        while IFS=: read -r line link; do
        [[ $link = http* || -e $(dirname "$page")/$link ]] || echo "$page:$line: there is no $link"
    done
done | violations

# --- examples: the diffs of CONTRIBUTING.md fit the files
examples=$(mktemp -d)
awk -v to="$examples/line_" '/^```diff/ { to_file = to FNR; next } /^```/ { to_file = "" }
    to_file { print >to_file }' CONTRIBUTING.md
for example in "$examples"/*; do
    git apply --check "$example" 2>&1 | sed "s/^/CONTRIBUTING.md:${example##*_}: /"
done | violations
rm -rf "$examples"

# --- format
if clang-format --version 2>/dev/null | grep -q 'version 14'; then
    clang-format --dry-run -Werror "${sources[@]}" 2>&1 | grep -E 'error' | violations
else
    echo "note: the format is that of clang-format 14 (Debian 12), which is not here"
fi

# --- sizes of the tree
awk '{ all++ } FILENAME ~ /^(tests|tools)\// { apart++ }
    { line = $0; gsub(/^ +/, "", line) }
    line ~ /^\/\*/ { block = 1 }
    block || line ~ /^\/\// { comment++ }
    line ~ /\*\/ *$/ { block = 0 }
    END { printf "%d lines, %d of them outside tests/ and tools/; %.0f %% comment lines\n",
        all, all - apart, 100 * comment / all }' "${sources[@]}"

# --- compilers
if [ $light = 0 ]; then
    jobs=$(nproc)
    for cc in gcc clang; do
        make -s -k -j"$jobs" CC=$cc CONFIG=lint-$cc OPT_lint-$cc=-O2 WERROR=-Werror all \
            "build-lint-$cc/run_tests" 2>&1 |
            grep -E 'error:|warning:|undefined reference' | sort -u | sed "s/\$/   <- $cc/" |
            violations
        [ -x build-lint-$cc/run_tests ] ||
            echo "build-lint-$cc: the suite does not build with $cc" | violations
    done
    cppcheck -q -j"$jobs" --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=3 \
        -I. -D__x86_64__ \
        --library=tools/cppcheck.cfg --suppress=missingIncludeSystem --suppress=unknownMacro \
        --suppress=uninitvar --suppress=nullPointerRedundantCheck \
        --suppress=normalCheckLevelMaxBranches \
        --suppress=nullPointerArithmeticRedundantCheck \
        --template='{file}:{line}: {message} ({id})' base data parallel tools train_gpt.c 2>&1 |
        violations
    make -s cuda-check >/tmp/lint.$$ 2>&1 || violations </tmp/lint.$$
    rm -f /tmp/lint.$$
fi
[ $bad = 0 ] && echo "lint: no violation" && exit 0
echo "lint: $bad violations"
exit 1
