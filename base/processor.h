/* processor -- the second level of cache of the core that this program runs on.
 *
 * Matmuls choose their blocking by its size. Results must not depend on it: tests run matmuls with
 * several sizes and compare bits.
 */
#ifndef BASE_PROCESSOR_H
#define BASE_PROCESSOR_H

#include <stdint.h>

/* Local. Bytes, as the system reports them; 512 KiB where it reports nothing. */
int64_t processor_l2(void);
/* Local. From now on processor_l2 returns this; 0 returns to the system's. For tests. */
void processor_set_l2(int64_t bytes);

#endif
