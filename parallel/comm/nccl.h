/* nccl -- the functions of NVIDIA's NCCL that this program uses, without its header and without
 * linking: the library is loaded when ranks on GPUs need it. Names and numbers are from the NCCL
 * reference, and compared with nccl.h where it is installed (tests/nccl_headers.cu, by make
 * cuda-check).
 */
#ifndef PARALLEL_COMM_NCCL_H
#define PARALLEL_COMM_NCCL_H

#include <stddef.h>

#include "base/die.h"
#include "layers/cuda/device.h"

typedef struct NcclCommOf *NcclComm;
typedef struct NcclId {
    char bytes[128];
} NcclId;

enum NcclResult { NCCL_SUCCESS = 0, NCCL_INVALID_USAGE = 5, NCCL_IN_PROGRESS = 7 };
enum NcclType {
    NCCL_U8 = 1,
    NCCL_I32 = 2,
    NCCL_I64 = 4,
    NCCL_F32 = 7,
    NCCL_F64 = 8,
    NCCL_BF16 = 9
};
enum { NCCL_SUM = 0 };

/* ncclConfig_t of version 2.18; later versions of the library read only `size` bytes. */
enum { NCCL_MAGIC = (int)0xcafebeef, NCCL_OLDEST = 21801, NCCL_UNDEFINED = -2147483647 - 1 };
/* Flag of window_register: a collective uses the same offset in the window on all ranks. */
enum { NCCL_SYMMETRIC = 1 };
typedef struct NcclConfig {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, min_ctas, max_ctas;
    const char *network;
    int split_share;
} NcclConfig;

/* Pure. The initializer of version 2.18. Fields that the caller does not set keep NCCL's
 * defaults. */
NcclConfig nccl_config(void);

/* Functions of the library, in the order of their names in nccl.c. An int result is a NcclResult.
 * The last six came with later versions: NULL if the library lacks them. */
typedef struct Nccl {
    int (*version)(int *version);
    int (*unique_id)(NcclId *id);
    int (*init)(NcclComm *c, int size, NcclId id, int rank, NcclConfig *config);
    int (*destroy)(NcclComm c);
    int (*abort)(NcclComm c);
    const char *(*error_string)(int result);
    const char *(*last_error)(NcclComm c);
    int (*async_error)(NcclComm c, int *result);
    int (*all_reduce)(const void *src, void *dst, size_t n, int type, int op, NcclComm c, Stream s);
    int (*reduce_scatter)(const void *src, void *dst, size_t n_dst, int type, int op, NcclComm c,
                          Stream s);
    int (*all_gather)(const void *src, void *dst, size_t n_src, int type, NcclComm c, Stream s);
    int (*broadcast)(const void *src, void *dst, size_t n, int type, int root, NcclComm c,
                     Stream s);
    int (*reduce)(const void *src, void *dst, size_t n, int type, int op, int root, NcclComm c,
                  Stream s);
    int (*send)(const void *src, size_t n, int type, int to, NcclComm c, Stream s);
    int (*receive)(void *dst, size_t n, int type, int from, NcclComm c, Stream s);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*mem_alloc)(void **p, size_t n_bytes); // 2.19: memory for both kinds of registration
    int (*mem_free)(void *p);
    int (*buffer_register)(NcclComm c, void *p, size_t n_bytes, void **handle); // 2.19
    int (*buffer_deregister)(NcclComm c, void *handle);
    int (*window_register)(NcclComm c, void *p, size_t n_bytes, void **window, int flags); // 2.27
    int (*window_deregister)(NcclComm c, void *window);
} Nccl;

/* Local. Loads a library of this name or path. False: missing, too old, or without a function. */
bool nccl_load(const char *library, Nccl *n, Err *e);
/* Local. The library of this machine, loaded once per process. NULL, with the reason: there is
 * none. */
const Nccl *nccl(Err *e);
/* Local. For tests: replaces the library of this machine. n NULL: there is no library, for this
 * reason. */
void nccl_override(const Nccl *n, const char *reason);

#endif
