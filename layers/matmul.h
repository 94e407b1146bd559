/* matmul -- y[M,N] = a[M,K] b[K,N], the matmul of every linear layer, forward (y) and
 * backward (dgrad dx, wgrad dw).
 *
 *   forward   y[T, N]  = x[T, K] w[K, N] (+ bias)       a = x   (K, 1)   b = w   (N, 1)
 *   backward  dx[T, K] = dy[T, N] w'                    a = dy  (N, 1)   b = w'  (1, N)
 *             dw[K, N] += x' dy                         a = x'  (1, K)   b = dy  (N, 1)
 *   head      logits[T, V] = x[T, C] wte'               a = x   (C, 1)   b = wte' (1, C)
 *
 * Strides say which operand is transposed, so the three matmuls are one routine with two ways of
 * packing. BLIS structure: A and B are packed into panels, a register tile of y is summed over
 * PANEL_K of K, panels of K are added in order.
 *
 * bf16: operands are rounded to bfloat16 (nearest, ties to even) while they are packed; sums are
 * fp32. The result does not depend on the number of threads. Source: Van Zee, van de Geijn, "BLIS",
 * TOMS 41(3), 2015.
 */
#ifndef LAYERS_MATMUL_H
#define LAYERS_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/config.h"
#include "base/team.h"
#include "layers/act.h"

/* Applied to a finished element y(m,n) before it is stored. */
typedef enum {
    EPI_NONE,
    EPI_ACT,  // aux[m,n] = y (before the activation, kept for backward; may be NULL), y = act(y)
    EPI_DACT, // y = y * act'(aux[m,n])
} Epilogue;

/* The rows of one matrix of a matmul in n blocks of `rows` rows, each at its own address: for
 * example in the memory of the rank that has the block, or that sums it.
 *
 *   a, y    M = n * rows. Blocks are multiplied in the order first, first + 1, ..., n - 1, 0, ...,
 *           and panels of rows do not cross their edges, which changes no sum
 *   at, b   K = n * rows: the operand x (a is its transpose) or dy of a wgrad dw = x' dy. Blocks
 *           are multiplied in the order of K, in which sums are added. Where two elements of K are
 *           packed together (bf16), rows is a multiple of 32. bias_grad is NULL
 *
 * On a device the blocks of a and b are contiguous, at the addresses in Matmul. The rank's thread
 * calls begin and done while it launches kernels into its stream. Kernels that it launches after
 * begin may read or write the block; at done, all kernels that do so are launched. Or a kernel
 * itself waits for each block of a, until flags[block] is `ready_value`. */
typedef enum { BLOCKS_OF_A, BLOCKS_OF_Y, BLOCKS_OF_AT, BLOCKS_OF_B } BlocksOf;
typedef struct RowBlocks {
    int64_t rows;
    int n, first;
    BlocksOf matrix;
    // The address of a block; returns when the block may be read or written. Called by every thread
    Act *(*begin)(void *ctx, int block);
    // Called by one thread for each block, in their order: all rows of y in the block are stored,
    // or the block was read. Or NULL
    void (*done)(void *ctx, int block);
    void *ctx;
    const uint32_t *flags; // [n], for a on a device; or NULL
    uint32_t ready_value;
} RowBlocks;

typedef struct Matmul {
    int64_t M, N, K;
    const Act *a; // a(m,k) = a[m * a_row + k * a_col]; one of the strides is 1
    int64_t a_row, a_col;
    const Act *b; // b(k,n) = b[k * b_row + n * b_col]; one of the strides is 1
    int64_t b_row, b_col;
    Act *y; // y(m,n) = y[m * ldy + n]
    int64_t ldy;
    // Columns N to ldy of y and aux are padding: a kernel may store whole 16 bytes, and leaves any
    // contents in the padding. false: these columns keep their contents
    bool padded;
    // y = addend + a b. NULL: a b overwrites y; y itself: a b is added to y; or another matrix,
    // such as the residual stream. Rows of ldy
    const Act *addend;
    const Act *bias;  // [N], of y's type, or NULL
    float *bias_grad; // [N] += sums of the columns of b; or NULL
    Epilogue epilogue;
    ActKind act; // of the epilogue: not ACT_SWIGLU
    Act *aux;    // [M, N], rows of ldy
    bool bf16;
    bool wide; // y and addend are fp32 even with bf16 activations: gradients of weights
    const RowBlocks *blocks; // NULL: rows of a and y lie where these pointers say
    void *workspace; // matmul_workspace() bytes, aligned to 64; one matmul at a time may use it
} Matmul;

/* The three matmuls of a linear layer: forward y[T,N] = x w, dgrad dx[T,K] = dy w', wgrad dw[K,N] =
 * x' dy. Rows of the first operand are ld apart; the caller sets result and addend. */
static inline Matmul matmul_sized(int64_t M, int64_t N, int64_t K) {
    Matmul p;
    memset(&p, 0, sizeof p);
    p.M = M, p.N = N, p.K = K, p.ldy = N;
    return p;
}
static inline Matmul matmul_forward(int64_t T, int64_t K, int64_t N, const Act *x, int64_t ld,
                                    const Act *w) {
    Matmul p = matmul_sized(T, N, K);
    p.a = x, p.a_row = ld, p.a_col = 1;
    p.b = w, p.b_row = N, p.b_col = 1;
    return p;
}
static inline Matmul matmul_dgrad(int64_t T, int64_t K, int64_t N, const Act *dy, int64_t ld,
                                  const Act *w) {
    Matmul p = matmul_sized(T, K, N);
    p.a = dy, p.a_row = ld, p.a_col = 1;
    p.b = w, p.b_row = 1, p.b_col = N;
    return p;
}
static inline Matmul matmul_wgrad(int64_t T, int64_t K, int64_t N, const Act *x, int64_t ld,
                                  const Act *dy) {
    Matmul p = matmul_sized(K, N, T);
    p.a = x, p.a_row = 1, p.a_col = ld;
    p.b = dy, p.b_row = N, p.b_col = 1;
    p.wide = true;
    return p;
}

/* Local. M, N, K >= 0 of any size; K = 0 leaves addend (or 0) + bias. y must not overlap a or b.
 * With bias_grad, b is contiguous (dy of a wgrad). Its columns are summed in fp32, as by
 * bias_backward: from the elements as they are stored, not as they are rounded to be multiplied. */
void matmul(Team *t, const Matmul *p);
/* Local. Bytes of workspace that any matmul needs with this many threads. */
size_t matmul_workspace(int n_threads);

#endif
