/* io_share -- one file, written by all ranks at once.
 *
 *     io_share(&f, path, n_bytes, group, e)         rank 0 makes it, the others join
 *     ok = io_put(&f, at, p, n, e) && ...           each rank its own parts, in any order
 *     io_share_finish(&f, ok, group, &crc, e)       synced and closed; removed when a rank failed
 *
 * Returns and reasons agree on all ranks (group_agree). The checksum of several ranks' work is that
 * of the file as it is read back, each rank a range of bytes; a single rank sums up what it writes.
 */
#ifndef DATA_IO_SHARE_H
#define DATA_IO_SHARE_H

#include "base/group.h"
#include "data/io.h"

/* Collective. After success io_share_finish follows on every rank. */
bool io_share(IoFile *f, const char *path, uint64_t n_bytes, const Group *g, Err *e);
/* Collective. ok: have all puts of this rank succeeded? If not, e has its reason. crc may be
 * NULL. */
bool io_share_finish(IoFile *f, bool ok, const Group *g, uint32_t *crc, Err *e);
/* Collective. CRC-32C of a file of n_bytes, each rank reading its share. */
bool io_share_checksum(const char *path, uint64_t n_bytes, const Group *g, uint32_t *crc, Err *e);

#endif
