#include "base/processor.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#if defined __x86_64__
#include <cpuid.h>
#endif

static atomic_llong test_l2; // set by tests; 0: ask the system
static atomic_int test_keeps;

int64_t processor_l2(void) {
    static atomic_llong found; // every thread that finds 0 stores the same value
    if (test_l2) return test_l2;
#ifdef _SC_LEVEL2_CACHE_SIZE
    if (!found) found = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    if (found <= 0) found = 512 << 10;
    return found;
}

static bool made_by_intel(void) {
#if defined __x86_64__
    unsigned a, name[3] = {0}; // "GenuineIntel" is in b, d, c
    return __get_cpuid(0, &a, &name[0], &name[2], &name[1]) &&
           memcmp(name, "GenuineIntel", sizeof name) == 0;
#else
    return false;
#endif
}

bool processor_keeps_reread(void) {
    static atomic_int found; // kept: CPUID traps in a virtual machine, and every wgrad asks
    if (test_keeps) return test_keeps == L2_KEEPS_REREAD;
    if (!found) found = made_by_intel() ? L2_KEEPS_REREAD : L2_KEEPS_ALL_ALIKE;
    return found == L2_KEEPS_REREAD;
}

void processor_set_keeps_reread(L2Policy k) {
    test_keeps = k;
}

void processor_set_l2(int64_t bytes) {
    test_l2 = bytes;
}
