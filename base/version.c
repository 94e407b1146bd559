#include "base/version.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/mem.h"

#ifndef COMMIT
#define COMMIT "unknown"
#endif

static const char archived[] = "$Format:%h$"; // in a git archive: the commit (.gitattributes)

const char *version_commit(void) {
    return archived[0] == '$' ? COMMIT : archived;
}

bool version_of(const char *path, char text[16]) {
    enum { PIECE = 1 << 20 };
    FILE *f = fopen(path, "re");
    uint32_t crc = 0;
    if (!f) return false;
    char *p = mem_alloc(PIECE);
    for (size_t n; (n = fread(p, 1, PIECE, f)) > 0;) crc = crc32c(crc, p, n);
    bool ok = !ferror(f);
    snprintf(text, 16, "%08" PRIx32, crc);
    mem_free(p);
    fclose(f);
    return ok;
}

static char build[16];

static void read_build(void) {
    if (!version_of("/proc/self/exe", build)) strcpy(build, "unknown");
}

const char *version_build(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT; // ranks may be threads
    pthread_once(&once, read_build);
    return build;
}
