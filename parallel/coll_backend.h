/* coll_backend -- what coll.c and its backends share.
 *
 * coll.c does what is common: it checks, numbers and counts calls and keeps the open ones; a backend moves bytes. It sees each
 * call twice, when it starts and when it is waited for, and may do its work in either. Groups of one rank are coll_self.c's.
 *
 * Whoever does the sum, it is in the tree of coll_fold.h; processes on several nodes do so for each node, then for these sums.
 */
#ifndef PARALLEL_COLL_BACKEND_H
#define PARALLEL_COLL_BACKEND_H

#include "base/arena.h"
#include "parallel/coll_fold.h"
#include "parallel/coll_watch.h"

typedef struct CollBackend {
    const char *name;
    bool alone;   // there are no other ranks: groups are imagined (parallel/price.c)
    bool polled;  // what is under way goes on inside progress and wait alone
    int64_t turn; // bytes of a whole above which it goes another way, at other costs; 0: none
    // Local. Of a backend for memory of devices: is this such memory? What it moves is complete in the order of the rank's
    // stream, not when wait returns. It opens a group, as c->device, at its first call; collective over the group, as is close.
    bool (*takes)(const void *p);
    /* Collective over the world. The group is known (rank, size, member); makes c->impl. */
    void (*open)(Comm *c, int color, int key);
    void (*close)(Comm *c); // Collective over the world, in the same order everywhere
    /* Local. Must not block. Calls of a group are numbered 1, 2, ...; *call lives until its wait. */
    void (*start)(Comm *c, uint64_t number, const CollCall *call);
    /* Collective. Returns when src may be reused and dst is complete. */
    void (*wait)(Comm *c, uint64_t number, const CollCall *call);
    void (*progress)(World *w); // Local. Takes what has come, without the team, which is busy
    void (*barrier)(Comm *c);
    // Of a backend for memory of devices, or NULL: world_memory, and world_register where all ranks have walked alike.
    const ArenaMemory *(*memory)(const World *w, const ArenaMemory *memory);
    void (*lend)(World *w, void *p, size_t n_bytes);
    void (*take_back)(World *w, void *p);
    const struct CollRecorder
        *recorder;           // of one whose calls can be recorded (coll_record.h); or NULL
    void (*leave)(World *w); // the last call: gives w->impl back
} CollBackend;

typedef struct CountRow {
    CollCount count;
    const Comm *comm;
} CountRow;

struct Comm {
    World *world;
    const CollBackend *backend; // coll_self when size is 1
    Comm *next;                 // of the world, in the order of world_split
    char label[24];
    int rank, size;
    int *member;      // [size] ranks in the world
    uint64_t started; // calls so far
    struct {
        CollCall call;                   // number k is kept in open[k % COLL_IN_FLIGHT]
        int row;                         // of the counters
        uint64_t number;                 // of the call that is not waited for yet; 0: none
        const CollBackend *by;           // its memory is
        Moment begin, started, complete; // as in CollSpan; complete: 0: at the end of the wait
    } open[COLL_IN_FLIGHT];
    void *impl, *device; // the backend's, and that of memory of devices
};

struct World {
    const CollBackend *backend, *device; // device: of memory of devices; or NULL
    int rank, size;
    int threads; // for this rank's team: its share of the cores
    char node[64], phase[64];
    Team *team;
    double limit; // seconds, 0: none
    WaitHow wait;
    Comm *all, *last;
    CountRow *rows;
    int n_rows, max_rows;
    void (*yield)(void *ctx); // or NULL
    void *yield_ctx, *watch_ctx;
    CollWatch *watch;         // or NULL
    const DeviceClock *clock; // of who watches; NULL: the host's
    bool blocking;
    struct CollRecording *recording; // that is made; or NULL
    int n_open, wanted; // tickets; the same for the team's polls, but 0 inside a call of this world
    void *impl, *device_impl;
};

