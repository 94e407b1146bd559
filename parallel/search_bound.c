/* A bound that no price of a candidate undercuts: the works of a step that weigh most, and the bytes of its matrices,
 * at what a byte costs in each order of the axes. What it adds up is a part of what a tape holds, each at a
 * cost that is not above the tape's; tests compare the two over every layout.
 */
#include <math.h>
#include <string.h>

#include "parallel/search_parts.h"

typedef struct Walk {
    const Machine *m;
    const Space *s;
    const Choice *c;
    Widths w;
    int64_t T, T_x, rows; // of a micro-step: with padding, of the stream, of the middle
    int X, Y;
    int store, grads; // along which weights, and gradients, are cut
    Bound *to;
} Walk;

static double work_of(const Walk *b, WorkKind kind, int64_t rows, int64_t x, int64_t y) {
    Work w = {.kind = kind,
              .flags = b->s->shape.bf16 ? WORK_BF16 : 0,
              .threads = b->c->threads,
              .rows = rows,
              .a = x,
              .b = y};
    return machine_work(b->m, &w);
}

static void send(const Walk *b, int along, double times, int64_t floats) {
    b->to->calls[along] += times;
    b->to->bytes[along] += 4 * times * (double)floats;
}

/* One linear layer: forward `n` times, and backward. widens: inputs over y, outputs over x. */
static void linear(const Walk *b, int64_t K, int64_t N, bool widens, int n) {
    const Layout *l = &b->c->layout;
    int in = widens ? ALONG_Y : ALONG_X, out = widens ? ALONG_X : ALONG_Y;
    bool sp = l->sp && b->X > 1, heads = l->heads && b->Y > 1;
    bool x_gathers = widens ? sp : heads, y_scatters = widens ? heads : sp;
    int64_t x = b->rows * K, y = b->rows * N;
    b->to->compute += n * work_of(b, WORK_XW, b->rows, K, N) + work_of(b, WORK_DX, b->rows, K, N) +
                      work_of(b, WORK_DW, b->rows, K, N);
    if (x_gathers) send(b, out, n + 1, x); // x, once more for dw
    send(b, in, y_scatters ? n : 2 * n, y);
    if (y_scatters) send(b, in, 1, y);  // dy
    send(b, out, x_gathers ? 1 : 2, x); // dx
    send(b, b->store, n + 1, K * N);
    send(b, b->grads, 1, K * N);
}

/* Output-stationary: operands and results travel in panels, whose products are not cheaper than one. */
static void linear_stay(const Walk *b, int64_t K, int64_t N, int n) {
    int64_t w = (K + b->X - 1) / b->X * N;
    if (!b->m->measured || b->X * b->Y == 1) // what was measured need not grow with the panel
        b->to->compute += n * work_of(b, WORK_XW, b->rows, K, N) +
                          work_of(b, WORK_DX, b->rows, K, N) + work_of(b, WORK_DW, b->rows, K, N);
    int64_t rows = (K + b->X - 1) / b->X,
            panels = (K + rows - 1) / rows; // or more, where y cuts them
    if (panels < b->Y) panels = b->Y;
    send(b, STREAM_Y, (double)panels * (n + 2), b->rows * K / panels); // x forward, x for dw, dx
    send(b, STREAM_X, (double)panels * (n + 2), K * N / panels);       // w forward, w for dx, dw
    send(b, b->store, n + 1, w);
    send(b, b->grads, 1, w);
}

/* Norms of a block, of their part of the features. */
static void norms(const Walk *b, int n) {
    static const WorkKind kinds[2][4] = {
        {WORK_NORM, WORK_NORM_BACKWARD},
        {WORK_NORM_STATISTICS, WORK_NORM_BACKWARD_SUMS, WORK_NORM_APPLY, WORK_NORM_BACKWARD_APPLY}};
    bool cut = b->Y > 1;
    for (int i = 0; i < (cut ? 4 : 2); i++) {
        Work w = {.kind = kinds[cut][i],
                  .flags = b->s->shape.config.norm == NORM_RMS ? WORK_RMS : 0,
                  .threads = b->c->threads,
                  .rows = b->T_x,
                  .a = b->w.C_n};
        b->to->compute += 2 * (i % 2 ? 1 : n) * machine_work(b->m, &w);
    }
}

