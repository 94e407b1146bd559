/* coll_backend -- what coll.c and its backends share.
 *
 * coll.c does what is common: it checks, numbers and counts calls and keeps those in flight. A
 * backend moves the bytes: it is called when a collective starts and when it is waited for, and may
 * do the work in either. Groups of one rank use coll_self.c.
 *
 * Every backend on host memory sums in the tree of coll_reduce.h.
 */
#ifndef PARALLEL_COMM_COLL_BACKEND_H
#define PARALLEL_COMM_COLL_BACKEND_H

#include <limits.h>

#include "base/arena.h"
#include "layers/device_clock.h"
#include "parallel/comm/coll_reduce.h"

/* When a rank's collectives were in flight and when they were exposed (parallel/plan/trace.h).
 *
 *   on the host   coll_start     computes     coll_wait
 *                 |========|                  |========|              exposed: begin to started,
 *                 begin   started             wait    end, complete            wait to end
 *
 *   on a device   matmul     begin |==================| complete      communication stream
 *                 matmul     matmul         wait |====| end   norm    compute stream, exposed wait
 *
 * For device memory these times are events in the streams, read when the step is done
 * (layers/device_clock.h).
 *
 * A collective that this rank has waited for. On the host the counters' seconds are the exposed
 * time. */
typedef struct CollSpan {
    const CollCall *call;
    const Comm *comm;
    int64_t bytes;         // received from other ranks
    Moment begin, started; // coll_start called; returned. Device: both are its begin
    Moment wait, end;      // coll_wait called; returned. Device: kernels wait; go on
    Moment complete;       // no longer in flight; device: this rank's part
} CollSpan;
typedef void CollWatch(void *ctx, const CollSpan *s);

/* Local. Sets a function that is called with every collective after its wait; NULL: none. clock: of
 * the rank's device; NULL: host clock. When a device computes, collectives on host memory are never
 * exposed. */
void world_set_watch(World *w, CollWatch *f, void *ctx, const DeviceClock *clock);

typedef struct CollBackend {
    const char *name;
    bool polled; // collectives progress only inside progress() and wait()
    // bytes of a message above which its receiver is asked first, a round trip; 0: never
    int64_t asks;
    // Local. Backends for device memory: is p device memory? Results are complete in the order of
    // the rank's stream, not when wait returns. Such a backend opens a group (c->device) at its
    // first call, collective over the group, as is close.
    bool (*takes)(const void *p);
    /* Collective over the world. Makes c->impl; rank, size and member are set. Here and below NULL
     * has nothing to do. */
    void (*open)(Comm *c);
    void (*close)(Comm *c); // Collective over the world, in the same order everywhere
    /* Local. Must not block. Calls of a group are numbered 1, 2, ...; *call lives until its
     * wait. */
    void (*start)(Comm *c, uint64_t number, const CollCall *call);
    /* Collective. Returns when src may be reused and dst is complete. */
    void (*wait)(Comm *c, uint64_t number, const CollCall *call);
    // coll_block, coll_block_done of a call that is not waited for yet; NULL: ranks share no memory
    void *(*block)(Comm *c, uint64_t number, const CollCall *call, int o);
    void (*block_done)(Comm *c, uint64_t number, const CollCall *call, int o);
    // coll_flags; NULL: there are none
    const uint32_t *(*flags)(Comm *c, uint64_t number, const CollCall *call, uint32_t *said);
    // Local. Handles arrived messages without the team, which is busy. NULL: nothing to handle
    void (*progress)(World *w);
    void (*barrier)(Comm *c); // Collective. Backends for host memory; NULL: nobody to wait for
    // Backends for device memory, or NULL: world_memory; and world_register and world_unregister,
    // called once all ranks have the same arena.
    const ArenaMemory *(*memory)(const World *w, const ArenaMemory *memory);
    void (*register_memory)(World *w, void *p, size_t n_bytes);
    void (*deregister_memory)(World *w, void *p);
    // world_share_memory, where there is no `block` yet
    bool (*share)(World *w, Err *e);
    // NULL: calls cannot be recorded (coll_record.h)
    const struct CollRecorder *recorder;
    void (*leave)(World *w); // the last call, or NULL: frees w->impl
} CollBackend;

typedef struct CountRow {
    CollCount count;
    const Comm *comm;
} CountRow;

struct Comm {
    World *world;
    const CollBackend *backend; // coll_self when size is 1
    Comm *next;                 // list of the world's groups, in the order of world_split
    char label[24];
    int rank, size;
    int *member;      // [size] ranks in the world
    uint64_t started; // calls so far
    struct {
        CollCall call;                   // call k is open[k % COLL_IN_FLIGHT]
        int row;                         // of the counters
        uint64_t number;                 // of the call in flight; 0: none
        const CollBackend *by;           // the backend of its memory
        Moment begin, started, complete; // as in CollSpan; complete: 0: at the end of the wait
    } open[COLL_IN_FLIGHT];
    void *impl, *device; // state of the backend, and of the backend for device memory
};

