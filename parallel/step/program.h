/* program -- a training step as data: a list of operations on typed tensors.
 *
 *   forward   h1   [T/d.z.x, C]      = norm             x, ln1.weight, ln1.bias
 *             h1   [T/d.z, C]        = all_gather x     h1
 *             qkv  [T/d.z, N/x]      = matmul           h1, qkv.weight
 *   backward  dh1  [T/d.z, C] +x     = matmul_bt        dqkv, qkv.weight
 *             dh1  [T/d.z.x, C]      = reduce_scatter x dh1
 *
 * Dimensions: T tokens, C channels, N and K outputs and inputs of a layer, V vocabulary, H heads, S
 * positions. 2Y: two numbers of each rank along y (norms). 3V: three numbers of each block of the
 * vocabulary (the loss). G: all gradients of a bucket. listing.c prints them below a list. Passes
 * read these names: T is what halves and chunks have a part of, V has padding of its own, a
 * parameter of S is no matrix. The residual stream is x in front of a layer's attention, x2 in
 * front of its MLP, x3 behind it.
 *
 * The list is built once, from the forward pass (build.c). Every collective of it comes out of one
 * function, program_redistribute; backward is derived (differentiate.c), and what is not kept from
 * forward to backward is computed again (recompute.c). Nothing here is executed: a tensor is a type
 * and a size, never a pointer. Types are those of parallel/mesh/dist.h: along each mesh axis a
 * tensor is sharded, replicated, or partial (a sum is pending).
 *
 * Source: DTensor and the redistributions of Elemental (Poulson et al. 2013); the idea of a step as
 * a list that passes rewrite is that of compilers.
 */
#ifndef PARALLEL_STEP_PROGRAM_H
#define PARALLEL_STEP_PROGRAM_H

#include "parallel/step/model.h"
#include "parallel/step/ops.h"

typedef enum { PHASE_FORWARD, PHASE_RECOMPUTE, PHASE_BACKWARD, PHASE_END, N_PHASES } Phase;

/* Parameters are weights as matmuls read them; masters are the fp32 master weights, which AdamW
 * updates: the same memory where matmuls read fp32. */
typedef enum {
    STORAGE_TEMPORARY,
    STORAGE_PARAMETER,
    STORAGE_GRADIENT,
    STORAGE_MASTER,
    STORAGE_MOMENT,        // of AdamW: means of gradients
    STORAGE_SECOND_MOMENT, // and of their squares
    STORAGE_BUCKET,        // gradients that lie together, from tensor `gradient` on
    STORAGE_CACHE,         // keys and values of a sequence, which the next lists read
    N_STORAGES
} Storage;

enum { OP_INPUTS = 6 };
enum { NO_FLAT_PARTS = N_AXES };

/* The collectives of a linear layer, by what they redistribute. */
typedef enum { WHAT_X, WHAT_Y, WHAT_DY, WHAT_DX, WHAT_W, WHAT_DW, N_WHATS } What;

/* A value of the step. Each is made once, by one operation; gradients of parameters
 * (STORAGE_GRADIENT) add up over micro-batches. A tensor may be rows of another one, its parent,
 * which is there when all operations that make rows of it have run; likewise columns. */
typedef struct StepTensor {
    Dist dist;               // name, dimensions, sharding, pending sums
    int64_t size[DIST_DIMS]; // of the whole, with the padding that makes blocks equal; {n, 1}: a
                             // vector
    int layer;               // -1: of no layer
    // which value of the forward and backward pass it is, or has rows of: a number, the same on
    // every mesh, for a collective does not change a value but its type. -1: none
    int value;
    // row of the table of tensors (base/tensor.h): a parameter's, and of what is stored beside it
    // for training, its stored gradient's too; -1: none
    int parameter;
    int bytes;      // of an element
    bool is_double; // of 8 bytes: a double, else an integer of --exact
    Storage storage;
    // of a matrix that is stored: axes of dimension 0 that shard it, further ones shard the local
    // block in flat parts (ZeRO, z). NO_FLAT_PARTS: of a vector, or a temporary
    int n_block;
    const char *what; // the collective that redistributes it, a constant: "x of qkv"
    int parent;       // the tensor of which it is rows, from `row` on, in whose memory it lies; -1
    int64_t row;      // of the parent: the first that it has; of the tokens of both halves, too
    int64_t column;   // of the parent: the first that it has
    int64_t every;    // its rows are the first ones of each block of so many rows of the parent,
                      // from `row` on; 0: its rows follow each other
    int64_t padding;  // of dimension 0, at the end: what no operation writes
    int stride;       // elements from row to row; 0: as many as columns
    int gradient;     // that is stored, in whose memory it lies; -1: none. program_allocate
    int64_t offset;   // in the arena of temporaries; -1: no memory. program_allocate
} StepTensor;

