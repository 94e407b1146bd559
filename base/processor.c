#include "base/processor.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#if defined __x86_64__
#include <cpuid.h>
#endif

static atomic_llong given; // by tests
static atomic_int given_keeps;

int64_t processor_l2(void) {
    static atomic_llong found; // every thread that finds 0 stores the same value
    if (given) return given;
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
    static atomic_int found; // asked once: CPUID leaves a virtual machine, and each wgrad asks
    if (given_keeps) return given_keeps == KEEPS_REREAD;
    if (!found) found = made_by_intel() ? KEEPS_REREAD : KEEPS_NOTHING_LONGER;
    return found == KEEPS_REREAD;
}

void processor_set_keeps_reread(Keeps k) {
    given_keeps = k;
}

void processor_set_l2(int64_t bytes) {
    given = bytes;
}
