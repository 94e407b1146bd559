/* What the bounds of many candidates have in common: a pass over the sequences of a micro-batch, or
 * of half of one. Stages of ZeRO and recompute change what is sent and what is done again, not what
 * one product takes.
 */
#include <string.h>

#include "parallel/plan/search_bound.h"
#include "parallel/step/block.h"

static double work_of(const Pass *p, WorkKind kind, int64_t rows, int64_t x, int64_t y) {
    Work w = {.kind = kind,
              .flags = (p->s->shape.bf16 ? WORK_BF16 : 0u) | p->words,
              .threads = p->threads,
              .rows = rows,
              .a = x,
              .b = y};
    return machine_work(p->m, &w);
}

double pass_beside(const Pass *p, WorkKind kind, uint32_t flags, int64_t rows, int64_t x) {
    Work w = {.kind = kind, .flags = flags, .threads = p->threads, .rows = rows, .a = x};
    return machine_work(p->m, &w);
}

/* The same on activations. */
static double acts_beside(const Pass *p, WorkKind kind, uint32_t flags, int64_t rows, int64_t x) {
    return pass_beside(p, kind, flags | p->words, rows, x);
}

/* Of an activation's features, as a copy counts them: in floats. */
static int64_t in_floats(const Pass *p, int64_t n) {
    return n * p->word / (int64_t)sizeof(float);
}

/* ---- matmuls */

/* How a product is cut: parallel/step/pieces.c. in, out: of what it waits for, and of the sum of
 * what it makes. */
typedef struct Cut {
    int n;        // pieces of each stripe
    int stripes;  // blocks of the ranks along x
    bool in, out; // cut
    bool ring;
} Cut;

typedef struct Flow {
    bool there, tokens; // a collective, that gathers or scatters tokens
} Flow;

static Cut cut_of(const Pass *p, Flow in, Flow out) {
    const Overlap *o = &p->overlap;
    bool tokens = in.tokens || out.tokens;
    Cut c = {.n = 1, .stripes = tokens ? p->X : 1};
    if (p->any) return c;
    c.ring = o->ring && in.tokens != out.tokens && p->X <= MAX_RING;
    if (c.ring || !o->chunks || p->rows / c.stripes < o->chunks || c.stripes > MAX_STRIPES)
        return c;
    c.in = in.there && (in.tokens || !tokens);
    c.out = out.there && (out.tokens || !tokens);
    if (c.in || c.out) c.n = o->chunks;
    return c;
}

/* Seconds of a product in pieces, which is no less than of a whole one. */
static double cut_work(const Pass *p, const Cut *c, WorkKind kind, int64_t K, int64_t N) {
    int64_t rows = p->rows / c->stripes;
    double s = 0;
    if (c->ring) return c->stripes * work_of(p, kind, rows, K, N);
    if (c->n == 1) return work_of(p, kind, p->rows, K, N);
    int64_t few = rows / c->n, more = rows % c->n; // pieces of so many, and of one more
    s = (double)(c->n - more) * work_of(p, kind, few, K, N);
    if (more) s += (double)more * work_of(p, kind, few + 1, K, N);
    return c->stripes * s;
}

/* What a ring copies before its first product, or adds up after its last. */
static double ring_work(const Pass *p, const Cut *c, bool comes, int64_t K, int64_t N) {
    int64_t rows = p->rows / c->stripes;
    if (!c->ring) return 0;
    if (comes) return pass_beside(p, WORK_COPY, 0, rows, in_floats(p, K));
    return pass_beside(p, WORK_COPY, 0, rows, in_floats(p, N)) +
           (c->stripes - 1) * acts_beside(p, WORK_BIAS_RESIDUAL, 0, rows, N);
}

/* Of what travels in pieces the smallest: all of it where it is whole; a ring is of tokens. */
static double piece_share(const Pass *p, const Cut *c, bool cut, bool tokens) {
    int64_t rows = p->rows / c->stripes;
    return p->any || (c->ring && tokens) ? 0 : cut ? (double)(rows / c->n) / (double)rows : 1;
}

/* Seconds of the smallest piece of a product, with the stripes that it has. */
static double piece_work(const Pass *p, const Cut *c, WorkKind kind, int64_t K, int64_t N) {
    int64_t rows = p->rows / c->stripes;
    if (c->n == 1 && !c->ring) return 0;
    return c->ring ? work_of(p, kind, rows, K, N)
                   : c->stripes * work_of(p, kind, rows / c->n, K, N);
}

