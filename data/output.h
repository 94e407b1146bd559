/* output -- how every program writes a file that the user named.
 *
 *     a regular file, or none yet    written beside it as PATH.tmp-HOST-PID, then renamed over it:
 *                                    whole or not at all, with the permissions of the file that it
 *                                    replaces; its folder is made where it is missing
 *     a symbolic link                the same for the file that the link points to; the link stays
 *     a FIFO, a device, a socket     written in place, front to back, and never replaced
 *     "-", /dev/stdout to a file     the standard output (io_stdout), after its present contents
 *     a directory                    refused
 *
 *     output_open(&o, path, regular, &e), io_create(&f, o.part, &e), io_put, io_finish,
 *     output_commit(&o, &e) or output_abandon(&o)
 *
 * Replace is for a file that one process writes from front to back. A failure ends the program with
 * one line:
 *
 *     Replace *r = replace_open("x.bin", false);   makes x.bin.tmp-HOST-PID
 *     replace_write(r, p, n);
 *     replace_finish(r);                           everything is on the disk
 *     replace_commit(r);                           renamed to x.bin
 *
 * Several files appear at (nearly) the same time when all are finished before the first is
 * committed. Files that grow by records are in data/logfile.h; they follow links in the same
 * way. */
#ifndef DATA_OUTPUT_H
#define DATA_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/die.h"
#include "data/io.h"

typedef struct Output {
    char *path; // final path, links followed
    char *part; // path that is created and written: a temporary, or `path` itself when in_place
    bool in_place;
} Output;

/* Local. Decides where to write, and makes the folder; creates no file. Removes temporaries of this
 * file that killed processes left behind. regular: the format is not written from front to back, so
 * only a regular file is accepted. */
bool output_open(Output *o, const char *path, bool regular, Err *e);
/* Local. output_commit renames the written file to its final path, durably; on failure it removes
 * the file. output_abandon removes the file. Both end o. */
bool output_commit(Output *o, Err *e);
void output_abandon(Output *o);
/* Collective. Can these ranks write this file together? Asked before a long run whose end writes
 * it. */
bool output_possible(const char *path, bool regular, const Group *g, Err *e);

/* The name of a temporary file says which process writes it, so that temporaries of killed
 * processes can be found and removed. */
/* Local. "PATH.tmp-HOST-PID" of this process; freed by mem_free. */
char *temporary_name(const char *path);
/* Local. Removes temporaries in a directory whose name begins with `prefix`: those of processes of
 * this machine that have ended and of this process, or (all) of every process. */
void temporary_clean(const char *dir, const char *prefix, bool all);

/* A file that one process writes from front to back. A failed write (a full disk) removes every
 * temporary file and dies. To be used by one thread only. */
typedef struct Replace Replace;

/* Local. Dies when the temporary file cannot be made, or when `path` is a file that this program
 * reads. regular: replace_patch will be called, so only a regular file is accepted. */
Replace *replace_open(const char *path, bool regular);
/* Local. Appends n bytes. */
void replace_write(Replace *r, const void *p, size_t n);
/* Local. Overwrites n bytes at `offset` that were written before: for numbers known only at the
 * end. */
void replace_patch(Replace *r, uint64_t offset, const void *p, size_t n);
/* Local. Writes the buffered bytes and waits for the disk. */
void replace_finish(Replace *r);
/* Local. Renames the finished file into place and frees r. */
void replace_commit(Replace *r);
/* Local. Writes a whole file of n bytes: open, write, commit. `what` is "", or the option that
 * names the file in messages ("--svg") and that has claimed the path (base/claim.h). */
void replace_whole(const char *what, const char *path, const void *p, size_t n);
/* Local. As replace_whole, for a text that is printed to t->f between begin and end. */
typedef struct ReplaceText {
    FILE *f;
    char *text;
    size_t n;
} ReplaceText;
void replace_text_begin(ReplaceText *t);
void replace_text_end(ReplaceText *t, const char *what, const char *path);
/* Local. As replace_whole, for JSON as json_dumpf writes it with these flags. */
void replace_json(const char *what, const char *path, const json_t *x, size_t how);
/* Local. Removes the temporary files of every open Replace. May be called in a signal handler and
 * by die_set_hook. */
void replace_abandon_all(int status);

#endif
