/* io -- files that are written once, whole or not at all.
 *
 * Every function returns false and fills Err with one line that names the path and the reason of
 * the system; none dies, because a failed save must still tidy up. Writes go to known offsets, so
 * several writers can fill one file. Tests make the n-th system call that changes the disk fail, or
 * kill the process there (io_inject).
 */
#ifndef DATA_IO_H
#define DATA_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/die.h"
#include "base/group.h"

typedef struct IoFile {
    int fd;
    char *path;
    uint64_t n_bytes;     // size; of a new file the end of what was put
    uint32_t crc;         // of [0, crc_end) while writes came in order
    uint64_t crc_end;     // end of the last write
    bool in_order, guest; // guest: another rank made the file, which stays where this one fails
    bool special;         // a pipe or a device: written front to back, never cut or removed
    uint8_t *buffer;      // neighbours, on their way to one write at buffer_at
    uint64_t buffer_at;
    size_t used;
} IoFile;

/* Local. Creates (or empties) a file for writing. After success exactly one of io_finish and
 * io_abandon follows. A pipe, a device and the standard output (io_stdout) are opened as they
 * are, and only written from front to back (output_open). A FIFO that nobody reads
 * for two seconds is an error. */
bool io_create(IoFile *f, const char *path, Err *e);
/* Local. Writes n bytes at offset `at`: at once, or, a small stretch, together with those that
 * follow on it. */
bool io_put(IoFile *f, uint64_t at, const void *p, size_t n, Err *e);
/* Local. Syncs and closes; CRC-32C of the whole file to crc (may be NULL). A file that was not
 * written from front to back is read back for its checksum. On failure the file is closed and
 * removed. */
bool io_finish(IoFile *f, uint32_t *crc, Err *e);
/* Local. Closes and removes. */
void io_abandon(IoFile *f);
/* Local. Size of a file, and CRC-32C of 16 blocks of 4 KiB spread evenly from its first byte to its
 * last: two files of another origin differ in it. Takes less than a millisecond. */
bool io_sample(const char *path, uint64_t *n_bytes, uint32_t *crc, Err *e);
/* Local. A whole small file in one go: create, put, finish. */
bool io_write_file(const char *path, const void *p, size_t n, uint32_t *crc, Err *e);

/* Local. The folder and its missing parents, durably; and one folder that must be new. */
bool io_make_dirs(const char *path, Err *e);
bool io_make_dir(const char *path, Err *e);
bool io_rename(const char *from, const char *to, Err *e);
/* Local. Makes the names in a folder durable. */
bool io_sync_dir(const char *path, Err *e);
/* Local. Removes a file or a folder with all it holds; what is not there is fine. Follows no links.
 */
bool io_remove_tree(const char *path, Err *e);
bool io_exists(const char *path);

/* One file, written by all ranks at once:
 *
 *     io_share(&f, path, n_bytes, group, e)         rank 0 makes it, the others join
 *     ok = io_put(&f, at, p, n, e) && ...           each rank its own parts, in any order
 *     io_share_finish(&f, ok, group, &crc, e)       synced and closed; when a rank failed, rank 0's
 *                                                   caller removes what may be left
 *
 * Returns and reasons agree on all ranks (group_agree). The checksum of several ranks' work is that
 * of the file as it is read back, each rank a range of bytes; a single rank sums up what it writes.
 */
/* Collective. The file has n_bytes, and what is never put stays zero. After success
 * io_share_finish follows on every rank. */
bool io_share(IoFile *f, const char *path, uint64_t n_bytes, const Group *g, Err *e);
/* Collective. ok: have all puts of this rank succeeded? If not, e has its reason. crc may be
 * NULL. */
bool io_share_finish(IoFile *f, bool ok, const Group *g, uint32_t *crc, Err *e);
/* Collective. CRC-32C of a file of n_bytes, each rank reading its share. */
bool io_share_checksum(const char *path, uint64_t n_bytes, const Group *g, uint32_t *crc, Err *e);

/* Local. "-" as the name of an output is the standard output, which from here on holds nothing
 * else: what is printed for people goes to the standard error. Before anything is printed. */
void io_keep_stdout(void);
/* Local. A descriptor (close) of it for "-" where it was kept, and of the standard output or error
 * for a regular file that is one of them (/dev/stdout while it goes to a file). Others write to
 * that file as well: a descriptor that shares their position overwrites nothing. -1 for other
 * names. */
int io_stdout(const char *path);

/* For tests. The nth (1 = next) call of this thread that changes the disk fails with "No space left
 * on device", or, with kill, ends the process as kill -9 would. 0 switches it off. Returns how many
 * such calls were made since the last io_inject. */
int io_inject(int nth, bool kill);

#endif
