#include "base/team.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/die.h"
#include "base/futex.h"
#include "base/mem.h"

/* Pause instructions that a waiting member executes before it sleeps: some tens of microseconds. It
 * must sleep because another program may need the core. Members of a team that is larger than its
 * cores sleep at once: spinning would keep the awaited member from running. */
enum { SPIN = 1000 };

/* Seconds between two polls. From 0.2 to 1 ms polls hide the same part of the communication, at 200
 * Mbit/s and at 1 Gbit/s; one poll of MPI's sockets takes 3 us. */
static const double poll_every = 0.5e-3;

struct Team {
    int size;
    int spin; // pause instructions before a member sleeps: SPIN, or 0 where members share cores
    const int *wanted; // team_set_poll: poll(poll_ctx) is called while *wanted is not 0
    void (*poll)(void *ctx);
    void *poll_ctx;
    double next_poll; // not before this time (now_s)
    TeamFn f;
    void *ctx;
    _Alignas(64) _Atomic uint32_t round; // grows by one per team_run: members wait for it to change
    _Alignas(64) _Atomic uint32_t done;  // members that finished this round
    _Alignas(64) _Atomic uint32_t arrived, phase; // barrier
    _Alignas(64) _Atomic int64_t next;            // team_for: first item not handed out
    _Atomic bool quit;
    bool pinned;
    cpu_set_t callers_cores; // of the calling thread, before it was pinned
    struct Member {
        Team *team;
        int index;
        pthread_t thread;
        DieRank rank; // the rank's name in messages of this thread
        double rate;  // work per second that team_report reported last; 0: none
        double speed; // a moving average of rate / (mean rate of all members)
    } * members;
    double *share; // [size + 1], the result of team_shares
};

/* Waits until *word != old: spins, then sleeps in the kernel. */
static void wait_change(const Team *t, _Atomic uint32_t *word, uint32_t old) {
    for (int i = 0; i < t->spin; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) return;
        pause_cpu();
    }
    while (atomic_load_explicit(word, memory_order_acquire) == old) futex_wait(word, old, 0);
}

/* Pins the calling thread to n cores of a set, beginning with its first-th core. A member that is
 * not pinned is often woken on the core of the thread that wakes it: the two then share that core
 * while the other core idles. */
static void pin(const cpu_set_t *cores, int first, int n) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    for (size_t core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, cores) && first-- <= 0 && n-- > 0) CPU_SET(core, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

void team_pin_to_part(int part, int parts) {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) || CPU_COUNT(&cores) % parts) return;
    int share = CPU_COUNT(&cores) / parts;
    pin(&cores, part * share, share);
}

int team_start_thread(pthread_t *thread, void *(*f)(void *), void *arg) {
    pthread_attr_t with;
    pthread_attr_init(&with);
    pthread_attr_setstacksize(&with, 8 << 20);
    int rc = pthread_create(thread, &with, f, arg);
    pthread_attr_destroy(&with);
    return rc;
}

static void *member_main(void *arg) {
    struct Member *m = arg;
    Team *t = m->team;
    uint32_t seen = 0;
    die_adopt_rank(m->rank);
    if (t->pinned) pin(&t->callers_cores, m->index, 1);
    for (;;) {
        wait_change(t, &t->round, seen);
        seen++;
        if (atomic_load(&t->quit)) return NULL;
        t->f(t->ctx, m->index, t->size);
        atomic_fetch_add_explicit(&t->done, 1, memory_order_acq_rel);
        futex_wake(&t->done);
    }
}

int team_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static const int not_wanted = 0;

Team *team_create(int n_threads) {
    Team *t = mem_alloc_aligned(sizeof *t, 64);
    memset(t, 0, sizeof *t);
    int cores = team_cores();
    t->size = n_threads > 0 ? n_threads : cores;
    t->spin = t->size <= cores ? SPIN : 0;
    t->wanted = &not_wanted;
    t->members = mem_calloc((size_t)t->size, sizeof *t->members);
    t->share = mem_calloc((size_t)t->size + 1, sizeof *t->share);
    t->pinned = t->size > 1 &&
                sched_getaffinity(0, sizeof t->callers_cores, &t->callers_cores) == 0 &&
                CPU_COUNT(&t->callers_cores) == t->size;
    if (t->pinned) pin(&t->callers_cores, 0, 1);
    t->members[0].speed = 1;
    for (int i = 1; i < t->size; i++) {
        t->members[i] = (struct Member){.team = t, .index = i, .rank = die_rank(), .speed = 1};
        int rc = team_start_thread(&t->members[i].thread, member_main, &t->members[i]);
        if (rc)
            die_user("cannot start thread %d of %d: %s; " TEAM_MORE_THREADS, i, t->size,
                     strerror(rc));
    }
    return t;
}

