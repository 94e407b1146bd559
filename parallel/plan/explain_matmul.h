/* explain_matmul -- how a matmul is scheduled on a described GPU, as text and as a picture:
 * the figures of the Stream-K paper for a shape of one's own. Everything is predicted
 * (gpu_matmul.h), nothing measured.
 */
#ifndef PARALLEL_PLAN_EXPLAIN_MATMUL_H
#define PARALLEL_PLAN_EXPLAIN_MATMUL_H

#include <stdio.h>

#include "parallel/plan/gpu_matmul.h"

/* Local, pure. Reads "M,N,K" or "M,N,K,wgrad": y[M,N] = a[M,K] b[K,N] in bf16, or, as the gradient
 * of a weight, added to y in fp32. */
bool explain_matmul_parse(Work *w, const char *text, Err *e);
/* Local. At most 80 columns: a table of the three kinds of schedules, then some multiprocessors of
 * each (or blocks, where two share one) as rows, time to the right. */
void explain_matmul_print(FILE *f, const Machine *m, const Work *w);

#endif
