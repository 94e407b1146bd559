/* replace -- a file that appears whole or not at all.
 *
 *     Replace *r = replace_open("x.bin");     makes x.bin.<pid>.tmp
 *     replace_write(r, p, n);
 *     replace_finish(r);                      everything is on the disk
 *     replace_commit(r);                      now it is x.bin
 *
 * Several files appear together (nearly) when all are finished before the first is committed. A
 * failed write (a full disk) removes every temporary file and dies. From one thread only.
 */
#ifndef DATA_REPLACE_H
#define DATA_REPLACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct Replace Replace;

/* Local. Dies when the temporary file cannot be made. */
Replace *replace_open(const char *path);
/* Local. Appends n bytes. */
void replace_write(Replace *r, const void *p, size_t n);
/* Local. Overwrites the n bytes at `offset`, which were written before: for numbers known only at
 * the end. */
void replace_patch(Replace *r, uint64_t offset, const void *p, size_t n);
/* Local. Writes what is buffered and waits for the disk. */
void replace_finish(Replace *r);
/* Local. Renames the finished file into place and frees r. */
void replace_commit(Replace *r);
/* Local. Removes the temporary files of all that are open. May be called in a signal handler and by
 * die_set_hook. */
void replace_abandon_all(int status);

#endif
