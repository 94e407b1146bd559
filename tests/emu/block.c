/* block -- schedules the threads of blocks: which one runs next, which ones wait, and the barriers
 * and warp exchanges at which they meet. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/emu/block.h"
#include "tests/emu/calls.h"

__thread EmuPosition emu_at;
__thread Block *emu_block;

/* The Blocks of one thread of the host, kept for its next launch: one, or as many as have waited
 * for each other at once. A host thread that ends leaves its pool to other threads: the ranks of a
 * test live for a few steps, and mapping the stacks of a block takes longer than most kernels. */
enum { MOST_BLOCKS = 32, MOST_LEFT = 8192 };
typedef struct Pool {
    Block *at[MOST_BLOCKS];
    int n;
    struct Pool *next; // list of the pools that ended threads have left
} Pool;
static pthread_key_t pool_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    Pool *first;
    int n_fibers; // fibers in these pools, at most MOST_LEFT
    pthread_mutex_t lock;
} vacant = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void free_block(Block *b) {
    for (int i = 0; i < b->n_fibers; i++) {
        fiber_close(&b->thread[i].fiber);
        mem_free(b->thread[i].copies.at);
        mem_free(b->thread[i].matmuls.at);
        mem_free(b->thread[i].matmuls.accumulators);
    }
    hopper_free(&b->hopper);
    shared_free(&b->shared);
    mem_free(b);
}
static int n_fibers(const Pool *pool) {
    int n = 0;
    for (int i = 0; i < pool->n; i++) n += pool->at[i]->n_fibers;
    return n;
}
/* Called when a thread of the host ends. */
static void leave_pool(void *p) {
    Pool *pool = p;
    pthread_mutex_lock(&vacant.lock);
    while (pool->n && vacant.n_fibers + n_fibers(pool) > MOST_LEFT) free_block(pool->at[--pool->n]);
    vacant.n_fibers += n_fibers(pool);
    pool->next = vacant.first, vacant.first = pool;
    pthread_mutex_unlock(&vacant.lock);
}
static void make_key(void) {
    if (pthread_key_create(&pool_key, leave_pool)) die("no key for a thread's data");
}
static Pool *this_pool(void) {
    pthread_once(&once, make_key);
    Pool *pool = pthread_getspecific(pool_key);
    if (pool) return pool;
    pthread_mutex_lock(&vacant.lock);
    pool = vacant.first;
    if (pool) vacant.first = pool->next, vacant.n_fibers -= n_fibers(pool);
    pthread_mutex_unlock(&vacant.lock);
    if (!pool) pool = mem_calloc(1, sizeof *pool);
    pthread_setspecific(pool_key, pool);
    return pool;
}

void emu_fail(EmuPlace place, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    uint3 b = emu_at.block, t = emu_at.thread;
    die_at(place.file, place.line, emu_block ? emu_block->name : "host", 1,
           "block (%u,%u,%u), thread (%u,%u,%u): %s", b.x, b.y, b.z, t.x, t.y, t.z, text);
}

/* --- the order of threads */

/* Adds a thread to those that can run, at the front or the end of the ring. */
static void push(Block *b, EmuThread *t, bool in_front) {
    unsigned short i = (unsigned short)(t - b->thread);
    if (in_front)
        b->ready[--b->first % MAX_THREADS] = i;
    else
        b->ready[(b->first + (unsigned)b->n_ready) % MAX_THREADS] = i;
    b->n_ready++;
}

/* Must this thread wait until no other thread can run (EMU_LAG, EMU_SLOW)? */
static bool lags(const Block *b, unsigned at) {
    unsigned i = b->ready[at % MAX_THREADS];
    if (b->order == EMU_SLOW) return i / 128 == emu_setup.seed;
    return b->order == EMU_LAG && i / 32 == emu_setup.seed && i % 32 > 0;
}

/* Takes the next thread of the order from those that can run. all false: lagging threads are left
 * out. NULL: there is none. */
