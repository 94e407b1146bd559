/* nccl -- what this program uses of NVIDIA's NCCL, without its header and without linking to it: the library is loaded when
 * ranks on GPUs need it. Names and numbers are those of the NCCL reference, compared with the library's own header where
 * there is one (tests/nccl_headers.cu, by make cuda-check).
 */
#ifndef PARALLEL_NCCL_H
#define PARALLEL_NCCL_H

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
enum NcclFold { NCCL_SUM = 0, NCCL_MAX = 2 };

/* As version 2.18 has it: later ones read no more than `size` says. */
enum { NCCL_MAGIC = (int)0xcafebeef, NCCL_OLDEST = 21801, NCCL_UNDEFINED = -2147483647 - 1 };
enum {
    NCCL_SYMMETRIC = 1
}; // of window_register: collectives have the same place in it on all ranks
typedef struct NcclConfig {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, min_ctas, max_ctas;
    const char *network;
    int split_share;
} NcclConfig;

/* Pure. As the library's initializer of that version: what the caller does not set is left to it. */
NcclConfig nccl_config(void);

/* Functions of the library, in the order of their names in nccl.c; those that return int return a NcclResult. The last ones
 * came with versions after the oldest: NULL where they are not. */
typedef struct Nccl {
    int (*version)(int *version);
    int (*unique_id)(NcclId *id);
    int (*init)(NcclComm *c, int size, NcclId id, int rank, NcclConfig *config);
    int (*destroy)(NcclComm c);
    int (*abort)(NcclComm c);
    const char *(*error_string)(int result);
    const char *(*last_error)(NcclComm c);
    int (*async_error)(NcclComm c, int *result);
    int (*all_reduce)(const void *src, void *dst, size_t n, int type, int fold, NcclComm c,
                      Stream s);
    int (*reduce_scatter)(const void *src, void *dst, size_t n_dst, int type, int fold, NcclComm c,
                          Stream s);
    int (*all_gather)(const void *src, void *dst, size_t n_src, int type, NcclComm c, Stream s);
    int (*broadcast)(const void *src, void *dst, size_t n, int type, int root, NcclComm c,
                     Stream s);
    int (*reduce)(const void *src, void *dst, size_t n, int type, int fold, int root, NcclComm c,
                  Stream s);
    int (*send)(const void *src, size_t n, int type, int to, NcclComm c, Stream s);
    int (*receive)(void *dst, size_t n, int type, int from, NcclComm c, Stream s);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*mem_alloc)(void **p, size_t n_bytes); // 2.19: memory that can be registered in every way
    int (*mem_free)(void *p);
    int (*buffer_register)(NcclComm c, void *p, size_t n_bytes, void **handle); // 2.19
    int (*buffer_deregister)(NcclComm c, void *handle);
    int (*window_register)(NcclComm c, void *p, size_t n_bytes, void **window, int flags); // 2.27
    int (*window_deregister)(NcclComm c, void *window);
} Nccl;

/* Local. Loads a library of this name or path; false when it is not there, too old, or lacks a function. */
bool nccl_load(const char *library, Nccl *n, Err *e);
/* Local. The library of this machine, loaded once per process; NULL, with the reason, when there is none. */
const Nccl *nccl(Err *e);
/* Local. From now on this one is the library of this machine; NULL: there is none, for this reason. */
void nccl_give(const Nccl *n, const char *reason);

#endif
