/* search_parts -- what the files of the search share: the candidates before their axes have an
 * order.
 */
#ifndef PARALLEL_PLAN_SEARCH_PARTS_H
#define PARALLEL_PLAN_SEARCH_PARTS_H

#include "parallel/plan/calibrate.h"
#include "parallel/plan/search.h"

/* A candidate in any order of its axes. */
typedef struct Candidate {
    double bound; // seconds that none of its prices undercuts
    int size[N_AXES];
    int32_t micro, number; // number: in the order of enumeration
    uint8_t flags, zero, recompute;
    uint8_t schedule; // index into schedules
} Candidate;
enum { FLAG_SP = 1, FLAG_HEADS = 2, FLAG_STAY = 4 };
uint8_t candidate_flags(const Layout *l); // local, pure

/* Local, pure. Calls f for each candidate of the space, of one named scheme (NULL: of any). */
void candidate_each(const Space *s, const NamedScheme *scheme,
                    void (*f)(const Candidate *candidate, void *ctx), void *ctx);
/* Local, pure. Is a candidate of the whole space one of the scheme's? */
bool scheme_has(const NamedScheme *f, const Layout *l);
/* What may run under what. Bulk is free of cost but for memory, and for kernels that are slower
 * beside a collective; the others take its place under what it leaves exposed, so they come with
 * it. Chunks and rings cut what a matmul waits for; halves hide that and all else: more of them at
 * once have nothing left to hide. What fused matmuls bring is tried: plan_trials. */
enum {
    N_SCHEDULES = 6,
    ANY_SCHEDULE = N_SCHEDULES
}; // ANY: a candidate that stands for all of its schedules
extern const Overlap schedules[N_SCHEDULES];
/* Local, pure. Those of a candidate: where there is nothing to hide none, on d and z alone none and
 * bulk, ring with sp, halves of an even micro-batch; the one that is asked for where it
 * is fixed. Returns how many. */
int candidate_schedules(const Space *s, const Candidate *candidate, Candidate out[N_SCHEDULES]);
Choice candidate_choice(const Space *s,
                        const Candidate *candidate); // with its axes in the order d, z, x, y
PriceShape candidate_shape(const Space *s, const Choice *c);

/* The orders of a mesh's axes, tiles among them, and what collectives cost along the axes in each.
 */
enum { ALONG_X, ALONG_Y, ALONG_Z, ALONG_D, ALONG_ZD, STREAM_X, STREAM_Y, N_ALONG };
/* Lines in the bytes of the whole, of a collective that gathers or scatters (an all_reduce does
 * both) or streams a panel. wire: the part that keeps links busy (clocks_start); load: the same
 * with all replicas. */
typedef struct AlongLine {
    CostLine whole, wire, load;
    uint8_t level; // whose links it takes
} AlongLine;
typedef struct Order {
    AlongLine along[N_ALONG];
} Order;
typedef struct Orders {
    int size[N_AXES];
    int n;
    Layout *layout; // [n] without flags
    Order *at;      // [n]
} Orders;
/* Local. All of them, in place of those that o has, or zero; does nothing when it has these sizes
 * already. */
void orders_of(Orders *o, const Space *s, const Machine *m, const int size[N_AXES]);
void orders_free(Orders *o); // to zero

/* ---- what no price of a candidate undercuts (search_bound.c), from the list of a micro-batch
 *
 *   list of two layers, before chunks, panels, halves -> seconds of its kernels, bytes along each
 *   axis -> with those of the end of a step, and what a byte costs in each order of the axes: Bound
 *
 * A further layer adds what the second one has. Candidates that differ in d and z alone, or in what
 * runs under what, have the list in common. */

/* Collectives along an axis: how many, and bytes of the wholes. An all_reduce is two. */
typedef struct Line {
    double calls, bytes;
} Line;

/* Of a list, what one layer has, or all that is of no layer. */
typedef struct Sums {
    double kernels, forward;  // seconds; of forward alone
    double kept;              // bytes, from forward to backward
    Line sent[N_ALONG];       // of activations; or panels
    Line chain[N_ALONG];      // of them those of forward, where each needs the one before
    Line gathered, scattered; // of weights, and of their gradients, along z
} Sums;
typedef struct Part {
    Sums sums;
    int64_t weights; // elements, of matrices
    int matrices, vectors;
} Part;

/* The list of candidates with the same sizes of x and y, flags, micro-batch, recompute; or, cut,
 * the kernels of those that have their chunks or panels in common, too. */
enum { MAX_MATRICES = 8 };
typedef struct MicroBatchKey {
    int32_t micro, X, Y; // micro 0: none
    uint8_t flags, recompute;
    uint16_t cut;
} MicroBatchKey;
typedef struct MicroBatch {
    MicroBatchKey key;
    Part ends, layer;
    int64_t matrix[2][MAX_MATRICES]; // elements of each, of no layer, of a layer
} MicroBatch;
/* One place for each hash, more when they fill up. Of one space and machine. */
typedef struct MicroBatches {
    MicroBatch *at;
    int n, room;
} MicroBatches;
/* What no price of a candidate undercuts. */
typedef struct Bound {
    double compute;         // seconds
    double early;           // of it, before gradients can be summed over d
    double squares, update; // of it: the gradients' norm, which needs all sums, and AdamW after it
    Line all[N_ALONG];
    Line exposed[N_ALONG];            // those of them under which no kernel runs, whatever comes
    Line sums, fresh;                 // over d: of gradients, and of weights that AdamW has changed
    double oversubscription, slowest; // Machine's
    double slowdown; // Machine's, where it is the same beside all collectives; else 1
} Bound;
/* Local. any: whatever schedule; else the choice's. */
void candidate_bound(Bound *b, MicroBatches *all, const Space *s, const Machine *m, const Choice *c,
                     bool any);
/* Local. Bytes: not more than it takes. */
int64_t candidate_memory(MicroBatches *all, const Space *s, const Machine *m, const Choice *c,
                         bool any);
/* Local, pure. Bytes that a layer takes at least, of a model of more layers than two. */
int64_t candidate_layer_memory(MicroBatches *all, const Space *s, const Machine *m,
                               const Choice *c);
double bound_in(const Bound *b, const Orders *o, int order); // seconds, in that order of the axes
double bound_least(const Bound *b, const Orders *o);         // in any order

#endif
