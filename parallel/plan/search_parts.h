/* search_parts -- what the files of the search share: candidates, the orders of their axes, and the
 * lower bound of their prices.
 */
#ifndef PARALLEL_PLAN_SEARCH_PARTS_H
#define PARALLEL_PLAN_SEARCH_PARTS_H

#include "parallel/plan/calibrate.h"
#include "parallel/plan/search.h"

/* A candidate: a choice whose axes are in the order d, z, x, y until a better order is found. */
typedef struct Candidate {
    Choice c;
    double bound;   // seconds: no price of the candidate, in any order of its axes, is below
    int32_t number; // in the order of enumeration
    int order;      // of a priced candidate: index into the orders of its axes
    bool any;       // stands for all schedules of the choice (candidate_schedules)
} Candidate;

/* Local, pure. Calls f for each candidate of the space. scheme: only the candidates of this named
 * scheme; NULL: all. */
void candidate_each(const Space *s, const NamedScheme *scheme,
                    void (*f)(const Candidate *candidate, void *ctx), void *ctx);
/* Local, pure. Does a candidate of the whole space with layout l belong to the scheme? */
bool scheme_has(const NamedScheme *f, const Layout *l);
/* The overlaps that the search tries: none, bulk, and bulk with one more flag. bulk costs only
 * memory, and kernels that are slower beside a collective; the other flags work on what bulk leaves
 * exposed, so each is tried together with bulk. chunk and ring hide the collective that a matmul
 * waits for, halves hides every collective: two of the three together would have nothing left to
 * hide. `fused` is not predicted: plan_trials runs it. */
enum { N_SCHEDULES = 6 };
/* Local, pure. One candidate for each schedule that can make a difference: on one rank only none;
 * on d and z alone none and bulk; ring only with sp; halves only of an even micro-batch. Where the
 * space fixes the overlap, one candidate; none if that overlap has halves and the micro-batch is
 * odd. Returns the number of candidates. */
int candidate_schedules(const Space *s, const Candidate *candidate, Candidate out[N_SCHEDULES]);
PriceShape candidate_shape(const Space *s, const Choice *c);

/* All orders of a mesh's axes (with tiled ones), and lower bounds of what collectives cost along
 * the axes in each order. STREAM_X, STREAM_Y: panels of stay=y along x, y; the others: gathers and
 * scatters. */
enum { ALONG_X, ALONG_Y, ALONG_Z, ALONG_D, ALONG_ZD, STREAM_X, STREAM_Y, N_ALONG };
/* Lower bounds of the seconds of a collective as lines in the bytes of the whole tensor. An
 * all_reduce counts as two collectives, a scatter and a gather. Which seconds each line bounds:
 * OpCost (parallel/step/schedule.h). */
typedef struct AlongCost {
    CostLine whole; // OpCost.seconds
    CostLine wire;  // OpCost.wire: the links are busy
    CostLine load;  // OpCost.load: the links are busy with all replicas along d
    uint8_t level;  // of the cluster, whose links the collective takes
} AlongCost;
typedef struct Orders {
    int size[N_AXES];
    int n;
    Layout *layout;              // [n] as orders_list makes them
    AlongCost (*along)[N_ALONG]; // [n]
} Orders;
/* Local. Layouts without flags in all orders of axes of these sizes, tiled by the levels' units; or
 * s->only alone. Returns a new array (mem_free) of *n layouts. */
Layout *orders_list(const Space *s, const Machine *m, const int size[N_AXES], int *n);
/* Local. These orders with their lines. */
Orders orders_of(const Space *s, const Machine *m, const int size[N_AXES]);
void orders_free(Orders *o);

/* ---- a lower bound of a candidate's prices (search_bound.c), from the list of a micro-batch
 *
 *
 * Each further layer adds what the second layer adds. One list serves all candidates that differ
 * only in d, z or overlap. */

/* Collectives along an axis: their number, and the bytes of their whole tensors. An all_reduce
 * counts as two. */
typedef struct Traffic {
    double calls, bytes;
} Traffic;

/* Totals over the operations of one layer, or over all operations outside of layers. */
typedef struct PartTotals {
    double kernels, forward;       // seconds of all kernels; of those of the forward pass
    double kept;                   // bytes of activations kept from forward to backward
    Traffic sent[N_ALONG];         // collectives of activations, or of panels
    Traffic sent_forward[N_ALONG]; // the part of `sent` in forward: each waits for the one before
    Traffic gathered, scattered;   // along z: gathers of weights; scatters of their gradients
} PartTotals;
typedef struct Part {
    PartTotals total;
    int64_t weights; // elements of all matrices
    int tensors;     // matrices and vectors
} Part;

/* Figures of one list. Candidates with the same sizes of x and y, flags, micro-batch and recompute
 * share them. An entry with a schedule has only kernels, those of its chunks or panels. */
typedef struct ListKey {
    int32_t micro, X, Y; // micro: sequences; 0: the entry is free
    uint8_t flags, recompute;
    uint16_t schedule; // as a number, at least 1; 0: matmuls are whole
} ListKey;
typedef struct ListTotals {
    ListKey key;
    // L layers take outside + L layer: `layer` is the second layer of the list, `outside` what is
    // in no layer, and what the first layer has more than the second
    Part outside, layer;
} ListTotals;
/* Hash table of the lists that were read, for one space and machine (of any memory). */
typedef struct ListTable {
    const Space *s;
    const Machine *m;
    ListTotals *at;
    int n, room;
} ListTable;
/* Local. The best choice of a named scheme that fits; if none fits, the best of those that do not.
 * totals: shared with other searches of the space and machine, or NULL. False: p ranks do not allow
 * the scheme. */
bool search_scheme(const Space *s, const Machine *m, const NamedScheme *f, ListTable *totals,
                   Choice *out);
/* Figures of a candidate, none above what its step has, from which bound_in makes seconds. */
typedef struct Bound {
    double compute;            // seconds of all kernels of a step
    double before_sums;        // of compute: kernels before gradients can be summed over d
    double squares, update;    // of compute: the gradients' norm, after these sums; AdamW after it
    Traffic all[N_ALONG];      // all collectives
    Traffic exposed[N_ALONG];  // the part of `all` under which no kernel can run
    Traffic sums, new_weights; // along d: sums of gradients; gathers of weights after AdamW
    double oversubscription, slowest; // Machine's
    double slowdown;                  // Machine's, if the same beside all collectives; else 1
} Bound;
/* Local. any: a bound for every schedule of the choice's other parts; else for its own schedule. */
void candidate_bound(Bound *b, ListTable *all, const Choice *c, bool any);
/* Local. A lower bound of the bytes of the candidate's arenas. any: as in candidate_bound. */
int64_t candidate_memory(ListTable *all, const Choice *c, bool any);
/* Local, pure. A lower bound of the bytes of one layer of a model of more than two layers, for
 * PriceShape.layer_bytes. */
int64_t candidate_layer_memory(ListTable *all, const Choice *c);
/* Local, pure. Seconds: no price of the candidate is below, in this order of the axes, or in any
 * order. */
double bound_in(const Bound *b, const Orders *o, int order);
double bound_least(const Bound *b, const Orders *o);

#endif
