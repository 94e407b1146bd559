#include "layers/adamw.h"

#include <math.h>

#include "base/simd.h"

enum {
    GRAIN = 32768, // elements per piece of the update
    PANELS = 256,  // most panels of a sum of squares
    PANEL = 4096,  // least floats of a panel; a multiple of the floats of every vector
    // floats between a prefetch and its use: hardware prefetchers stop at the end of a page
    AHEAD = 512,
};

/* The scalars of an update, computed in double as torch.optim.AdamW does. */
typedef struct Update {
    float *param, *m, *v;
    const float *grad;
    float shrink;               // 1 - lr weight_decay
    float grad_scale;           // clipping
    float rest1, beta2, rest2;  // 1 - beta1, beta2, 1 - beta2
    float inv_root2, eps, rate; // 1 / sqrt(1 - beta2^step), eps, lr / (1 - beta1^step)
} Update;

static inline void update_vector(const Update *u, vf *p, vf *m, vf *v, vf grad) {
    vf g = grad * vf_set1(u->grad_scale);
    *m = vf_fma(vf_set1(u->rest1), g - *m, *m);
    *v = vf_fma(vf_set1(u->rest2) * g, g, vf_set1(u->beta2) * *v);
    vf root = vf_fma(vf_sqrt(*v), vf_set1(u->inv_root2), vf_set1(u->eps));
    *p = *p * vf_set1(u->shrink) - vf_set1(u->rate) * *m / root;
}

static void update_piece(void *ctx, int64_t begin, int64_t end) {
    const Update u = *(const Update *)ctx; // a copy: the stores below cannot change it
    EACH_VECTOR(i, n, begin, end) {
        prefetch(u.param + i, AHEAD), prefetch(u.m + i, AHEAD);
        prefetch(u.v + i, AHEAD), prefetch(u.grad + i, AHEAD);
        vf p = vf_load_n(u.param + i, n), m = vf_load_n(u.m + i, n), v = vf_load_n(u.v + i, n);
        update_vector(&u, &p, &m, &v, vf_load_n(u.grad + i, n));
        vf_store_n(u.param + i, p, n);
        vf_store_n(u.m + i, m, n);
        vf_store_n(u.v + i, v, n);
    }
}

void adamw(Team *t, const AdamW *o, float *param, float *m, float *v, const float *grad, int64_t n,
           bool decay) {
    double correction1 = 1 - pow(o->beta1, (double)o->step),
           correction2 = 1 - pow(o->beta2, (double)o->step);
    Update u = {
        .param = param,
        .m = m,
        .v = v,
        .grad = grad,
        .shrink = (float)(decay ? 1 - o->lr * o->weight_decay : 1),
        .grad_scale = (float)o->grad_scale,
        .rest1 = (float)(1 - o->beta1),
        .beta2 = (float)o->beta2,
        .rest2 = (float)(1 - o->beta2),
        .inv_root2 = (float)(1 / sqrt(correction2)),
        .eps = (float)o->eps,
        .rate = (float)(o->lr / correction1),
    };
    team_for(t, n, GRAIN, update_piece, &u);
}

typedef struct Squares {
    const float *x;
    int64_t n, panel;
    double sum[PANELS];
} Squares;

static double panel_squares(const float *x, int64_t n) {
    vd s[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * VD <= n; i += 4 * VD) {
        prefetch(x + i, AHEAD);
        for (int j = 0; j < 4; j++) {
            vd d = vd_load_floats(x + i + j * VD);
            s[j] += d * d; // the square of a float is exact in double
        }
    }
    vd lanes = (s[0] + s[1]) + (s[2] + s[3]);
    double sum = 0;
    for (int j = 0; j < VD; j++) sum += lanes[j];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static void squares_panels(void *ctx, int64_t begin, int64_t end) {
    Squares *q = ctx;
    for (int64_t p = begin; p < end; p++) {
        int64_t first = p * q->panel, left = q->n - first;
        q->sum[p] = panel_squares(q->x + first, left < q->panel ? left : q->panel);
    }
}

double sum_of_squares(Team *t, const float *x, int64_t n) {
    Squares q = {.x = x, .n = n, .panel = (n / PANELS / PANEL + 1) * PANEL}; // by n alone
    int64_t panels = (n + q.panel - 1) / q.panel;
    team_for(t, panels, q.panel < GRAIN ? GRAIN / q.panel : 1, squares_panels, &q);
    double sum = 0;
    for (int64_t p = 0; p < panels; p++) sum += q.sum[p];
    return sum;
}
