/* program -- a training step as data: a list of operations on typed tensors.
 *
 *   forward   h1   [T/d.z.x, C]      = norm             x, ln1.mean_rstd, ln1.weight, ln1.bias
 *             h1   [T/d.z, C]        = all_gather x     h1
 *             qkv  [T/d.z, N/x]      = matmul           h1, qkv.weight
 *   backward  dh1  [T/d.z, C] +x     = matmul_bt        dqkv, qkv.weight
 *             dh1  [T/d.z.x, C]      = reduce_scatter x dh1
 *
 * Dimensions: T tokens, C channels, N and K output and input features of a linear layer, V
 * vocabulary, H heads, S positions. 2Y: two numbers of each rank along y (norms). 3V: three numbers
 * of each block of the vocabulary (the loss). 2D: weights of QK-norm. G: all gradients of a bucket.
 * --listing prints the legend of its list below it. Passes compare these names: halves and chunks
 * split T, V has padding of its own, a parameter with dimension S (wpe) is no matrix. The residual
 * stream is called x behind the embedding, x2 behind the attention of a layer, x3 behind its MLP.
 *
 * The list is built once, from the forward pass (build.c). All collectives of forward and backward
 * come out of one function, program_redistribute. Backward is derived from forward
 * (differentiate.c). Values that are not kept from forward to backward are computed again
 * (recompute.c). Nothing is executed while a list is built: a tensor is a type and a size, never a
 * pointer. Types are those of parallel/mesh/dist.h, as in PyTorch's DTensor: along each mesh axis a
 * tensor is sharded (Shard), replicated (Replicate), or a term of a pending sum (Partial).
 *
 * Source: DTensor and the redistributions of Elemental (Poulson et al. 2013); the idea of a step as
 * a list that passes rewrite is that of compilers.
 */
#ifndef PARALLEL_STEP_PROGRAM_H
#define PARALLEL_STEP_PROGRAM_H

#include "parallel/step/model.h"
#include "parallel/step/ops.h"

typedef enum {
    PHASE_FORWARD,
    PHASE_RECOMPUTE,
    PHASE_BACKWARD,
    PHASE_SUMS, // of the last micro-batch of a step alone: gradients become complete (sums.c)
    PHASE_END,
    N_PHASES
} Phase;

/* The memory in which a tensor lies. STORAGE_WEIGHT: a weight as kernels read it (Tensor.cast),
 * STORAGE_MASTER: the fp32 weight that AdamW updates (Tensor.param). With --dtype fp32 both are the
 * same memory. */
typedef enum {
    STORAGE_TEMPORARY, // in the arena of program_allocate
    STORAGE_WEIGHT,
    STORAGE_GRADIENT,
    STORAGE_MASTER,
    STORAGE_MOMENT,        // AdamW's m: running mean of the gradient
    STORAGE_SECOND_MOMENT, // AdamW's v: running mean of the squared gradient
    STORAGE_BUCKET,        // contiguous gradients, of which StepTensor.gradient is the first
    STORAGE_CACHE,         // keys and values of a sequence, which later lists read
    N_STORAGES
} Storage;

enum { OP_INPUTS = 6 };
enum { NO_FLAT_PARTS = N_AXES };

/* The tensors of a linear layer that collectives redistribute. */
typedef enum {
    TENSOR_X,
    TENSOR_Y,
    TENSOR_DY,
    TENSOR_DX,
    TENSOR_W,
    TENSOR_DW,
    N_LINEAR_TENSORS
} LinearTensor;

/* A value of the step. One operation makes it, once; only gradients of parameters
 * (STORAGE_GRADIENT) accumulate over micro-batches. A tensor may be rows or columns of another one,
 * its parent, and lie in the parent's memory. A parent is complete when all operations that make
 * rows or columns of it have run. */
