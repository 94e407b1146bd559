#include "parallel/plan/work.h"

#include <inttypes.h>
#include <stdio.h>

enum { FLOAT = sizeof(float) };

/* Of an activation. */
static double word_of(const Work *w) {
    return w->flags & WORK_WORDS ? 2 : FLOAT;
}

double work_flops(const Work *w) {
    double rows = (double)w->rows, a = (double)w->a;
    // of one of attention's matmuls over the causal half: S (S + 1) / 2 elements for each head, 2
    // D each
    double tile = rows * (double)w->b * (double)w->d * a * (a + 1);
    switch (w->kind) {
    case WORK_XW:
    case WORK_DX:
    case WORK_DW:
        return 2 * rows * a * (double)w->b;
    case WORK_ATTENTION:
        return 2 * tile; // scores; O
    case WORK_ATTENTION_BACKWARD:
        return 5 * tile; // scores again; dP, dV, dQ, dK
    default:
        return 0;
    }
}

/* Weights are read in words, their gradients are floats. */
static double product_bytes(const Work *w) {
    double T = (double)w->rows, K = (double)w->a, N = (double)w->b, word = word_of(w);
    double result = w->kind == WORK_XW ? T * N : w->kind == WORK_DX ? T * K : K * N;
    double all = T * K + K * N + T * N, out = w->kind == WORK_DW ? FLOAT : word;
    if (w->flags & (WORK_EPI_ACT | WORK_EPI_DACT)) all += result;
    return word * (all - result) + out * result * (w->flags & WORK_ADDEND ? 2 : 1);
}

static double attention_bytes(const Work *w) {
    double T = (double)w->rows * (double)w->a, H = (double)w->b, D = (double)w->d;
    double qkv = T * (H + 2 * (double)w->c) * D, out = T * H * D, lse = T * H;
    return word_of(w) * (w->kind == WORK_ATTENTION ? 1 : 2) * (qkv + out) + FLOAT * lse;
}

/* Passes over a matrix of activations, of rows x width, and over one of floats; floats beside them
 * for each row. */
typedef struct Passes {
    double acts, floats, narrow;
} Passes;

static Passes passes_of(const Work *w) {
    double both = w->flags & WORK_BACKWARD ? 2 : 1, b = (double)w->b;
    switch (w->kind) {
    case WORK_NORM:
    case WORK_NORM_APPLY:
        return (Passes){2, 0, 2};
    case WORK_RESIDUAL_NORM: // the stream both ways, its norm
        return (Passes){4, 0, 2};
    case WORK_NORM_BACKWARD:
        return (Passes){4, 0, 2};
    case WORK_NORM_STATISTICS:
        return (Passes){1, 0, 2};
    case WORK_NORM_MERGE:
        return (Passes){0, 0, 2 * b + 2};
    case WORK_NORM_BACKWARD_SUMS:
        return (Passes){2, 0, 4};
    case WORK_NORM_BACKWARD_APPLY:
        return (Passes){4, 0, 4};
    case WORK_SWIGLU:
        return (Passes){3, 0, 0};
    case WORK_POSITION:
        return (Passes){2, 1, 0};
    case WORK_POSITION_BACKWARD:
    case WORK_EMBEDDING_BACKWARD:
        return (Passes){1, 2, 0};
    case WORK_SWIGLU_BACKWARD:
        return (Passes){5, 0, 0};
    case WORK_BIAS_RESIDUAL:
        return (Passes){w->flags & WORK_ADDEND ? 3 : 2, 0, 0};
    case WORK_CLASSIFIER:
        return (Passes){both, 0, 2};
    case WORK_CLASSIFIER_STATISTICS:
        return (Passes){both, 0, 4};
    case WORK_CLASSIFIER_MERGE:
        return (Passes){0, 0, 3 * b + 2};
    case WORK_CLASSIFIER_GRADIENT:
        return (Passes){2, 0, 5};
    case WORK_EMBEDDING:
        return (Passes){2, 0, 0};
    case WORK_COPY:
        return (Passes){0, 2, 0};
    case WORK_BIAS_BACKWARD:
        return (Passes){1, 0, 0};
    default:
        return (Passes){0, 0, 0};
    }
}

/* Of works on n elements, where rows is n: bytes of each. */
static double bytes_flat(const Work *w) {
    switch (w->kind) {
    case WORK_SQUARES:
    case WORK_ZERO:
        return FLOAT;
    case WORK_ACT:
        return 2 * word_of(w);
    case WORK_ACT_BACKWARD:
        return 3 * word_of(w);
    case WORK_ADAMW: // parameter and two moments both ways, gradient
        return 7 * FLOAT + (w->flags & WORK_WORDS ? word_of(w) : 0);
    default:
        return 0;
    }
}

double work_bytes(const Work *w) {
    double rows = (double)w->rows, flat = bytes_flat(w);
    if (flat > 0) return flat * rows;
    if (w->kind <= WORK_DW) return product_bytes(w);
    if (w->kind <= WORK_ATTENTION_BACKWARD) return attention_bytes(w);
    if (w->kind == WORK_ROPE) // query and key heads both ways
        return word_of(w) * 2 * rows * (double)((w->a + w->b) * w->c);
    Passes p = passes_of(w);
    return rows * ((word_of(w) * p.acts + FLOAT * p.floats) * (double)w->a + FLOAT * p.narrow);
}

const char *work_name(const Work *w, char buf[64]) {
    static const char *const words[N_WORKS] = {"xw",
                                               "dx",
                                               "dw",
                                               "attention",
                                               "attention backward",
                                               "norm",
                                               "residual and norm",
                                               "norm backward",
                                               "norm statistics",
                                               "norm merge",
                                               "norm apply",
                                               "norm backward sums",
                                               "norm backward apply",
                                               "activation",
                                               "activation backward",
                                               "swiglu",
                                               "swiglu backward",
                                               "bias and residual",
                                               "bias backward",
                                               "classifier",
                                               "classifier statistics",
                                               "classifier merge",
                                               "classifier gradient",
                                               "embedding",
                                               "embedding backward",
                                               "position",
                                               "position backward",
                                               "rope",
                                               "squares",
                                               "adamw",
                                               "zero",
                                               "copy"};
    const int64_t sizes[] = {w->a, w->b, w->c, w->d};
    int at = snprintf(buf, 64, "%s", words[w->kind]);
    for (int i = 0; i < 4 && sizes[i] > 0 && at < 64; i++)
        at += snprintf(buf + at, (size_t)(64 - at), "%s%" PRId64, i ? "x" : " ", sizes[i]);
    return buf;
}

bool work_alike(const Work *x, const Work *y) {
    return x->kind == y->kind && x->flags == y->flags && x->threads == y->threads && x->a == y->a &&
           x->b == y->b && x->c == y->c && x->d == y->d;
}
