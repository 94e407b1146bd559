#include "parallel/plan/work.h"

#include <inttypes.h>
#include <stdio.h>

enum { FLOAT = sizeof(float) };

/* Of an activation. */
static double elem_bytes_of(const Work *w) {
    return w->flags & WORK_BF16_STORED ? 2 : FLOAT;
}

double work_flops(const Work *w) {
    double rows = (double)w->rows, a = (double)w->a;
    // of one of attention's matmuls over the causal half: S (S + 1) / 2 elements for each head, 2
    // D each
    double tile = rows * (double)w->b * (double)w->d * a * (a + 1);
    switch (w->kind) {
    case WORK_MATMUL:
    case WORK_DGRAD:
    case WORK_WGRAD:
        return 2 * rows * a * (double)w->b;
    case WORK_ATTENTION:
        return 2 * tile; // scores; O
    case WORK_ATTENTION_BACKWARD:
        return 5 * tile; // scores again; dP, dV, dQ, dK
    default:
        return 0;
    }
}

/* Weights are read in the dtype of activations, their gradients are floats. */
static double matmul_bytes(const Work *w) {
    double T = (double)w->rows, K = (double)w->a, N = (double)w->b, elem_bytes = elem_bytes_of(w);
    double result = w->kind == WORK_MATMUL ? T * N : w->kind == WORK_DGRAD ? T * K : K * N;
    double all = T * K + K * N + T * N, out = w->kind == WORK_WGRAD ? FLOAT : elem_bytes;
    if (w->flags & (WORK_EPI_ACT | WORK_EPI_DACT)) all += result;
    return elem_bytes * (all - result) + out * result * (w->flags & WORK_ADDEND ? 2 : 1);
}

static double attention_bytes(const Work *w) {
    double T = (double)w->rows * (double)w->a, H = (double)w->b, D = (double)w->d;
    double qkv = T * (H + 2 * (double)w->c) * D, out = T * H * D, lse = T * H;
    return elem_bytes_of(w) * (w->kind == WORK_ATTENTION ? 1 : 2) * (qkv + out) + FLOAT * lse;
}

/* What a call reads and writes, for each of its rows: passes over `a` activations (over one where a
 * is 0), and over as many floats; floats beside them, and for each of b parts. A flag adds a pass.
 */
static const struct {
    const char *name;
    double acts, floats, beside, parts;
    uint32_t one_more;
} kinds[N_WORKS] = {
    [WORK_MATMUL] = {"matmul", 0, 0, 0, 0, 0},
    [WORK_DGRAD] = {"dgrad", 0, 0, 0, 0, 0},
    [WORK_WGRAD] = {"wgrad", 0, 0, 0, 0, 0},
    [WORK_ATTENTION] = {"attention", 0, 0, 0, 0, 0},
    [WORK_ATTENTION_BACKWARD] = {"attention backward", 0, 0, 0, 0, 0},
    [WORK_NORM] = {"norm", 2, 0, 2, 0, 0},
    [WORK_RESIDUAL_NORM] = {"residual and norm", 4, 0, 2, 0, 0},
    [WORK_NORM_BACKWARD] = {"norm backward", 4, 0, 2, 0, 0},
    [WORK_NORM_STATISTICS] = {"norm statistics", 1, 0, 2, 0, 0},
    [WORK_NORM_MERGE] = {"norm merge", 0, 0, 2, 2, 0},
    [WORK_NORM_APPLY] = {"norm apply", 2, 0, 2, 0, 0},
    [WORK_NORM_BACKWARD_SUMS] = {"norm backward sums", 2, 0, 4, 0, 0},
    [WORK_NORM_BACKWARD_APPLY] = {"norm backward apply", 4, 0, 4, 0, 0},
    [WORK_ACT] = {"activation", 2, 0, 0, 0, 0},
    [WORK_ACT_BACKWARD] = {"activation backward", 3, 0, 0, 0, 0},
    [WORK_SWIGLU] = {"swiglu", 3, 0, 0, 0, 0},
    [WORK_SWIGLU_BACKWARD] = {"swiglu backward", 5, 0, 0, 0, 0},
    [WORK_BIAS_RESIDUAL] = {"bias and residual", 2, 0, 0, 0, WORK_ADDEND},
    [WORK_BIAS_BACKWARD] = {"bias backward", 1, 0, 0, 0, 0},
    [WORK_CLASSIFIER] = {"classifier", 1, 0, 2, 0, WORK_BACKWARD},
    [WORK_CLASSIFIER_STATISTICS] = {"classifier statistics", 1, 0, 4, 0, WORK_BACKWARD},
    [WORK_CLASSIFIER_MERGE] = {"classifier merge", 0, 0, 2, 3, 0},
    [WORK_CLASSIFIER_GRADIENT] = {"classifier gradient", 2, 0, 5, 0, 0},
    [WORK_EMBEDDING] = {"embedding", 2, 0, 0, 0, 0},
    [WORK_EMBEDDING_BACKWARD] = {"embedding backward", 1, 2, 0, 0, 0},
    [WORK_POSITION] = {"position", 2, 1, 0, 0, 0},
    [WORK_POSITION_BACKWARD] = {"position backward", 1, 2, 0, 0, 0},
    [WORK_ROPE] = {"rope", 0, 0, 0, 0, 0},
    [WORK_SQUARES] = {"squares", 0, 1, 0, 0, 0},
    // parameter and two moments both ways, gradient; the bf16 copy
    [WORK_ADAMW] = {"adamw", 0, 7, 0, 0, WORK_BF16_STORED},
    [WORK_ZERO] = {"zero", 0, 1, 0, 0, 0},
    [WORK_COPY] = {"copy", 0, 2, 0, 0, 0},
};

double work_bytes(const Work *w) {
    double rows = (double)w->rows, width = w->a > 0 ? (double)w->a : 1;
    if (w->kind <= WORK_WGRAD) return matmul_bytes(w);
    if (w->kind <= WORK_ATTENTION_BACKWARD) return attention_bytes(w);
    if (w->kind == WORK_ROPE) // query and key heads both ways
        return elem_bytes_of(w) * 2 * rows * (double)((w->a + w->b) * w->c);
    double acts = kinds[w->kind].acts + (w->flags & kinds[w->kind].one_more ? 1 : 0);
    double beside = kinds[w->kind].beside + kinds[w->kind].parts * (double)w->b;
    return rows *
           ((elem_bytes_of(w) * acts + FLOAT * kinds[w->kind].floats) * width + FLOAT * beside);
}

const char *work_name(const Work *w, char buf[64]) {
    const int64_t sizes[] = {w->a, w->b, w->c, w->d};
    int at = snprintf(buf, 64, "%s", kinds[w->kind].name);
    for (int i = 0; i < 4 && sizes[i] > 0 && at < 64; i++)
        at += snprintf(buf + at, (size_t)(64 - at), "%s%" PRId64, i ? "x" : " ", sizes[i]);
    return buf;
}

bool work_alike(const Work *x, const Work *y) {
    return x->kind == y->kind && x->flags == y->flags && x->a == y->a && x->b == y->b &&
           x->c == y->c && x->d == y->d;
}
