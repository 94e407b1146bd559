/* model -- one GPT on this rank of a mesh: the table of tensors, six arenas, and the training step.
 *
 *   tokens[B,S] -> embedding -> x[T,C] -> L blocks -> norm -> head (chunks of tokens) -> loss
 *
 *   block   h1 = norm(x)          qkv = h1 Wqkv + b     (rope)     att = attention(qkv)
 *           x2 = x + att Wo + b
 *           h2 = norm(x2)         pre = h2 Wup + b                 act = gelu(pre) or silu(gate) up
 *           x3 = x2 + act Wdown + b
 *
 * What forward keeps for backward is a question of memory (--recompute):
 *
 *                 kept per block                                    computed again in backward
 *   none          x h1 qkv att lse x2 h2 pre act, statistics        -
 *   selective     x qkv att lse x2 pre, statistics                  h1 h2 act: no matmul twice
 *   full          x, statistics; x2 where a sum along the mesh      the block but its last matmul
 *                 made it (then recompute needs none: Oases)
 *
 * Shapes are those of the logical model; a rank of a mesh holds the blocks that its Grid says
 * (parallel/mesh/shard.h). A step is a program (program.h), a list of operations that run.h
 * executes by the Kernels table and the collectives of parallel/comm/coll.h alone.
 * Life: model_plan (sizes, nothing big is allocated) -> the memory table is printed and judged ->
 * model_allocate -> model_step, model_loss, ... -> model_free.
 */
#ifndef PARALLEL_STEP_MODEL_H
#define PARALLEL_STEP_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/tensor.h"
#include "layers/kernels.h"
#include "parallel/mesh/grid.h"
#include "parallel/mesh/shard.h"
#include "parallel/step/overlap.h"
#include "parallel/step/replay.h"
#include "parallel/step/update.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;
const char *recompute_name(Recompute r); // as --recompute has it

/* The tokens of one pass as this rank sees them. T/d.z of them belong to this coordinate of d x z;
 * where the residual stream is sharded by tokens, T is padded to X equal parts (whole sequences for
 * stay=y). */
typedef struct Tokens {
    int64_t B, S; // sequences whose attention runs here
    int64_t T;    // T/d.z
    int64_t T_x;  // rows of the residual stream here: T/d.z.x where it is sharded by tokens, else T
    int64_t t0;   // the first of them
    int64_t first; // position of the first token of every sequence
} Tokens;

/* What a forward pass ends with. */
typedef enum {
    OUTPUT_LOSSES, // of all tokens
    OUTPUT_LOGITS, // of all tokens, the whole vocabulary on every rank
    // logits after the last token of one sequence, whose keys and values are kept in a cache: of a
    // prompt, or with S = 1 of a token that follows what is in the cache
    OUTPUT_NEXT
} PassOutput;

/* What the memory depends on. */
typedef struct ModelShape {
    Config config;
    int64_t B, S; // sequences of a micro-batch at each coordinate of d x z, positions <= config.seq
    bool bf16;    // operands of matmuls; on devices activations, too. Sums, master weights: fp32
    Recompute recompute;
    Overlap overlap;       // halves needs an even B
    bool training;         // false: no gradients, no optimizer state, nothing kept for backward
    bool one_micro_batch;  // of a step, which is the last one: no list of others is planned
    bool last_micro_batch; // of a list: the last one of a step, in which gradients become complete
    PassOutput output;
    bool step_alone; // no lists but those of micro-batches: it is priced, and never evaluated
    bool unplaced;   // temporaries have no place: the arena is as large as what is in use at once
    int threads;     // of the team that would run it, where there is none; 0: of the model's team
    // copies of the parameters for parallel/step/outer.h: 0, 1 (anchor), 2 (and velocity)
    int outer;
    ReplayWhere replay;        // are micro-batches recorded?
    bool unfused;              // of the program: each of its values is in memory, for check.h
    bool samples;              // a Generator will be made beside it: counted by memory_needed
    const TensorTable *borrow; // weights of another model of the same config; NULL: own ones
    const Grid *grid;          // NULL: one rank
} ModelShape;

enum { ARENA_PARAMS, ARENA_GRADS, ARENA_OPTIMIZER, ARENA_ACTS, ARENA_WORK, ARENA_OUTER, N_ARENAS };

