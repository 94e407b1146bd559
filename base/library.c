#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

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
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        err_set(e, "%s", dlerror());
        return NULL;
    }
    int found = library_find(handle, names, n, functions);
    if (found == n) return handle;
    err_set(e, "%s has no %s", library, names[found]);
    dlclose(handle);
    return NULL;
}
