/* opt_file -- a file of options, in one of three forms:
 *
 *     lines     lr = 6e-4       or "lr 6e-4", "lr: 6e-4", "--lr 6e-4"; "resume" alone is a switch;
 *                               # begins a comment; quotes keep a value as it is
 *     JSON      {"lr": 6e-4, "resume": true}
 *     a record  the first line of train_gpt --json, or train_state.json of a checkpoint: all
 *               options of that run
 *
 * A folder stands for the train_state.json in it.
 */
#ifndef BASE_OPT_FILE_H
#define BASE_OPT_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/die.h"

typedef struct OptPair {
    char *name, *value; // as written; value NULL: none
    int line;           // from 1
} OptPair;

typedef struct OptFile {
    char *path; // of the file that was read
    OptPair *pair;
    int n;
    bool record; // a record of a run: all its options, defaults included
} OptFile;

/* Local, pure. Parses n bytes of text; does not check names and values. On failure the reason
 * begins with the line: "3: ...". */
bool opt_file_parse(const char *text, size_t n, OptFile *out, Err *e);
/* Local. Reads and parses a file, or a folder's train_state.json; the reason names the file, and
 * begins with "path:line: " where parsing failed. */
bool opt_file_read(const char *path, OptFile *out, Err *e);
void opt_file_free(OptFile *f);

#endif