/* One operation of one rank. A collective is of the ranks that differ in `axes` alone. */
typedef struct Op {
    OpKind kind;
    Phase phase;
    int layer;
    int in[OP_INPUTS], n_in; // tensors
    int out, also;           // tensors; also -1: one result
    Axes axes;               // of a collective
    // of a gather or scatter: 0, its blocks are rows, or 1, columns; of a shift: the distance in
    // ranks; -1 of all others
    int dim;
    // rank along the axes that sends a broadcast, or has the result of a reduce (and runs the copy
    // behind it); -1: none
    int root;
    bool fused; // runs in the kernel of the operation before it in the list
    bool kv;    // of a collective: of the ranks with copies of the same key heads (Grid.kv)
    bool adds;  // its last operand is a gradient, to which its result is added
} Op;

typedef struct Program {
    const ModelShape *shape;
    const Grid *grid;
    const Layout *layout;
    const Mesh *mesh;
    StepTensor *tensor;
    Op *op;
    int n_tensors, n_ops, cap_tensors, cap_ops;
    int elem_bytes; // bytes of an activation, and of a weight as matmuls read it
    int result;     // tensor: losses or logits, as shape->output says; of the end of a step, totals
    int n_values;   // of forward and backward
    bool ordered;   // each collective has an OP_WAIT; else it ends where it stands: passes.c
    bool copied;    // what matmuls gather has memory, into which it is copied: on devices
    bool values_fixed; // forward and backward are there: what later passes add is no new value
    int layer;         // of what is added next
    Phase phase;
    int64_t kept; // bytes of temporaries when the loss is there. program_allocate
} Program;

/* The derivative of a kind (differentiate.c): of an operation of the forward pass it gets the
 * gradient of the result, and grads[tensor], the gradients found so far (-1: none); it appends
 * operations and adds to grads. */
typedef void Rule(Program *p, const Op *op, int grad, int *grads);
Rule embedding_rule, norm_rule, matmul_rule, vector_rule, unary_rule, add_rule, loss_rule;
/* A gradient passes a collective as it is: it is redistributed where it is read. */
Rule pass_on_rule;
/* Calls the kernel of an operation (run_call.h). */
struct Call;
typedef void Kernel(const struct Call *c);

/* What there is to know of a kind: a row of ops.c. */
typedef struct OpInfo {
    const char *name;
    Rule *backward; // NULL: no gradient flows through it
    Kernel *run;    // NULL: a collective, a wait, or fused into others alone
    bool collective;
    CollOp op;     // of a collective
    bool sums;     // over a dimension that some mesh shards: integers with --exact, exact_sums.c
    bool cheap;    // to be computed again: recompute.c
    bool in_place; // may write over its first operand: allocate.c
} OpInfo;
const OpInfo *op_info(OpKind kind);

/* Local. An empty program for one rank of shape->grid, of which layout and mesh are read. Life of
 * shape: as long as the program. Freed by program_free. */
Program program_make(const ModelShape *shape);
void program_free(Program *p);
/* Local. The same list for a shape that differs in last_micro_batch alone. */
Program program_copy(const Program *p, const ModelShape *shape);
/* Local. A tensor of this type, of these whole sizes. Returns its index. */
int program_tensor(Program *p, Dist dist, const int64_t size[DIST_DIMS], int bytes);
/* Local. A tensor of the type of t, with the same value; or all else alike, too. */
int program_tensor_like(Program *p, int t);
int program_tensor_copy(Program *p, int t);
/* Local. A tensor as it is. */
int program_add_tensor(Program *p, StepTensor t);
/* Local. A tensor of the type of t for a part of the sum that t is. */
int program_tensor_part(Program *p, int t);
/* Local. n local rows of tensor t from `row` on, of each block of `every` rows; 0: of all rows. */
int program_rows(Program *p, int t, int64_t row, int64_t n, int64_t every);
/* Local. Adds out = kind(in...). Returns out. Inputs that are -1 are left out. */
int program_emit(Program *p, OpKind kind, int out, const int *in, int n_in);
#define EMIT(p, kind, out, ...)                                                                    \
    program_emit(p, kind, out, (int[]){__VA_ARGS__},                                               \
                 (int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)))
/* Local. One more term kind(in...) of the sum `out`: adds it to `sum`, the terms so far (-1: it is
 * the first one). Returns the sum of all of them, which is `out` behind the last one. */
int program_add_term(Program *p, OpKind kind, int out, int sum, const int *in, int n_in, bool last);
/* Local. For a pass: who makes and who reads each tensor, in the list as it is. Freed by mem_free
 * (maker). */
typedef struct Uses {
    int *maker;   // [tensors] operation; -1: none
    int *reader;  // [tensors] the first one; -1
    int *readers; // [tensors] how many operands it is
} Uses;
Uses program_uses(const Program *p);
/* Local. For a pass: takes the list out of a program, which has none then (freed by mem_free); adds
 * an operation of that list as it is. */