static EmuThread *take(Block *b, bool all) {
    unsigned at = b->first, end = b->first + (unsigned)b->n_ready;
    while (!all && at != end && lags(b, at)) at++;
    if (at == end) return NULL;
    if (b->order == EMU_REVERSE) at += (unsigned)b->n_ready - 1;
    if (b->order == EMU_RANDOM) at += emu_dice(&b->random, (unsigned)b->n_ready);
    unsigned short i = b->ready[at % MAX_THREADS];
    if (b->order == EMU_REVERSE) {
        b->n_ready--;
        return &b->thread[i];
    }
    b->ready[at % MAX_THREADS] = b->ready[b->first % MAX_THREADS];
    b->first++, b->n_ready--;
    return &b->thread[i];
}

/* Dies with a list of what the living threads wait for, and how many wait at each place. */
static void report_deadlock(Block *b) {
    char text[900];
    size_t n = 0;
    mbarriers_describe(b);
    for (int i = 0; i < b->n_threads && n + 160 < sizeof text; i++) {
        const EmuThread *t = &b->thread[i];
        int same = 0, first = -1;
        for (int j = 0; j < b->n_threads && !t->ended; j++) {
            const EmuThread *o = &b->thread[j];
            if (o->ended || o->what != t->what || o->place.line != t->place.line) continue;
            if (first < 0) first = j;
            same++;
        }
        if (first != i) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "; %d from thread %d at %s (%s:%d)", same,
                              i, t->what, t->place.file, t->place.line);
    }
    emu_fail(b->self->place, "%d of %d threads wait for ever%s", b->n_live, b->n_threads, text);
}

static void thread_main(void);

/* Makes t the running thread; the caller changes to its stack. */
static void switch_to_thread(Block *b, EmuThread *t) {
    b->self = t;
    emu_at.thread = t->index;
    if (!t->begun) fiber_begin(&t->fiber, thread_main);
}

/* The next thread that runs. If all threads wait, bulk copies are executed one by one until a
 * thread can run; lagging threads come last. */
static EmuThread *take_or_copy(Block *b) {
    EmuThread *t = take(b, false);
    while (!t && bulk_do_one(b)) t = take(b, false);
    return t ? t : take(b, true);
}

/* Can another block, or the host, wake a thread of this block? */
static bool waits_for_blocks(const Block *b) {
    return b->n_outside > 0 || b->n_cluster > 1;
}

/* Switches from the running thread to the next one; returns when the scheduler takes the first
 * thread again. If all threads wait, and some for another block, control returns to the host, which
 * runs other blocks. */
static void run_next(Block *b) {
    EmuThread *me = b->self, *next = take_or_copy(b);
    if (!next && !waits_for_blocks(b)) report_deadlock(b);
    if (!next) {
        fiber_change(&me->fiber, &b->host, false);
        return;
    }
    if (next == me) return;
    switch_to_thread(b, next);
    fiber_change(&me->fiber, &next->fiber, false);
}

void emu_sleep(const char *what, EmuPlace place) {
    EmuThread *me = emu_block->self;
    me->what = what, me->place = place;
    run_next(emu_block);
}

EmuThread *emu_self(void) {
    return emu_block->self;
}

void emu_wake(EmuThread *t) {
    push(emu_block, t, false);
}

void emu_yield(void) {
    push(emu_block, emu_block->self, emu_block->order == EMU_REVERSE);
    run_next(emu_block);
}

void emu_wait_for_blocks(const char *what, EmuPlace place) {
    Block *b = emu_block;
    b->outside[b->n_outside++] = (unsigned short)(b->self - b->thread);
    emu_sleep(what, place);
}

// notifications between blocks; a turn of all blocks without a new one is a deadlock
static __thread unsigned long n_notified;

void emu_wait_host(const char *what, EmuPlace place) {
    usleep(20);
    n_notified++;
    emu_wait_for_blocks(what, place);
}

void emu_notify_blocks(void) {
    Block *b = emu_block;
    n_notified++;
    if (b->order == EMU_FORWARD) return;
    // a waiting block may run first: whatever other threads of this block have not written yet is
    // missing
    push(b, b->self, false);
    fiber_change(&b->self->fiber, &b->host, false);
}