typedef struct StepTensor {
    // type
    Dist dist;               // name, dimensions, sharding, pending sums
    int64_t size[DIST_DIMS]; // of all ranks together, with the padding that makes blocks equal;
                             // {n, 1}: a vector
    CollType dtype;          // COLL_I64: a sum of --exact as integers
    int64_t padding;         // rows at the end of dimension 0 that no operation writes
    int stride;              // elements from row to row; 0: the number of local columns
    const char *what; // label of the collective that redistributes it, a constant: "x of qkv"

    // which value it is
    int layer; // -1: of no layer
    // number of the value in the forward and backward pass, the same on every mesh. A collective
    // changes the type of a value and keeps its number; rows have the number of their parent. -1:
    // none
    int value;
    // row in the table of tensors (base/tensor.h), of a parameter, its gradient, master, moments;
    // -1: none
    int parameter;

    // rows or columns of a parent
    //
    //     rows of the parent   0 1 2 3 4 5 6 7 8 9 ...
    //     row 2, every 4           x x     x x     ...   two rows of each block of four
    //     row 2, every 0           x x x x               four contiguous rows
    int parent;     // -1: none
    int64_t row;    // its first row in the parent; without a parent, in the tokens of both halves
    int64_t column; // its first column in the parent
    int64_t every;

    // memory
    Storage storage;
    // of a stored matrix: the first n_block axes of dist.shard[0] shard its rows into blocks. The
    // axes after them shard the local block into flat parts (z, ZeRO). NO_FLAT_PARTS: all axes
    // shard rows, as of a vector or a temporary
    int n_block;
    int bucket;     // of a stored gradient: the tensor of the gradients that are summed with it,
                    // complete when all of them are; -1: none
    int gradient;   // the stored gradient in whose memory it lies; -1: none. program_allocate
    int64_t offset; // bytes, in the arena of temporaries; -1: no memory. program_allocate
} StepTensor;

/* One operation of one rank. A collective is among the ranks whose coordinates differ only along
 * `axes`. */
typedef struct Op {
    OpKind kind;
    Phase phase;
    int layer;               // -1: of no layer
    int in[OP_INPUTS], n_in; // tensors
    int out, out2;           // results; out2 -1: one result
    Axes axes;               // of a collective
    // of a gather or scatter: the dimension that it gathers or scatters, 0 rows, 1 columns; -1 of
    // all others
    int dim;
    int distance; // of a shift, in ranks
    // rank along the axes that sends a broadcast or gets the result of a reduce. A copy behind the
    // reduce runs on this rank alone. -1: none
    int root;
    bool fused; // runs in the kernel of the operation before it in the list
    bool kv;    // of a collective: among the ranks with copies of the same key heads (Grid.kv)
    bool adds;  // the kernel adds its result to a gradient, its last operand
} Op;

typedef struct Program {
    const ModelShape *shape;
    const Grid *grid;
    const Layout *layout;
    const Mesh *mesh;
    StepTensor *tensor;
    Op *op;
    int n_tensors, n_ops, cap_tensors, cap_ops;
    CollType dtype;    // of activations, and of weights as matmuls read them: COLL_F32 or COLL_BF16
    int result;        // tensor: losses or logits, by shape->output; of the end of a step: totals
    int n_values;      // of forward and backward
    bool ordered;      // each collective has an OP_WAIT; false: it is waited for where it starts
    bool copied;       // on devices: gathers in kernels of matmuls copy into memory of the result
    bool values_fixed; // forward and backward are built: tensors of later passes are no new values
    int layer;         // layer and phase of the tensors and operations that are added next
    Phase phase;
    int64_t kept; // bytes of temporaries in use when the loss is computed. program_allocate
} Program;

/* The derivative of a kind (differentiate.c). op: an operation of the forward pass; grad: the
 * gradient of its result; grads[tensor]: the gradients found so far, -1: none. A rule appends the
 * operations of backward and adds the gradients of the operands to grads. */
typedef void Rule(Program *p, const Op *op, int grad, int *grads);
Rule embedding_rule, norm_rule, qk_norm_rule, matmul_rule, vector_rule, unary_rule, add_rule,
    loss_rule;
/* The rule of collectives (and of OP_LOSS_STATISTICS): the gradient of the result is the gradient
 * of the operand. The reader of the gradient redistributes it. */
Rule pass_on_rule;
/* Calls the kernel of an operation (run_call.h). */
struct Call;
typedef void Kernel(const struct Call *c);

