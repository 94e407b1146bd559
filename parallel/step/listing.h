/* listing -- the list of a micro-batch, or of the end of a step, as text or JSON, one line per
 * operation: number, phase, result with its type, operation, operands (%n is the result of line n,
 * in text %n' its second one),
 * and what it costs this rank: bytes received by a collective (~), floating-point operations of a
 * kernel (+: it runs in the kernel of the line before). With costs: predicted milliseconds of each.
 * With times: when each line starts, what the compute stream waited in front of it, and which lines
 * a collective runs under.
 *
 *     7 forw   qkv[T, N/x]  = matmul            %6, qkv.weight 75.50 MFLOP  0.12 +0.31
 *    12 forw ~ o[T/x, C]    = reduce_scatter x  %11            32.77 KB     0.43 +0.08  under %13
 *    15 forw   x[T/x, C]    = add               %9, %12                     0.53 +0.01  waited 0.02
 *
 * @512: rows of a chunk, from row 512 on. Forward and the end of a step show layer 0, backward the
 * last layer; the other layers are folded into lines, and what is between the first and the last
 * operation of a bucket. Below the list stands what its marks, its types (sharded, partial) and its
 * dimensions (T, 2Y, ...) mean.
 */
#ifndef PARALLEL_STEP_LISTING_H
#define PARALLEL_STEP_LISTING_H

#include <stdio.h>

#include "parallel/step/schedule.h"

/* What is listed; times come with costs, of a list that is in its order: program_play. */
typedef struct Listed {
    Program p;
    OpCost *costs; // NULL: none
    OpTime *time;  // NULL: none
    Spent spent;
    const char *machine; // whose costs they are, where there are some; life: until it is printed
} Listed;

void listed_free(Listed *list);

/* Local. */
void listing_print(FILE *f, const Listed *list);
/* Local. All operations, no layer folded: one object with an array of operations. The end of a step
 * (without operations: none) is such an object in "end". */
void listing_json(FILE *f, const Listed *micro_batch, const Listed *end);
/* Local. A result in a line: "x3 of layer 1 (add x2, down)",
 * "down of layer 1 (reduce_scatter over x)". */
const char *listing_result(const Program *p, const Op *op, int tensor, char *text, size_t size);

#endif
