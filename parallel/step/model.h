/* model -- one GPT on this rank of a mesh: the table of tensors, six arenas, and the training step.
 *
 *   tokens[B,S] -> embedding -> x[T,C] -> L blocks -> norm -> head (chunks of tokens) -> loss
 *
 *   block   h1 = norm(x)          qkv = h1 Wqkv + b (QK-norm, rope) att = attention(qkv)
 *           x2 = x + att Wo + b
 *           h2 = norm(x2)         up = h2 Wup + b                  act = gelu(up), or
 *                                                                  silu(gate) up of [gate, up]
 *           x3 = x2 + act Wdown + b
 *
 * What forward keeps for backward is a question of memory (--recompute):
 *
 *                 kept per block                                    computed again in backward
 *   none          x h1 qkv att lse x2 h2 up act, statistics         -
 *   selective     x qkv att lse x2 up, statistics                   h1 h2 act: no matmul twice;
 *                                                                   with QK-norm the qkv behind it
 *   full          x; x2 where a sum along x made it                 the block but its last matmul
 *                 (so recompute needs no sum over x: Oases)
 *
 * Shapes are those of the whole model; a rank of a mesh holds the blocks that its Grid assigns
 * (parallel/mesh/shard.h). A step is a program (program.h): a list of operations that run.h
 * executes with the Kernels table and the collectives of parallel/comm/coll.h.
 *
 * Life: model_plan (sizes, nothing big is allocated) -> memory.h checks that the sizes fit ->
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
const char *recompute_name(Recompute r); // the value of --recompute

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
    OUTPUT_LOGITS, // of the tokens of this coordinate of d x z, with the whole vocabulary
    // logits of the token after one sequence. Keys and values are stored in a cache. S > 1: the
    // sequence is a prompt; S = 1: one token that follows the tokens in the cache
    OUTPUT_NEXT
} PassOutput;

/* Most tokens of a micro-batch. A program has operations for every chunk of tokens of the head: the
 * limit keeps programs short, and sizes within 64 bits. */
enum { MICRO_TOKENS = 1 << 21 };

/* Everything on which sizes and lists of a model depend. */
typedef struct ModelShape {
    Config config;
    int64_t B, S; // sequences of a micro-batch at each coordinate of d x z, positions <= config.seq
    bool bf16;    // matmuls read bf16, on devices activations are bf16; sums, master weights: fp32
    Recompute recompute;
    Overlap overlap; // halves needs an even B
    bool training;   // false: no gradients, no optimizer state, nothing kept for backward
    PassOutput output;
    bool step_alone; // only lists of micro-batches are planned: the model is priced, not evaluated
    bool unplaced;   // temporaries are not placed: the arena has the most bytes in use at one time
    int threads;     // of a team that does not exist yet, for workspaces; 0: the model's team
    // copies of the parameters for parallel/step/outer.h: 0, 1 (anchor), 2 (anchor and velocity)
    int outer;
    ReplayWhere replay;        // are micro-batches recorded (on CUDA as graphs) and replayed?
    bool unfused;              // no operation is fused: every value has memory, for check.h
    bool samples;              // a Generator will be made beside the model: for memory_needed
    const TensorTable *borrow; // the model reads another model's weights; NULL: it has its own
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
    struct Mirror *mirror; // parallel/step/mirror.h; NULL where kernels compute on the host
    Arena arena[N_ARENAS];
    int64_t micro_batches_left; // of this step, with the one that runs
    struct StepRun *program;
    int halves;                // of a micro-batch in one list: 2 with --overlap halves, else 1
    int32_t *inputs, *targets; // [halves * T] of a micro-batch, padded
    int32_t *order; // [halves * T] of embedding_order, on a device; NULL: kernels run on the host
    Arena orders;   // pinned memory in which the host makes `order` of each micro-batch of a step
    float *losses, *rope_table; // [halves * T]; [seq, D]
    void *matmul_work, *attention_work, *norm_work, *embedding_work;
    bool exact;        // grid->layout.exact
    int64_t **grad_64; // [tensors.n] with --exact: gradients as integers
    int *grad_order;   // [tensors.n] rows of the table, in the order of gradients in memory
    float scale;       // of the last model_step
    StepEnd end;
    Replay replays[REPLAY_KINDS];
    float *anchor, *velocity; // of the outer loop, each laid out as the parameters; NULL without it
    const struct StepHook *hook; // called after operations (run.h); NULL: none
    // the first micro-batch of a step is next or runs: its matmuls overwrite the gradients of
    // matrices, those of later micro-batches add to them
    bool first_micro_batch;
};

/* Local, pure. Do matmuls read bf16 copies of the weights? */
#define has_bf16_copies(m) ((m)->k->elem_bytes != sizeof(float))
/* Local, pure. Activations n elements after x. */
#define acts_at(m, x, n) act_at(x, n, (m)->k->elem_bytes)

/* Local. Describes the model and measures its arenas; allocates nothing big. team and k stay the
 * caller's. */
void model_plan(Model *m, const ModelShape *shape, const Kernels *k, Team *team);
/* Local. Allocates the arenas and sets all pointers into them. Parameters are zero until
 * tensors_init or a checkpoint fills them. */
void model_allocate(Model *m);
void model_free(Model *m);
/* Local. Frees all arenas but weights and moments. The model can no longer run; its weights and
 * moments can be copied until model_free. */
void model_keep_state(Model *m);

/* Local, pure. Is the gradient of tensors.t[i] cleared at the start of a step? Other gradients are
 * overwritten by the matmul of the first micro-batch. */
bool model_clears(const Model *m, int i);
/* Local. Starts a new step of `micro_batches` micro-batches: gradients and losses start from zero.
 * On a device it allocates pinned host memory when a step has more micro-batches than all steps
 * before. */
void model_zero_grads(Model *m, int64_t micro_batches);
/* Collective over the mesh. Forward and backward of one micro-batch: inputs, targets [B,S] of this
 * coordinate of d x z (alike along x and y); gradients are added for a loss of sum(losses) * scale
 * (a target of -1 is not counted). Behind the last one of a step they are complete. Inputs and
 * targets in the kernels' pinned memory are read until model_sums_end or model_losses returns,
 * which has to come before the next step. */
void model_step(Model *m, const int32_t *inputs, const int32_t *targets, float scale);
/* Collective over the mesh. Forward only; losses[B,S] of each token where it is not NULL. */
void model_loss(Model *m, const int32_t *inputs, const int32_t *targets, float *losses);
/* Collective over the mesh. Runs the list of a micro-batch, whose tokens are in m->inputs and
 * m->targets, and adds its losses to those of the step. */
void model_pass(Model *m, bool backward);
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
