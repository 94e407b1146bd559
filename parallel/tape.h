/* tape -- one training step written down: every kernel that one rank runs, every collective that it starts
 * and waits for, in order. parallel/price.h records it from the trainer's own step; a Machine
 * (parallel/machine.h) says what each entry costs; tape_play runs the clocks.
 *
 * Identical blocks are recorded once: a tape holds the step of a model of two layers and one of three (or three and
 * four), and what a further layer adds is their difference. It holds the first micro-step, one that stands for
 * all further ones, and the
 * last one, where that is not like them. So neither the memory nor the time of a tape grows with the model.
 */
#ifndef PARALLEL_TAPE_H
#define PARALLEL_TAPE_H

#include "parallel/coll.h"
#include "parallel/model.h"
#include "parallel/work.h"

/* A kind of collective. bytes: of the whole (all_gather's dst, reduce_scatter's src, else the buffer). */
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
    uint16_t
        slot; // of START and WAIT: of a ticket; those that are open at the same time have different ones
    int32_t index; // of the work, of the send; WAIT: of the START among the events
} Event;

typedef struct TapeGroup {
    Placement
        place; // of size ranks, or more: copies of key heads that do not divide a factor of the mesh
    Placement
        replicas; // where ranks are that do the same with other tokens; none: of a group along d
    Axes axes;    // along which its ranks differ; none: all ranks, or copies of key heads
    int size;
    int rank; // of the recorded rank in it
    char label[12];
} TapeGroup;

/* A step of some layers and micro-steps is parts[0..N_PARTS) of the events, one after the other. */
enum { PART_ZERO, PART_MICRO_1, PART_MICRO_2, PART_LAST, PART_END, N_TAPE_PARTS };
enum { TAPE_SLOTS = (MAX_COMMS + 2) * COLL_IN_FLIGHT };
typedef struct TapeRun {
    int begin[N_TAPE_PARTS + 1]; // stretches of Tape.event
    int met; // where a meeting of replicas ends, which begins where the step does not go on
    int64_t memory[N_ARENAS]; // bytes
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
    int64_t every;               // steps between meetings
    int64_t repeats;             // of PART_MICRO_2 in it
    int recorded[2];             // layers of the two runs; equal when the model has as few
    TapeRun run[2];
    int threads;  // of the rank's team
    bool overlap; // does anything run beside its kernels, by the schedule's words?
} Tape;

/* What a step costs, in seconds, bytes and calls of this rank. */
typedef struct Price {
    double seconds;   // = compute + exposed + waiting
    double compute;   // kernels, slowed where communication runs beside them
    double exposed;   // waits for collectives
    double hidden;    // the part of collectives that ran under kernels, or beside each other
    double waiting;   // for ranks that are slower
    int64_t received; // bytes
    int64_t calls;    // of collectives
    int64_t memory;   // bytes of all arenas
    double
        meeting; // the part of `exposed` that is a step's share in meetings of replicas, and not in its tape
} Price;

typedef struct Machine Machine;
/* Local, pure. Seconds of kernels that take `compute` when all of k ranks that share a core compute at once, beside `exposed`
 * seconds in which one waits for a collective and the others have its core. k <= 1: none share. */
double tape_crowded(double compute, double exposed, double k);
/* Local, pure. */
void tape_play(const Tape *t, const Machine *m, Price *price);

/* Local, pure. What replicas that train apart send when they meet, of which a step has the every-th part: *calls of one
 * kind, each *s, which receive s->received together. False: they do not meet. */
bool tape_meeting(const Tape *t, Send *s, int *calls);
/* Local, pure. Kernels of the real step, and starts and waits of its collectives. */
int64_t tape_events(const Tape *t);
/* Local, pure. Bytes of all arenas of the real model. */
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
/* Local. At most max intervals of run 0, in order of their beginning; returns how many there are. */
int tape_intervals(const Tape *t, const Machine *m, Interval *out, int max);

/* Local, pure. Most of what a step receives grows by the same bytes with every layer; an all_reduce over the vectors
 * of all layers grows by the parts that ranks sum, which are not all alike. The i-th such send (from 0): its index, how
 * many bytes the line through the two runs misses; -1: there are no more. */
int tape_uneven(const Tape *t, int i, int64_t *bytes);

void tape_free(Tape *t);

#endif
