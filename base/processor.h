/* processor -- the second level of cache of the core that this program runs on.
 *
 * Matmuls choose their blocking by its size, and how they pack by what it keeps. Results must not
 * depend on it: tests run matmuls with several sizes, in both ways, and compare bits.
 */
#ifndef BASE_PROCESSOR_H
#define BASE_PROCESSOR_H

#include <stdbool.h>
#include <stdint.h>

/* Local. Bytes, as the system reports them; 512 KiB where it reports nothing. */
int64_t processor_l2(void);
/* Local. Does a line that was read several times stay in the L2 longer than one that was written
 * once and is in use? On Intel's processors, as their CPUID says who made them. */
bool processor_keeps_reread(void);

/* Local. From now on these return what is given; 0 returns to the system's. For tests. */
void processor_set_l2(int64_t bytes);
typedef enum { KEEPS_AS_THIS_ONE, KEEPS_REREAD, KEEPS_NOTHING_LONGER } Keeps;
void processor_set_keeps_reread(Keeps k);

#endif
