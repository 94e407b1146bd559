#include "base/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

char *cache_path(const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/') // the XDG specification: a relative path is to be ignored
        return mem_printf("%s/train_gpt/%s", cache, name);
    return home && *home ? mem_printf("%s/.cache/train_gpt/%s", home, name) : NULL;
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
