/* run -- executes the program of a step: a loop over its operations.
 *
 *   model_plan      step_run_plan  builds the programs of a model and places the temporaries
 *   model_allocate  step_run_bind  sets addresses: temporaries lie in an arena, weights and
 *                                  gradients where the table of tensors stores them. So optimizer,
 *                                  checkpoints and evaluation do not depend on programs
 *   model_step      step_run       for each operation calls its kernel, or starts its collective
 *                                  and waits for it
 *
 * Models whose output is logits (model_logits, generate.h) run their lists in the same way.
 *
 * The table of ops.c has a row for each kind of operation with its function. The function also
 * handles the operations that are fused into this one.
 */
#ifndef PARALLEL_STEP_RUN_H
#define PARALLEL_STEP_RUN_H

#include "parallel/step/model.h"

typedef struct StepRun StepRun;
struct Program;
struct StepTensor;
struct Op;

/* A result of an operation that is in memory, after its kernel or after the wait for its
 * collective. Values between operations of one kernel are in registers: they are no results. */
typedef struct StepResult {
    const struct Program *p;
    const struct Op *op;
    int tensor;     // index into p->tensor
    const void *at; // address of its values; NULL: only another rank, the root, has them
} StepResult;

/* The run of one kernel: op[0] and the operations fused into it. On a device begin and end are
 * marks of its clock (layers/device_clock.h). */
typedef struct StepSpan {
    const struct Program *p;
    const struct Op *op;
    double flops; // 0: not counted in FLOPs
    Moment begin, end;
} StepSpan;

/* Functions that are called during a step; each may be NULL. */
typedef struct StepHook {
    // called with every result, in the order of the list, on all ranks alike: may be collective
    void (*look)(void *ctx, Model *m, const StepResult *r);
    // called after every kernel; on a device only between begin and end of its clock
    // (Kernels.clock)
    void (*kernel)(void *ctx, const StepSpan *s);
    void *ctx;
} StepHook;

/* Local. Builds the lists of a model whose shape, grid and kernels are known. A training model gets
 * lists with backward and, except with step_alone, of the end of a step and of forward; any other
 * model gets forward alone. Freed by step_run_free. */
StepRun *step_run_plan(const Model *m);
/* Local. Adds the list of the end of a step to a model with step_alone, which has none. */
void step_run_plan_end(StepRun *r, const Kernels *k);
/* Local. Places the temporaries of a model with step_alone that was planned as `unplaced`. Returns
 * by how many bytes the arena is larger than the most bytes in use. */
size_t step_run_place(StepRun *r);
void step_run_free(StepRun *r);
/* Local. Takes the memory of temporaries from an arena. If the arena is committed, also sets all
 * addresses. */
void step_run_bind(Model *m, Arena *a);
/* Collective over the mesh. Runs a micro-batch whose tokens are in m->inputs and m->targets,
 * forward alone or with backward. After the last one of a step gradients are complete (sums.c).
 * With OUTPUT_NEXT: runs the tokens of m->tk, a prompt or one token after those in the cache. */
void step_run(Model *m, bool backward);
/* Local. Address of the result of step_run: the losses of the tokens, or their logits, in rows that
 * begin with the V real ones. */
void *step_run_result(const Model *m, bool backward);
/* Local. The lists of a step of a training model: a micro-batch, the end of the step. */
const struct Program *step_run_micro_batch(const StepRun *r);
const struct Program *step_run_end(const StepRun *r);
/* Local. The row of m->tensors to which a parameter, its gradient or its moments belong. */
const Tensor *step_run_row(const Model *m, const struct StepTensor *t);

#endif
