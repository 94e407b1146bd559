#include "parallel/work.h"

#include <inttypes.h>
#include <stdio.h>

enum { FLOAT = sizeof(float) };

double work_flops(const Work *w) {
    double rows = (double)w->rows, a = (double)w->a;
    // of one of attention's products over the causal half: S (S + 1) / 2 elements for each head, 2 D each
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

/* Floats read and written by a product. */
static double product_floats(const Work *w) {
    double T = (double)w->rows, K = (double)w->a, N = (double)w->b;
    double result = w->kind == WORK_XW ? T * N : w->kind == WORK_DX ? T * K : K * N;
    double passes = (w->flags & WORK_ADDEND ? 1 : 0) +
                    (w->flags & (WORK_EPI_GELU | WORK_EPI_DGELU) ? 1 : 0); // over the result's size
    return T * K + K * N + T * N + passes * result;
}

static double attention_floats(const Work *w) {
    double T = (double)w->rows * (double)w->a, H = (double)w->b, D = (double)w->d;
    double qkv = T * (H + 2 * (double)w->c) * D, out = T * H * D, lse = T * H;
    return w->kind == WORK_ATTENTION ? qkv + out + lse : 2 * qkv + 2 * out + lse;
}

/* Passes over a matrix of rows x width floats, and floats beside it for each row. */
typedef struct Passes {
    double wide, narrow;
} Passes;

static Passes passes_of(const Work *w) {
    double both = w->flags & WORK_BACKWARD ? 2 : 1, b = (double)w->b;
    switch (w->kind) {
    case WORK_NORM:
    case WORK_NORM_APPLY:
        return (Passes){2, 2};
    case WORK_NORM_BACKWARD:
        return (Passes){4, 2};
    case WORK_NORM_STATISTICS:
        return (Passes){1, 2};
    case WORK_NORM_MERGE:
        return (Passes){0, 2 * b + 2};
    case WORK_NORM_BACKWARD_SUMS:
        return (Passes){2, 4};
    case WORK_NORM_BACKWARD_APPLY:
        return (Passes){4, 4};
    case WORK_SWIGLU:
    case WORK_POSITION:
    case WORK_POSITION_BACKWARD:
    case WORK_EMBEDDING_BACKWARD:
        return (Passes){3, 0};
    case WORK_SWIGLU_BACKWARD:
        return (Passes){5, 0};
    case WORK_BIAS_RESIDUAL:
        return (Passes){w->flags & WORK_ADDEND ? 3 : 2, 0};
    case WORK_CLASSIFIER:
        return (Passes){both, 2};
    case WORK_CLASSIFIER_STATISTICS:
        return (Passes){both, 4};
    case WORK_CLASSIFIER_MERGE:
        return (Passes){0, 3 * b + 2};
    case WORK_CLASSIFIER_GRADIENT:
        return (Passes){2, 5};
    case WORK_EMBEDDING:
    case WORK_COPY:
        return (Passes){2, 0};
    case WORK_BIAS_BACKWARD:
        return (Passes){1, 0};
    default:
        return (Passes){0, 0};
    }
}

/* Of works on n floats, where rows is n: passes. */
static double passes_flat(WorkKind kind) {
    switch (kind) {
    case WORK_SQUARES:
    case WORK_ZERO:
        return 1;
    case WORK_GELU:
        return 2;
    case WORK_GELU_BACKWARD:
        return 3;
    case WORK_ADAMW:
        return 7; // parameter and two moments both ways, gradient
    default:
        return 0;
    }
}

double work_bytes(const Work *w) {
    double rows = (double)w->rows, flat = passes_flat(w->kind);
    if (flat > 0) return FLOAT * flat * rows;
    if (w->kind <= WORK_DW) return FLOAT * product_floats(w);
    if (w->kind <= WORK_ATTENTION_BACKWARD) return FLOAT * attention_floats(w);
    if (w->kind == WORK_ROPE) // query and key heads both ways
        return FLOAT * 2 * rows * (double)((w->a + w->b) * w->c);
    Passes p = passes_of(w);
    return FLOAT * rows * (p.wide * (double)w->a + p.narrow);
}

const char *work_name(const Work *w, char buf[64]) {
    static const char *const words[N_WORKS] = {"xw",
                                               "dx",
                                               "dw",
                                               "attention",
                                               "attention backward",
                                               "norm",
                                               "norm backward",
                                               "norm statistics",
                                               "norm merge",
                                               "norm apply",
                                               "norm backward sums",
                                               "norm backward apply",
                                               "gelu",
                                               "gelu backward",
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
