/* io -- files that are written once, whole or not at all.
 *
 * Functions with an Err return false and fill it with one line that names the path and the reason
 * of the system; they never die, because a failed save must still tidy up. Writes go to known
 * offsets, so several writers can fill one file. Tests make the n-th system call that changes the
 * disk fail, or kill the process there (io_inject).
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
    uint64_t n_bytes; // size; of a new file the end of the last byte that was put
    uint32_t crc;     // CRC-32C of [0, crc_end), while in_order
    uint64_t crc_end; // end of the last write
    // in_order: all writes so far followed one another from byte 0 on. not_creator: another rank
    // created the file, so a failure here does not remove it.
    bool in_order, not_creator;
    bool special; // a pipe or a device: written front to back, never cut or removed
    // [used] bytes of small puts that follow one another, written together at buffer_at
    uint8_t *buffer;
    uint64_t buffer_at;
    size_t used;
} IoFile;

/* Local. Creates (or empties) a file for writing. After success exactly one of io_finish and
 * io_abandon follows. A pipe, a device and the standard output (io_stdout) are opened as they are
 * and must be written from front to back (output_open). A FIFO that no process opens for reading
 * within two seconds is an error. */
bool io_create(IoFile *f, const char *path, Err *e);
/* Local. Writes n bytes at offset `at`. Small puts that follow one another are buffered and written
 * together. */
bool io_put(IoFile *f, uint64_t at, const void *p, size_t n, Err *e);
/* Local. Syncs and closes; *crc (crc may be NULL) is the CRC-32C of the whole file. A file that was
 * not written from front to back is read back for its checksum. On failure the file is closed and
 * removed. */
bool io_finish(IoFile *f, uint32_t *crc, Err *e);
/* Local. Closes and removes. */
void io_abandon(IoFile *f);
/* Local. Size of a file, and CRC-32C of 16 blocks of 4 KiB spread evenly from its first byte to its
 * last: enough to tell files of different origin apart, in less than a millisecond. */
bool io_sample(const char *path, uint64_t *n_bytes, uint32_t *crc, Err *e);
/* Local. Writes a small file as a whole: create, put, finish. */
bool io_write_file(const char *path, const void *p, size_t n, uint32_t *crc, Err *e);

/* Local. io_make_dirs makes a folder and its missing parents, durably; io_make_dir makes one
 * folder, which must not exist. */
bool io_make_dirs(const char *path, Err *e);
bool io_make_dir(const char *path, Err *e);
bool io_rename(const char *from, const char *to, Err *e);
/* Local. Makes the names in a folder durable. */
bool io_sync_dir(const char *path, Err *e);
/* Local. Removes a file, or a folder with its contents; a missing path is no error. Follows no
 * links. */
bool io_remove_tree(const char *path, Err *e);
bool io_exists(const char *path);
bool io_is_folder(const char *path);
/* Local. Bytes that this user may still write to the file system of a folder; INFINITY: unknown. */
double io_free_bytes(const char *folder);
/* Local. Does the folder contain a file or folder of this name? */
bool io_exists_in(const char *folder, const char *name);

/* One file, written by all ranks at once:
 *
 *     io_share(&f, path, n_bytes, group, e)         rank 0 creates it, then the others open it
 *     ok = io_put(&f, at, p, n, e) && ...           each rank its own ranges, in any order
 *     io_share_finish(&f, ok, group, &crc, e)       synced and closed; when a rank failed, rank 0's
 *                                                   caller removes the file
 *
 * Results and reasons are the same on all ranks (group_agree). With several ranks the checksum is
 * computed by reading the file back, each rank a range of bytes; a single rank computes it while it
 * writes. */
/* Collective. Makes a file of n_bytes; bytes that are never put stay zero. After success
 * io_share_finish follows on every rank. */
bool io_share(IoFile *f, const char *path, uint64_t n_bytes, const Group *g, Err *e);
/* Collective. ok: all puts of this rank succeeded; if not, e has the reason. crc may be NULL. */
bool io_share_finish(IoFile *f, bool ok, const Group *g, uint32_t *crc, Err *e);
/* Collective. CRC-32C of a file of n_bytes, each rank reading its share. */
bool io_share_checksum(const char *path, uint64_t n_bytes, const Group *g, uint32_t *crc, Err *e);

/* Local. Prepares the standard output for an output named "-": from here on only that output goes
 * there, and text for people goes to the standard error. Must be called before anything is
 * printed; a program that prints nothing before it opens its output need not call it. */
void io_keep_stdout(void);
/* Local. A new descriptor (closed by the caller). For "-": of the standard output; the first call
 * sends text for people to the standard error from then on (io_keep_stdout). For a regular file
 * that is the standard output or error (/dev/stdout while it goes to a file): one that shares its
 * position, so that other writers of that file overwrite nothing. -1 for other names. */
int io_stdout(const char *path);

/* For tests. The nth (1 = next) system call of this thread that changes the disk fails with "No
 * space left on device", or, with kill, ends the process as kill -9 would. 0 switches this off.
 * Returns the number of such calls since the last io_inject. */
int io_inject(int nth, bool kill);

#endif
