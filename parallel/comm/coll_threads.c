/* coll_threads -- ranks are threads of one process: they publish their calls and read each other's
 * memory. No packing, and every element is copied once.
 *
 * A call has two gates that count the ranks of the group: arrived (all calls are published) and
 * done (all ranks have read what they need). all_reduce of three ranks; time goes down:
 *
 *      rank 0                  rank 1                  rank 2
 *      start: publish          start: publish          start: publish           never waits
 *      ...computes...          ...computes...          ...computes...
 *      wait: arrived 3         wait: arrived 3         wait: arrived 3
 *      b0+b1+b2 of part 0      b0+b1+b2 of part 1      b0+b1+b2 of part 2       to all dst
 *      done 3                  done 3                  done 3                   src is free
 *
 * A call by blocks has no such gates: a kernel reads or writes the blocks itself (coll_block). Each
 * rank has one gate, which counts the ranks that are done with its block. reduce_scatter of two
 * ranks, fused with a matmul x w; `>` writes to another rank's memory:
 *
 *      rank 0                                      rank 1
 *      start: publish                              start: publish
 *      own block of x w to slot 0 here             own block of x w to slot 1 here
 *      has rank 1 started? its block > its slot 0  has rank 0 started? its block > its slot 1
 *      done: counts at rank 1                      done: counts at rank 0
 *      wait: done 2; dst = slot 0 + slot 1         wait: done 2; dst = slot 0 + slot 1
 *
 * A kernel waits for nothing but the start of the same call on other ranks. That start comes before
 * the other rank's kernel, so the rank that is furthest behind never waits, and ranks cannot
 * deadlock. The wait for all ranks comes after the kernel, and calls are in the same order on all
 * ranks. An all_gather by blocks has the same gates: a rank is done with a block when it has read
 * the block.
 *
 * No two ranks write the same part, so dst may be src. Call k uses gate k % COLL_IN_FLIGHT. The
 * count of a gate is never reset; a lap is one use of a gate by all ranks. No rank enters the next
 * lap before all have left the wait of this one. Calls on device memory use the same gates
 * (coll_device.c) or none (coll_nccl.c).
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/futex.h"
#include "base/mem.h"
#include "parallel/comm/coll_threads.h"

enum { ARRIVED, DONE, BLOCKS, BARRIER };
static const double slice = 0.05;  // seconds of sleep between checks of the limit
static const double brief = 30e-6; // seconds; for a wait shorter than this no rank needs to sleep

/* Counts the ranks that have passed. On a cache line of its own, since all ranks write to it. */
typedef struct Gate {
    _Alignas(64) _Atomic uint32_t count;
} Gate;

/* State of one rank in a group; other ranks read it. */
typedef struct Slot {
    // [gate][entry] number of the last call with which the rank passed the gate, as waits may come
    // in any order; number of its last barrier
    _Alignas(64) _Atomic uint32_t passed[2][COLL_IN_FLIGHT], barriers;
    // number of times that the rank has passed each gate; of BLOCKS: number of its calls by blocks
    uint32_t laps[3][COLL_IN_FLIGHT];
    double waited; // seconds that the rank waited at its last gate
    CollCall published[COLL_IN_FLIGHT];
    // [COLL_IN_FLIGHT][size] number of the last call by blocks in which rank r was done with this
    // rank's block
    _Atomic uint32_t *block_done;
    Gate blocks[COLL_IN_FLIGHT]; // counts the ranks that are done with this rank's block
} Slot;

/* Shared by the ranks of a group. */
typedef struct Rendezvous {
    _Atomic int users;                      // ranks that have not closed the group
    _Alignas(64) _Atomic uint32_t sleepers; // ranks that sleep at some gate
    Gate gate[2][COLL_IN_FLIGHT], barrier;
    Slot slot[];
} Rendezvous;

/* Shared by all ranks of the process. */
typedef struct ThreadsJob {
    double spin; // seconds that a waiting rank spins before it sleeps
    Rendezvous *all;
    _Atomic bool left[MAX_THREAD_RANKS]; // ranks that start no more collectives
} ThreadsJob;

static Rendezvous *rendezvous_create(int size) {
    size_t flags = (size_t)size * COLL_IN_FLIGHT;
    size_t bytes = sizeof(Rendezvous) + (size_t)size * (sizeof(Slot) + flags * sizeof(uint32_t));
    Rendezvous *m = mem_alloc_aligned(bytes, 64);
    memset(m, 0, bytes);
    _Atomic uint32_t *flag = (_Atomic uint32_t *)(void *)(m->slot + size);
    for (int i = 0; i < size; i++) m->slot[i].block_done = flag + (size_t)i * flags;
    atomic_store(&m->users, size);
    return m;
}