struct Model {
    ModelShape shape;
    const Grid *grid; // never NULL
    const Kernels *k;
    Team *team;
    Widths w;
    int64_t B; // sequences of a pass: of a micro-batch, or of half of it
    Tokens tk; // of a pass
    TensorTable tensors;
    struct Mirror
        *mirror; // parallel/step/mirror.h; NULL where kernels compute in memory of the host
    Arena arena[N_ARENAS];
    int64_t micro_batches_left; // of the step
    struct StepRun *program;
    int halves; // passes that the program has in one list: 2 with --overlap halves, or 1
    int32_t *inputs, *targets; // [halves * T] of a micro-batch, padded
    int32_t *order; // [halves * T] of embedding_order; NULL where kernels run on the host
    Arena orders;   // where the host makes them, pinned: of each micro-batch of a step
    float *losses, *rope_table; // [halves * T]; [seq, D]
    void *matmul_work, *attention_work, *norm_work, *embedding_work;
    bool exact;        // grid->layout.exact
    int64_t **grad_64; // [tensors.n]
    int *grad_order;   // [tensors.n] in the order in which gradients lie in memory
    float scale;       // of the last model_step
    StepEnd end;
    Replay replays[REPLAY_KINDS];
    float *anchor, *velocity; // of the outer loop, each laid out as the parameters; NULL without it
    const struct StepHook *hook; // run.h; NULL: results are not looked at
    // of a step, is next or under way: it overwrites gradients of matrices, later ones add to them
    bool first_micro_batch;
};

/* Local, pure. Do matmuls read bf16 copies of the weights? */
#define has_bf16_copies(m) ((m)->k->elem_bytes != sizeof(float))
/* Local, pure. Activations n elements after x. */
#define acts_at(m, x, n) act_at(x, n, (m)->k->elem_bytes)

/* Local. Describes the model and measures its arenas; allocates nothing big. team and k stay the
 * caller's. */
void model_plan(Model *m, const ModelShape *shape, const Kernels *k, Team *team);
/* Local. Maps the arenas and cuts them. Parameters are zero until tensors_init or a checkpoint
 * fills them. */
void model_allocate(Model *m);
void model_free(Model *m);
/* Local. Gives back everything but weights and moments: until model_free they can only be
 * copied. */
void model_keep_state(Model *m);

/* Local, pure. Is the gradient of tensors.t[i] cleared at the start of a step? Others are
 * overwritten by the first matmul that makes them. */
bool model_clears(const Model *m, int i);
/* Local. Starts a new step of so many micro-batches: gradients and losses count as zero. On a
 * device it allocates memory of the host where no step before had as many. */
void model_zero_grads(Model *m, int64_t micro_batches);
/* Collective over the mesh. Forward and backward of one micro-batch: inputs, targets [B,S] of this
 * coordinate of d x z (alike along x and y); gradients are added for a loss of sum(losses) * scale
 * (a target of -1 is not counted). Behind the last one of a step they are complete. Inputs and
 * targets in the kernels' pinned memory are read until model_sums_end or model_losses returns,
 * which has to come before the next step. */
void model_step(Model *m, const int32_t *inputs, const int32_t *targets, float scale);
/* Collective over the mesh. Forward only; losses[B,S] of each token where it is not NULL. */
void model_loss(Model *m, const int32_t *inputs, const int32_t *targets, float *losses);
/* Local. B sequences of S tokens at this coordinate of d x z, as this rank sees them. */
Tokens tokens_of(const Grid *g, int64_t B, int64_t S, int64_t first);
/* Local. Copies n tokens of a pass to m->inputs and m->targets (targets may be NULL), from `at` on,
 * and pads them to m->tk.T. */
void model_tokens(Model *m, int64_t at, int64_t n, const int32_t *inputs, const int32_t *targets);
/* Collective over the mesh. Forward only; logits[B*S, V] of every token (for tests and tools:
 * big). */
void model_logits(Model *m, const int32_t *inputs, float *logits);

/* Collective over the mesh. Name of the first tensor with a value that is not finite on any rank,
 * in the order of a step: parameters, activations of the last micro-batch, gradients from the head
 * back to the embedding. "": all are finite. */
void model_first_nonfinite(Model *m, char *name, size_t n);

#endif
