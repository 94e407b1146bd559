/* coll_mpi -- ranks are processes that a launcher started; MPI_Isend and MPI_Irecv move the bytes.
 *
 * A call takes one or two steps, in which every rank sends to every other, or twice as many where
 * nodes hold several ranks of a group (coll_mpi_flight.h).
 *
 * Terms of a sum are buffered until all have arrived, so that the order of arrival does not change
 * the sum. Parts are sent in chunks: that bounds the buffers, and no message reaches MPI's limit of
 * 2^31 elements. Blocks of dim 1 are packed: MPI's own strided types took three to five times as
 * long. Empty parts are sent too, so that a rank that has sent nothing is known to be missing.
 *
 * Waits poll with MPI_Testsome: MPI_Wait would keep a core busy, and would never return when a rank
 * is stopped or a link is down. A wait spins for as long as a message between two running ranks
 * takes, then sleeps between polls, within the World's limit.
 */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_mpi_flight.h"
#include "parallel/comm/coll_mpi_job.h"
#include "parallel/comm/ranks.h"

enum { VOLLEY = 16 }; // polls between two sleeps
// seconds without a message before a wait sleeps for the first time
static const double spin_for = 20e-6;
// seconds; waits shorter than this are not reported after a SIGTERM
static const double term_grace = 0.3;

/* MPI state of this process. */
static struct {
    MpiComm *comms;
    int *node;      // [world_size] number of the node of each rank
    double revived; // time at which this process noticed that it had been stopped
} job;

/* Handles the arrived messages of all collectives in flight. */
static void advance_all(Team *team) {
    for (MpiComm *m = job.comms; m; m = m->next)
        for (int i = 0; i <= COLL_IN_FLIGHT; i++)
            if (m->flight[i].step != FLIGHT_DONE) flight_advance(&m->flight[i], team);
}

/* ---- waiting */

static const char *describe(const Flight *f, char what[COLL_TEXT]) {
    return coll_describe(f->comm->group, f->call == &flight_barrier ? NULL : f->call, what);
}

/* A launcher has sent SIGTERM because a rank is gone. A rank that died has printed the reason: this
 * one ends without a word. A rank that was stopped is the one that others name as missing. */
static void terminated(const Flight *f, double waited) {
    char text[256], what[COLL_TEXT];
    if (mpi_job_is_dying()) {
        die_set_hook(NULL); // the rank that died ends the others, too
        die_end(128 + SIGTERM);
    }
    if (now_s() - job.revived > 5)
        coll_print_waiting(f->comm->group, describe(f, what), waited,
                           flight_missing(f, text, sizeof text));
    mpi_job_deliver();
}

/* Seconds to sleep after `still` seconds without a message: a quarter of that time, so that a sleep
 * delays a message by at most a quarter of its wait. */
static double sleep_after(double still) {
    double pause = still / 4;
    return pause < 5e-6 ? 5e-6 : pause > 1e-4 ? 1e-4 : pause;
}

/* Waits until a flight is done. Spins while messages arrive, then sleeps between volleys of
 * polls: one poll advances MPI by one step only, and a large message takes many steps. */
static void fly(Flight *f) {
    const Comm *c = f->comm->group;
    const World *w = c->world;
    double begin = now_s(), last = begin, moved = begin;
    for (int tests = 1;; tests++) {
        uint64_t before = flight_messages;
        advance_all(w->team);
        if (f->step == FLIGHT_DONE) break;
        double now = now_s();
        if (now - last > COLL_LONGEST_SLEEP) begin += now - last, job.revived = now;
        last = now;
        double waited = now - begin;
        if (flight_messages != before) moved = now;
        if (now - moved < spin_for || tests % VOLLEY) {
            sched_yield();
            continue;
        }
        if (mpi_job_sleep(sleep_after(now - moved)) && waited > term_grace) terminated(f, waited);
        char text[256], what[COLL_TEXT];
        if (w->limit > 0 && waited > w->limit)
            coll_expire(c, describe(f, what), waited, flight_missing(f, text, sizeof text));
    }
    mpi_job_deliver();
}

/* ---- the backend */

/* MpiComm.near: the largest power of two n that divides the size, such that each block of n
 * consecutive ranks is on one node; 1 if that n is the size. */