/* widens: inputs over y, outputs over x. */
static void products(Pass *p, LinearKind kind) {
    PassLayer *l = &p->layer[kind];
    bool widens = kind == LINEAR_QKV || kind == LINEAR_UP;
    bool sp = p->layout.sp && p->X > 1, heads = p->layout.heads && p->Y > 1;
    l->x_gathers = widens ? sp : heads, l->y_scatters = widens ? heads : sp;
    Flow x_side = {l->x_gathers, l->x_gathers && widens};
    Flow dy_side = {l->y_scatters, l->y_scatters && !widens};
    Flow y_side = {(widens ? p->Y : p->X) > 1, dy_side.tokens};
    Flow dx_side = {(widens ? p->X : p->Y) > 1, x_side.tokens};
    Cut f = cut_of(p, x_side, y_side), g = cut_of(p, dy_side, dx_side);
    l->xw = cut_work(p, &f, WORK_XW, l->K, l->N) + ring_work(p, &f, x_side.tokens, l->K, l->N);
    l->dx = cut_work(p, &g, WORK_DX, l->K, l->N) + ring_work(p, &g, dy_side.tokens, l->N, l->K);
    l->dw = work_of(p, WORK_DW, p->rows, l->K, l->N);
    l->x_share = piece_share(p, &f, f.in, x_side.tokens);
    l->y_share = piece_share(p, &f, f.out, dy_side.tokens);
    l->dy_share = piece_share(p, &g, g.in, dy_side.tokens);
    l->dx_share = piece_share(p, &g, g.out, x_side.tokens);
    l->xw_piece = piece_work(p, &f, WORK_XW, l->K, l->N);
    l->dx_piece = piece_work(p, &g, WORK_DX, l->K, l->N);
}

/* Seconds of a product of so many panels, or of more. By its formula a product of k features takes
 * as long as the longest of lines in k that begin above 0: panels of the same length take least,
 * and fewer of them less. */
static double panels_work(const Pass *p, const PassLayer *l, WorkKind kind) {
    return (double)l->panels * work_of(p, kind, p->rows, l->K / l->panels, l->N);
}

/* Output-stationary. What was measured need not grow with the panel. */
static void products_stay(Pass *p, LinearKind kind) {
    PassLayer *l = &p->layer[kind];
    int64_t rows = (l->K + p->X - 1) / p->X; // of w, at one of the ranks along x
    l->panels = (l->K + rows - 1) / rows;    // or more, where y cuts them
    if (l->panels < p->Y) l->panels = p->Y;
    l->xw = l->dx = l->dw = 0;
    if (p->m->measured && p->X * p->Y > 1) return;
    l->xw = panels_work(p, l, WORK_XW);
    l->dx = panels_work(p, l, WORK_DX);
    l->dw = panels_work(p, l, WORK_DW);
}

/* ---- kernels between them */

/* A norm of a block, of its part of the features: forward, or with its sums backward. behind: of it
 * what waits for statistics of other parts. */
static double norm(const Pass *p, bool backward, double *behind) {
    static const WorkKind whole[2] = {WORK_NORM, WORK_NORM_BACKWARD},
                          cut[2][2] = {{WORK_NORM_STATISTICS, WORK_NORM_APPLY},
                                       {WORK_NORM_BACKWARD_SUMS, WORK_NORM_BACKWARD_APPLY}};
    uint32_t flags = p->s->shape.config.norm == NORM_RMS ? WORK_RMS : 0;
    *behind = 0;
    if (p->Y == 1) return acts_beside(p, whole[backward], flags, p->T_x, p->w.C_n);
    *behind = acts_beside(p, cut[backward][1], flags, p->T_x, p->w.C_n);
    return acts_beside(p, cut[backward][0], flags, p->T_x, p->w.C_n) + *behind;
}

/* What comes behind a product of the stream: if its sum is owed addend and bias, and the norm; in
 * one pass where rows are whole. */
static double stream_front(const Pass *p, bool owed, double *behind) {
    const Config *c = &p->s->shape.config;
    uint32_t bias = c->bias ? WORK_BIAS : 0;
    double residual = 0;
    *behind = 0;
    if (owed && p->Y == 1)
        return acts_beside(p, WORK_RESIDUAL_NORM, bias | (c->norm == NORM_RMS ? WORK_RMS : 0),
                           p->T_x, p->w.C);
    if (owed) residual = acts_beside(p, WORK_BIAS_RESIDUAL, WORK_ADDEND | bias, p->T_x, p->w.C);
    return residual + norm(p, false, behind);
}

