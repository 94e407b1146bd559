/* run -- the program of a step, executed: a loop over its operations.
 *
 *   model_plan      step_run_plan  builds the programs of a model, finds the memory of temporaries
 *   model_allocate  step_run_bind  addresses: temporaries in an arena; weights and gradients where
 *                                  the table of tensors has them, so that the optimizer,
 *                                  checkpoints, evaluation, resume need know nothing of programs
 *   model_step      step_run       for each operation: its kernel, or start and wait of its
 *                                  collective
 *
 * Models that end with logits (model_logits, generate.h) run their lists in the same way.
 *
 * One row a kind (ops.c): the kernel that it calls, with all operations that are fused into it.
 */
#ifndef PARALLEL_STEP_RUN_H
#define PARALLEL_STEP_RUN_H

#include "parallel/step/model.h"

typedef struct StepRun StepRun;
struct Program;
struct StepTensor;
struct Op;

/* A result of an operation, in memory: behind its kernel, behind the wait for its collective. What
 * is between operations of one kernel is in registers, and is none. */
typedef struct StepResult {
    const struct Program *p;
    const struct Op *op;
    int tensor;     // of p
    const void *at; // NULL: another rank has it
} StepResult;

/* A kernel, of op[0] and the operations fused into it. Where the host does not wait for its kernels
 * (layers/device_clock.h), begin and end are marks. */
typedef struct StepSpan {
    const struct Program *p;
    const struct Op *op;
    double flops; // 0: not counted in FLOPs
    Moment begin, end;
} StepSpan;

/* What is called beside a step; NULL where nothing is. */
typedef struct StepHook {
    // with every result, in the order of the list, on all ranks alike: it may be collective
    void (*look)(void *ctx, Model *m, const StepResult *r);
    // behind every kernel; with a device's clock (Kernels.clock) between its begin and end alone
    void (*kernel)(void *ctx, const StepSpan *s);
    void *ctx;
} StepHook;

/* Local. Of a model whose shape, grid and kernels are known. OUTPUT_LOSSES: with backward where the
 * model trains; the others: forward alone. Freed by step_run_free. */
StepRun *step_run_plan(const Model *m);
/* Local. The list of the end of a step, of a model with step_alone that has none yet. */
void step_run_plan_end(StepRun *r, const Kernels *k);
void step_run_free(StepRun *r);
/* Local. Cuts the memory of temporaries out of an arena; then, where the arena is committed, all
 * addresses. */
void step_run_bind(Model *m, Arena *a);
/* Collective over the mesh. A micro-batch whose tokens are in m->inputs and m->targets, forward
 * alone or with backward. Behind the last one of a step gradients are complete: sums.c. With
 * OUTPUT_NEXT: the tokens that m->tk says, a prompt or one token behind those in the cache. */
void step_run(Model *m, bool backward);
/* Local. Where it leaves losses of tokens, or their logits: the V real ones of each first. */
void *step_run_result(const Model *m, bool backward);
/* Local. The lists of a step of a model that trains: of a micro-batch, of the last one, of the
 * end. */
const struct Program *step_run_micro_batch(const StepRun *r);
const struct Program *step_run_last(const StepRun *r);
const struct Program *step_run_end(const StepRun *r);
/* Local. The row of m->tensors of a parameter, its gradient or its moments. */
const Tensor *step_run_row(const Model *m, const struct StepTensor *t);

#endif