/* Embedding and head, of one micro-step: their weight comes twice, and so do both its gradients when it is tied. */
static void ends(const Walk *b, double steps) {
    const Widths *w = &b->w;
    bool scattered = b->c->layout.sp || b->c->layout.stay;
    send(b, b->store, 2 * steps, w->V * w->C_all);
    send(b, b->grads, 2 * steps, w->V * w->C_all);
    // [T, C] is scattered over x and then y, and gathered over x and then y; or reduced over x, and not gathered
    send(b, ALONG_X, 2 * steps, scattered ? b->T * w->C_all : b->T * w->C);
    send(b, ALONG_X, 2 * steps, b->T * w->C);
    send(b, ALONG_Y, 2 * steps, scattered ? b->T_x * w->C_all : b->T * w->C_all);
    send(b, ALONG_Y, 2 * steps, b->T * w->C_all);
    double head = work_of(b, WORK_DX, b->T, w->V_n, w->C_all) +
                  work_of(b, WORK_XW, b->T, w->V_n, w->C_all) +
                  work_of(b, WORK_DW, b->T, w->V_n, w->C_all);
    b->to->compute += steps * head;
}

static void block(const Walk *b) {
    const Widths *w = &b->w;
    const Config *c = &b->s->shape.config;
    int forwards = b->c->recompute == RECOMPUTE_FULL ? 2 : 1;
    bool stay = b->c->layout.stay;
    const struct {
        int64_t K, N;
        bool widens;
    } layers[] = {{w->K_C, w->blocks * w->qkv, true},
                  {w->K_att, w->C, false},
                  {w->K_C, w->blocks * w->up, true},
                  {w->K_F, w->C, false}};
    for (int i = 0; i < 4; i++)
        if (stay)
            linear_stay(b, layers[i].K, layers[i].N, forwards);
        else
            linear(b, layers[i].K, layers[i].N, layers[i].widens, forwards);
    norms(b, forwards);
    send(b, ALONG_Y, 2 * forwards, 2 * b->T_x * b->Y); // statistics
    send(b, ALONG_Y, 4, 2 * b->T_x);                   // sums of dnorm, reduced
    Work a = {.kind = WORK_ATTENTION,
              .flags = b->s->shape.bf16 ? WORK_BF16 : 0,
              .threads = b->c->threads,
              .rows = b->rows / b->s->shape.S, // sp may pad with less than a sequence
              .a = b->s->shape.S,
              .b = w->H,
              .c = w->Hkv,
              .d = config_head_size(c)};
    b->to->compute += forwards * machine_work(b->m, &a);
    a.kind = WORK_ATTENTION_BACKWARD;
    b->to->compute += machine_work(b->m, &a);
}

/* The end of a step: sums over d, and AdamW. */
static void update(const Walk *b, int64_t weights) {
    const Layout *l = &b->c->layout;
    int64_t cut = (int64_t)l->size[AXIS_Z] * (l->zero ? l->size[AXIS_D] : 1);
    Work w = {.kind = WORK_ADAMW, .threads = b->c->threads, .rows = weights / cut};
    b->to->compute += machine_work(b->m, &w);
    if (b->s->shape.apart) return;
    int64_t block = weights / l->size[AXIS_Z];
    // all of a layer together, or matrix by matrix
    double calls = (double)b->s->shape.config.layers * (l->zero ? 4 : 1);
    if (l->zero < 2)
        send(b, ALONG_D, calls, 0), send(b, ALONG_D, 1, block); // gradients: scattered,
    if (l->zero < 3)
        send(b, ALONG_D, calls, 0), send(b, ALONG_D, 1, block); // and gathered, or the weights
}

/* Local sizes, as parallel/block.h has them. */
static Walk walk_of(Bound *to, const Space *s, const Machine *m, const Choice *c) {
    const Layout *l = &c->layout;
    Grid g = {.layout = *l, .mesh = mesh_make(&l->factors, 0)};
    Walk b = {.m = m, .s = s, .c = c, .to = to, .w = widths_of(&s->shape.config, &g)};
    int64_t S = s->shape.S, T = c->micro * S;
    b.X = l->size[AXIS_X], b.Y = l->size[AXIS_Y];
    b.store = l->zero == 3 ? ALONG_ZD : ALONG_Z, b.grads = l->zero >= 2 ? ALONG_ZD : ALONG_Z;
    b.T_x = l->stay ? (c->micro + b.X - 1) / b.X * S : l->sp ? (T + b.X - 1) / b.X : T;
    b.T = l->stay || l->sp ? b.X * b.T_x : T;
    b.rows = l->stay ? b.T_x : b.T;
    return b;
}

