/* cache -- the user's folder for what one run learns and the next one uses:
 * $XDG_CACHE_HOME/train_gpt, or ~/.cache/train_gpt. Nothing in it is needed: a run that cannot
 * write there goes on.
 */
#ifndef BASE_CACHE_H
#define BASE_CACHE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/die.h"

/* Local. The path of a file in it (mem_free); NULL where the environment names neither folder. */
char *cache_path(const char *name);
/* Local. fopen(path, "r") of a regular file; NULL with errno for all else. A pipe in the cache is
 * not waited for. */
FILE *cache_open(const char *path);
/* Local. Does an open file belong to this user (or to root), with no write permission for others?
 * False with a reason. */
bool cache_is_own(FILE *f, Err *e);
/* Local. Makes the missing folders above a file. */
bool cache_make_folders(const char *path, Err *e);

#endif
