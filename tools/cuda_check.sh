#!/bin/bash
# cuda_check.sh NVCC FOLDER FILE.cu...: compiles each file for sm_80 and sm_90a and prints what ptxas says of each kernel: registers,
# shared memory, spills. Fails on an error, on any warning (C7508 and C7510 among them: wgmma that was serialised), on a kernel that
# spills. FOLDER keeps what was compiled: a file that has not changed, nor what it includes, is not compiled again.
set -u -o pipefail
nvcc=$1 folder=$2
shift 2
mkdir -p "$folder"
bad=0
for arch in 80 90a; do
    for file in "$@"; do
        out=$folder/$(tr / _ <<<"${file%.cu}").$arch
        if ! { [ -f "$out.log" ] && [ -f "$out.d" ] &&
            [ -z "$(find $(sed 's/.*://; s/\\$//' "$out.d") "$0" -newer "$out.log" 2>&1)" ]; }; then
            "$nvcc" -std=c++17 -O3 -I. -gencode "arch=compute_$arch,code=sm_$arch" -Xptxas -v -Xcompiler -Wall,-Wextra \
                -MD -MF "$out.d" -c -o "$out.o" "$file" >"$out.log.part" 2>&1 || { cat "$out.log.part"; bad=1; continue; }
            mv "$out.log.part" "$out.log"
        fi
        c++filt <"$out.log" | awk -v arch=sm_$arch -v file="$file" '
            / error|warning/ { print; bad = 1 }
            /Compiling entry function/ { sub(/.*entry function ./, ""); sub(/. for .*/, ""); name = $0
                gsub(/\(anonymous namespace\)::|void /, "", name); sub(/\(.*/, "", name) }
            /spill stores/ { spill = $5 + $9 }
            /Used [0-9]+ registers/ { smem = ""; for (i = 1; i <= NF; i++) { if ($i == "Used") regs = $(i + 1); if ($i ~ /^smem/) smem = $(i - 2) }
                printf "%-7s %-26s %-44s %3d registers %6d bytes shared%s\n", arch, file, name, regs, smem,
                    spill ? "  SPILLS " spill " bytes" : ""
                if (spill) bad = 1 }
            END { exit bad }' || bad=1
    done
done
[ $bad = 0 ] || { echo "cuda-check: see above"; exit 1; }