static double attention(const Pass *p, WorkKind kind) {
    const PriceShape *s = &p->s->shape;
    Work a = {.kind = kind,
              .flags = (s->bf16 ? WORK_BF16 : 0u) | p->words,
              .threads = p->threads,
              .rows = p->sequences,
              .a = s->S,
              .b = p->w.H,
              .c = p->w.Hkv,
              .d = config_head_size(&s->config)};
    return machine_work(p->m, &a);
}

/* After the forward of each linear layer, and after its backward. Where a sum is owed what an
 * epilogue would do comes after it. */
static void between(Pass *p) {
    const Config *c = &p->s->shape.config;
    const Widths *w = &p->w;
    PassLayer *qkv = &p->layer[LINEAR_QKV], *out = &p->layer[LINEAR_ATTN_OUT],
              *up = &p->layer[LINEAR_UP], *down = &p->layer[LINEAR_DOWN];
    bool gelu = c->act != ACT_SWIGLU, stay = p->layout.stay;
    bool wide_owed = stay || p->Y > 1, narrow_owed = stay || p->X > 1;
    uint32_t bias = c->bias ? WORK_BIAS : 0;
    double act = gelu ? acts_beside(p, WORK_ACT, 0, p->rows * w->F, 0)
                      : acts_beside(p, WORK_SWIGLU, 0, p->rows, w->F);
    qkv->front = attention(p, WORK_ATTENTION);
    out->front = stream_front(p, narrow_owed, &out->front_norm);
    down->front = out->front, down->front_norm = out->front_norm;
    up->front = gelu && !wide_owed ? 0 : act;
    qkv->back = norm(p, true, &qkv->back_norm);
    up->back = qkv->back, up->back_norm = qkv->back_norm;
    out->back = attention(p, WORK_ATTENTION_BACKWARD);
    down->back = 0;
    if (bias && wide_owed) {
        qkv->front += acts_beside(p, WORK_BIAS_RESIDUAL, bias, p->rows, w->qkv);
        up->front += acts_beside(p, WORK_BIAS_RESIDUAL, bias, p->rows, w->up);
    }
    if (!gelu)
        down->back = acts_beside(p, WORK_SWIGLU_BACKWARD, 0, p->rows, w->F);
    else if (wide_owed)
        down->back = acts_beside(p, WORK_ACT_BACKWARD, 0, p->rows * w->F, 0);
    down->again = act, out->again = 0;
    up->again = qkv->again = acts_beside(p, WORK_NORM_APPLY, 0, p->T_x, w->C_n);
}

/* What biases add up, but those whose gradient comes with dw: parallel/step/linear.c. */
static void biases(Pass *p) {
    const Widths *w = &p->w;
    const Kernels *k = p->s->shape.kernels;
    bool with_dw = k && k->bias_with_dw && !p->layout.stay;
    const int64_t rows[] = {p->rows, p->T_x, p->rows, p->T_x},
                  widths[] = {w->qkv, w->C, w->up, w->C};
    for (int i = 0; i < 4; i++) {
        bool alone = p->s->shape.config.bias && !(with_dw && !p->layer[i].y_scatters);
        p->layer[i].bias = alone ? acts_beside(p, WORK_BIAS_BACKWARD, 0, rows[i], widths[i]) : 0;
    }
}

/* ---- embedding and head */

static double head_seconds(const Pass *p) {
    const Widths *w = &p->w;
    int64_t rows = head_chunk(p->T, w->V, p->device), n = p->T / rows, rest = p->T % rows;
    double head = 0;
    for (int k = 0; k < (rest ? 2 : 1); k++) {
        int64_t r = k ? rest : rows;
        head += (k ? 1 : (double)n) * (work_of(p, WORK_DX, r, w->V_n, w->C_all) +
                                       work_of(p, WORK_XW, r, w->V_n, w->C_all) +
                                       work_of(p, WORK_DW, r, w->V_n, w->C_all));
    }
    if (p->X * p->Y == 1)
        return head + acts_beside(p, WORK_CLASSIFIER, WORK_BACKWARD, p->T, w->V_n);
    return head + acts_beside(p, WORK_CLASSIFIER_STATISTICS, WORK_BACKWARD, p->T, w->V_n) +
           acts_beside(p, WORK_CLASSIFIER_GRADIENT, WORK_BACKWARD, p->T, w->V_n);
}

/* ---- all of it */

/* Bytes of an activation. */
static int64_t word_of(const Space *s) {
    return s->shape.kernels ? (int64_t)s->shape.kernels->word : (int64_t)sizeof(float);
}

