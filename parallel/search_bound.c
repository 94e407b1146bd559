/* A bound that no price of a candidate undercuts, in any order of its axes: the works of a step that weigh most,
 * and the collectives of its matrices on the best links that there are. What it adds up is a part of
 * what a tape holds, each at a cost that is not above the tape's; tests compare the two over every layout.
 */
#include "parallel/search_parts.h"

typedef struct Bound {
    const Machine *m;
    const Space *s;
    const Choice *c;
    Widths w;
    int64_t T, T_x, rows; // of a micro-step: with padding, of the stream, of the middle
    int X, Y, Z, D;
    int store, grads; // ranks over which weights, and gradients, are cut
    double seconds;
} Bound;

static double work_of(const Bound *b, WorkKind kind, int64_t rows, int64_t x, int64_t y) {
    Work w = {.kind = kind,
              .flags = b->s->shape.bf16 ? WORK_BF16 : 0,
              .threads = b->c->threads,
              .rows = rows,
              .a = x,
              .b = y};
    return machine_work(b->m, &w);
}

static double send(const Bound *b, int ranks, CollOp op, int64_t floats) {
    return ranks > 1 ? machine_send_least(b->m, ranks, op, 4 * floats) : 0;
}

/* A debt, paid in place or into finer storage. */
static double pay(const Bound *b, int ranks, bool scatter, int64_t floats) {
    return send(b, ranks, scatter ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE, floats);
}

/* One linear layer: a is the axis of its inputs, n that of its outputs; wide says whether the output is. */
static void linear(Bound *b, int64_t K, int64_t N, bool widens, int forwards) {
    const Layout *l = &b->c->layout;
    int in = widens ? b->Y : b->X, out = widens ? b->X : b->Y;
    bool x_gathers = widens ? l->sp && b->X > 1 : l->heads && b->Y > 1,
         y_scatters = widens ? l->heads && b->Y > 1 : l->sp && b->X > 1;
    double forward = work_of(b, WORK_XW, b->rows, K, N), backward = 0;
    backward += work_of(b, WORK_DX, b->rows, K, N) + work_of(b, WORK_DW, b->rows, K, N);
    double gather_x = x_gathers ? send(b, widens ? b->X : b->Y, COLL_ALL_GATHER, b->rows * K) : 0;
    double weight = send(b, b->store, COLL_ALL_GATHER, K * N);
    forward += gather_x + weight + pay(b, in, y_scatters, b->rows * N);
    if (y_scatters) backward += send(b, widens ? b->Y : b->X, COLL_ALL_GATHER, b->rows * N);
    backward += weight + pay(b, out, x_gathers, b->rows * K) + gather_x;
    backward += send(b, b->grads, COLL_REDUCE_SCATTER, K * N);
    b->seconds += forwards * forward + backward;
}

/* Output-stationary: only its products are counted, and they are cut in panels when x or y are. */
static void linear_stay(Bound *b, int64_t K, int64_t N, int forwards) {
    if (b->m->measured && b->X * b->Y > 1) return; // panels have costs of their own
    double forward = work_of(b, WORK_XW, b->rows, K, N);
    forward += send(b, b->store, COLL_ALL_GATHER, (K + b->X - 1) / b->X * N);
    double backward = work_of(b, WORK_DX, b->rows, K, N) + work_of(b, WORK_DW, b->rows, K, N);
    b->seconds += forwards * forward + backward;
}

static void block(Bound *b) {
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
    Work a = {.kind = WORK_ATTENTION,
              .flags = b->s->shape.bf16 ? WORK_BF16 : 0,
              .threads = b->c->threads,
              .rows = b->rows / b->s->shape.S, // sp may pad with less than a sequence
              .a = b->s->shape.S,
              .b = w->H,
              .c = w->Hkv,
              .d = config_head_size(c)};
    b->seconds += forwards * machine_work(b->m, &a);
    a.kind = WORK_ATTENTION_BACKWARD;
    b->seconds += machine_work(b->m, &a);
}

/* The end of a step: sums over d, and AdamW. */
static void update(Bound *b, int64_t weights) {
    int zero = b->c->layout.zero;
    Work w = {.kind = WORK_ADAMW, .threads = b->c->threads};
    w.rows = weights / (b->Z * (zero ? b->D : 1));
    b->seconds += machine_work(b->m, &w);
    if (b->s->shape.apart) return;
    if (zero == 0) b->seconds += send(b, b->D, COLL_ALL_REDUCE, weights / b->Z);
    if (zero == 1) b->seconds += send(b, b->D, COLL_REDUCE_SCATTER, weights / b->Z);
    if (zero == 1 || zero == 2) b->seconds += send(b, b->D, COLL_ALL_GATHER, weights / b->Z);
}

double seed_bound(const Space *s, const Machine *m, const Choice *c, int64_t *memory) {
    const Config *config = &s->shape.config;
    const Layout *l = &c->layout;
    Grid g = {.layout = *l, .mesh = mesh_of(l, 0)};
    Bound b = {.m = m, .s = s, .c = c, .w = widths_of(config, &g)};
    b.X = l->size[AXIS_X], b.Y = l->size[AXIS_Y], b.Z = l->size[AXIS_Z], b.D = l->size[AXIS_D];
    b.store = b.Z * (l->zero == 3 ? b.D : 1), b.grads = b.Z * (l->zero >= 2 ? b.D : 1);
    int64_t T = c->micro * s->shape.S;
    b.T_x = l->stay ? (c->micro + b.X - 1) / b.X * s->shape.S : l->sp ? (T + b.X - 1) / b.X : T;
    b.T = l->stay || l->sp ? b.X * b.T_x : T;
    b.rows = l->stay ? b.T_x : b.T;
    PriceShape shape = seed_shape(s, c);
    const Widths *w = &b.w;
    // What is stored of a block's matrices, and of the head: divided by X where rows are cut as well.
    int64_t of_block = w->K_C * w->blocks * (w->qkv + w->up) + (w->K_att + w->K_F) * w->C;
    if (l->stay)
        of_block = w->rows_C * (w->qkv + w->up) + (w->rows_att + w->rows_F) * w->C;
    int64_t of_head = w->V * w->C_all, weights = config->layers * of_block + of_head;
    int64_t micro_steps = price_micro_steps(&shape, l), moments = b.Z * (l->zero ? b.D : 1);
    block(&b);
    double head = work_of(&b, WORK_DX, b.T, w->V_n, w->C_all) +
                  work_of(&b, WORK_XW, b.T, w->V_n, w->C_all) +
                  work_of(&b, WORK_DW, b.T, w->V_n, w->C_all);
    b.seconds = (double)micro_steps * ((double)config->layers * b.seconds + head);
    update(&b, weights);
    // weights, gradients, two moments; of activations the stream of every layer
    *memory = 4 * (weights / b.store + weights / b.grads + 2 * (weights / moments) +
                   config->layers * b.T_x * w->C);
    return b.seconds * m->slowest;
}