/* Collective over the world. rank and size of this rank; threads: for its team. */
World *world_create(const CollBackend *b, int rank, int size, int threads, void *impl);
/* Collective over the world. */
void world_free(World *w);
/* Local. A world of which only this rank exists: its groups have sizes, but no members. */
World *world_imagine(const CollBackend *b, int rank, int size, void *impl);

/* The worlds of one rank, and of a launcher, which says what rank this is; the latter ends the job when not all
 * ranks are there after so many seconds (0: waits), and dies where the build has no MPI. */
extern const CollBackend coll_self, coll_threads;
World *world_self_open(void);
World *world_mpi_open(int rank, double limit);
/* What n ranks that are threads share. Each opens its own World of it, and says when it will start
 * nothing more; it is freed when all Worlds are. */
typedef struct ThreadsJob ThreadsJob;
enum { MAX_THREAD_RANKS = 64 };
ThreadsJob *threads_job_create(int n);
void threads_job_free(ThreadsJob *job);
World *world_threads_open(ThreadsJob *job, int rank, int threads);
void world_threads_left(World *w);
/* Local. From now on this one serves memory of devices. */
void world_set_device(World *w, const CollBackend *b, void *impl);

/* Elements of one block, or of the buffer. */
static inline int64_t coll_elements(const CollCall *call) {
    return call->rows * call->cols;
}
/* First of n elements that part r of p owns: [coll_part(n, p, r), coll_part(n, p, r + 1)). */
static inline int64_t coll_part(int64_t n, int p, int r) {
    return n / p * r + (n % p * r) / p;
}
/* Does every rank bring a part of a sum; is the whole made of blocks? */
static inline bool coll_spreads(CollOp op) {
    return op == COLL_REDUCE_SCATTER || op == COLL_ALL_REDUCE || op == COLL_REDUCE;
}
static inline bool coll_has_blocks(CollOp op) {
    return op == COLL_ALL_GATHER || op == COLL_REDUCE_SCATTER;
}
/* Bytes that a rank receives from others. */
int64_t coll_bytes(const CollCall *call, int rank, int size);
/* Elements from one block of the whole to the next, of calls with blocks and dim 0. */
static inline int64_t coll_block_stride(const CollCall *call) {
    return call->stride ? call->stride : coll_elements(call);
}
/* all_gather: where this rank's block begins in dst, and where the next row of src begins, in elements:
 * src may be that very block. Blocks of dim 1 are size * cols apart in the whole. */
void *coll_own_block(const CollCall *call, int rank);
int64_t coll_src_stride(const CollCall *call, int rank, int size);
/* Are these the same call, as far as two ranks of a group must agree? Checked in debug builds. */
bool coll_agree(const CollCall *a, const CollCall *b);
/* Local. Ends the job with both call sites. other: index of the other rank in the group. */
_Noreturn void coll_mismatch(const Comm *c, uint64_t number, const CollCall *mine, int other,
                             const CollCall *theirs);
enum { COLL_EXPIRED = 75, COLL_TEXT = 256 };
/* all_reduce "dx of qkv" of 4096 bytes along x (model.c:12); NULL: a barrier */
const char *coll_describe(const Comm *c, const CollCall *call, char text[COLL_TEXT]);
double coll_now(void);   // seconds
bool coll_expired(void); // has a rank of this process given up waiting? Then the others shall, too
/* Local. Prints the line of a rank that waits for call (NULL: a barrier). missing: "rank 2, rank 5". */
void coll_say_waiting(const Comm *c, const CollCall *call, double seconds, const char *missing);
/* Local. The same, then, after time for the others' lines, the end of the job, status COLL_EXPIRED; _at: of what is no call. */
_Noreturn void coll_expire(const Comm *c, const CollCall *call, double seconds,
                           const char *missing);
_Noreturn void coll_expire_at(const Comm *c, const char *what, double seconds, const char *missing);

#endif
