#include "layers/norm.h"

#include <math.h>

size_t norm_workspace(int64_t T, int64_t C) {
    return (size_t)(T + C) * 4;
}

void norm_forward(Team *t, const Norm *n, float *y, float *mean, float *rstd, const float *x) {
    (void)t;
    for (int64_t i = 0; i < n->T; i++) {
        const float *xi = x + i * n->C;
        float m = 0, v = 0;
        for (int64_t c = 0; c < n->C && n->kind == NORM_LAYER; c++) m += xi[c];
        m /= (float)n->C;
        for (int64_t c = 0; c < n->C; c++) v += (xi[c] - m) * (xi[c] - m);
        float r = 1 / sqrtf(v / (float)n->C + n->eps);
        for (int64_t c = 0; c < n->C; c++)
            y[i * n->C + c] = (xi[c] - m) * r * n->gamma[c] + (n->beta ? n->beta[c] : 0);
        if (mean) mean[i] = m;
        if (rstd) rstd[i] = r;
    }
}

void norm_backward(Team *t, const Norm *n, float *dx, const float *dy, const float *x,
                   const float *mean, const float *rstd) {
    (void)t;
    for (int64_t i = 0; i < n->T; i++) {
        float m = n->kind == NORM_LAYER ? mean[i] : 0, r = rstd[i], s1 = 0, s2 = 0;
        for (int64_t c = 0; c < n->C; c++) {
            float h = (x[i * n->C + c] - m) * r, g = dy[i * n->C + c] * n->gamma[c];
            s1 += g, s2 += g * h;
            n->dgamma[c] += dy[i * n->C + c] * h;
            if (n->dbeta) n->dbeta[c] += dy[i * n->C + c];
        }
        if (n->kind == NORM_RMS) s1 = 0;
        for (int64_t c = 0; c < n->C; c++) {
            float h = (x[i * n->C + c] - m) * r, g = dy[i * n->C + c] * n->gamma[c];
            dx[i * n->C + c] += r * (g - s1 / (float)n->C - h * s2 / (float)n->C);
        }
    }
}