/* ---- gates */

static Slot *slot_of(const Comm *c) {
    return &((Rendezvous *)c->impl)->slot[c->rank];
}

/* The gate of a call. BLOCKS: that of this rank's block. */
static Gate *gate_of(const Comm *c, int stage, uint64_t number) {
    Rendezvous *m = c->impl;
    uint64_t at = number % COLL_IN_FLIGHT;
    return stage == BLOCKS ? &slot_of(c)->blocks[at] : &m->gate[stage][at];
}

/* Address of the number of the last call in which rank `by` was done with the block of rank
 * `owner`. */
static _Atomic uint32_t *block_done(const Comm *c, int owner, int by, uint64_t number) {
    const Rendezvous *m = c->impl;
    return &m->slot[owner].block_done[(number % COLL_IN_FLIGHT) * (uint64_t)c->size + (uint64_t)by];
}

/* Address of the number of the last call with which `rank` passed a gate. */
static _Atomic uint32_t *passed(const Comm *c, int rank, int stage, uint32_t number) {
    Slot *s = &((Rendezvous *)c->impl)->slot[rank];
    if (stage == BLOCKS) return block_done(c, c->rank, rank, number);
    return stage == BARRIER ? &s->barriers : &s->passed[stage][number % COLL_IN_FLIGHT];
}

/* Counts this rank; the last rank wakes the sleepers. Count and sleepers are sequentially
 * consistent, so either the last rank sees a sleeper or the sleeper sees the full count. */
static void gate_count(Comm *c, Gate *g, uint32_t target) {
    Rendezvous *m = c->impl;
    if (atomic_fetch_add(&g->count, 1) + 1 == target && atomic_load(&m->sleepers) > 0)
        futex_wake(&g->count);
}
static void gate_enter(Comm *c, int stage, Gate *g, uint32_t number, uint32_t target) {
    atomic_store(passed(c, c->rank, stage, number), number);
    gate_count(c, g, target);
}

/* Writes the ranks that have not passed a gate. Returns true if one of them has ended, and so will
 * never pass. */
static bool list_missing(const Comm *c, int stage, uint32_t number, char *text, size_t n) {
    const ThreadsJob *job = c->world->impl;
    bool gone = false;
    text[0] = 0;
    for (int i = 0; i < c->size; i++) {
        bool left = atomic_load(&job->left[c->member[i]]);
        if ((int32_t)(atomic_load(passed(c, i, stage, number)) - number) >= 0) continue;
        gone |= left;
        size_t at = strlen(text);
        snprintf(text + at, n - at, "%srank %d%s", at ? ", " : "", c->member[i],
                 left ? " (has ended)" : "");
    }
    return gone;
}

/* Ends the job if a missing rank has ended, another rank has expired, or the limit is reached. */
static void check_limits(const Comm *c, int stage, uint32_t number, const CollCall *call,
                         double seconds) {
    char missing[MAX_THREAD_RANKS * 24], what[COLL_TEXT];
    double limit = c->world->limit;
    if (list_missing(c, stage, number, missing, sizeof missing) || coll_expired() ||
        (limit > 0 && seconds > limit))
        coll_expire(c, coll_describe(c, call, what), seconds, missing);
}

/* Returns when the gate has counted `target`. A rank with a core of its own spins for job->spin
 * seconds, then sleeps. A rank that shares its core checks the gate once, since the others cannot
 * arrive while it runs. If its last wait was brief, it yields once and checks again, since sleeping
 * and waking up take longer than that. After a long wait it sleeps at once: a woken thread runs on
 * any idle core, a thread that has yielded waits for its core. */
