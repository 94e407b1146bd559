/* cost -- seconds of each operation of a program on a machine.
 *
 *   kernel       FLOPs over the rate that its smallest dimension reaches, or bytes over the rate of
 *                memory, whichever is more; and a call (machine_work)
 *   collective   bytes over the slowest level that its ranks cross, and its messages (machine_send)
 *
 * A kernel's entry is one row of the table in cost.c: which Work it is (parallel/plan/work.h has
 * FLOPs and bytes of each, and the calibration measures them), and which dimensions of its
 * tensors are the Work's sizes. Where the planner has measured, measured tables go first. Costs
 * are those of padded blocks, alike on all ranks: so is what is scheduled by them.
 */
#ifndef PARALLEL_PLAN_COST_H
#define PARALLEL_PLAN_COST_H

#include "parallel/plan/machine.h"
#include "parallel/step/schedule.h"

/* Local. The costs of all operations, fresh (mem_free): [p->n_ops].
 * first_micro_batch: of a step, whose gradients overwrite and are not added to others. */
OpCost *program_costs(const Program *p, const Machine *m, bool first_micro_batch);

/* Local, pure. A call of the kernel of operation i with what is fused into it; false: it is a
 * collective, fused itself, or does nothing. */
bool op_work(const Program *p, int i, const Widths *w, bool first_micro_batch, Work *out);
/* Local, pure. How often operation i calls its kernel: once for each block of tokens that a chunk
 * has rows of. */
int64_t op_calls(const Program *p, int i);
/* Local, pure. Is it a number or two, which a CPU has computed as soon as a kernel would be
 * called? */
bool op_of_numbers(const Op *op);
/* Local, pure. What is packed in front of a collective; false: nothing. */
bool op_packing(const Program *p, const Op *op, Work *out);
/* Local, pure. A collective, and its ranks: those that hold copies of key heads are neighbours
 * along the axes that shard heads. */
Send op_send(const Program *p, const Op *op);
SendGroup op_group(const Program *p, const Op *op);

#endif
