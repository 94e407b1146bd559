/* price -- seconds, bytes and memory of a step on one rank, from the lists that the rank runs.
 *
 *   model_plan -> lists of a step -> cost of each operation (cost.h) -> clocks (step/schedule.h)
 *
 * The model is planned as the trainer plans it (step/run.h), for one rank of a mesh, and its arenas
 * get no memory. So the prediction cannot drift from what training does, and a laptop can price a
 * rank of any cluster.
 *
 * A model of many layers is priced by the lists of a model of few layers, two or three unless
 * PriceShape.few is more, and of one with a layer more: a further layer costs their difference. So
 * neither time nor memory of pricing grows with the model.
 */
#ifndef PARALLEL_PLAN_PRICE_H
#define PARALLEL_PLAN_PRICE_H

#include "parallel/plan/cost.h"
#include "parallel/step/run.h"

/* The model, the batch, and all of a choice but its layout. */
typedef struct PriceShape {
    ModelShape model;       // of a micro-batch; price_lists sets grid and layers, among others
    int64_t batch;          // tokens of a step, over all ranks
    bool local_steps;       // replicas along d take local steps (grid_set_local_steps)
    int64_t every;          // local steps from one outer step to the next; 0: outer steps are free
    int fragments;          // parts into which an outer step is divided
    bool whole;             // lists have all layers, so their difference is not needed
    int64_t few;            // layers of the smaller model, at least; 0: as few as possible
    int64_t layer_bytes;    // lower bound of a further layer's bytes; 0: unknown (price_lists)
    const Kernels *kernels; // give element sizes and workspaces; NULL: the portable set
} PriceShape;

/* The lists of a step on one rank. A StepLists must not move from price_lists to price_free: its
 * models point into it. */
typedef struct StepLists {
    PriceShape shape;
    Grid grid;
    int64_t layers, micro_batches; // of the real step
    int n;                         // models; 1: all layers; 2: few layers, and one layer more
    Model model[2];
    int64_t sampling[2]; // bytes of the Generator of each model; 0: the run does not sample
} StepLists;

/* A list that runs `times` times in a row, for micro-batches of a step: the first one, whose
 * gradients overwrite (Model.first_micro_batch), the last one, in which they become complete
 * (op_runs), or those between them. */
typedef struct StepPart {
    const Program *p;
    int64_t times;
    bool first, last;
} StepPart;

/* Cost of a step on this rank: seconds, bytes, calls. */
typedef struct Price {
    double seconds;   // = compute + exposed + waiting
    double compute;   // kernels, slowed where communication runs beside them
    double exposed;   // waits for collectives
    double hidden;    // time of collectives hidden under kernels or under each other
    double waiting;   // for slower ranks
    int64_t received; // bytes
    int64_t calls;    // of collectives
    int64_t memory;   // bytes of all arenas
    double outer;     // the part of `exposed` in outer steps: a step's share
} Price;

/* Local. The lists of `rank` on this layout. False: the model takes more than `bytes` (0: no
 * limit); with shape->layer_bytes this may show before the second model is planned. price_free is
 * needed in either case. */
bool price_lists(StepLists *s, const PriceShape *shape, const Layout *l, int rank, int64_t bytes);
void price_free(StepLists *s);
/* Local. Gives the lists a layout of the same sizes with its axes in another order: only the places
 * of groups in the cluster change. */
void price_reorder(StepLists *s, const Layout *l, int rank);
/* Local, pure. Micro-batches of a step. */
int64_t price_micro_batches(const PriceShape *s, const Layout *l);
/* Local, pure. The lists of a step, in order. more 0: of the model with the fewest layers; 1: of
 * the model with one layer more. Returns the number of lists. */
enum { STEP_PARTS = 4 };
int price_parts(const StepLists *s, int more, StepPart out[STEP_PARTS]);

/* Local, pure. The price of the real step. */
void price_of(const StepLists *s, const Machine *m, Price *price);
/* Local. The price of rank 0; its lists are made and freed. */
void price_step(const PriceShape *shape, const Layout *l, const Machine *m, Price *price);
/* Local, pure. Bytes of all arenas of the real model: those of the larger model, and for each
 * further layer what it stores and keeps from forward to backward. (The difference of both models'
 * arenas would not do: the gaps between temporaries depend on the number of layers.) */
int64_t price_memory(const StepLists *s);
/* Local. Places the temporaries of lists that were planned as `unplaced`; returns price_memory. */
int64_t price_place(StepLists *s);
/* Local, pure. The rows that world_counts will have after a step, for lists with all layers
 * (PriceShape.whole): at most max. Returns their number. */
int price_counts(const StepLists *s, CollCount *rows, int max);
/* Local. Calls f for every kernel call of the model with the fewest layers. */
void price_each_work(const StepLists *s, void (*f)(void *ctx, const Work *w), void *ctx);
/* A collective of a step. */
typedef struct StepCollective {
    CollGroup group;
    Collective collective;
    const char *what; // label, as in CollCall
    int64_t received; // bytes that this rank receives in one call; of an outer step, in all calls
    int64_t times;    // calls in a step; 0: a collective of the outer step
} StepCollective;
/* Local. Calls f for every collective of the model with the fewest layers. */
void price_each_collective(const StepLists *s, void (*f)(void *ctx, const StepCollective *sent),
                           void *ctx);
/* Local, pure. The collectives of an outer step: *calls alike, in which the rank receives
 * sent->received bytes together. A step's share of them is 1 / PriceShape.every. False: the run has
 * no outer steps. */
bool price_outer(const StepLists *s, StepCollective *sent, int *calls);

/* Local, pure. Seconds of kernels on cores that k ranks share. compute: their seconds while all k
 * ranks compute. exposed: seconds of a step in which the rank waits for collectives and leaves its
 * core to the others. k <= 1: cores are not shared. */
double price_oversubscribed(double compute, double exposed, double k);

#endif
