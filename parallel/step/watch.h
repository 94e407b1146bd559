/* watch -- a table of kernels that tells of every call: what --profile adds up and --trace writes
 * down. The step itself knows nothing of it, and where the host does not wait for its kernels
 * (layers/clock.h) it does not wait for them here.
 */
#ifndef PARALLEL_STEP_WATCH_H
#define PARALLEL_STEP_WATCH_H

#include "layers/kernels.h"

/* A call of a kernel. Of a table with a clock (Kernels.clock) begin and end are marks, and calls
 * are told between its begin and end alone. */
typedef struct KernelSpan {
    const char *name;       // "product", "norm forward": a constant
    const Product *product; // of products; else NULL
    double flops;           // 0: not counted in FLOPs
    Moment begin, end;
} KernelSpan;

typedef void (*KernelWatch)(void *ctx, const KernelSpan *s);

/* Local. The table that runs `inner` and then calls f, and records nothing for replay; one at a
 * time in a thread. */
const Kernels *kernels_watched(const Kernels *inner, KernelWatch f, void *ctx);
/* Local, pure. "x w", "x w'" or "x' dy": which of the three products of a linear layer it is. */
const char *product_form(const Product *p);

#endif
