/* head -- the head by chunks of tokens: forward and backward of one chunk run before the next
 * chunk, so memory never holds the logits of all tokens, [T/d.z, V/x.y].
 *
 *   before   logits = matmul_bt h, wte      after   for each chunk of rows of h:
 *            exps, stats = statistics                   logits = matmul_bt h', wte
 *            losses = loss                              exps, stats = statistics
 *            dlogits = loss_backward                    losses' = loss
 *            dh = matmul dlogits, wte                   dlogits = loss_backward
 *            dwte = matmul_at dlogits, h                dh' = matmul dlogits, wte
 *                                                       dwte = dwte + matmul_at dlogits, h'
 *
 * h', dh', losses' are rows of h, dh, losses. Chunks run one after the other: the first operation
 * of a chunk has the last result of the chunk before as an additional operand, which no kernel
 * reads. So no later pass can interleave two chunks. Liger Kernel's fused linear cross entropy for
 * PyTorch has chunks of the same kind.
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

/* ---- tokens of a chunk ---- */

/* Most bytes of the logits of a chunk, counted as floats. On the host larger chunks gain nothing.
 * On a device every chunk costs time. It reads and writes the float gradient dwte [V, C]: 8 V C
 * bytes, 309 MB for GPT-2 124M. And its matmuls leave multiprocessors idle in their last wave: dx
 * of 4,736 rows has 111 tiles of 128 x 256 for 132 multiprocessors. So the head is one chunk up to
 * some 42,000 tokens with GPT-2's vocabulary (4 GiB of logits in bf16). More tokens are split into
 * chunks of whole waves of an H100: WAVE rows are 132 tiles of 128 rows. */
enum { HEAD_BYTES = 256 << 20, WAVE = 132 * 128 };
static const int64_t head_bytes_device = (int64_t)8 << 30;

int64_t head_ld(int64_t V) {
    return div_up(V, 16) * 16;
}

int64_t head_chunk(int64_t T, int64_t V, bool on_device) {
    int64_t bytes = on_device ? head_bytes_device : HEAD_BYTES;
    int64_t most = bytes / (head_ld(V) * (int64_t)sizeof(float)); // rows, for every dtype
    if (on_device && T > most && most >= WAVE) return most / WAVE * WAVE;
    int64_t chunks = most > 0 ? div_up(T, most) : T;
    int64_t rows = div_up(div_up(T, chunks), 64) * 64; // chunks of about equal length
    return rows < T ? rows : T;
}

/* ---- the pass ---- */

typedef struct Chunk {
    Program *p;
    int64_t row, rows; // local rows [row, row + rows) of h
    bool last;
    int h, dh; // tensors of all tokens, of which chunks read and make rows; dh -1: no backward
    int *now;  // [tensors] the part of the tensor for this chunk; -1: not made yet
    int sum;   // gradient of the weight, the sum of the chunks so far; -1: none
    int ended; // last result of the chunk before; of the first chunk: h
} Chunk;

/* The rows of tensor t for this chunk; t itself where it has no dimension of tokens. Rows of h, dh
 * and losses lie in these tensors; of other tensors only the rows of one chunk have memory. */
static int chunk_of(Chunk *c, int t) {
    Program *p = c->p;
    int dim = step_tensor_tokens(&p->tensor[t]);
    if (dim < 0) return t;
    if (c->now[t] >= 0) return c->now[t];
    StepTensor part = p->tensor[t];
    int64_t blocks = mesh_blocks(p->mesh, part.dist.shard[dim]);
    part.size[dim] = c->rows * blocks;
    part.row = c->row;
    part.parent = t == c->h || t == c->dh || t == p->result ? t : -1;
    return c->now[t] = program_add_tensor(p, part);
}

/* Appends the n operations of the head for one chunk. */
static void emit_chunk(Chunk *c, const Op *old, int n) {
    Program *p = c->p;
    for (int i = 0; i < n; i++) {
        Op op = old[i];
        p->phase = op.phase;
        for (int k = 0; k < op.n_in; k++) op.in[k] = chunk_of(c, op.in[k]);
        if (op.kind == OP_MATMUL_AT) { // a term of dwte, after dh of its chunk
            op.in[op.n_in++] = c->now[c->dh];
            c->sum = program_add_term(p, op.kind, op.out, c->sum, op.in, op.n_in, c->last);
            continue;
        }
        op.out = chunk_of(c, op.out);
        if (op.out2 >= 0) op.out2 = chunk_of(c, op.out2);
        if (i == 0) op.in[op.n_in++] = c->ended;
        program_append(p, &op);
    }
}

/* The operations of the head, [first, end): from the matmul that makes the logits to the wgrad, the
 * last one that reads dlogits. Without backward: to the end of the list. */
static void find_head(const Program *p, int *first, int *end) {
    int i = 0;
    while (strcmp(p->tensor[p->op[i].out].dist.name, "logits") != 0) i++;
    *first = i;
    while (p->op[i].out != p->result) i++;
    while (i + 1 < p->n_ops && p->op[i].kind != OP_MATMUL_AT) i++;
    *end = i + 1;
}

void program_chunk_head(Program *p, int64_t rows) {
    int first, end, n = p->n_ops, n_tensors = p->n_tensors;
    find_head(p, &first, &end);
    int64_t T = step_tensor_local(p, &p->tensor[p->op[first].out], 0);
    if (rows >= T) return;
    Op *old = program_take(p);
    Chunk c = {.p = p, .sum = -1, .h = old[first].in[0], .dh = -1};
    c.ended = c.h;
    if (end < n) c.dh = old[end - 2].out;
    c.now = mem_alloc((size_t)n_tensors * sizeof *c.now);
    for (int i = 0; i < first; i++) program_append(p, &old[i]);
    for (c.row = 0; c.row < T; c.row += rows) {
        c.rows = T - c.row < rows ? T - c.row : rows;
        c.last = c.row + c.rows == T;
        for (int t = 0; t < n_tensors; t++) c.now[t] = -1;
        emit_chunk(&c, old + first, end - first);
        c.ended = c.sum >= 0 ? c.sum : c.now[p->result];
    }
    for (int i = end; i < n; i++) program_append(p, &old[i]);
    mem_free(c.now);
    mem_free(old);
}
