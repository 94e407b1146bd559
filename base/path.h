/* path -- parts of the name of a file. */
#ifndef BASE_PATH_H
#define BASE_PATH_H

#include <stdbool.h>

/* Pure. The last component of a path; whether a path ends with `tail`. */
const char *path_name(const char *path);
bool path_ends(const char *path, const char *tail);
/* Local. The folder of a path, with the slash at its end; "." for a bare name. Freed by
 * mem_free. */
char *path_folder(const char *path);

#endif
