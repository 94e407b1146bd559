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
#include "base/clock.h"
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
 * CollSpan: one collective that this rank has waited for. On the host the counters' seconds are the
 * exposed time. */
typedef struct CollSpan {
    const CollCall *call;
    const Comm *comm;
    int64_t bytes; // received from other ranks
    // coll_start called; returned. Device: both are the start on the communication stream
    Moment begin, started;
    // coll_wait called; returned. Device: the compute stream begins to wait; goes on
    Moment wait, end;
    Moment complete; // no longer in flight. Device: this rank's part of the work is done
} CollSpan;
typedef void CollWatch(void *ctx, const CollSpan *s);

/* Local. Sets a function that is called with every collective after its wait; NULL: none. clock:
 * the time source of the rank's device; NULL: the host clock. With a device clock, collectives on
 * host memory are reported as never exposed. */
void world_set_watch(World *w, CollWatch *f, void *ctx, const DeviceClock *clock);

/* A backend. Each function says whether it is local or collective; NULL where that is allowed. */
typedef struct CollBackend {
    const char *name;
    bool polled; // collectives progress only inside progress() and wait()
    // longest message, in bytes, that is sent eagerly. Longer ones wait for a round trip to the
    // receiver (rendezvous). 0: there is no rendezvous
    int64_t eager_limit;
    // Local. Only backends for device memory have it: is p device memory? The results of such a
    // backend are complete in the order of the rank's stream, not when wait returns. coll.c opens a
    // group with such a backend (c->device) at the group's first call. open and close are then
    // collective over the group.
    bool (*is_device_memory)(const void *p);
    /* Collective over the world. Makes c->impl; rank, size and member are set. NULL, here and
     * below: the backend has nothing to do. */
    void (*open)(Comm *c);
    // Collective over the world; all ranks close their groups in the same order
    void (*close)(Comm *c);
    /* Local. Must not block. Calls of a group are numbered 1, 2, ...; *call lives until its
     * wait. */
    void (*start)(Comm *c, uint64_t number, const CollCall *call);
    /* Collective. Returns when src may be reused and dst is complete. */
    void (*wait)(Comm *c, uint64_t number, const CollCall *call);
    // coll_block and coll_block_done, for a call that is not waited for yet. NULL: ranks do not
    // share memory
    void *(*block)(Comm *c, uint64_t number, const CollCall *call, int o);
    void (*block_done)(Comm *c, uint64_t number, const CollCall *call, int o);
    // The flags of coll_row_blocks, or NULL. NULL: the backend has none
    const uint32_t *(*flags)(Comm *c, uint64_t number, const CollCall *call, uint32_t *ready_value);
    // Local. Handles arrived messages without the team, which is busy. NULL: nothing to handle
    void (*progress)(World *w);
    void (*barrier)(Comm *c); // Collective. Backends for host memory; NULL: there is no other rank
    // Backends for device memory, or NULL: world_memory, world_register and world_unregister.
    // coll.c calls register_memory only if all ranks have laid out the arena alike.
    const ArenaMemory *(*memory)(const World *w, const ArenaMemory *memory);
    void (*register_memory)(World *w, void *p, size_t n_bytes);
    void (*deregister_memory)(World *w, void *p);
    // world_share_memory, called while `block` is NULL
    bool (*share)(World *w, Err *e);
    // NULL: calls cannot be recorded (coll_record.h)
    const struct CollRecorder *recorder;
    void (*close_world)(World *w); // called last; frees w->impl. May be NULL
} CollBackend;

typedef struct CountRow {
    CollCount count;
    const Comm *comm; // NULL: the row is free
} CountRow;

/* A collective in flight. */
typedef struct OpenCall {
    uint64_t number; // 0: the entry is free
    CollCall call;
    CollSpan span;              // complete 0: at the end of the wait
    int row;                    // index of the counters' row
    const CollBackend *backend; // of the memory of src and dst
} OpenCall;

struct Comm {
    World *world;
    const CollBackend *backend; // coll_self when size is 1
    Comm *next;                 // list of the world's groups, in the order of world_split
    char label[24];
    int rank, size;
    int *member;                   // [size] world rank of each rank of the group
    uint64_t started;              // calls so far
    OpenCall open[COLL_IN_FLIGHT]; // call k is open[k % COLL_IN_FLIGHT]
    void *impl, *device;           // state of `backend` and of world->device for this group
};

