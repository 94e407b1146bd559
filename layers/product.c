#include "layers/product.h"

#include "layers/gelu.h"

size_t product_workspace(int n_threads) {
    return (size_t)n_threads * 64;
}

static float gelu1(float x) { return gelu(vf_set1(x))[0]; }
static float dgelu1(float x) { return gelu_slope(vf_set1(x))[0]; }

static void rows(void *ctx, int64_t m0, int64_t m1) {
    const Product *p = ctx;
    for (int64_t m = m0; m < m1; m++)
        for (int64_t n = 0; n < p->N; n++) {
            float s = 0;
            for (int64_t k = 0; k < p->K; k++)
                s += p->a[m * p->a_row + k * p->a_col] * p->b[k * p->b_row + n * p->b_col];
            if (p->addend) s += p->addend[m * p->ldy + n];
            if (p->bias) s += p->bias[n];
            if (p->epilogue == EPI_GELU) {
                if (p->aux) p->aux[m * p->ldy + n] = s;
                s = gelu1(s);
            }
            if (p->epilogue == EPI_DGELU) s *= dgelu1(p->aux[m * p->ldy + n]);
            p->y[m * p->ldy + n] = s;
        }
}

void product(Team *t, const Product *p) {
    team_for(t, p->M, 16, rows, (void *)(uintptr_t)p);
}
