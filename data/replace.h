/* replace -- a file that one process writes from front to back, whole or not at all
 * (data/output.h).
 *
 *     Replace *r = replace_open("x.bin");     makes x.bin.tmp-HOST-PID
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
#include <stdio.h>

typedef struct Replace Replace;

/* Local. Dies when the temporary file cannot be made, or when `path` is a file that this program
 * reads. */
Replace *replace_open(const char *path);
/* Local. The same for a file of which replace_patch will change bytes: refuses what is no regular
 * file. */
Replace *replace_open_regular(const char *path);
/* Local. Appends n bytes. */
void replace_write(Replace *r, const void *p, size_t n);
/* Local. Overwrites the n bytes at `offset`, which were written before: for numbers known only at
 * the end. */
void replace_patch(Replace *r, uint64_t offset, const void *p, size_t n);
/* Local. Writes what is buffered and waits for the disk. */
void replace_finish(Replace *r);
/* Local. Renames the finished file into place and frees r. */
void replace_commit(Replace *r);
/* Local. A file that is small enough to be made in memory first: write to f. `what` names its
 * option in messages, and has claimed the path (base/claim.h): "--svg". */
typedef struct ReplaceText {
    FILE *f;
    char *text;
    size_t n;
} ReplaceText;
void replace_text_begin(ReplaceText *t);
void replace_text_end(ReplaceText *t, const char *what, const char *path);
/* Local. Removes the temporary files of all that are open. May be called in a signal handler and by
 * die_set_hook. */
void replace_abandon_all(int status);

#endif
