#include "parallel/comm/nccl.h"

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
static const char *const later_names[] = {"ncclMemAlloc",           "ncclMemFree",
                                          "ncclCommRegister",       "ncclCommDeregister",
                                          "ncclCommWindowRegister", "ncclCommWindowDeregister"};
enum { NAMES = sizeof names / sizeof *names, LATER = sizeof later_names / sizeof *later_names };
_Static_assert(sizeof(Nccl) == (NAMES + LATER) * sizeof(void *), "a name for each function");
_Static_assert(offsetof(Nccl, mem_alloc) == NAMES * sizeof(void *), "later ones are the last");

NcclConfig nccl_config(void) {
    return (NcclConfig){.size = sizeof(NcclConfig),
                        .magic = (unsigned)NCCL_MAGIC,
                        .version = NCCL_OLDEST,
                        .blocking = NCCL_UNDEFINED,
                        .cluster_size = NCCL_UNDEFINED,
                        .min_ctas = NCCL_UNDEFINED,
                        .max_ctas = NCCL_UNDEFINED,
                        .network = NULL,
                        .split_share = NCCL_UNDEFINED};
}

static bool new_enough(const Nccl *n, const char *library, Err *e) {
    int version = 0;
    if (n->version(&version) == NCCL_SUCCESS && version >= NCCL_OLDEST) return true;
    return err(e, "%s has version %d; %d or later is needed", library, version, NCCL_OLDEST);
}

bool nccl_load(const char *library, Nccl *n, Err *e) {
    void *handle = library_open(library, names, NAMES, n, e);
    if (!handle) return false;
    library_find(handle, later_names, LATER, &n->mem_alloc);
    if (new_enough(n, library, e)) return true;
    dlclose(handle);
    return false;
}

static const char library[] = "libnccl.so.2";
static Nccl loaded;
static const Nccl *found;
static bool given;
static Err why;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void) {
    if (!given && nccl_load(library, &loaded, &why)) found = &loaded;
}

const Nccl *nccl(Err *e) {
    pthread_once(&once, find);
    if (!found) err(e, "%s", why.text);
    return found;
}

void nccl_override(const Nccl *n, const char *reason) {
    given = true;
    found = n && new_enough(n, library, &why) ? n : NULL;
    if (!n) err(&why, "%s", reason);
}
