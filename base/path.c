#include "base/path.h"

#include <string.h>

#include "base/mem.h"

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool path_ends(const char *path, const char *tail) {
    size_t n = strlen(path), m = strlen(tail);
    return n >= m && strcmp(path + n - m, tail) == 0;
}

char *path_folder(const char *path) {
    int n = (int)(path_name(path) - path);
    return n ? mem_printf("%.*s", n, path) : mem_strdup(".");
}
