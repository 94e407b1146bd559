/* version -- which source this program was built from. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

#include <stdbool.h>

/* `git describe --always --dirty` at build time, "unknown" outside a repository. */
const char *version_commit(void);
/* Local. What tells this program from another build of the same source: eight hexadecimal digits of
 * the checksum of its file, read once; "unknown" where the system does not show it. */
const char *version_build(void);
/* Local. The same of any file; false: it cannot be read. */
bool version_of(const char *path, char text[16]);

#endif
