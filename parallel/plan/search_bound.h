/* search_bound -- what no price of a candidate undercuts, from the list of operations of a
 * micro-batch.
 *
 *   list of two layers, before chunks, panels, halves -> seconds of its kernels, bytes along each
 *   axis -> with those of the end of a step, and what a byte costs in each order of the axes: Bound
 *
 * A further layer adds what the second one has. Candidates that differ in d and z alone, or in what
 * runs under what, have the list in common.
 */
#ifndef PARALLEL_PLAN_SEARCH_BOUND_H
#define PARALLEL_PLAN_SEARCH_BOUND_H

#include "parallel/plan/search_parts.h"

/* Collectives along each axis, or panels: how many, and bytes of the wholes. An all_reduce is
 * two. */
typedef struct Traffic {
    double calls[N_ALONG], bytes[N_ALONG];
} Traffic;

/* Of a list, what one layer has, or all that is of no layer. */
typedef struct Part {
    double kernels, forward; // seconds; of forward alone
    Traffic sent, chain;     // chain: of activations in forward, where each needs the one before
    double gathers, gathered, scatters, scattered; // of weights, and of their gradients, along z
    int64_t kept;                                  // bytes, from forward to backward
    int64_t weights;                               // elements, of matrices
    int matrices, vectors;
} Part;

/* The list of candidates with the same sizes of x and y, flags, micro-batch, recompute; or, cut,
 * the kernels of those that have their chunks or panels in common, too. */
enum { MAX_MATRICES = 8 };
typedef struct MicroBatch {
    int32_t micro;
    int X, Y;
    uint8_t flags, recompute, cut;
    bool used;
    Part ends, layer;
    int64_t matrix[2][MAX_MATRICES]; // elements of each, of no layer, of a layer
} MicroBatch;
/* One place for each hash, more when they fill up. Of one space and machine. */
typedef struct MicroBatches {
    MicroBatch *at;
    int n, room;
} MicroBatches;
/* Collectives along one axis. */
typedef struct Line {
    double calls, bytes;
} Line;

/* What no price of a candidate undercuts. */
typedef struct Bound {
    double compute;         // seconds
    double early;           // of it, before gradients can be summed over d
    double squares, update; // of it: the gradients' norm, which needs all sums, and AdamW after it
    Traffic all;
    Traffic exposed;       // those of them under which no kernel runs, whatever comes
    Line sums, fresh;      // over d: of gradients, and of weights that AdamW has changed
    double crowd, slowest; // Machine's
    double slowdown;       // Machine's, where it is the same beside all collectives; else 1
} Bound;
/* Local. any: whatever schedule; else the choice's. */
void seed_bound(Bound *b, MicroBatches *all, const Space *s, const Machine *m, const Choice *c,
                bool any);
/* Local. Bytes: not more than it takes. */
int64_t seed_memory(MicroBatches *all, const Space *s, const Machine *m, const Choice *c, bool any);
/* Local, pure. Bytes that a layer takes at least, of a model of more layers than two. */
int64_t seed_layer_memory(MicroBatches *all, const Space *s, const Machine *m, const Choice *c);
double bound_in(const Bound *b, const Orders *o, int order); // seconds, in that order of the axes
double bound_least(const Bound *b, const Orders *o);         // in any order

#endif