Op *program_take(Program *p);
void program_append(Program *p, const Op *op);
/* Local. Adds the collectives between the type of tensor t and `to`, one for each list of axes: the
 * only place where a collective enters the program. Returns the tensor of type `to`; t itself when
 * it has that type. Dies where there is no such path. */
int program_redistribute(Program *p, int t, const Dist *to, const char *what);
/* Local, pure. "x of qkv": a constant, as all names of collectives are. And what it is called for
 * another tensor of the same layer; and the layer that a name is of. */
const char *linear_what(LinearKind kind, What what);
const char *linear_what_like(const char *name, What what);
LinearKind linear_named(const char *name, What *what);
/* Local. a b, a b' or a' b (kind). Dies, in the words of dist_matmul, when the operands are sharded
 * in ways that cannot be multiplied. */
int program_matmul(Program *p, OpKind kind, const char *name, int a, int b);

/* Local, pure. Elements of a rank's block of a tensor, along one dimension and in all (of flat
 * parts, with the padding that makes them equal). */
int64_t step_tensor_local(const Program *p, const StepTensor *t, int dim);
int64_t step_tensor_elements(const Program *p, const StepTensor *t);
/* Local, pure. Bytes of its memory; and with what aligns the next one in an arena. */
int64_t step_tensor_bytes(const Program *p, const StepTensor *t);
int64_t step_tensor_aligned(const Program *p, const StepTensor *t);
/* Local, pure. Where in its parent a tensor begins, in elements. */
int64_t step_tensor_begin(const Program *p, const StepTensor *t);
/* Local, pure. Its dimension of tokens; -1: it has none. */
int step_tensor_tokens(const StepTensor *t);
/* Local, pure. Blocks of its parent of which a tensor has rows; 1 where its rows lie together. */
int64_t step_tensor_stripes(const Program *p, const StepTensor *t);
/* Local, pure. Where its local row r lies: so many rows behind its first one. */
int64_t step_tensor_row(const Program *p, const StepTensor *t, int64_t r);
/* Local, pure. The index behind operation i of a list of n and behind those fused into it. */
int op_kernel_end(const Op *op, int n, int i);
bool op_is_matmul(const Op *op);
/* Local, pure. How many of its operands the kernel reads. Further ones, which only a matmul has,
 * make it wait for the operations that make them. */
int op_operands(const Op *op);
/* Local, pure. Bytes that this rank receives in a collective (ring algorithms); 0 of a kernel. */
int64_t op_bytes(const Program *p, const Op *op);
/* Local, pure. Floating-point operations of a kernel on this rank; 0 where bytes are what it
 * costs. */
double op_flops(const Program *p, const Op *op);

/* Local. The passes: passes.h lists them with their files, where each has its picture. */
void program_forward(Program *p);
void program_differentiate(Program *p);
void program_recompute(Program *p);
void program_panels(Program *p);
void program_exact(Program *p);
void program_halves(Program *p);
void program_sums(Program *p);
/* Local. Likewise: the head by chunks of `rows` tokens. */
void program_chunk_head(Program *p, int64_t rows);
/* Local. Likewise. bias_with_dw: Kernels. on_device: what is gathered has memory. */
void program_fuse(Program *p, bool bias_with_dw);
void program_fuse_collectives(Program *p, bool on_device);
/* Local. Likewise. ring: in the blocks that ranks hold, where tokens are gathered or scattered. */
void program_split(Program *p, int chunks, bool ring);
/* Local. The end of a step, behind its micro-batches: end.c. on_device: one kernel adds up the
 * squares of all gradients. casts_alone: makes what matmuls read of master weights that did not
 * come from AdamW. */
void program_end(Program *p, bool on_device, bool casts_alone);
/* Local. Sets the tokens of every tensor to those of the sequences that p->shape has now. No tensor
 * may be rows of another one yet. build.c */
void program_resize(Program *p);
/* Local, pure. Elements from row to row of logits, of a head of V columns here: whole vectors. */
int64_t head_ld(int64_t V);
/* Local, pure. Tokens of a chunk of the head, of T; on the host, or on a device. */
int64_t head_chunk(int64_t T, int64_t V, bool on_device);
/* Local, pure. Does collective i run in the kernel of matmuls? Does operation i begin a kernel: is
 * it fused into none, or a matmul that is fused with a collective? */
bool op_in_kernel(const Program *p, int i);
bool op_begins_kernel(const Program *p, int i);

/* Local. Where temporaries lie in one arena, by their lives in the list as it is: sets offset and
 * gradient of tensors. Returns the bytes of the arena: allocate.c. */
size_t program_allocate(Program *p);
/* Local. The same with an arena that is larger than it has to be, which takes much less time:
 * returns the bytes that are in use at once, of which no placement takes less. */
size_t program_in_use(Program *p);

#endif
