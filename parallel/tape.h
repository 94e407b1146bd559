/* tape -- one training step written down: every kernel that one rank runs, every collective that it starts
 * and waits for, in order. parallel/price.h records it from the trainer's own step; a Machine
 * (parallel/machine.h) says what each entry costs; tape_play runs the clocks.
 *
 * Identical blocks are recorded once: a tape holds the step of a model of two layers and one of three, and
 * of at most two micro-steps; what a further layer and a further micro-step add is their difference.
 * So neither the memory nor the time of a tape grows with the model.
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
    int32_t index; // of the work, of the send; WAIT: of the START among the events
} Event;

typedef struct TapeGroup {
    Placement place;
    Axes axes; // along which its ranks differ; none: all ranks, or copies of key heads
    int size;
    int rank; // of the recorded rank in it
    char label[12];
} TapeGroup;

/* A step of some layers and micro-steps is parts[0..N_PARTS) of the events, one after the other. */
enum { PART_ZERO, PART_MICRO_1, PART_MICRO_2, PART_END, N_TAPE_PARTS };
typedef struct TapeRun {
    int begin[N_TAPE_PARTS + 1]; // stretches of Tape.event
    int64_t memory[N_ARENAS];    // bytes
    int64_t sampling;            // bytes of a Generator beside it
} TapeRun;

typedef struct Tape {
    Event *event;
    Work *work;
    Send *send;
    int n_events, max_events, n_works, max_works, n_sends, max_sends;
    TapeGroup group[MAX_COMMS + 2]; // those of a Grid, copies of key heads, all ranks
    int n_groups;
    int64_t layers, micro_steps; // of the real step
    int recorded[2];             // layers of the two runs; equal when the model has as few
    TapeRun run[2];
    int threads; // of the rank's team
} Tape;

/* What a step costs, in seconds, bytes and calls of this rank. */
typedef struct Price {
    double seconds;   // = compute + exposed + waiting
    double compute;   // kernels, slowed where communication runs beside them
    double exposed;   // waits for collectives
    double hidden;    // the part of collectives that ran under kernels
    double waiting;   // for ranks that are slower
    int64_t received; // bytes
    int64_t calls;    // of collectives
    int64_t memory;   // bytes of all arenas
} Price;

typedef struct Machine Machine;
/* Local, pure. */
void tape_play(const Tape *t, const Machine *m, Price *price);

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