/* Properties of a kind of operations: a row of ops.c. */
typedef struct OpInfo {
    const char *name;
    Rule *backward; // NULL: no gradient flows through it
    Kernel *run;    // NULL: a collective, a wait, or a kind that only other kinds' kernels compute
    bool collective;
    CollOp op;     // of a collective
    bool sums;     // sums over a dimension that some mesh shards: in integers with --exact
    bool cheap;    // --recompute selective computes it again
    bool in_place; // may write its result over its first operand
} OpInfo;
extern const OpInfo op_table[N_OP_KINDS];
static inline const OpInfo *op_info(OpKind kind) {
    return &op_table[kind];
}

/* Local. An empty program for one rank of shape->grid, of which only layout and mesh are read.
 * shape has to live as long as the program. Freed by program_free. */
Program program_make(const ModelShape *shape);
void program_free(Program *p);
/* Local. Adds a temporary with a new value. size: of all ranks together. Returns the index of
 * the tensor, as all functions that add one. */
int program_tensor(Program *p, Dist dist, const int64_t size[DIST_DIMS], CollType dtype);
/* Local. Adds a temporary with the type and value of t; or a tensor equal to t in all fields. */
int program_tensor_like(Program *p, int t);
int program_tensor_copy(Program *p, int t);
/* Local. Adds the tensor t. */
int program_add_tensor(Program *p, StepTensor t);
/* Local. Adds a temporary with the type of t, for a term of the sum that t is. */
int program_tensor_part(Program *p, int t);
/* Local. Adds a tensor that is rows of t: n local rows from `row` on of each block of `every` rows;
 * every 0: of t as a whole. */
int program_rows(Program *p, int t, int64_t row, int64_t n, int64_t every);
/* Local. Appends out = kind(in...) and returns out. Operands that are -1 are left out. */
int program_emit(Program *p, OpKind kind, int out, const int *in, int n_in);
#define EMIT(p, kind, out, ...)                                                                    \
    program_emit(p, kind, out, (int[]){__VA_ARGS__},                                               \
                 (int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)))
/* Local. Appends one more term kind(in...) of the sum `out`, and its addition to `sum`, the sum of
 * the terms so far (-1: this is the first term). Returns the new sum: `out` with the last term. */
int program_add_term(Program *p, OpKind kind, int out, int sum, const int *in, int n_in, bool last);
/* Local. For a pass: the operations that make and read each tensor of the list. Freed by mem_free
 * (maker). */
typedef struct Uses {
    int *maker;   // [tensors] the first operation that makes the tensor; -1: none
    int *reader;  // [tensors] the first operation that reads it; -1: none
    int *readers; // [tensors] how many times it is an operand
} Uses;
Uses program_uses(const Program *p);
/* Local. A pass takes the list of operations out of the program, which leaves an empty list (the
 * caller frees the old one by mem_free), and appends operations, unchanged or rewritten. */
Op *program_take(Program *p);
void program_append(Program *p, const Op *op);
/* Local. DTensor's redistribute: appends the collectives that change the type of tensor t into `to`
 * (dist_path). Neighbouring changes of one kind are one collective along several axes. Returns the
 * tensor of type `to`: t itself where it has this type. Dies where no collectives lead there. */
int program_redistribute(Program *p, int t, const Dist *to, const char *what);
/* Local, pure. The label of a collective of a linear layer, a constant: "x of qkv". linear_find:
 * the layer and the tensor of a label; false: it is not of a linear layer. linear_named dies
 * then. */
const char *linear_what(LinearKind kind, LinearTensor which);
bool linear_find(const char *label, LinearKind *kind, LinearTensor *which);
LinearKind linear_named(const char *label, LinearTensor *which);
/* Local. Appends a matmul a b, a b' or a' b (kind) and returns its result. The type of the result
 * follows from those of the operands (dist_matmul): contracting K sharded over x in both leaves a
 * sum pending along x. Dies with the reason when the operands' types cannot be multiplied. */
int program_matmul(Program *p, OpKind kind, const char *name, int a, int b);

/* Local, pure. Size of this rank's block of a tensor along one dimension; and elements of the
 * block, of a flat part with the padding that makes parts equal. */
