#!/bin/bash
# cuda_sass.sh FOLDER: what the machine code of the matmuls on Hopper must have, kernel by kernel
# (FOLDER/layers/matmul_sm90.o): a line each, and a failure where a number is another one.
#
#   HGMMA    those of the first step of k and those of the loop: 4 each for 64 rows of a warpgroup
#   waits    one in the loop, which leaves one step in flight, and one behind it; more would mean
#            that ptxas serialised them
#   loop     instructions of a step of k beside its HGMMA: they are issued while the tensor cores
#            work, 64 cycles and more for each HGMMA
#   local    loads and stores of local memory: none
set -u -o pipefail
object=$1/layers/matmul_sm90.o
cuobjdump=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump 2>/dev/null)
[ -n "$cuobjdump" ] || { echo "cuda-check: no cuobjdump here: no look at machine code"; exit 0; }
"$cuobjdump" -sass "$object" | c++filt | awk '
    function report() {
        if (name == "") return
        printf "%-58s %2d HGMMA %d waits %3d instructions in the loop %d local\n",
            name, n, waits, loop, spilled
        if (n != 8 * slabs || waits != 2 || spilled || loop < 1 || loop > 200) bad = 1
        n_kernels++
    }
    /Function :/ { report()
        name = $0 ~ /sm90_matmul/ ? $0 : ""
        sub(/.*Kind</, "", name); sub(/> *>.*/, ">", name)
        slabs = name ~ /Share\)1/ ? 2 : 1; n = waits = loop = spilled = at = first = 0 }
    /^ +\/\*[0-9a-f]+\*\// { at++ }
    /HGMMA/ { n++; if (n == 4 * slabs) first = at }
    /WARPGROUP.DEPBAR/ { waits++; if (waits == 1) loop = at - first - 4 * slabs }
    /(LDL|STL)[. ]/ { spilled++ }
    END { report(); if (n_kernels == 0) bad = 1; exit bad }' ||
    { echo "$object: not as it should be"; exit 1; }