/* --- barriers */

static void release(Block *b, Barrier *r) {
    r->arrived = 0;
    for (int i = 0; i < r->n_waiting; i++) emu_wake(&b->thread[r->waiting[i]]);
    r->n_waiting = 0;
}

void emu_sync(EmuPlace place) {
    Block *b = emu_block;
    Barrier *r = &b->barrier[0];
    if (r->arrived && r->place.line != place.line)
        emu_fail(place, "__syncthreads here, but others of the block wait at %s:%d", r->place.file,
                 r->place.line);
    r->place = place, r->arrived++;
    if (r->arrived == b->n_live) {
        release(b, r);
    } else {
        r->waiting[r->n_waiting++] = (unsigned short)(b->self - b->thread);
        emu_sleep("__syncthreads", place);
    }
}

void emu_barrier(int id, int count, bool wait, EmuPlace place) {
    Block *b = emu_block;
    if (id < 0 || id >= BARRIERS) emu_fail(place, "there is no barrier %d", id);
    Barrier *r = &b->barrier[id];
    if (count % 32 || count <= 0 || count > b->n_threads)
        emu_fail(place, "barrier %d of %d threads: not whole warps of this block", id, count);
    if (r->arrived && r->count != count)
        emu_fail(place, "barrier %d of %d threads here, of %d at %s:%d", id, count, r->count,
                 r->place.file, r->place.line);
    r->place = place, r->count = count;
    if (++r->arrived == count) {
        release(b, r);
    } else if (wait) {
        r->waiting[r->n_waiting++] = (unsigned short)(b->self - b->thread);
        emu_sleep("named barrier", place);
    }
}

/* --- warps */

/* If all lanes of the mask have arrived or ended, runs the work of the meeting and wakes the
 * lanes. */
static void finish_if_all(Block *b, Warp *w, int meeting) {
    Meeting *m = &w->meeting[meeting];
    if (m->mask & ~(m->arrived | w->ended)) return;
    m->work(m->lane);
    w->open &= ~(1u << meeting);
    EmuThread *first = &b->thread[(w - b->warp) * 32];
    // in front: a warp runs from meeting to meeting while its stacks are in the L1 cache
    bool in_front = b->order == EMU_FORWARD;
    for (int i = 0; i < 32; i++) {
        int l = in_front ? 31 - i : i;
        if (m->arrived >> l & 1 && &first[l] != b->self) push(b, &first[l], in_front);
    }
}

void emu_meet(uint32_t mask, const char *what, void *mine, EmuWork work, EmuPlace place) {
    Block *b = emu_block;
    int index = (int)(b->self - b->thread), lane = index % 32, i;
    Warp *w = &b->warp[index / 32];
    if (!(mask >> lane & 1))
        emu_fail(place, "%s with mask %08x, in which lane %d is not", what, mask, lane);
    // looks for an open meeting that waits for this lane: the lane joins the same meeting; another
    // one at which lanes of this mask wait is an error
    for (uint32_t open = w->open; i = open ? __builtin_ctz(open) : 32, open; open &= open - 1) {
        const Meeting *m = &w->meeting[i];
        if (!(m->mask >> lane & 1)) continue;
        if (m->mask == mask && m->work == work && m->place.line == place.line) break;
        if (m->arrived & mask) // else the others wait for a later meeting of this lane
            emu_fail(place, "%s with mask %08x, but other lanes wait in %s with mask %08x at %s:%d",
                     what, mask, m->what, m->mask, m->place.file, m->place.line);
    }
    if (i == 32) {
        i = __builtin_ctz(~w->open);
        w->open |= 1u << i;
        w->meeting[i] = (Meeting){.mask = mask, .what = what, .place = place, .work = work};
    }
    Meeting *m = &w->meeting[i];
    m->arrived |= 1u << lane;
    m->lane[lane] = mine;
    bool others = (m->mask & ~(m->arrived | w->ended)) != 0;
    if (others)
        emu_sleep(what, place);
    else
        finish_if_all(b, w, i);
}

