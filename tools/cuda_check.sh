#!/bin/bash
# cuda_check.sh FOLDER: checks the output of nvcc, which lies in FOLDER beside each object. Prints
# registers, shared memory and spills of every kernel. Fails on a warning, on a message of ptxas
# about wgmma (C75..: serialised, or an order that ptxas had to insert), and on a kernel that
# spills. Also checks that the trainer and the tests linked with these kernels need no library of
# CUDA and start without a driver: the trainer trains, the tests report that there is no device.
# cuda_facts.py checks the machine code.
set -u -o pipefail
folder=$1 bad=0
while read -r log; do
    file=${log#"$folder"/}
    c++filt <"$log" | awk -v file="${file%.log}.cu" '
        / error|warning|\(C75[0-9]+\)/ { print; bad = 1 }
        /Compiling entry function/ { arch = $0; sub(/.* for ./, "", arch); sub(/\047.*/, "", arch)
            sub(/.*entry function ./, ""); sub(/. for .*/, ""); name = $0; spill = 0
            gsub(/\(anonymous namespace\)::|void /, "", name); sub(/\(.*/, "", name) }
        /spill stores/ { spill = $5 + $9 }
        /Used [0-9]+ registers/ { smem = ""
            for (i = 1; i <= NF; i++) {
                if ($i == "Used") regs = $(i + 1)
                if ($i ~ /^smem/) smem = $(i - 2)
            }
            printf "%-7s %-26s %-44s %3d registers %6d bytes shared%s\n",
                arch, file, name, regs, smem, spill ? "  SPILLS " spill " bytes" : ""
            if (spill) bad = 1 }
        END { exit bad }' || bad=1
done < <(find "$folder" -name '*.log' | sort)
wants=$(ldd "$folder/train_gpt" "$folder/run_tests" | grep -E 'libcu|libnv|libnccl|not found') &&
    { echo "$folder wants $wants"; bad=1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
head -c 4000 /dev/zero >"$dir/zeros.bin"
CUDA_VISIBLE_DEVICES='' "$folder/train_gpt" --train "$dir/zeros.bin" \
    --model layers=1,heads=1,channels=8,seq=8,vocab=8 --steps 2 \
    --ledger none >"$dir/out" 2>&1 || { cat "$dir/out"; bad=1; }
said=$(CUDA_VISIBLE_DEVICES='' "$folder/run_tests" cuda_)
[[ $said == "no device to run the tests on: "* ]] ||
    { echo "$folder/run_tests without a device: $said"; bad=1; }
[ $bad = 0 ] || { echo "cuda-check: see above"; exit 1; }
