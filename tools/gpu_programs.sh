#!/bin/bash
# gpu_programs.sh FOLDER PROGRAM...: copies programs for another machine into FOLDER, stripped, and
# prints their sizes. Fails if one needs a library that not every Linux has, or if they exceed 64
# MiB together.
set -eu -o pipefail
folder=$1 most=$((64 << 20))
shift
mkdir -p "$folder"
for program; do strip -o "$folder/${program##*/}" "$program"; done
cd "$folder"
wants=$(readelf -d -- * | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux-.*)\.so' | sort -u) &&
    { echo "gpu_programs.sh: the programs want $wants" >&2; exit 1; }
needs=$(readelf -V -- * | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
bytes=$(stat -c %s -- * | awk '{ n += $1 } END { print n }')
ls -l -- * | awk '{ printf "%10.1f MiB  %s\n", $5 / 2^20, $NF }'
awk -v n="$bytes" -v c="$needs" \
    'BEGIN { printf "%10.1f MiB  in all; of the C library %s\n", n / 2^20, c }'
[ "$bytes" -lt $most ] || { echo "gpu_programs.sh: more than 64 MiB" >&2; exit 1; }
