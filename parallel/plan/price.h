/* price -- the third member of both tables: kernels that cost and collectives that cost.
 *
 * price_record lays a model out as one rank of a mesh would, with arenas at addresses where no
 * memory is, and runs the trainer's own step on it: kernels and collectives write themselves on a
 * tape and do nothing. What is predicted cannot drift from what training does. One laptop can
 * record a rank of any cluster.
 */
#ifndef PARALLEL_PLAN_PRICE_H
#define PARALLEL_PLAN_PRICE_H

#include "parallel/plan/tape.h"

/* What is trained, and the part of the choice that changes what a rank does. */
typedef struct PriceShape {
    Config config;
    int64_t S, batch; // positions; tokens of a step, over all ranks
    int64_t micro;    // sequences of a micro-step at each coordinate of d x z
    bool bf16, samples;
    Recompute recompute;
    Overlap overlap;
    int threads;            // of a rank's team
    int outer;              // ModelShape.outer
    bool apart;             // replicas along d meet seldom (grid_set_local_steps):
    int64_t every;          // once in so many steps; 0: what they send then is not counted
    int fragments;          // in so many parts
    bool whole;             // record every layer and every micro-step: for pictures
    bool unplaced;          // memory is a bound: ModelShape.unplaced
    const Kernels *kernels; // whose element sizes and workspaces; NULL: the portable set's
} PriceShape;

/* Local. Records the step of `rank` on this layout, without --exact; the tape is emptied first
 * (zero it before its first use) and keeps its memory. */
void price_record(Tape *t, const PriceShape *s, const Layout *l, int rank);
/* Local. The same of rank 0, where that takes at most so many bytes (0: any). False where it takes
 * more: the tape then knows its memory and has no events. */
bool price_record_within(Tape *t, const PriceShape *s, const Layout *l, int64_t bytes);
/* Local. The tape of the same layout with its axes in another order: only where groups lie
 * differs. */
void price_reorder(Tape *t, const Layout *l);
/* Local, pure. Micro-steps of a step. */
int64_t price_micro_steps(const PriceShape *s, const Layout *l);

/* The counters of world_counts for the recorded step: at most max rows, returns how many there
 * are. */
int price_counts(const Tape *t, CollCount *rows, int max);

#endif
