#include "parallel/nccl.h"

#include <dlfcn.h>
#include <pthread.h>

#include "base/library.h"

static const char *const names[] = {
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclCommGetAsyncError",
    "ncclAllReduce",
    "ncclReduceScatter",
    "ncclAllGather",
    "ncclBroadcast",
    "ncclReduce",
    "ncclSend",
    "ncclRecv",
    "ncclGroupStart",
    "ncclGroupEnd",
};
enum { NAMES = sizeof names / sizeof *names };
_Static_assert(sizeof(Nccl) == NAMES * sizeof(void *), "a name for each function");

bool nccl_load(const char *library, Nccl *n, Err *e) {
    void *handle = library_open(library, names, NAMES, n, e);
    int version = 0;
    if (!handle) return false;
    if (n->version(&version) == NCCL_SUCCESS && version >= NCCL_OLDEST) return true;
    dlclose(handle);
    return err(e, "%s is of version %d, before %d", library, version, NCCL_OLDEST);
}

static Nccl loaded;
static const Nccl *found;
static Err why;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void) {
    if (!found && nccl_load("libnccl.so.2", &loaded, &why)) found = &loaded;
}

const Nccl *nccl(Err *e) {
    pthread_once(&once, find);
    if (!found) err(e, "%s", why.text);
    return found;
}

void nccl_give(const Nccl *n) {
    found = n;
}
