/* cost -- seconds of each operation of a program on a machine.
 *
 *   kernel       FLOPs over the rate that its smallest dimension reaches, or bytes over the rate of
 *                memory, whichever is more; and a call (machine_work)
 *   collective   bytes over the slowest level that its ranks cross, and its messages
 *                (machine_collective)
 *
 * Each kind of operation has one row in the table of cost.c: its kind of Work, and which dimensions
 * of its tensors are the Work's sizes. parallel/plan/work.h has FLOPs and bytes of each Work; the
 * calibration measures Works. A measured cost is preferred to the formulas. Costs are those of
 * padded blocks, so they are alike on all ranks. They do not change the order of a list, which
 * program_order_nominal (parallel/step/schedule.h) has chosen.
 */
#ifndef PARALLEL_PLAN_COST_H
#define PARALLEL_PLAN_COST_H

#include "parallel/plan/machine.h"
#include "parallel/step/schedule.h"

/* Local. The costs of all operations, fresh (mem_free): [p->n_ops]. first_micro_batch: gradients
 * overwrite, as in the first micro-batch of a step; else they are added. */
OpCost *program_costs(const Program *p, const Machine *m, bool first_micro_batch);

/* Local, pure. One call of the kernel of operation i with all operations fused into it. False: the
 * operation is a collective, is fused into another one, or does nothing. */
bool op_work(const Program *p, int i, bool first_micro_batch, Work *out);
/* Local, pure. How often operation i calls its kernel. The rows of a chunk lie in several blocks of
 * tokens: a matmul runs once for each. */
int64_t op_calls(const Program *p, int i);
/* Local, pure. Does the operation compute only a number or two? On a CPU its time is 0. */
bool op_of_numbers(const Op *op);
/* Local, pure. The copy that packs the buffer of a collective. False: none is needed. */
bool op_packing(const Program *p, const Op *op, Work *out);
/* Local, pure. Op and bytes of a collective, and its ranks. (The ranks that hold copies of the same
 * key heads are neighbours along the axes that shard heads.) */
Collective op_collective(const Program *p, const Op *op);
CollGroup op_group(const Program *p, const Op *op);

#endif
