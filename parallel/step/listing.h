/* listing -- prints the list of a micro-batch, or of the end of a step, as text or JSON. Each
 * operation is a line: number, phase, result with its type, operation, operands (%n is the result
 * of line n, in text %n' its second result), and its work on this rank: bytes that a collective (~)
 * receives, or FLOPs of a kernel (+: fused into the kernel of the line before). With costs:
 * predicted milliseconds of each line. With times: when each line starts, how long the compute
 * stream waits before it, and the lines that run while a collective is in flight.
 *
 *  7 forw   qkv[T, N/x] = matmul       %6, qkv.weight 75.5 MFLOP 0.12 +0.31 ms
 * 12 forw ~ o[T, C]     = all_reduce x %11               32.8 KB 0.43 +0.08 ms  under %13
 * 15 forw   x[T, C]     = add          %9, %12                   0.53 +0.01 ms  waited 0.02 for %12
 *
 * @512: rows of a chunk, from row 512 on. Forward and the end of a step show layer 0, backward
 * shows the last layer. The operations of other layers are folded into one line. Below the list its
 * marks, types (sharded, partial) and dimensions (T, 2Y, ...) are explained.
 */
#ifndef PARALLEL_STEP_LISTING_H
#define PARALLEL_STEP_LISTING_H

#include <stdio.h>

#include "parallel/step/schedule.h"

/* A list to print. Times exist only for a scheduled list with costs: they are predicted by
 * program_play. */
typedef struct Listed {
    Program p;
    OpCost *costs;       // [operations]; NULL: none
    OpTime *time;        // [operations]; NULL: none
    Spent spent;         // computing and waiting of the whole list
    const char *machine; // with costs: name of the machine that they are of
} Listed;

void listed_free(Listed *list);

/* Local. Prints the list as text. */
void listing_print(FILE *f, const Listed *list);
/* Local. Prints one JSON object with an array of all operations, without folding. The member "end"
 * is such an object for the end of a step; absent if `end` has no operations. */
void listing_json(FILE *f, const Listed *micro_batch, const Listed *end);
/* Local. Writes a short description of a result of op into text[size]: "x3 of layer 1 (add x2,
 * down)", "down of layer 1 (reduce_scatter over x)". */
const char *listing_result(const Program *p, const Op *op, int tensor, char *text, size_t size);

#endif
