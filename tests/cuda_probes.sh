#!/bin/bash
# cuda_probes.sh [NVCC]: from the top of the tree, where a device of capability 9.0 is: runs the probes of instructions
# (cuda_probes_sm90.cu) and writes tests/golden/sm90.txt, with which the emulator of the tests is compared from then on. Says which
# probes gave what the tests do not expect.
set -eu
nvcc=${1:-nvcc}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for file in base/die.c base/mem.c; do
    cc -std=c11 -D_GNU_SOURCE -O2 -I. -c -o "$out/$(basename "$file" .c).o" "$file"
done
"$nvcc" -std=c++17 -O2 -I. -gencode arch=compute_90a,code=sm_90a -o "$out/probes" tests/cuda_probes_main_sm90.cu tests/cuda_probes_sm90.cu \
    layers/cuda/device.cu layers/cuda/tensor_map.cu "$out"/*.o
[ "${DRY:-}" ] && exit
mkdir -p tests/golden
"$out/probes" >"$out/sm90.txt" || true
mv "$out/sm90.txt" tests/golden/sm90.txt