static void gate_wait(Comm *c, int stage, Gate *g, uint32_t number, uint32_t target,
                      const CollCall *call) {
    Rendezvous *m = c->impl;
    const ThreadsJob *job = c->world->impl;
    double begin = now_s(), last = begin, looked = 0;
    double *waited = &slot_of(c)->waited;
    for (bool yielded = job->spin > 0 || *waited > brief;; yielded = true) {
        bool there = false;
        for (int i = 0; i < (job->spin > 0 ? 32 : 1) && !there; i++) {
            there = (int32_t)(atomic_load_explicit(&g->count, memory_order_acquire) - target) >= 0;
            if (!there) pause_cpu();
        }
        double now = now_s();
        if (now - last > COLL_LONGEST_SLEEP) begin += now - last;
        last = now;
        double seconds = now - begin;
        if (there) {
            *waited = seconds;
            return;
        }
        if (seconds >= looked + slice)
            check_limits(c, stage, number, call, seconds), looked = seconds;
        if (!yielded) sched_yield();
        if (seconds < job->spin || !yielded) continue;
        atomic_fetch_add(&m->sleepers, 1);
        uint32_t count = atomic_load(&g->count);
        if ((int32_t)(count - target) < 0) futex_wait(&g->count, count, slice);
        atomic_fetch_sub(&m->sleepers, 1);
    }
}

/* ---- groups */

static void threads_barrier(Comm *c) {
    Rendezvous *m = c->impl;
    uint32_t number = atomic_load(&slot_of(c)->barriers) + 1;
    uint32_t target = number * (uint32_t)c->size;
    gate_enter(c, BARRIER, &m->barrier, number, target);
    gate_wait(c, BARRIER, &m->barrier, number, target, NULL);
}

/* The first rank of a group makes the group's Rendezvous. */
static void threads_open(Comm *c) {
    const ThreadsJob *job = c->world->impl;
    Group g = comm_group(c->world->all);
    Rendezvous *mine = NULL, *all[MAX_THREAD_RANKS];
    c->impl = job->all;
    if (c == c->world->all) return;
    if (c->rank == 0) mine = rendezvous_create(c->size);
    group_all_gather(&g, &mine, sizeof mine, all);
    c->impl = all[c->member[0]];
}

static void threads_close(Comm *c) {
    Rendezvous *m = c->impl;
    if (atomic_fetch_sub(&m->users, 1) == 1) mem_free(m);
}

/* ---- calls */

const CollCall *threads_published(const Comm *c, int rank, uint64_t number) {
    const Rendezvous *m = c->impl;
    return &m->slot[rank].published[number % COLL_IN_FLIGHT];
}

/* Counts this rank at a gate of a call; does not wait. */
static void pass_gate(Comm *c, int stage, uint64_t number) {
    uint32_t lap = ++slot_of(c)->laps[stage][number % COLL_IN_FLIGHT];
    gate_enter(c, stage, gate_of(c, stage, number), (uint32_t)number, lap * (uint32_t)c->size);
}

/* Waits until all ranks of the group have passed a gate as often as this rank. */
static void wait_at_gate(Comm *c, int stage, uint64_t number, const CollCall *call) {
    uint32_t lap = slot_of(c)->laps[stage][number % COLL_IN_FLIGHT];
    gate_wait(c, stage, gate_of(c, stage, number), (uint32_t)number, lap * (uint32_t)c->size, call);
}

void threads_publish(Comm *c, uint64_t number, const CollCall *call) {
    Slot *s = slot_of(c);
    if (call->by_blocks) s->laps[BLOCKS][number % COLL_IN_FLIGHT]++;
    s->published[number % COLL_IN_FLIGHT] = *call;
    pass_gate(c, ARRIVED, number);
}

void threads_wait_published(Comm *c, uint64_t number, const CollCall *call) {
    wait_at_gate(c, ARRIVED, number, call);
    for (int i = 0; BASE_DEBUG && i < c->size; i++)
        if (!coll_agree(call, threads_published(c, i, number)))
            coll_mismatch(c, number, call, i, threads_published(c, i, number));
}

void threads_wait_done(Comm *c, uint64_t number, const CollCall *call) {
    pass_gate(c, DONE, number);
    wait_at_gate(c, DONE, number, call);
}

static void threads_start(Comm *c, uint64_t number, const CollCall *call) {
    // NaN: every slot must be overwritten
    if (BASE_DEBUG && call->by_blocks && call->op == COLL_REDUCE_SCATTER)
        memset((void *)(uintptr_t)call->src, 0xff, (size_t)(c->size * coll_block_bytes(call)));
    threads_publish(c, number, call);
}

/* ---- calls by blocks */

/* If rank o has not started the call, waits for all ranks: each is needed soon, and one wake-up
 * costs less than several. */
