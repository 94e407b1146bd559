/* output -- how a file that the user named is written: the one way for every output of every
 * program.
 *
 *     a regular file, or none yet    written beside it as PATH.tmp-HOST-PID, then renamed over it:
 *                                    whole or not at all, with the permissions of the file that it
 *                                    replaces
 *     a symbolic link                the same for the file that the link points to; the link stays
 *     a FIFO, a device, a socket     written in place, front to back, and never replaced
 *     "-", /dev/stdout to a file     the standard output (io_stdout), after what it holds
 *     a directory                    refused
 *
 *     output_open(&o, path, regular, &e), io_create(&f, o.part, &e), io_put, io_finish,
 *     output_commit(&o, &e) or output_abandon(&o)
 *
 * and for a file that one process writes from front to back, with a line and the end of the program
 * where that fails:
 *
 *     Replace *r = replace_open("x.bin", false);   makes x.bin.tmp-HOST-PID
 *     replace_write(r, p, n);
 *     replace_finish(r);                           everything is on the disk
 *     replace_commit(r);                           now it is x.bin
 *
 * Several files appear together (nearly) when all are finished before the first is committed. Files
 * that grow by records are data/logfile.h's; they follow links in the same way.
 */
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
    char *path; // where it will be, links followed
    char *part; // what is created and written; the same as path when written in place
    bool in_place;
} Output;

/* Local. Decides where to write; creates nothing. Removes temporaries of this file that killed
 * processes left. regular: for a format that is not written from front to back, which refuses what
 * is no regular file. */
bool output_open(Output *o, const char *path, bool regular, Err *e);
/* Local. The written file gets its name, durably. Ends o, as does output_abandon, which removes
 * what was written. On failure what was written is removed. */
bool output_commit(Output *o, Err *e);
void output_abandon(Output *o);
/* Collective. Could these ranks write a file here together at the end of a long run? */
bool output_possible(const char *path, bool regular, const Group *g, Err *e);

/* Names of what is under construction say which process writes it, so what a killed process left
 * behind can be found and removed. */
/* Local. "PATH.tmp-HOST-PID" of this process; freed by mem_free. */
char *temporary_name(const char *path);
/* Local. Removes temporaries in a directory whose name begins with `prefix`: those of processes of
 * this machine that have ended and of this process, or (all) of every process. */
void temporary_clean(const char *dir, const char *prefix, bool all);

/* A failed write (a full disk) removes every temporary file and dies. From one thread only. */
typedef struct Replace Replace;

/* Local. Dies when the temporary file cannot be made, or when `path` is a file that this program
 * reads. regular: replace_patch will change bytes of it. */
Replace *replace_open(const char *path, bool regular);
/* Local. Appends n bytes. */
void replace_write(Replace *r, const void *p, size_t n);
/* Local. Overwrites the n bytes at `offset`, which were written before: for numbers known only at
 * the end. */
void replace_patch(Replace *r, uint64_t offset, const void *p, size_t n);
/* Local. Writes what is buffered and waits for the disk. */
void replace_finish(Replace *r);
/* Local. Renames the finished file into place and frees r. */
void replace_commit(Replace *r);
/* Local. All of that for n bytes. `what` names the option of the file in messages, and has claimed
 * the path (base/claim.h): "--svg"; or it is "". */
void replace_whole(const char *what, const char *path, const void *p, size_t n);
/* Local. The same for a text that is made in memory first: write to f. */
typedef struct ReplaceText {
    FILE *f;
    char *text;
    size_t n;
} ReplaceText;
void replace_text_begin(ReplaceText *t);
void replace_text_end(ReplaceText *t, const char *what, const char *path);
/* Local. The same for JSON, written as json_dumpf does with these flags. */
void replace_json(const char *what, const char *path, const json_t *x, size_t how);
/* Local. Removes the temporary files of all that are open. May be called in a signal handler and by
 * die_set_hook. */
void replace_abandon_all(int status);

#endif
