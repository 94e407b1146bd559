/* tape -- the program of one training step as a list: every kernel that a rank runs and every
 * collective that it starts and waits for, in order. parallel/plan/price.h records it from the
 * trainer's own step, a Machine (parallel/plan/machine.h) gives the cost of each entry, tape_play
 * simulates the clocks.
 *
 * Identical blocks are recorded once: a tape holds the steps of models of two and of three layers
 * (or three and four); the cost of a further layer is their difference. It holds the first
 * micro-batch, one for all further ones, and the last one if that differs. So memory and time of a
 * tape do not grow with the model.
 */
#ifndef PARALLEL_PLAN_TAPE_H
#define PARALLEL_PLAN_TAPE_H

#include "parallel/comm/coll.h"
#include "parallel/plan/work.h"
#include "parallel/step/model.h"

enum { MAX_LEVELS = 4 }; // of a cluster: sockets, nodes, ...

/* A collective. bytes: of the whole (dst of all_gather, src of reduce_scatter, else the buffer). */
typedef struct Send {
    CollOp op;
    int group; // index into the tape's groups
    int64_t bytes;
    int64_t received;   // by this rank, as world_counts counts
    int32_t type_bytes; // of an element
    const char *what;
} Send;

typedef enum { EVENT_WORK, EVENT_START, EVENT_WAIT, EVENT_BARRIER } EventKind;
typedef struct Event {
    uint8_t kind;
    // START, WAIT: slot of the ticket; unique among collectives in flight
    uint16_t slot;
    int32_t index; // of the work or send; WAIT: of its START event
} Event;

typedef struct TapeGroup {
    // of size ranks, or more: copies of key heads that do not divide a factor of the mesh
    Placement place;
    // the replicas of this group along d; none: a group along d
    Placement replicas;
    Axes axes; // axes of the group; none: all ranks, or copies of key heads
    int size;
    int rank; // of the recorded rank in it
    char label[12];
} TapeGroup;

/* A step of some layers and micro-batchs is parts[0..N_PARTS) of the events, one after the
 * other. */
enum { PART_ZERO, PART_MICRO_1, PART_MICRO_2, PART_LAST, PART_END, N_TAPE_PARTS };
enum { TAPE_SLOTS = (MAX_COMMS + 2) * COLL_IN_FLIGHT };
typedef struct TapeRun {
    int begin[N_TAPE_PARTS + 1]; // stretches of Tape.event
    int met; // where an outer step ends, which begins where the step does not go on
    int64_t memory[N_ARENAS]; // bytes
    int64_t kept;             // of these, of activations: when the loss is there
    int64_t sampling;         // bytes of a Generator beside it
} TapeRun;

typedef struct Tape {
    Event *event;
    Work *work;
    Send *send;
    int n_events, max_events, n_works, max_works, n_sends, max_sends;
    uint16_t found[256];            // of works like one: which may be it
    TapeGroup group[MAX_COMMS + 2]; // those of a Grid, copies of key heads, all ranks
    int n_groups;
    int64_t layers, micro_steps; // of the real step
    int64_t every;               // steps between outer steps
    int64_t repeats;             // of PART_MICRO_2 in it
    int recorded[2];             // layers of the two runs; equal when the model has as few
    TapeRun run[2];
    int threads;  // of the rank's team
    bool overlap; // does anything run beside its kernels, by the flags of the schedule?
} Tape;

/* Cost of a step on this rank: seconds, bytes, calls. */
typedef struct Price {
    double seconds;   // = compute + exposed + waiting
    double compute;   // kernels, slowed where communication runs beside them
    double exposed;   // waits for collectives
    double hidden;    // time of collectives hidden under kernels or under each other
    double waiting;   // for ranks that are slower
    int64_t received; // bytes
    int64_t calls;    // of collectives
    int64_t memory;   // bytes of all arenas
    // the part of `exposed` that is a step's share in outer steps, and not in its tape
    double meeting;
} Price;

/* Seconds, bytes and calls of a rank, added up along a list of its kernels and collectives. */
typedef struct Played {
    double compute, exposed;
    double meeting;                           // the part of exposed in groups along d
    double sent;                              // seconds of all collectives
    double own[MAX_LEVELS], busy[MAX_LEVELS]; // of each level's links: by this replica, by all
    int64_t received, calls;
} Played;

typedef struct Machine Machine;
/* Local, pure. a += times * (b - before). */
void played_add(Played *a, const Played *b, const Played *before, int64_t times);
/* Local, pure. The price of all of it (but for memory), with what replicas wait for each other on
 * links that they share, and with kernels slowed by ranks that share their cores. meeting:
 * Price.meeting. */
void played_price(const Played *p, const Machine *m, double meeting, Price *price);
/* Local, pure. Seconds of kernels that take `compute` when all of k ranks that share a core compute
 * at once, beside `exposed` seconds in which one waits for a collective and the others have its
 * core. k <= 1: none share. */
double tape_crowded(double compute, double exposed, double k);
/* Local, pure. */
void tape_play(const Tape *t, const Machine *m, Price *price);

/* Local, pure. What replicas that take local steps send when they meet, of which a step has the
 * every-th part: *calls of one kind, each *s, which receive s->received together. False: they do
 * not meet. */
bool tape_meeting(const Tape *t, Send *s, int *calls);
/* Local, pure. Kernels of the real step, and starts and waits of its collectives. */
int64_t tape_events(const Tape *t);
/* Local, pure. Bytes of all arenas of the real model. Where temporaries lie is found for each
 * number of layers, so the gaps between them come and go; what a further layer keeps does not. */
int64_t tape_memory(const Tape *t);
/* Local, pure. Seconds of a step that the collectives of each group take (t->n_groups of them). */
void tape_by_group(const Tape *t, const Machine *m, double *seconds);

/* One interval of a played step, for pictures: of the first run, all its layers. */
typedef struct Interval {
    double begin, end;
    int event; // index
    bool communication;
    double exposed; // seconds of a collective for which the rank waited
} Interval;
/* Local. At most max intervals of run 0, in order of their beginning; returns how many there
 * are. */
int tape_intervals(const Tape *t, const Machine *m, Interval *out, int max);

/* Local, pure. Most of what a step receives grows by the same bytes with every layer; an all_reduce
 * over the vectors of all layers grows by the parts that ranks sum, which are not all alike. The
 * i-th such send (from 0): its index, how many bytes the line through the two runs misses; -1:
 * there are no more. */
int tape_uneven(const Tape *t, int i, int64_t *bytes);

void tape_free(Tape *t);

#endif
