/* output -- how a file that the user named is written: the one way for every output of every
 * program.
 *
 *     a regular file, or none yet    written beside it (data/temporary.h), then renamed over it:
 *                                    whole or not at all, with the permissions of the file that it
 *                                    replaces
 *     a symbolic link                the same for the file that the link points to; the link stays
 *     a FIFO, a device, a socket     written in place, front to back, and never replaced
 *     "-"                            the standard output (io_keep_stdout)
 *     a directory                    refused
 *
 *     output_open(&o, path, &e), io_create(&f, o.part, &e), io_put, io_finish,
 *     output_commit(&o, &e) or output_abandon(&o)
 *
 * data/replace.h is that for a file written from front to back by one process. Files that grow by
 * records are data/logfile.h's; they follow links in the same way.
 */
#ifndef DATA_OUTPUT_H
#define DATA_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/die.h"

typedef struct Output {
    char *path; // where it will be, links followed
    char *part; // what is created and written; the same as path when written in place
    bool in_place;
} Output;

/* Local. Decides where to write; creates nothing. Removes temporaries of this file that killed
 * processes left. */
bool output_open(Output *o, const char *path, Err *e);
/* Local. The same for a format that is not written from front to back: refuses what is no regular
 * file. */
bool output_open_regular(Output *o, const char *path, Err *e);
/* Local. The written file gets its name, durably. Ends o, as does output_abandon, which removes
 * what was written. On failure what was written is removed. */
bool output_commit(Output *o, Err *e);
void output_abandon(Output *o);
/* Local. Could a file be written here at the end of a long run? `regular`: of a format for
 * output_open_regular. */
bool output_possible(const char *path, bool regular, Err *e);

#endif