/* Local sizes, as parallel/step/block.h has them. */
static void sizes(Pass *p, int64_t micro) {
    const Layout *l = &p->layout;
    Grid g = {.layout = *l, .mesh = mesh_make(&l->factors, 0)};
    int64_t S = p->s->shape.S, T = micro * S;
    const Widths *w = &p->w;
    p->w = widths_of(&p->s->shape.config, &g);
    p->X = l->size[AXIS_X], p->Y = l->size[AXIS_Y];
    p->T_x = l->stay ? (micro + p->X - 1) / p->X * S : l->sp ? (T + p->X - 1) / p->X : T;
    p->T = l->stay || l->sp ? p->X * p->T_x : T;
    p->rows = l->stay ? p->T_x : p->T;
    p->sequences = l->stay ? p->T_x / S : micro;
    const int64_t K[] = {w->K_C, w->K_att, w->K_C, w->K_F},
                  N[] = {w->blocks * w->qkv, w->C, w->blocks * w->up, w->C};
    const int64_t rows[] = {w->rows_C, w->rows_att, w->rows_C, w->rows_F},
                  cols[] = {w->qkv, w->C, w->up, w->C};
    p->of_block = 0;
    for (int i = 0; i < 4; i++) {
        p->layer[i].K = K[i], p->layer[i].N = N[i];
        p->layer[i].weights = l->stay ? rows[i] * cols[i] : K[i] * N[i];
        p->of_block += p->layer[i].weights;
    }
    p->table = w->V * w->C_all;
}

void pass_ranges(const Space *s, const int size[N_AXES], Range *along_z, Range *along_d) {
    static const Layout words[] = {{.heads = false}, {.heads = true}, {.stay = true}};
    int64_t least = INT64_MAX, matrix = 0, block = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        Pass p = {.s = s, .layout = layout_of_sizes(size)};
        p.layout.heads = words[i].heads, p.layout.stay = words[i].stay;
        sizes(&p, 1);
        matrix = larger(matrix, p.table), block = larger(block, larger(p.table, p.of_block));
        for (int k = 0; k < 4; k++) {
            matrix = larger(matrix, p.layer[k].weights);
            if (p.layer[k].weights < least) least = p.layer[k].weights;
        }
        if (p.table < least) least = p.table;
    }
    *along_z = (Range){word_of(s) * least, (int64_t)sizeof(float) * matrix};
    *along_d = (Range){0, (int64_t)sizeof(float) * (block / size[AXIS_Z] + 1)};
}

void pass_of(Pass *p, const Space *s, const Machine *m, const Choice *c, bool any) {
    const Layout *l = &c->layout, *o = &p->layout;
    bool same = p->s == s && p->m == m && memcmp(l->size, o->size, sizeof l->size) == 0 &&
                l->sp == o->sp && l->heads == o->heads && l->stay == o->stay &&
                p->micro == c->micro && p->threads == c->threads && p->any == any &&
                (any || overlap_equal(&p->overlap, &c->overlap));
    if (same) return;
    PriceShape shape = s->shape;
    shape.micro = c->micro;
    int64_t word = word_of(s);
    *p = (Pass){.s = s,
                .m = m,
                .layout = *l,
                .micro = c->micro,
                .threads = c->threads,
                .overlap = c->overlap,
                .any = any,
                .word = word,
                .device = shape.kernels && shape.kernels->memory,
                .words = word == sizeof(float) ? 0 : WORK_WORDS,
                .of_step = !any && c->overlap.halves ? 2 : 1,
                .micro_steps = price_micro_steps(&shape, l)};
    sizes(p, c->micro / p->of_step);
}

void pass_time(Pass *p) {
    if (p->timed) return;
    p->timed = true;
    for (int i = 0; i < 4; i++) {
        if (p->layout.stay)
            products_stay(p, (LinearKind)i);
        else
            products(p, (LinearKind)i);
    }
    between(p);
    biases(p);
    p->head = head_seconds(p);
    p->embed = acts_beside(p, WORK_EMBEDDING, 0, p->T, p->w.C_all);
    p->embed_back = acts_beside(p, WORK_EMBEDDING_BACKWARD, 0, p->T, p->w.C_all);
    p->last = p->embed_back + acts_beside(p, WORK_POSITION_BACKWARD, 0, p->T_x, p->w.C) +
              2 * pass_beside(p, WORK_COPY, 0, p->T, in_floats(p, p->w.C_all)) +
              pass_beside(p, WORK_ZERO, 0, p->table, 0) +
              pass_beside(p, WORK_BIAS_RESIDUAL, WORK_ADDEND, 1, p->table + p->of_block);
}
