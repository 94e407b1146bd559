/* passes -- a program after each of the passes that make the step of a micro-batch, in order.
 *
 *   build           the forward pass, with all its collectives         build.c
 *   differentiate   backward                                           differentiate.c
 *   recompute       what is not kept from forward to backward          recompute.c
 *   panels          with stay=y: matmuls of layers in panels           panels.c
 *   head            logits and losses by chunks of tokens              head.c
 *   exact           with --exact: sums of integers                     exact_sums.c
 *   fuse            which operations run in one kernel                 fuse.c,
 *                                                                      fuse_collectives.c
 *   split           chunks of tokens, with chunk=n or ring             split.c
 *   halves          two halves of the sequences in one list            halves.c
 *   sums            gradients become complete, in the last             sums.c
 *                   micro-batch of a step alone
 *   schedule        the order in which all of it runs, with waits      schedule.c
 *
 * Every list that a rank runs, that --listing prints or that the planner prices is made here.
 */
#ifndef PARALLEL_STEP_PASSES_H
#define PARALLEL_STEP_PASSES_H

#include "parallel/step/program.h"

typedef enum {
    PASS_BUILD,
    PASS_DIFFERENTIATE,
    PASS_RECOMPUTE,
    PASS_PANELS,
    PASS_HEAD,
    PASS_EXACT,
    PASS_FUSE,
    PASS_SPLIT,
    PASS_HALVES,
    PASS_SUMS,
    PASS_SCHEDULE,
    N_PASSES
} Pass;

/* Local. The program of a micro-batch after the passes up to that one; forward alone where
 * shape->training is false. With --overlap halves shape->B is half of its sequences. k: the kernels
 * that run it; NULL: not known. */
Program program_passes(const ModelShape *shape, Pass upto, const Kernels *k);

/* The end of a step (end.c), or its casts alone; ordered after PASS_SCHEDULE. */
Program program_end_passes(const ModelShape *shape, Pass upto, const Kernels *k, bool casts_alone);

#endif
