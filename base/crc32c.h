/* crc32c -- the Castagnoli checksum (polynomial 0x1edc6f41, reflected), as iSCSI, TensorBoard and
 * ext4 use it.
 *
 *     uint32_t c = crc32c(0, p, n);         of one buffer
 *     c = crc32c(crc32c(0, p, n), q, m);    of p followed by q
 *     c = crc32c_join(crc32c(0, p, n), crc32c(0, q, m), m);   the same, by two ranks
 *
 * The nine bytes "123456789" give 0xe3069283. Uses the processor's instruction where there is one.
 */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Local. Continues `crc` (0 to start) over n bytes. Safe from any thread. */
uint32_t crc32c(uint32_t crc, const void *p, size_t n);
/* Local. The same in portable C, by tables: for processors without the instruction, and for
 * tests. */
uint32_t crc32c_portable(uint32_t crc, const void *p, size_t n);

/* Local. The checksum of two buffers, one after the other: a is that of the first, b that of the
 * second, which has n_b bytes. */
uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t n_b);

#endif
