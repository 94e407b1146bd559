/* This build has no hwloc. */
#include "parallel/plan/detect_parts.h"

bool cpus_hwloc(Cpus *c) {
    (void)c;
    return false;
}
