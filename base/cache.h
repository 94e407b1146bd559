/* cache -- the user's folder for what one run learns and the next one uses:
 * $XDG_CACHE_HOME/train_gpt, or ~/.cache/train_gpt. No file in the folder is required: a run that
 * cannot write to the folder continues.
 */
#ifndef BASE_CACHE_H
#define BASE_CACHE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/die.h"

/* Local. The path of file `name` in the folder (mem_free); NULL where neither variable is set. */
char *cache_path(const char *name);
/* Local. Opens a regular file for reading; NULL with errno for anything else. Never blocks on a
 * pipe. */
FILE *cache_open(const char *path);
/* Local. Does an open file belong to this user (or to root), with no write permission for others?
 * False with a reason. */
bool cache_is_own(FILE *f, Err *e);
/* Local. Makes the missing folders above a file. */
bool cache_make_folders(const char *path, Err *e);

#endif
