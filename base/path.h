/* path -- parts of the name of a file. */
#ifndef BASE_PATH_H
#define BASE_PATH_H

#include <stdbool.h>

/* Pure. Its last part; does it end so? */
const char *path_name(const char *path);
bool path_ends(const char *path, const char *tail);
/* Local. Its folder, with the slash at the end; "." where it names none. Freed by mem_free. */
char *path_folder(const char *path);

#endif
