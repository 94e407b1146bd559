/* version -- which source this program was built from. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

/* `git describe --always --dirty` at build time, "unknown" outside a repository. */
const char *version_commit(void);

#endif
