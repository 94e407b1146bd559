#include "base/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

char *cache_path(const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/') // the XDG specification: a relative path is to be ignored
        return mem_printf("%s/train_gpt/%s", cache, name);
    return home && *home ? mem_printf("%s/.cache/train_gpt/%s", home, name) : NULL;
}

FILE *cache_open(const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fdopen(fd, "r");
    close(fd);
    errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    return NULL;
}

bool cache_is_own(FILE *f, Err *e) {
    struct stat st;
    if (fstat(fileno(f), &st)) return err(e, "%s", strerror(errno));
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err(e, "the file belongs to another user (%ld): remove it, or set XDG_CACHE_HOME",
                   (long)st.st_uid);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return err(e, "other users can write the file (mode %03o)", (unsigned)st.st_mode & 0777);
    return true;
}

bool cache_make_folders(const char *path, Err *e) {
    char *up = mem_strdup(path);
    bool ok = true;
    for (char *slash = strchr(up + (*up == '/'), '/'); ok && slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(up, 0777) && errno != EEXIST)
            ok = err(e, "cannot make the folder %s: %s", up, strerror(errno));
        *slash = '/';
    }
    mem_free(up);
    return ok;
}
