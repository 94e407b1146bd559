#include "base/processor.h"

#include <stdatomic.h>
#include <unistd.h>

static atomic_llong given_l1, given_l2; // by tests

static int64_t size_of_level(int level) {
    long bytes = 0;
#if defined(_SC_LEVEL1_DCACHE_SIZE) && defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : _SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : level == 1 ? 32 << 10 : 512 << 10;
}

Caches processor_caches(void) {
    static atomic_llong l1, l2; // every thread that finds 0 stores the same value
    if (given_l1 && given_l2) return (Caches){given_l1, given_l2};
    if (!l1) l1 = size_of_level(1);
    if (!l2) l2 = size_of_level(2);
    return (Caches){l1, l2};
}

void processor_set_caches(Caches c) {
    given_l1 = c.l1;
    given_l2 = c.l2;
}
