/* processor -- sizes of the caches of the core that this program runs on.
 *
 * Kernels choose their blocking by them. Results must not depend on them: tests run every matmul
 * with several sizes and compare bits.
 */
#ifndef BASE_PROCESSOR_H
#define BASE_PROCESSOR_H

#include <stdint.h>

typedef struct Caches {
    int64_t l1, l2; // bytes of the data cache and of the second level
} Caches;

/* Local. As the system reports them; 32 KiB and 512 KiB where it reports nothing. */
Caches processor_caches(void);
/* Local. From now on processor_caches returns these; sizes of 0 return to the system's. For
 * tests. */
void processor_set_caches(Caches c);

#endif