void *threads_block(Comm *c, uint64_t number, const CollCall *call, int o) {
    uint32_t last = atomic_load(passed(c, o, ARRIVED, (uint32_t)number));
    if ((int32_t)(last - (uint32_t)number) < 0) wait_at_gate(c, ARRIVED, number, call);
    const CollCall *theirs = threads_published(c, o, number);
    if (BASE_DEBUG && !coll_agree(call, theirs)) coll_mismatch(c, number, call, o, theirs);
    int64_t slot = call->op == COLL_ALL_GATHER ? 0 : c->rank * coll_elements(call);
    return (char *)(uintptr_t)theirs->src + slot * coll_type_bytes(call->type);
}

/* All ranks make the same calls, so this rank's number of laps is also that of rank o. */
void threads_block_done(Comm *c, uint64_t number, const CollCall *call, int o) {
    Rendezvous *m = c->impl;
    uint32_t at = number % COLL_IN_FLIGHT, lap = slot_of(c)->laps[BLOCKS][at];
    (void)call;
    atomic_store(block_done(c, o, c->rank, number), (uint32_t)number);
    gate_count(c, &m->slot[o].blocks[at], lap * (uint32_t)c->size);
}

/* Executes this rank's part of a call on the team. */
static void do_work(const Comm *c, const CollCall *call, const ThreadsWork *w) {
    Team *team = c->world->team;
    for (int i = 0; i < w->n_src && !w->sums; i++)
        coll_copy(team, w->dst[i], w->dst_ld, w->src[i], w->src_ld[i], w->rows, w->row_bytes);
    if (!w->sums) return;
    coll_sum_terms(team, &(CollSum){.type = call->type,
                                    .n_src = w->n_src,
                                    .n_dst = w->n_dst,
                                    .src = w->src,
                                    .stride = w->src_ld,
                                    .dst = w->dst,
                                    .rows = w->rows,
                                    .row_bytes = w->row_bytes});
}

/* reduce_scatter by blocks: dst = the sum of this rank's slots. */
static void sum_of_slots(Comm *c, const CollCall *call) {
    int64_t bytes = coll_block_bytes(call);
    ThreadsWork w = {.sums = true, .n_src = c->size, .n_dst = 1, .rows = 1, .row_bytes = bytes};
    for (int i = 0; i < c->size; i++)
        w.src[i] = (const char *)call->src + i * bytes, w.src_ld[i] = bytes;
    w.dst[0] = call->dst;
    do_work(c, call, &w);
}

void threads_blocks_done(Comm *c, uint64_t number, const CollCall *call) {
    wait_at_gate(c, BLOCKS, number, call);
}

/* ---- a rank's part of other calls */

static void add_copy(ThreadsWork *w, const void *src, int64_t src_ld, void *dst) {
    if (src == dst) return;
    w->src[w->n_src] = src, w->src_ld[w->n_src] = src_ld, w->dst[w->n_src++] = dst;
}

/* all_gather: block o of dst is the src of rank o. */
static ThreadsWork gather_blocks(Comm *c, uint64_t number, const CollCall *call) {
    int64_t bytes = coll_type_bytes(call->type), row = call->cols * bytes;
    ThreadsWork w = {
        .rows = call->rows, .row_bytes = row, .dst_ld = call->dim == 1 ? c->size * row : row};
    // begins with the next rank's block, so that not all ranks read the same one
    for (int i = 1; i <= c->size; i++) {
        int o = (c->rank + i) % c->size;
        const CollCall *theirs = threads_published(c, o, number);
        add_copy(&w, theirs->src, coll_src_stride(theirs, o, c->size) * bytes,
                 coll_own_block(call, o));
    }
    return w;
}

/* Copies the src of another rank. broadcast: the root; shift: the rank `root` before this one. */
static ThreadsWork take_from(Comm *c, int rank, uint64_t number, const CollCall *call) {
    int64_t bytes = coll_block_bytes(call);
    ThreadsWork w = {.rows = 1, .row_bytes = bytes, .dst_ld = bytes};
    add_copy(&w, threads_published(c, rank, number)->src, bytes, call->dst);
    return w;
}

/* First element of the part of rank r, a multiple of 16 bytes. */
static int64_t part_begin(const CollCall *call, int size, int r) {
    int64_t n = coll_elements(call), word = 16 / coll_type_bytes(call->type);
    int64_t begin = coll_part((n + word - 1) / word, size, r) * word;
    return begin < n ? begin : n;
}

/* Sums this rank's part. reduce_scatter: its block; all_reduce: a part, for all ranks; reduce: a
 * part, for the root. */
