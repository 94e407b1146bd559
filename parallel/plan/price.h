/* price -- what a step costs a rank, from the lists that the rank runs.
 *
 *   model_plan -> lists of a step -> cost of each operation (cost.h) -> clocks (step/schedule.h)
 *
 * A step is priced by a model that is planned as the trainer plans it (step/run.h), one rank of a
 * mesh, without memory: so what is predicted cannot drift from what training does. One laptop can
 * price a rank of any cluster.
 *
 * A model of many layers is priced by the lists of two layers and of three (or three and four): the
 * cost of a further layer is their difference. So neither time nor memory of a price grows with the
 * model.
 */
#ifndef PARALLEL_PLAN_PRICE_H
#define PARALLEL_PLAN_PRICE_H

#include "parallel/plan/cost.h"
#include "parallel/step/run.h"

/* What is trained, and the part of the choice that changes what a rank does. */
typedef struct PriceShape {
    // of a micro-batch; what depends on the list, the layout or the moment is set by price_lists
    ModelShape model;
    int64_t batch;          // tokens of a step, over all ranks
    bool local_steps;       // replicas along d take local steps (grid_set_local_steps),
    int64_t every;          // an outer step once in so many; 0: what it sends is not counted
    int fragments;          // in so many parts
    bool whole;             // the lists of all layers
    int64_t layer_bytes;    // that a layer beyond the first ones takes at least: price_lists
    const Kernels *kernels; // whose element sizes and workspaces; NULL: the portable set's
} PriceShape;

/* The lists of a step on one rank. Fixed in memory from price_lists to price_free: lists have
 * pointers into it. */
typedef struct StepLists {
    PriceShape shape;
    Grid grid;
    int64_t layers, micro_batches; // of the real step
    int n;                         // 2: of few layers, of one more; 1: of all layers
    Model model[2];
    int64_t sampling[2]; // bytes of a Generator beside it
} StepLists;

/* A list of a step, `times` in a row. first: of the first micro-batch (Model.first_micro_batch). */
typedef struct StepPart {
    const Program *p;
    int64_t times;
    bool first;
} StepPart;

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
    double outer;     // the part of `exposed` that is a step's share in outer steps
} Price;

/* Local. The lists of `rank` on this layout. bytes: where the model takes more, it returns false
 * (0: any), early where shape->layer_bytes says so. Freed by price_free in any case. */
bool price_lists(StepLists *s, const PriceShape *shape, const Layout *l, int rank, int64_t bytes);
void price_free(StepLists *s);
/* Local. The same layout with its axes in another order: only where groups lie differs. */
void price_reorder(StepLists *s, const Layout *l, int rank);
/* Local, pure. Micro-batches of a step. */
int64_t price_micro_batches(const PriceShape *s, const Layout *l);
/* Local, pure. The lists of a step, in order; of the model with the fewest layers, or with one
 * more. Returns how many there are. */
enum { STEP_PARTS = 4 };
int price_parts(const StepLists *s, int more, StepPart out[STEP_PARTS]);

/* Local, pure. */
void price_of(const StepLists *s, const Machine *m, Price *price);
/* Local. The price of rank 0 alone, whose lists nobody else needs. */
void price_step(const PriceShape *shape, const Layout *l, const Machine *m, Price *price);
/* Local, pure. Bytes of all arenas of the real model. Where temporaries lie is found for each
 * number of layers, so the gaps between them come and go; what a further layer keeps does not. */
int64_t price_memory(const StepLists *s);
/* Local, pure. The counters of world_counts for a step, of lists that have all layers
 * (PriceShape.whole): at most max rows, returns how many there are. */
int price_counts(const StepLists *s, CollCount *rows, int max);
/* Local. Calls f for every kernel of the lists with the fewest layers. */
void price_each_work(const StepLists *s, void (*f)(void *ctx, const Work *w), void *ctx);
/* A collective of a step. */
typedef struct Sent {
    SendGroup group;
    Send send;
    const char *what;
    int64_t received; // bytes, by this rank in one call; of an outer step, in all
    int64_t times;    // in a step; 0: of an outer step
} Sent;
/* Local. Calls f for every collective of these lists. */
void price_each_send(const StepLists *s, void (*f)(void *ctx, const Sent *sent), void *ctx);
/* Local, pure. What replicas that take local steps send in an outer step, of which a step has the
 * every-th part: *calls of one kind, which receive sent->received together. False: there is
 * none. */
bool price_outer(const StepLists *s, Sent *sent, int *calls);

/* Local, pure. Seconds of kernels that take `compute` when all of k ranks that share a core compute
 * at once, beside `exposed` seconds in which one waits for a collective and the others have its
 * core. k <= 1: none share. */
double price_oversubscribed(double compute, double exposed, double k);

#endif