/* --- a block from its first thread to its last */

/* Ends the running thread; whoever waits for it in a meeting or a barrier is released. */
static void end_thread(Block *b) {
    EmuThread *me = b->self;
    int index = (int)(me - b->thread);
    Warp *w = &b->warp[index / 32];
    me->ended = true;
    b->n_live--;
    w->ended |= 1u << index % 32;
    for (uint32_t left = w->open; left; left &= left - 1) finish_if_all(b, w, __builtin_ctz(left));
    if (b->barrier[0].arrived && b->barrier[0].arrived == b->n_live) release(b, &b->barrier[0]);
}

/* Runs threads one after another on this stack: when a thread has ended and the next one has not
 * begun, that one begins on the same stack. So threads that never wait cost no change of the
 * stack. */
static void thread_main(void) {
    Block *b = emu_block;
    fiber_arrive(&b->self->fiber);
    for (;;) {
        EmuThread *me = b->self;
        me->begun = true;
        b->body(b->ctx);
        copies_end(me);
        matmuls_end(me);
        bulk_thread_end(me);
        end_thread(b);
        EmuThread *next = b->n_live ? take_or_copy(b) : NULL;
        if (!next && b->n_live && !waits_for_blocks(b)) report_deadlock(b);
        if (next && !next->begun) {
            Fiber other = next->fiber;
            next->fiber = me->fiber, me->fiber = other;
            b->self = next, emu_at.thread = next->index;
            continue;
        }
        if (next) switch_to_thread(b, next);
        fiber_change(&me->fiber, next ? &next->fiber : &b->host, true);
        __builtin_unreachable();
    }
}

static void begin_block(Block *b, uint3 index) {
    b->index = index;
    b->n_live = b->n_threads, b->n_ready = b->n_outside = 0, b->first = 0;
    for (int i = 0; i < MAX_THREADS / 32; i++) b->warp[i].ended = b->warp[i].open = 0;
    for (int i = 0; i < BARRIERS; i++) b->barrier[i].arrived = b->barrier[i].n_waiting = 0;
    shared_poison(&b->shared);
    hopper_begin(b);
    for (int i = 0; i < b->n_threads; i++) {
        b->thread[i].begun = b->thread[i].ended = false;
        push(b, &b->thread[i], false);
    }
    for (int i = b->n_threads; i % 32; i++) b->warp[i / 32].ended |= 1u << i % 32;
}

/* Runs the block until it ends, or all of its threads wait for other blocks. The Blocks of a
 * cluster are given back only when all have ended: until then they may access each other. */
static void run_block(Block *b) {
    emu_block = b, emu_at.block = b->index;
    while (b->n_outside > 0) push(b, &b->thread[b->outside[--b->n_outside]], false);
    EmuThread *next = take_or_copy(b);
    if (!next) return;
    switch_to_thread(b, next);
    fiber_change(&b->host, &next->fiber, false);
    if (b->n_live) return;
    shared_check(&b->shared);
    hopper_end(b);
    for (int i = 0; i < b->n_cluster; i++)
        if (b->cluster[i]->n_live) return;
    for (int i = 0, n = b->n_cluster; i < n; i++) b->cluster[i]->n_cluster = 0;
}

/* Dies for a launch that hardware would refuse. */
static void refuse_if_impossible(const EmuLaunch *l) {
    uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    bool grid = l->grid.x && l->grid.y && l->grid.z && l->grid.x <= 0x7fffffff &&
                l->grid.y <= 65535 && l->grid.z <= 65535;
    if (!grid || threads == 0 || threads > MAX_THREADS || l->block.z > 64)
        die("kernel %s: no GPU launches a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads", l->name,
            l->grid.x, l->grid.y, l->grid.z, l->block.x, l->block.y, l->block.z);
    if (l->cluster < 1 || l->cluster > CLUSTER || l->grid.x % l->cluster)
        die("kernel %s: no GPU launches a grid of (%u,%u,%u) blocks in clusters of %u", l->name,
            l->grid.x, l->grid.y, l->grid.z, l->cluster);
}