/* Floats of activations, and of what backward works on: parallel/model.h. */
static int64_t kept(const Walk *b) {
    const Widths *w = &b->w;
    int64_t L = b->s->shape.config.layers, stream = b->T_x * w->C;
    int64_t products = b->rows * (w->qkv + w->att + w->up) + stream,
            cheap = 2 * stream + b->rows * w->F, work = b->rows * (w->qkv + w->att + w->up);
    bool all = b->c->recompute == RECOMPUTE_NONE, full = b->c->recompute == RECOMPUTE_FULL;
    return L * stream + (full ? 1 : L) * products + (all ? L : 1) * cheap + 2 * stream + work;
}

void seed_bound(Bound *to, const Space *s, const Machine *m, const Choice *c) {
    const Config *config = &s->shape.config;
    const Layout *l = &c->layout;
    *to = (Bound){0};
    Walk b = walk_of(to, s, m, c);
    const Widths *w = &b.w;
    PriceShape shape = seed_shape(s, c);
    double layers = (double)config->layers, steps = (double)price_micro_steps(&shape, l);
    block(&b);
    for (int i = 0; i < N_ALONG; i++)
        to->calls[i] *= layers * steps, to->bytes[i] *= layers * steps;
    to->compute *= steps * layers;
    ends(&b, steps);
    int64_t of_block = l->stay ? w->rows_C * (w->qkv + w->up) + (w->rows_att + w->rows_F) * w->C
                               : w->K_C * w->blocks * (w->qkv + w->up) + (w->K_att + w->K_F) * w->C;
    int64_t weights = config->layers * of_block + w->V * w->C_all;
    int64_t Z = l->size[AXIS_Z], ZD = Z * l->size[AXIS_D];
    update(&b, weights);
    to->memory = 4 * (weights / (l->zero == 3 ? ZD : Z) + weights / (l->zero >= 2 ? ZD : Z) +
                      2 * (weights / (l->zero ? ZD : Z)) + kept(&b));
    to->compute *= m->slowest;
    if (m->crowd > 1) to->compute /= m->crowd; // as if the others always waited
}

double bound_in(const Bound *b, const Orders *o, int order) {
    double s = b->compute;
    for (int i = 0; i < N_ALONG; i++)
        s += b->calls[i] * o->start[order][i] + b->bytes[i] * o->rate[order][i];
    return s;
}

/* ---- orders */

/* The least start, or slope a byte, of the collectives along a group: what one costs is never below that line (machine.h).
 * An all_reduce is a scatter and a gather. */
static double least_of(const Machine *m, const TapeGroup *g, bool stream, bool slope) {
    static const CollOp ops[2][3] = {{COLL_ALL_GATHER, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE},
                                     {COLL_BROADCAST, COLL_REDUCE, COLL_REDUCE}};
    const int64_t much = (int64_t)1 << 50; // bytes, beyond which nothing bends any more
    double least = INFINITY;
    for (int i = 0; i < 3; i++) {
        Send s = {.op = ops[stream][i], .type_bytes = 4}, more = s;
        s.bytes = slope ? much : 0, more.bytes = 2 * much;
        double cost = machine_send(m, g, &s);
        if (slope) cost = (machine_send(m, g, &more) - cost) / (double)much;
        least = fmin(least, s.op == COLL_ALL_REDUCE ? cost / 2 : cost);
    }
    return least * (1 - 1e-9); // what follows from one division is not what follows from another
}

void orders_of(Orders *o, const Space *s, const Machine *m, const int32_t size[N_AXES]) {
    static const char *const along[N_ALONG] = {"x", "y", "z", "d", "z.d", "x", "y"};
    if (o->n > 0 && memcmp(o->size, size, sizeof o->size) == 0) return;
    memcpy(o->size, size, sizeof o->size);
    Layout l = layout_of_sizes(size);
    o->n = 1;
    o->layout[0] = s->only ? *s->only : l;
    int unit[MAX_LEVELS];
    for (int i = 0; i < m->n_levels; i++) unit[i] = m->level[i].ranks;
    if (!s->only) o->n = layout_orders(&l, unit, m->n_levels, o->layout, SEARCH_ORDERS);
    for (int k = 0; k < o->n; k++) {
        Mesh mesh = mesh_make(&o->layout[k].factors, 0);
        for (int i = 0; i < N_ALONG; i++) {
            Axes real = mesh_real(&mesh, axes_of(along[i]));
            o->start[k][i] = o->rate[k][i] = 0;
            if (real.n == 0 || m->measured) continue; // measured lines bend as they like
            TapeGroup g = {.place = placement_of(&mesh, real), .size = mesh_blocks(&mesh, real)};
            o->start[k][i] = least_of(m, &g, i >= STREAM_X, false);
            o->rate[k][i] = least_of(m, &g, i >= STREAM_X, true);
        }
    }
}