static inline int64_t step_tensor_local(const Program *p, const StepTensor *t, int dim) {
    return t->size[dim] / mesh_blocks(p->mesh, t->dist.shard[dim]);
}
int64_t step_tensor_elements(const Program *p, const StepTensor *t);
/* Local, pure. Bytes of a tensor's memory; and rounded up to the alignment of an arena. */
int64_t step_tensor_bytes(const Program *p, const StepTensor *t);
int64_t step_tensor_aligned(const Program *p, const StepTensor *t);
/* Local, pure. Offset of a tensor in its parent, in bytes. */
int64_t step_tensor_begin(const Program *p, const StepTensor *t);
/* Local, pure. The dimension of a tensor that is T, tokens; -1: none. */
int step_tensor_tokens(const StepTensor *t);
/* Local, pure. Number of contiguous runs of rows of a tensor: the blocks of `every` rows in its
 * parent; 1 where its rows are contiguous. */
int64_t step_tensor_stripes(const Program *p, const StepTensor *t);
/* Local, pure. Distance from a tensor's first local row to its local row r, in rows of the
 * parent. */
int64_t step_tensor_row(const Program *p, const StepTensor *t, int64_t r);
/* Local, pure. The index after operation i and the operations fused into it, in a list of n. */
int op_kernel_end(const Op *op, int n, int i);
bool op_is_matmul(const Op *op);
/* Local, pure. Does an operation run in a micro-batch? last: the last one of a step. */
bool op_runs(const Op *op, bool last);
/* Local, pure. How many of its operands the kernel of an operation reads. Further operands, which
 * only matmuls have, are dependences: the matmul runs after the operations that make them. */
int op_operands(const Op *op);
/* Local, pure. Bytes that this rank receives in a collective (ring algorithms); 0 of a kernel. */
int64_t op_bytes(const Program *p, const Op *op);
/* Local, pure. Floating-point operations of a kernel on this rank; 0 of kernels whose time is that
 * of memory traffic. */
double op_flops(const Program *p, const Op *op);

/* Local. The passes: passes.h lists them with their files, where each has its picture. */
void program_forward(Program *p);
void program_differentiate(Program *p);
void program_recompute(Program *p);
void program_panels(Program *p);
void program_exact(Program *p);
void program_halves(Program *p);
void program_sums(Program *p);
/* Local. A pass: the head by chunks of `rows` tokens. */
void program_chunk_head(Program *p, int64_t rows);
/* Local. Passes. bias_with_dw: as in Kernels. on_device: the result of a gather in the kernel of a
 * matmul has memory. */
void program_fuse(Program *p, bool bias_with_dw);
void program_fuse_collectives(Program *p, bool on_device);
/* Local. A pass. ring: matmuls whose tokens are gathered or scattered are split into the blocks of
 * the ranks instead of chunks. */
void program_split(Program *p, int chunks, bool ring);
/* Local. Builds the list of the end of a step, after its micro-batches: end.c. on_device: one
 * kernel sums the squares of all gradients. casts_alone: only the weights that matmuls read are
 * made of the master weights, for master weights that did not come from AdamW. */
void program_end(Program *p, bool on_device, bool casts_alone);
/* Local. Sets dimension T of every tensor to the tokens of p->shape, which has changed. No tensor
 * may be rows of another one yet. build.c */
void program_resize(Program *p);
/* Local, pure. Leading dimension (elements from row to row) of logits of V local columns: V rounded
 * up to 16. */
int64_t head_ld(int64_t V);
/* Local, pure. Tokens of a chunk of the head, for T local tokens and V local columns of logits. */
int64_t head_chunk(int64_t T, int64_t V, bool on_device);
/* Local, pure. Is operation i a collective that runs in the kernel of a matmul? Does operation i
 * begin a kernel: is it not fused into another, or a matmul behind an all_gather in its kernel? */
bool op_in_kernel(const Program *p, int i);
bool op_begins_kernel(const Program *p, int i);

/* Local. Places temporaries in one arena by their lives in the list: sets `offset` and `gradient`
 * of all tensors. Returns the bytes of the arena. With shape->unplaced it looks for no places,
 * which takes less time: all offsets in the arena are 0, and the result is the most bytes in use at
 * the same time, a lower bound of the arena. allocate.c */
size_t program_allocate(Program *p);

#endif