/* Sets the index of each thread, x fastest, and opens missing stacks. */
static void number_threads(Block *b, uint3 dim) {
    uint3 at = {0, 0, 0};
    b->n_threads = (int)(dim.x * dim.y * dim.z);
    for (int i = 0; i < b->n_threads; i++) {
        b->thread[i].index = at;
        if (i >= b->n_fibers) fiber_open(&b->thread[b->n_fibers++].fiber);
        if (++at.x == dim.x) at.x = 0, at.y++;
        if (at.y == dim.y) at.y = 0, at.z++;
    }
}

/* A Block for the next block of the grid. *n: Blocks of the pool that this launch uses. */
static Block *spare_block(Pool *pool, int *n, const EmuLaunch *l) {
    for (int i = 0; i < *n; i++)
        if (!pool->at[i]->n_cluster) return pool->at[i];
    if (*n == MOST_BLOCKS) die("kernel %s: more than %d blocks wait for others", l->name, *n);
    if (*n == pool->n) pool->at[pool->n++] = mem_calloc(1, sizeof **pool->at);
    Block *b = emu_block = pool->at[*n];
    b->name = l->name, b->body = l->body, b->ctx = l->ctx;
    b->order = emu_setup.order, b->random = emu_setup.seed + (unsigned)*n;
    b->host = (Fiber){0};
    number_threads(b, l->block);
    shared_size(&b->shared, l->dynamic_bytes);
    ++*n;
    return b;
}

/* Runs each block that has begun and not ended once. Returns how many have not ended. Dies if all
 * of them wait and none has notified another. */
static int run_turn(const Pool *pool, int n) {
    unsigned long before = n_notified;
    int began = 0, waits = 0;
    Block *last = NULL;
    for (int i = 0; i < n; i++) {
        Block *b = pool->at[i];
        if (!b->n_live) continue;
        began++;
        run_block(b);
        if (b->n_live) waits++, last = b;
    }
    if (began && waits == began && n_notified == before && !emu_run_copy()) report_deadlock(last);
    return waits;
}

/* Begins all blocks of a cluster, before any of them runs. first: number of the first block in the
 * grid. */
static void begin_cluster(Pool *pool, int *n_used, const EmuLaunch *l, uint64_t first,
                          Block *block[CLUSTER]) {
    uint64_t row = first / l->grid.x;
    for (unsigned i = 0; i < l->cluster; i++) {
        emu_called(&emu_calls.blocks);
        Block *b = block[i] = spare_block(pool, n_used, l);
        b->n_cluster = (int)l->cluster, b->rank = (int)i, b->n_met = 0;
        begin_block(b, (uint3){(unsigned)(first % l->grid.x) + i, (unsigned)(row % l->grid.y),
                               (unsigned)(row / l->grid.y)});
    }
    for (unsigned i = 0; i < l->cluster; i++)
        memcpy(block[i]->cluster, block, l->cluster * sizeof *block);
}

void emu_run(const EmuLaunch *l) {
    refuse_if_impossible(l);
    Pool *pool = this_pool();
    int n_used = 0;
    emu_at.grid_dim = l->grid, emu_at.block_dim = l->block;
    uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z / l->cluster;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = emu_setup.order == EMU_FORWARD   ? i
                      : emu_setup.order == EMU_REVERSE ? n - 1 - i
                                                       : rng_permute(i, n, emu_setup.seed, 0);
        Block *new[CLUSTER];
        begin_cluster(pool, &n_used, l, at * l->cluster, new);
        for (unsigned j = 0; j < l->cluster; j++) run_block(new[j]);
        // after each new cluster the blocks that wait for others run again
        for (int j = 0; j < n_used; j++)
            if (pool->at[j]->cluster[0] != new[0] && pool->at[j]->n_live) run_block(pool->at[j]);
    }
    while (run_turn(pool, n_used)) continue;
    emu_block = NULL;
}
