/* product -- y[M,N] = a[M,K] b[K,N], the one product behind every linear layer, forward and
 * backward.
 *
 *   forward   y[T, N]  = x[T, K] w[K, N] (+ bias)       a = x   (K, 1)   b = w   (N, 1)
 *   backward  dx[T, K] = dy[T, N] w'                    a = dy  (N, 1)   b = w'  (1, N)
 *             dw[K, N] += x' dy                         a = x'  (1, K)   b = dy  (N, 1)
 *   head      logits[T, V] = x[T, C] wte'               a = x   (C, 1)   b = wte' (1, C)
 *
 * Strides say which operand is transposed, so the three products are one routine with two ways of
 * packing. BLIS structure: A and B are packed into panels, a register tile of y is summed over KC
 * of K, panels of K are added in order.
 *
 * bf16: operands are rounded to bfloat16 (nearest, ties to even) while they are packed; sums are
 * fp32. The result does not depend on the number of threads. Source: Van Zee, van de Geijn, "BLIS",
 * TOMS 41(3), 2015.
 */
#ifndef LAYERS_PRODUCT_H
#define LAYERS_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"

/* What is done with a finished element y(m,n) before it is stored. */
typedef enum {
    EPI_NONE,
    EPI_GELU,  // aux[m,n] = y (before the activation, kept for backward; may be NULL), y = gelu(y)
    EPI_DGELU, // y = y * gelu'(aux[m,n])
} Epilogue;

typedef struct Product {
    int64_t M, N, K;
    const float *a; // a(m,k) = a[m * a_row + k * a_col]; one of the strides is 1
    int64_t a_row, a_col;
    const float *b; // b(k,n) = b[k * b_row + n * b_col]; one of the strides is 1
    int64_t b_row, b_col;
    float *y; // y(m,n) = y[m * ldy + n]
    int64_t ldy;
    const float *addend; // y = addend + a b: NULL overwrites, y itself accumulates, a residual adds
                         // it; rows of ldy
    const float *bias;   // [N] or NULL
    Epilogue epilogue;
    float *aux; // [M, N], rows of ldy
    bool bf16;
    void *workspace; // product_workspace() bytes, aligned to 64; one product at a time may use it
} Product;

/* Local. M, N, K >= 0 of any size; K = 0 leaves addend (or 0) + bias. y must not overlap a or b. */
void product(Team *t, const Product *p);
/* Local. Bytes of workspace that any product needs with this many threads. */
size_t product_workspace(int n_threads);

#endif