struct World {
    const CollBackend *backend, *device; // device: for device memory; or NULL
    int rank, size;
    char node[HOST_NAME_MAX + 1], phase[96];
    Team *team;
    double limit; // seconds, 0: none
    Comm *all, *last;
    CountRow *rows;
    int n_rows, max_rows;
    void *watch_ctx;
    CollWatch *watch;         // or NULL
    const DeviceClock *clock; // time source for tracing; NULL: host clock
    bool wait_at_start;       // --overlap none: every collective is waited for where it starts
    struct CollRecording *recording; // in progress; or NULL
    // tickets in flight; the same, but 0 inside a call of this world: when > 0 the team polls
    int n_open, wanted;
    void *impl, *device_impl;
};

/* Collective over the world, both. */
World *world_create(const CollBackend *b, int rank, int size, void *impl);
void world_free(World *w);
/* The world of a single rank, and that of processes of a launcher. The latter ends the job if not
 * all ranks have started within `limit` seconds (0: no limit), and dies in a build without MPI. */
extern const CollBackend coll_self, coll_threads;
World *world_self_open(void);
World *world_mpi_open(int rank, double limit);
/* State shared by n ranks that are threads. Each rank opens its own World of the job and calls
 * world_threads_left when it starts no more collectives. Freed when all Worlds are. */
typedef struct ThreadsJob ThreadsJob;
enum { MAX_THREAD_RANKS = 64 };
ThreadsJob *threads_job_create(int n);
void threads_job_free(ThreadsJob *job);
World *world_threads_open(ThreadsJob *job, int rank);
void world_threads_left(World *w);
/* Local. Sets the backend for device memory. */
void world_set_device(World *w, const CollBackend *b, void *impl);

/* Elements and bytes of one block, or of the buffer. */
static inline int64_t coll_elements(const CollCall *call) {
    return call->rows * call->cols;
}
static inline int64_t coll_block_bytes(const CollCall *call) {
    return coll_elements(call) * coll_type_bytes(call->type);
}
/* First element of part r when n elements are split into p parts; part r ends where r + 1
 * begins. */
static inline int64_t coll_part(int64_t n, int p, int r) {
    return n / p * r + (n % p * r) / p;
}
/* Does the operation reduce over ranks? Is the whole tensor made of blocks? */
static inline bool coll_spreads(CollOp op) {
    return op == COLL_REDUCE_SCATTER || op == COLL_ALL_REDUCE || op == COLL_REDUCE;
}
static inline bool coll_has_blocks(CollOp op) {
    return op == COLL_ALL_GATHER || op == COLL_REDUCE_SCATTER;
}
/* Bytes that a rank receives from others, as ring volumes. */
int64_t coll_bytes(const CollCall *call, int rank, int size);
/* Distance of neighbouring blocks of the whole in elements, dim 0. */
static inline int64_t coll_block_stride(const CollCall *call) {
    return call->stride ? call->stride : coll_elements(call);
}
/* all_gather: where this rank's block begins in dst, and where the next row of src begins, in
 * elements: src may be that very block. Blocks of dim 1 are size * cols apart in the whole. */
void *coll_own_block(const CollCall *call, int rank);
int64_t coll_src_stride(const CollCall *call, int rank, int size);
/* Are these the same call, as far as two ranks of a group must agree? Checked in debug builds. */
bool coll_agree(const CollCall *a, const CollCall *b);
/* Local. Ends the job with both calls. other: index of the other rank in the group. */
_Noreturn void coll_mismatch(const Comm *c, uint64_t number, const CollCall *mine, int other,
                             const CollCall *theirs);
enum { COLL_EXPIRED = 75, COLL_TEXT = 256 };
/* all_reduce "dx of qkv" of 4096 bytes along x; NULL: a barrier */
const char *coll_describe(const Comm *c, const CollCall *call, char text[COLL_TEXT]);
double coll_now(void); // seconds
// has a rank of this process reached its limit? Then the others stop waiting too
bool coll_expired(void);
/* Local. Prints that this rank waits for this, mostly as coll_describe has it. missing: "rank 2,
 * rank 5". */
void coll_say_waiting(const Comm *c, const char *what, double seconds, const char *missing);
/* Local. coll_say_waiting, then a pause for the lines of other ranks, then the end of the job with
 * status COLL_EXPIRED. */
_Noreturn void coll_expire(const Comm *c, const char *what, double seconds, const char *missing);

#endif
