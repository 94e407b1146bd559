#include "layers/cuda/matmul_choices.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "base/rng.h"

_Static_assert(sizeof(AlgorithmChoice) == CHOICE_KEY + sizeof(LtAlgorithm) + 8, "no holes");

/* The file's name depends on everything that all entries depend on. */
static char *path_of(const char *device, uint64_t version) {
    char name[64], *of = mem_printf("%s, cuBLASLt %" PRIu64 " or own, entries of %zu bytes", device,
                                    version, sizeof(AlgorithmChoice));
    snprintf(name, sizeof name, "matmuls-%016" PRIx64 ".bin", rng_stream(of));
    mem_free(of);
    return cache_path(name);
}

static int open_file(const char *path, Err *e) {
    if (!path) return err(e, "neither XDG_CACHE_HOME nor HOME is set"), -1;
    if (!cache_make_folders(path, e)) return -1;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) err(e, "cannot open %s: %s", path, strerror(errno));
    return file;
}

int choices_lock(const char *device, uint64_t version) {
    char *path = path_of(device, version);
    Err e;
    int file = open_file(path, &e);
    if (file < 0) warn("cannot store the chosen matmul algorithms for later runs: %s", e.text);
    while (file >= 0 && flock(file, LOCK_EX) && errno == EINTR) continue;
    mem_free(path);
    return file; // locked, or only open where a file system has no locks
}

void choices_unlock(int file) {
    if (file >= 0) close(file);
}

static uint32_t crc_of(const AlgorithmChoice *c) {
    return crc32c(0, c, offsetof(AlgorithmChoice, crc));
}

bool choices_find(int file, AlgorithmChoice *c) {
    AlgorithmChoice one;
    bool found = false;
    for (off_t at = 0; file >= 0; at += (off_t)sizeof one) {
        if (pread(file, &one, sizeof one, at) != sizeof one) break;
        if (memcmp(one.key, c->key, sizeof one.key) != 0 || one.crc != crc_of(&one)) continue;
        *c = one, found = true;
    }
    return found;
}

void choices_add(int file, AlgorithmChoice *c) {
    struct stat s;
    if (file < 0 || fstat(file, &s)) return;
    // overwrites an entry that was written in part
    off_t end = s.st_size / (off_t)sizeof *c * (off_t)sizeof *c;
    c->crc = crc_of(c);
    if (pwrite(file, c, sizeof *c, end) != sizeof *c)
        warn("cannot store a chosen matmul algorithm for later runs: %s", strerror(errno));
}
