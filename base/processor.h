/* processor -- the second level of cache of the core that this program runs on.
 *
 * Matmuls choose their blocking by the size of the L2, and how they pack by which lines it keeps.
 * Results must not depend on either: tests run matmuls with several sizes, in both ways, and
 * compare bits.
 */
#ifndef BASE_PROCESSOR_H
#define BASE_PROCESSOR_H

#include <stdbool.h>
#include <stdint.h>

/* Local. Bytes of the L2, as the system reports them; 512 KiB where it reports nothing. */
int64_t processor_l2(void);
/* Local. Does the L2 keep a line that was read several times longer than one that was written once
 * and is still in use? True on Intel's processors, which CPUID names. */
bool processor_keeps_reread(void);

/* Local, for tests. From now on the functions above return this value; 0 returns to the
 * system's. */
void processor_set_l2(int64_t bytes);
typedef enum { L2_AS_DETECTED, L2_KEEPS_REREAD, L2_KEEPS_ALL_ALIKE } L2Policy;
void processor_set_keeps_reread(L2Policy k);

#endif