struct World {
    const CollBackend *backend, *device; // for host memory; for device memory, or NULL
    int rank, size;
    char node[HOST_NAME_MAX + 1], phase[96];
    Team *team;
    double limit; // seconds, 0: none
    Comm *all, *last;
    CountRow *rows;
    int n_rows, max_rows;
    void *watch_ctx;
    CollWatch *watch;                // or NULL
    const DeviceClock *clock;        // time source for tracing; NULL: host clock
    bool wait_at_start;              // every collective is waited for where it starts (--trace)
    struct CollRecording *recording; // in progress; or NULL
    // n_open: collectives in flight. wanted: n_open, but 0 inside a call of this world; the team
    // polls while it is > 0
    int n_open, wanted;
    void *impl, *device_impl;
};

/* Collective over the world, both. */
World *world_create(const CollBackend *b, int rank, int size, void *impl);
void world_free(World *w);
/* Create the world of a single rank, and the world of the processes of a launcher. world_mpi_open
 * ends the job if not all ranks have started within `limit` seconds (0: no limit), and dies in a
 * build without MPI. */
extern const CollBackend coll_self, coll_threads;
World *world_self_open(void);
World *world_mpi_open(int rank, double limit);
/* Local. Starts n ranks as threads, each with a World of its own, and calls rank_main(world, ctx)
 * in each. Returns when all have returned, with the first non-zero result. */
enum { MAX_THREAD_RANKS = 64 };
int world_threads_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx);
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
/* coll_spreads: does the operation reduce over ranks? coll_has_blocks: is the whole tensor made of
 * one block of each rank? */
static inline bool coll_spreads(CollOp op) {
    return op == COLL_REDUCE_SCATTER || op == COLL_ALL_REDUCE || op == COLL_REDUCE;
}
static inline bool coll_has_blocks(CollOp op) {
    return op == COLL_ALL_GATHER || op == COLL_REDUCE_SCATTER;
}
/* Bytes that a rank receives from others, as ring volumes. */
int64_t coll_bytes(const CollCall *call, int rank, int size);
/* dim 0: elements from the start of one block of the whole to the start of the next. */
static inline int64_t coll_block_stride(const CollCall *call) {
    return call->stride ? call->stride : coll_elements(call);
}
/* all_gather. coll_own_block: where the block of `rank` begins in dst. coll_src_stride: elements
 * from one row of src to the next. If src is its own block of dst (dim 1), rows are size * cols
 * apart. */
void *coll_own_block(const CollCall *call, int rank);
int64_t coll_src_stride(const CollCall *call, int rank, int size);
/* Do two calls agree in everything that must be equal on all ranks of a group? Checked in debug
 * builds. */
bool coll_agree(const CollCall *a, const CollCall *b);
/* Local. Ends the job with both calls. other: index of the other rank in the group. */
_Noreturn void coll_mismatch(const Comm *c, uint64_t number, const CollCall *mine, int other,
                             const CollCall *theirs);
enum { COLL_EXPIRED = 75, COLL_TEXT = 256 };
// seconds. A wait looks at the clock more often: a longer gap means that this process was stopped
// (Ctrl-Z, a suspended job), and does not count
enum { COLL_LONGEST_SLEEP = 1 };
/* Local. Writes and returns a text like: all_reduce "dx of qkv" of 4096 bytes along x. call NULL: a
 * barrier. */
const char *coll_describe(const Comm *c, const CollCall *call, char text[COLL_TEXT]);
// has a rank of this process reached its limit? Then its other ranks stop waiting too
bool coll_expired(void);
/* Local. Prints that this rank waits for `what`, usually a text of coll_describe. missing: the
 * ranks that have not come, "rank 2, rank 5". */
void coll_print_waiting(const Comm *c, const char *what, double seconds, const char *missing);
/* Local. coll_print_waiting, then a pause for the lines of other ranks, then the end of the job
 * with status COLL_EXPIRED. */
_Noreturn void coll_expire(const Comm *c, const char *what, double seconds, const char *missing);

#endif
