#!/bin/bash
# test_aarch64.sh [WORD...]: builds the suite for aarch64 with a cross compiler and runs it under
# qemu-user; called by `make test-aarch64`. On aarch64 there are only the portable kernels.
# Emulation takes some fifteen times as long, so without words only the tests listed below run: of
# layers, of the model against PyTorch, of files, of collectives, of train_gpt's command line, and
# of the emulator of CUDA, whose fibers are assembly for each processor.
#
# Debian: installs the compiler and qemu-user (tools/setup.sh aarch64) and downloads jansson for
# arm64 from the same archive into build-aarch64/sysroot; the system is not changed. If they cannot
# be installed, or not within minutes, it prints that and ends with one skipped test.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
top=$PWD/build-aarch64
sysroot=$top/sysroot
cross=aarch64-linux-gnu
words=("$@")
[ $# -gt 0 ] || words=(norm_ gelu swiglu rope embedding bias_gradient_is classifier_m adamw
    attention_eq attention_surv attention_decode matmul_do matmul_eq exact_matmul exact_sum
        exact_norm golden model_gr
    generate_ends checkpoint_ safetensors tokenizer shard json batch simd coll_threads_of
        coll_threads_sums team_ kernel_sets version resume_is_bit_identical_llama
    emulation cuda_reduce)

skip() {
    echo "skip aarch64: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
timeout --kill-after=30 5m tools/setup.sh aarch64 || skip "no cross compiler or no qemu-aarch64"

# Downloads jansson for arm64 with separate package lists; those of the system are not changed.
fetch_jansson() {
    local apt=$top/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$sysroot" && cd "$apt" || return 1
    local options=(-q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o
        "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache"
        -o APT::Sandbox::User=root -o Acquire::http::Timeout=30 -o Acquire::Retries=1)
    timeout 3m apt-get "${options[@]}" update && timeout 2m apt-get "${options[@]}" download \
        libjansson-dev:arm64 && dpkg-deb -x libjansson-dev*.deb "$sysroot" &&
        rm "$sysroot/usr/lib/$cross/libjansson.so" # the static one needs no path at run time
}
if [ ! -e "$sysroot/usr/include/jansson.h" ]; then
    (fetch_jansson) >"${TMPDIR:-/tmp}/test_aarch64.$$" 2>&1 ||
        why="no jansson for arm64: $(tail -1 "${TMPDIR:-/tmp}/test_aarch64.$$")"
    rm -f "${TMPDIR:-/tmp}/test_aarch64.$$"
    [ -z "${why:-}" ] || skip "$why"
fi

make -s -j"$(nproc)" CONFIG=aarch64 OPT_aarch64=-O2 CC=$cross-gcc MPI=0 CUDA=0 \
    CFLAGS="-isystem $sysroot/usr/include -L$sysroot/usr/lib/$cross ${CFLAGS:-}" all \
    build-aarch64/run_tests || exit 1

# Tests start programs, which this machine cannot run directly: each program is a script of that
# name beside the suite, which calls qemu.
mkdir -p "$top/run"
for program in "$top"/*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    printf '#!/bin/sh\nexec qemu-aarch64 -0 "$0" "%s" "$@"\n' "$program" >"$top/run/${program##*/}"
    chmod +x "$top/run/${program##*/}"
done
ln -f "$top/run_tests" "$top/run/run_tests.aarch64"
export QEMU_LD_PREFIX=/usr/$cross
exec qemu-aarch64 "$top/run/run_tests.aarch64" "${words[@]}"
