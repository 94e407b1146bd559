/* coll_mpi -- ranks are processes that a launcher started; MPI_Isend and MPI_Irecv move the bytes.
 *
 * A call makes one to four steps, in each of which ranks send to each other what coll_parts.h lists: directly, or where ranks
 * of a group share nodes first inside these, or little in rounds (coll_mpi_flight.c has the sizes where that is quicker).
 *
 * What comes for a sum is kept until all of it is there, so that the order of arrival has no part in the
 * sum. Parts go in pieces: that bounds what is kept, and no message comes near MPI's 2^31 elements. Blocks
 * of dim 1 are packed: as MPI's own types for strided memory they took three to five times as long. Empty
 * parts are sent, too: who has sent nothing is whom the others wait for. In rounds that may be one who waits himself; his
 * own line says for whom.
 *
 * Waiting is testing: MPI_Wait would hold a core, and for ever when a rank is stopped or a link is cut. So a wait
 * spins for as long as a message between two running ranks takes, then sleeps between tests, within the World's limit.
 */
#include <sched.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/coll_mpi_flight.h"
#include "parallel/coll_mpi_job.h"

enum {
    VOLLEY = 16, // tests between two naps
    FEW = 4,     // the same of ranks that leave their core to others
};
static const double spin_for = 20e-6; // seconds without a message before the first nap
static const double term_grace = 0.3; // seconds; after a SIGTERM shorter waits are not worth a line
static const double longest_nap = 1;  // seconds; when it was longer, this rank itself was stopped

/* MPI has one state per process, and so has this file. */
static struct {
    MpiComm *comms;
    int *node;      // [ranks of the world] on which each one is
    double revived; // when this process found that it had been stopped
} job;

static void advance_all(Team *team) {
    if (flight_count.flying == 0) return;
    for (MpiComm *m = job.comms; m; m = m->next)
        for (int i = 0; i <= COLL_IN_FLIGHT; i++)
            if (m->flight[i].step != FLIGHT_LANDED) flight_advance(&m->flight[i], team);
}

/* ---- waiting */

/* For messages; NULL: a barrier. */
static const CollCall *named(const Flight *f) {
    return f->call == &flight_barrier ? NULL : f->call;
}

/* A launcher has sent SIGTERM because a rank is gone. One that died by itself has said why, and one that
 * was stopped is whom the others waited for. */
static void terminated(const Flight *f, double waited) {
    char text[256];
    if (coll_now() - job.revived > 5 && !mpi_job_is_dying())
        coll_say_waiting(f->home->group, named(f), waited, flight_missing(f, text, sizeof text));
    mpi_job_deliver();
}

/* Seconds to sleep after so many without a message: a test comes late by a quarter of them. */
static double nap_after(const World *w, double still) {
    double nap = still / 4;
    if (w->wait == WAIT_SPIN) return 0;
    return nap < 5e-6 ? 5e-6 : nap > 1e-4 ? 1e-4 : nap;
}

/* Spins while messages come, then sleeps between volleys of tests: one test moves MPI on by a step only,
 * and a large message takes many. Who waits by spinning only looks at signals and the limit there. */
static void fly(Flight *f) {
    const Comm *c = f->home->group;
    const World *w = c->world;
    double spin = w->wait == WAIT_SLEEP ? 0 : spin_for;
    int volley = w->wait == WAIT_SLEEP ? FEW : VOLLEY;
    double begin = coll_now(), last = begin, moved = begin;
    for (int tests = 1;; tests++) {
        uint64_t before = flight_count.messages;
        advance_all(w->team);
        if (f->step == FLIGHT_LANDED) break;
        double now = coll_now();
        if (now - last > longest_nap) begin += now - last, job.revived = now;
        last = now;
        double waited = now - begin;
        if (flight_count.messages != before) moved = now;
        if (now - moved < spin || tests % volley) {
            sched_yield();
            continue;
        }
        if (mpi_job_nap(nap_after(w, now - moved)) && waited > term_grace) terminated(f, waited);
        char text[256];
        if (w->limit > 0 && waited > w->limit)
            coll_expire(c, named(f), waited, flight_missing(f, text, sizeof text));
    }
    mpi_job_deliver();
}

/* ---- the backend */

static void mpi_open(Comm *c, int color, int key) {
    MpiComm *m = mem_calloc(1, sizeof *m);
    m->group = c;
    bool starting = c == c->world->all; // the whole start is watched
    if (!starting) mpi_job_watch("MPI_Comm_split has not returned", c->world->limit);
    mpi_job_check(MPI_Comm_split(MPI_COMM_WORLD, color, key, &m->mpi), "MPI_Comm_split");
    if (!starting) mpi_job_watched();
    MPI_Comm_set_errhandler(m->mpi, MPI_ERRORS_RETURN);
    if (starting) {
        job.node = mem_calloc((size_t)c->size, sizeof *job.node);
        mpi_job_nodes(job.node);
    }
    int *node = mem_calloc((size_t)c->size, sizeof *node);
    for (int r = 0; r < c->size; r++) node[r] = job.node[c->member[r]];
    m->nodes = coll_nodes_make(node, c->size);
    m->alone = coll_nodes_make(NULL, c->size);
    mem_free(node);
    flights_open(m);
    m->next = job.comms;
    job.comms = m;
    c->impl = m;
}

static void mpi_start(Comm *c, uint64_t number, const CollCall *call) {
    flight_start(&((MpiComm *)c->impl)->flight[number % COLL_IN_FLIGHT], number, call);
}

static void mpi_wait(Comm *c, uint64_t number, const CollCall *call) {
    (void)call;
    fly(&((MpiComm *)c->impl)->flight[number % COLL_IN_FLIGHT]);
}

/* While messages come: one that completes a step has the next one begin. */
static void mpi_progress(World *w) {
    uint64_t before;
    (void)w;
    do before = flight_count.messages, advance_all(NULL);
    while (flight_count.messages != before);
}

static void mpi_barrier(Comm *c) {
    MpiComm *m = c->impl;
    flight_start(&m->flight[COLL_IN_FLIGHT], m->barriers++, &flight_barrier);
    fly(&m->flight[COLL_IN_FLIGHT]);
}

static void mpi_close(Comm *c) {
    MpiComm *m = c->impl, **at = &job.comms;
    if (c == c->world->all)
        mpi_barrier(c); // MPI_Finalize waits for all as well, but knows no limit
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    MPI_Comm_free(&m->mpi);
    flights_close(m);
    coll_nodes_free(&m->nodes);
    coll_nodes_free(&m->alone);
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
                                     .turn = FLIGHT_ROUNDS_TO,
                                     .open = mpi_open,
                                     .close = mpi_close,
                                     .start = mpi_start,
                                     .wait = mpi_wait,
                                     .progress = mpi_progress,
                                     .barrier = mpi_barrier,
                                     .leave = mpi_leave};

World *world_mpi_open(int rank, double limit) {
    int size;
    mpi_job_begin(&rank, &size, limit);
    World *w = world_create(&coll_mpi, rank, size, mpi_job_threads(), NULL);
    mpi_job_watched();
    die_set_rank(rank, w->node);
    return w;
}
