/* run_call -- the call of a kernel: an operation, the operations fused into it, and their operands
 * in the form in which kernels take them. Shared by the files that implement run.h:
 *
 *   run_bind.c      the lists of a model and the addresses of their tensors
 *   run.c           the loop; collectives
 *   run_kernels.c   kernels of the rows of ops.c; run_end.c: those of the end of a step
 */
#ifndef PARALLEL_STEP_RUN_CALL_H
#define PARALLEL_STEP_RUN_CALL_H

#include <assert.h>
#include <string.h>

#include "parallel/step/program.h"
#include "parallel/step/run.h"

/* A program with the addresses of its tensors. */
typedef struct Bound {
    ModelShape shape; // of the program
    Program p;
    // [tensors] addresses in the first micro-batch of a step (Model.first_micro_batch), and in
    // later ones
    char **at_first, **at_later;
    Ticket *ticket;      // [tensors] ticket of the collective in flight that writes this tensor
    size_t bytes;        // of temporaries
    CollStaging staging; // on a device: buffer for collectives of strided blocks
} Bound;

enum {
    TRAIN,   // forward and backward of a micro-batch; in the last one of a step sums of gradients
    FORWARD, // forward alone; with OUTPUT_NEXT: of a prompt
    NEXT,    // with OUTPUT_NEXT: forward of a token after the prompt
    END,     // the end of a step
    CASTS,   // only the casts of END: weights to bf16
    N_LISTS
};

/* The lists of a model. */
struct StepRun {
    Bound list[N_LISTS];
    int clip; // index of OP_CLIP in END: the sums are before it, the update starts with it
};

/* The call of one kernel: operation op[0] and the operations fused into it, op[1] to op[n - 1]. */
typedef struct Call {
    Model *m;
    const Kernels *k; // of m
    Team *team;       // of m
    const Bound *b;
    const Program *p;
    char **at; // [tensors] addresses
    const Op *op;
    int n;
    const RowBlocks *blocks; // of a matmul that is fused with a collective; else NULL
} Call;

/* Collective over the mesh. Runs operations [begin, end) of a list (run.c). */
void run_operations(const Bound *b, Model *m, int begin, int end);

/* ---- operands ---- */

/* Addresses: of a tensor, of operand k, of the result. */
static inline Act *at(const Call *c, int t) {
    return c->at[t];
}
static inline Act *operand(const Call *c, int k) {
    return at(c, c->op->in[k]);
}
static inline Act *result(const Call *c) {
    return at(c, c->op->out);
}
static inline const StepTensor *tensor(const Call *c, int t) {
    return &c->p->tensor[t];
}
/* Is t an integer sum of --exact? */
static inline bool is_integers(const Call *c, int t) {
    return tensor(c, t)->dtype == COLL_I64;
}
static inline int64_t rows(const Call *c, int t) {
    return step_tensor_local(c->p, tensor(c, t), 0);
}
static inline int64_t cols(const Call *c, int t) {
    return step_tensor_local(c->p, tensor(c, t), 1);
}
static inline int64_t stride(const Call *c, int t) {
    return tensor(c, t)->stride ? tensor(c, t)->stride : cols(c, t);
}
/* The operation of this kind that is fused into the call; NULL: none. */
static inline const Op *with(const Call *c, OpKind kind) {
    for (int i = 1; i < c->n; i++)
        if (c->op[i].kind == kind) return &c->op[i];
    return NULL;
}
/* For kernels that compute in place: copies the operand to the memory of the result, unless both
 * have the same memory. */
static inline void in_place(const Call *c, int out, int in) {
    const StepTensor *t = tensor(c, in);
    int64_t bytes = coll_type_bytes(t->dtype), n = step_tensor_bytes(c->p, t) / bytes;
    assert(at(c, out) == at(c, in) || tensor(c, out)->gradient < 0 || c->m->first_micro_batch);
    if (at(c, out) != at(c, in))
        c->k->copy(c->team, at(c, out), n, at(c, in), n, 1, n, (size_t)bytes);
}
/* Is this rank the root of a broadcast or a reduce, or of the operation that stores the reduced
 * panel? True for operations without a root. */
static inline bool is_root(const Call *c) {
    return c->op->root < 0 || c->op->root == mesh_block(c->p->mesh, c->op->axes);
}
/* Copies a tensor to another one of the same rows and columns, with another stride. */
static inline void copy_rows(const Call *c, int out, int in) {
    c->k->copy(c->team, at(c, out), stride(c, out), at(c, in), stride(c, in), rows(c, out),
               cols(c, out), (size_t)coll_type_bytes(tensor(c, out)->dtype));
}
/* Zeros a tensor from element number `first` on. */
static inline void clear_from(const Call *c, int t, int64_t first) {
    int64_t begin = first * coll_type_bytes(tensor(c, t)->dtype),
            end = step_tensor_bytes(c->p, tensor(c, t));
    if (begin < end) c->k->zero(c->team, (char *)at(c, t) + begin, (size_t)(end - begin));
}

/* ---- the kernels of ops.c ---- */

/* run_kernels.c */
Kernel run_embedding, run_position, run_norm_statistics, run_norm_merge, run_norm, run_matmul,
    run_matmul_bt, run_matmul_at, run_residual, run_qk_norm, run_qk_norm_backward,
    run_qk_norm_weight_backward, run_rope, run_attention, run_cache, run_attention_cache, run_act,
    run_swiglu, run_loss_statistics, run_loss, run_embedding_backward, run_position_backward,
    run_norm_backward, run_norm_weight_backward, run_bias_backward, run_attention_backward,
    run_act_backward, run_swiglu_backward, run_loss_backward, run_accumulate, run_copy, run_round;
/* run_end.c: gradients and the end of a step */
Kernel run_move_copies, run_loss_total, run_squares, run_clip, run_adamw, run_cast;

#endif
