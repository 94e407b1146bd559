/* version -- which source this program was built from. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

#include <stdbool.h>

/* `git describe --always --dirty` at build time; in a git archive its commit, else "unknown". */
const char *version_commit(void);
/* Local. Distinguishes this program from another build of the same source: the CRC-32C of the
 * program's file as eight hexadecimal digits, computed once; "unknown" where the system hides the
 * file. */
const char *version_build(void);
/* Local. The same for any file; false when it cannot be read. */
bool version_of(const char *path, char text[16]);

#endif