void team_unpin_caller(const Team *t) {
    if (t->pinned) sched_setaffinity(0, sizeof t->callers_cores, &t->callers_cores);
}

void team_destroy(Team *t) {
    if (!t) return;
    atomic_store(&t->quit, true);
    atomic_fetch_add_explicit(&t->round, 1, memory_order_release);
    futex_wake(&t->round);
    for (int i = 1; i < t->size; i++) pthread_join(t->members[i].thread, NULL);
    team_unpin_caller(t);
    mem_free(t->members);
    mem_free(t->share);
    mem_free(t);
}

int team_size(const Team *t) {
    return t ? t->size : 1;
}

void team_run(Team *t, TeamFn f, void *ctx) {
    if (t->size == 1) {
        f(ctx, 0, 1);
        return;
    }
    t->f = f;
    t->ctx = ctx;
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->round, 1, memory_order_release);
    futex_wake(&t->round);
    f(ctx, 0, t->size);
    for (uint32_t d;
         (d = atomic_load_explicit(&t->done, memory_order_acquire)) + 1 < (uint32_t)t->size;)
        wait_change(t, &t->done, d);
}

/* Moves every member's speed towards its rate; leaves all as they are if one had no work. */
static void follow_speeds(Team *t) {
    double mean = 0;
    for (int i = 0; i < t->size; i++) {
        if (t->members[i].rate <= 0) return;
        mean += t->members[i].rate / t->size;
    }
    for (int i = 0; i < t->size; i++) {
        struct Member *m = &t->members[i];
        m->speed += (m->rate / mean - m->speed) / 8;
        // a slower member would get no work, and never be measured again
        if (m->speed < 1.0 / 16) m->speed = 1.0 / 16;
        m->rate = 0;
    }
}

const double *team_shares(Team *t) {
    double sum = 0;
    follow_speeds(t);
    for (int i = 0; i < t->size; i++) t->share[i] = sum, sum += t->members[i].speed;
    for (int i = 0; i < t->size; i++) t->share[i] /= sum;
    t->share[t->size] = 1;
    return t->share;
}

void team_report(Team *t, int member, double work, double seconds) {
    t->members[member].rate = seconds > 0 ? work / seconds : 0;
}

void team_barrier(Team *t) {
    if (t->size == 1) return;
    uint32_t phase = atomic_load_explicit(&t->phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)t->size) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&t->phase, 1, memory_order_release);
        futex_wake(&t->phase);
    } else {
        wait_change(t, &t->phase, phase);
    }
}

void team_set_poll(Team *t, const int *wanted, void (*f)(void *ctx), void *ctx) {
    t->wanted = wanted, t->poll = f, t->poll_ctx = ctx;
}

void team_poll(Team *t) {
    if (!t || !*t->wanted || now_s() < t->next_poll) return;
    t->poll(t->poll_ctx);
    t->next_poll = now_s() + poll_every;
}

struct ForJob {
    Team *team;
    int64_t n, grain;
    TeamForFn f;
    void *ctx;
};

static void for_member(void *arg, int member, int size) {
    struct ForJob *j = arg;
    Team *polled = member == 0 ? j->team : NULL;
    (void)size;
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&j->team->next, j->grain, memory_order_relaxed);
        if (begin >= j->n) return;
        int64_t end = begin + j->grain < j->n ? begin + j->grain : j->n;
        j->f(j->ctx, begin, end);
        team_poll(polled);
    }
}

void team_for(Team *t, int64_t n, int64_t grain, TeamForFn f, void *ctx) {
    assert(grain >= 1);
    if (n <= 0) return;
    if (n <= grain || t->size == 1) {
        int64_t piece = *t->wanted ? grain : n;
        for (int64_t at = 0; at < n; at += piece, team_poll(t))
            f(ctx, at, at + piece < n ? at + piece : n);
        return;
    }
    struct ForJob j = {t, n, grain, f, ctx};
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    team_run(t, for_member, &j);
}
