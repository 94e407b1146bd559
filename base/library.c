#include "base/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *user_folders = "";

void library_folders(const char *folders) {
    user_folders = folders;
}

bool library_unwanted(void) {
    return strcmp(user_folders, "none") == 0;
}

/* Opens the library in the first folder of a list, separated by ':', that has it. `below` is
 * appended to each folder and may be a pattern of glob. */
static void *open_in(const char *list, const char *below, const char *library) {
    void *handle = NULL;
    for (const char *p = list ? list : ""; *p && !handle; p += strcspn(p, ":"), p += *p == ':') {
        char pattern[4096];
        glob_t found;
        snprintf(pattern, sizeof pattern, "%.*s%s/%s", (int)strcspn(p, ":"), p, below, library);
        if (glob(pattern, 0, NULL, &found)) continue;
        for (size_t i = 0; i < found.gl_pathc && !handle; i++)
            handle = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
    }
    return handle;
}

static void *open_somewhere(const char *library, Err *e) {
    void *handle = strchr(library, '/') ? NULL : open_in(user_folders, "", library);
    if (!handle) handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle) return handle;
    err_set(e, "%s", dlerror());
    if (strchr(library, '/')) return NULL;
    handle = open_in(getenv("CUDA_HOME"), "/lib64", library);
    if (!handle) handle = open_in("/usr/local/cuda", "/lib64", library);
    if (handle) return handle;
    return open_in(getenv("PATH"), "/../lib/python3*/*-packages/nvidia/*/lib", library);
}

int library_find(void *handle, const char *const *names, int n, void *functions) {
    int found = n;
    for (int i = n - 1; i >= 0; i--) {
        void *f = dlsym(handle, names[i]);
        if (!f) found = i;
        // POSIX: an address of a function has the bits of one of data
        memcpy((char *)functions + (size_t)i * sizeof f, &f, sizeof f);
    }
    return found;
}

void *library_open(const char *library, const char *const *names, int n, void *functions, Err *e) {
    void *handle = open_somewhere(library, e);
    if (!handle) return NULL;
    int found = library_find(handle, names, n, functions);
    if (found == n) return handle;
    err_set(e, "%s has no %s", library, names[found]);
    dlclose(handle);
    return NULL;
}