static int ranks_near(const Comm *c) {
    int near = 1;
    for (int twice = 2; c->size % twice == 0; twice *= 2) {
        for (int r = 0; r < c->size; r++)
            if (job.node[c->member[r]] != job.node[c->member[r - r % twice]]) return near;
        near = twice;
    }
    return near < c->size ? near : 1;
}

/* Does any rank share a node with its neighbour in the group? */
static bool any_near(const Comm *c) {
    for (int r = 1; r < c->size; r++)
        if (job.node[c->member[r]] == job.node[c->member[r - 1]]) return true;
    return false;
}

/* The largest power of two n that divides size with n * n <= size. */
static int square_root(int size) {
    int near = 1;
    while (size % (2 * near) == 0 && 4 * near * near <= size) near *= 2;
    return near;
}

/* Collective over the world. The number of each rank's node. If rank 0 has MESH_NODE_RANKS=2 in its
 * environment, each two consecutive ranks count as one node, to emulate several nodes. */
static int *find_nodes(World *w) {
    const char *emulated = getenv("MESH_NODE_RANKS");
    int *node = ranks_nodes(w), ranks = emulated ? atoi(emulated) : 0;
    Group all = comm_group(w->all);
    group_broadcast(&all, &ranks, sizeof ranks);
    for (int r = 0; r < w->size && ranks > 0; r++) node[r] = r / ranks;
    return node;
}

/* Makes the MPI communicator of a group, and decides how its calls use nodes (near, near_small).
 * The group of all ranks is the first one: it finds the nodes, and uses none meanwhile. */
static void mpi_open(Comm *c) {
    MpiComm *m = mem_calloc(1, sizeof *m);
    m->group = c;
    bool starting = c == c->world->all; // mpi_job_watch covers the whole start
    if (!starting) mpi_job_watch("MPI_Comm_split has not returned", c->world->limit);
    mpi_job_check(MPI_Comm_split(MPI_COMM_WORLD, c->member[0], c->rank, &m->mpi), "MPI_Comm_split");
    if (!starting) mpi_job_watched();
    MPI_Comm_set_errhandler(m->mpi, MPI_ERRORS_RETURN);
    flights_open(m);
    m->next = job.comms;
    job.comms = m;
    c->impl = m;
    m->near = m->near_small = 1;
    if (starting) job.node = find_nodes(c->world);
    m->near = ranks_near(c);
    m->near_small = any_near(c) ? m->near : square_root(c->size);
}

static void mpi_start(Comm *c, uint64_t number, const CollCall *call) {
    flight_start(&((MpiComm *)c->impl)->flight[number % COLL_IN_FLIGHT], number, call);
}

static void mpi_wait(Comm *c, uint64_t number, const CollCall *call) {
    (void)call;
    fly(&((MpiComm *)c->impl)->flight[number % COLL_IN_FLIGHT]);
}

/* Repeats while messages arrive: a message that completes a step starts the next step. */
static void mpi_progress(World *w) {
    uint64_t before;
    (void)w;
    do before = flight_messages, advance_all(NULL);
    while (flight_messages != before);
}

static void mpi_barrier(Comm *c) {
    MpiComm *m = c->impl;
    flight_start(&m->flight[COLL_IN_FLIGHT], m->barriers++, &flight_barrier);
    fly(&m->flight[COLL_IN_FLIGHT]);
}

static void mpi_close(Comm *c) {
    MpiComm *m = c->impl, **at = &job.comms;
    if (c == c->world->all)
        mpi_barrier(c); // MPI_Finalize waits for all ranks too, but without a limit
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    MPI_Comm_free(&m->mpi);
    flights_close(m);
    mem_free(m);
}

static void mpi_leave(World *w) {
    (void)w;
    flights_end();
    mem_free(job.node);
    mpi_job_end();
}

static const CollBackend coll_mpi = {.name = "mpi",
                                     .polled = true,
                                     .eager_limit = FLIGHT_EAGER_LIMIT,
                                     .open = mpi_open,
                                     .close = mpi_close,
                                     .start = mpi_start,
                                     .wait = mpi_wait,
                                     .progress = mpi_progress,
                                     .barrier = mpi_barrier,
                                     .close_world = mpi_leave};

World *world_mpi_open(int rank, double limit) {
    int size;
    mpi_job_begin(&rank, &size, limit);
    World *w = world_create(&coll_mpi, rank, size, NULL);
    mpi_job_watched();
    die_set_rank(rank, w->node);
    return w;
}
