/* passes -- a program after each of the passes that make the step of a micro-batch, in order.
 *
 *   build           the forward pass, with all its collectives         build.c
 *   differentiate   backward                                           differentiate.c
 *   recompute       what is not kept from forward to backward          recompute.c
 *   panels          matmuls of layers with stay=y                      panels.c
 *   exact           sums of integers, with --exact                     exact_sums.c
 *   fuse            which operations run in one kernel                 fuse.c
 *   split           chunks of tokens, where --overlap has chunk=n      split.c
 *   halves          two halves of the sequences in one list            halves.c
 */
#ifndef PARALLEL_STEP_PASSES_H
#define PARALLEL_STEP_PASSES_H

#include "parallel/step/program.h"

typedef enum {
    PASS_BUILD,
    PASS_DIFFERENTIATE,
    PASS_RECOMPUTE,
    PASS_PANELS,
    PASS_EXACT,
    PASS_FUSE,
    PASS_SPLIT,
    PASS_HALVES,
    N_PASSES
} Pass;

/* Local. The program of a micro-batch after that pass. bias_with_dw: Kernels. With PASS_HALVES
 * the shape is that of half of its sequences. */
Program program_passes(const ModelShape *shape, Pass last, bool bias_with_dw);

#endif
