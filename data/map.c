#include "data/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/die.h"

Map map_open(const char *path) {
    struct stat st;
    // O_NONBLOCK: opening a pipe must not wait for a writer
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) die("cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st)) die("cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        die("%s is a folder; name the files in it, e.g. \"%s/*.bin\"", path, path);
    if (!S_ISREG(st.st_mode))
        die("%s is no regular file and cannot be mapped; copy it to one", path);
    Map m = {.n = (size_t)st.st_size};
    if (m.n) {
        m.p = mmap(NULL, m.n, PROT_READ, MAP_SHARED, fd, 0);
        if (m.p == MAP_FAILED) die("cannot map %s (%zu bytes): %s", path, m.n, strerror(errno));
    }
    close(fd);
    return m;
}

void map_close(Map *m) {
    if (m->p) munmap(m->p, m->n);
    *m = (Map){0};
}

void map_prefetch(const void *p, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)p / page * page;
    madvise((void *)start, n + ((uintptr_t)p - start),
            MADV_WILLNEED); // advice: failure is harmless
}