static ThreadsWork sum_part(Comm *c, uint64_t number, const CollCall *call) {
    int64_t bytes = coll_type_bytes(call->type), begin = 0, n = call->cols;
    bool scatter = call->op == COLL_REDUCE_SCATTER, all = call->op == COLL_ALL_REDUCE;
    if (!scatter) {
        begin = part_begin(call, c->size, c->rank);
        n = part_begin(call, c->size, c->rank + 1) - begin;
    }
    ThreadsWork w = {.sums = true,
                     .n_src = c->size,
                     .n_dst = all ? c->size : 1,
                     .rows = scatter ? call->rows : 1,
                     .row_bytes = n * bytes};
    for (int i = 0; i < c->size; i++) {
        const CollCall *theirs = threads_published(c, i, number);
        int64_t at = begin;
        if (scatter) at = c->rank * (call->dim == 0 ? coll_block_stride(theirs) : call->cols);
        w.src[i] = (const char *)theirs->src + at * bytes;
        w.src_ld[i] = scatter && call->dim == 1 ? c->size * w.row_bytes : w.row_bytes;
        if (all) w.dst[i] = (char *)theirs->dst + begin * bytes;
    }
    const CollCall *to = call->op == COLL_REDUCE ? threads_published(c, call->root, number) : call;
    if (!all) w.dst[0] = (char *)to->dst + begin * bytes;
    return w;
}

ThreadsWork threads_work(Comm *c, uint64_t number, const CollCall *call) {
    if (call->op == COLL_ALL_GATHER) return gather_blocks(c, number, call);
    if (call->op == COLL_BROADCAST) return take_from(c, call->root, number, call);
    if (call->op == COLL_SHIFT)
        return take_from(c, (c->rank - call->root + c->size) % c->size, number, call);
    return sum_part(c, number, call);
}

static void threads_wait(Comm *c, uint64_t number, const CollCall *call) {
    if (call->by_blocks) {
        threads_blocks_done(c, number, call);
        if (call->op == COLL_REDUCE_SCATTER) sum_of_slots(c, call);
        return;
    }
    threads_wait_published(c, number, call);
    ThreadsWork w = threads_work(c, number, call);
    do_work(c, call, &w);
    // a receiver of a broadcast need not wait: no rank reads its src or writes its dst. In debug
    // builds other ranks read its call
    bool free = call->op == COLL_BROADCAST && c->rank != call->root;
    if (BASE_DEBUG || !free)
        threads_wait_done(c, number, call);
    else
        pass_gate(c, DONE, number);
}

const CollBackend coll_threads = {.name = "threads",
                                  .open = threads_open,
                                  .close = threads_close,
                                  .start = threads_start,
                                  .wait = threads_wait,
                                  .block = threads_block,
                                  .block_done = threads_block_done,
                                  .barrier = threads_barrier};

/* ---- threads */

typedef struct RankThread {
    ThreadsJob *job;
    int rank, size, result;
    int (*rank_main)(World *w, void *ctx);
    void *ctx;
    pthread_t thread;
} RankThread;

static void *rank_thread(void *arg) {
    RankThread *t = arg;
    die_set_rank(t->rank, NULL);
    team_pin_to_part(t->rank, t->size);
    World *w = world_create(&coll_threads, t->rank, t->size, t->job);
    t->result = t->rank_main(w, t->ctx);
    atomic_store(&t->job->left[t->rank], true);
    world_free(w);
    return NULL;
}

int world_threads_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx) {
    RankThread t[MAX_THREAD_RANKS];
    // sleeping and waking up cost some 100 us. If ranks share cores, spinning would keep the
    // awaited rank from running
    ThreadsJob job = {.spin = n <= team_cores() ? 200e-6 : 0, .all = rendezvous_create(n)};
    int result = 0;
    for (int r = 0; r < n; r++) {
        t[r] = (RankThread){.job = &job, .rank = r, .size = n, .rank_main = rank_main, .ctx = ctx};
        int rc = team_start_thread(&t[r].thread, rank_thread, &t[r]);
        if (rc)
            die_user("cannot start rank %d of %d as a thread: %s; " TEAM_MORE_THREADS, r, n,
                     strerror(rc));
    }
    for (int r = 0; r < n; r++) {
        pthread_join(t[r].thread, NULL);
        if (result == 0) result = t[r].result;
    }
    return result;
}
