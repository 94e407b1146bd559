/* What parallel/comm/nccl.h says, against the library's own header: compiled by make cuda-check
 * where there is one, never run. */
#include <cstddef>
#include <nccl.h>

extern "C" {
#include "parallel/comm/nccl.h"
}

#define SAME(ours, theirs)                                                                         \
    static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #ours " is " #theirs)
SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_U8, ncclUint8);
SAME(NCCL_I32, ncclInt32);
SAME(NCCL_I64, ncclInt64);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_F64, ncclFloat64);
SAME(NCCL_BF16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(NCCL_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
SAME(sizeof(NcclId), sizeof(ncclUniqueId));

/* A beginning of the library's own. */
#define FIELD(ours, theirs) SAME(offsetof(NcclConfig, ours), offsetof(ncclConfig_t, theirs))
FIELD(magic, magic);
FIELD(version, version);
FIELD(blocking, blocking);
FIELD(cluster_size, cgaClusterSize);
FIELD(min_ctas, minCTAs);
FIELD(max_ctas, maxCTAs);
FIELD(network, netName);
FIELD(split_share, splitShare);

/* nccl_config() is the library's own initializer, but for the version and the size that goes with
 * it. */
constexpr ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
static_assert(initial.magic == static_cast<unsigned>(NCCL_MAGIC) &&
                  initial.blocking == NCCL_UNDEFINED && initial.cgaClusterSize == NCCL_UNDEFINED &&
                  initial.minCTAs == NCCL_UNDEFINED && initial.maxCTAs == NCCL_UNDEFINED &&
                  !initial.netName && initial.splitShare == NCCL_UNDEFINED,
              "nccl_config()");
static_assert(NCCL_OLDEST <= NCCL_VERSION_CODE && sizeof(NcclConfig) <= sizeof(ncclConfig_t),
              "a beginning");

/* The functions take what we hand over, in that order: each of ours is called with the types of the
 * library's. */
template <class A, class B> constexpr bool alike = sizeof(A) == sizeof(B);
template <class R, class... P, class Q, class... O>
constexpr bool same_call(R (*)(P...), Q (*)(O...)) {
    if constexpr (sizeof...(P) != sizeof...(O))
        return false;
    else
        return (alike<P, O> && ...) && alike<R, Q>;
}
#define CALL(ours, theirs) static_assert(same_call(Nccl().ours, theirs), #ours " is " #theirs)
CALL(version, ncclGetVersion);
CALL(unique_id, ncclGetUniqueId);
CALL(init, ncclCommInitRankConfig);
CALL(destroy, ncclCommDestroy);
CALL(abort, ncclCommAbort);
CALL(error_string, ncclGetErrorString);
CALL(last_error, ncclGetLastError);
CALL(async_error, ncclCommGetAsyncError);
CALL(all_reduce, ncclAllReduce);
CALL(reduce_scatter, ncclReduceScatter);
CALL(all_gather, ncclAllGather);
CALL(broadcast, ncclBroadcast);
CALL(reduce, ncclReduce);
CALL(send, ncclSend);
CALL(receive, ncclRecv);
CALL(group_start, ncclGroupStart);
CALL(group_end, ncclGroupEnd);
CALL(mem_alloc, ncclMemAlloc);
CALL(mem_free, ncclMemFree);
CALL(buffer_register, ncclCommRegister);
CALL(buffer_deregister, ncclCommDeregister);
CALL(window_register, ncclCommWindowRegister);
CALL(window_deregister, ncclCommWindowDeregister);
