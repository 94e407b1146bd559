#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

void *library_open(const char *library, const char *const *names, int n, void *functions, Err *e) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        err_set(e, "%s", dlerror());
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        void *f = dlsym(handle, names[i]);
        if (!f) {
            err_set(e, "%s has no %s", library, names[i]);
            dlclose(handle);
            return NULL;
        }
        // POSIX: an address of a function has the bits of one of data
        memcpy((char *)functions + (size_t)i * sizeof f, &f, sizeof f);
    }
    return handle;
}
