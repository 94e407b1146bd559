/* A bound that no price of a candidate undercuts: the works of a step that weigh most, and the bytes of its matrices,
 * at what a byte costs in each order of the axes. What it adds up is a part of what a tape holds, each at a
 * cost that is not above the tape's; tests compare the two over every layout.
 */
#include <math.h>
#include <string.h>

#include "parallel/block.h"
#include "parallel/calibrate.h"
#include "parallel/search_parts.h"

typedef struct Walk {
    const Machine *m;
    const Space *s;
    const Choice *c;
    Widths w;
    int64_t T, T_x, rows; // of a pass: with padding, of the stream, of the middle
    int64_t sequences;    // of a pass: a micro-step, or half of one
    int X, Y;
    int store, grads; // along which weights, and gradients, are cut
    bool any;         // schedule
    bool halves;      // that, or with any perhaps that
    Bound *to;
    double forward;           // seconds of a block's kernels, once
    Window front[4], back[4]; // of a block's linear layers
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

/* Kernels beside a product. */
static double beside(const Walk *b, WorkKind kind, uint32_t flags, int64_t rows, int64_t x) {
    Work w = {.kind = kind, .flags = flags, .threads = b->c->threads, .rows = rows, .a = x};
    return machine_work(b->m, &w);
}

/* How a product is cut: parallel/pieces.c. in, out: of what it waits for, and of the sum of what it makes. */
typedef struct Cut {
    int n;        // pieces of each stripe
    int stripes;  // blocks of the ranks along x
    bool in, out; // cut
    bool ring;
} Cut;

typedef struct Flow {
    bool there, tokens; // a collective, that gathers or scatters tokens
} Flow;

static Cut cut_of(const Walk *b, Flow in, Flow out) {
    const Overlap *o = &b->c->overlap;
    bool tokens = in.tokens || out.tokens;
    Cut c = {.n = 1, .stripes = tokens ? b->X : 1};
    if (b->any) return c;
    c.ring = o->ring && in.tokens != out.tokens && b->X <= MAX_RING;
    if (c.ring || !o->chunks || b->rows / c.stripes < o->chunks) return c;
    c.in = in.there && (in.tokens || !tokens);
    c.out = out.there && (out.tokens || !tokens);
    if (c.in || c.out) c.n = o->chunks;
    return c;
}

/* Seconds of a product in pieces, which is no less than of a whole one. */
static double cut_work(const Walk *b, const Cut *c, WorkKind kind, int64_t K, int64_t N) {
    int64_t rows = b->rows / c->stripes;
    double s = 0;
    if (c->ring) return c->stripes * work_of(b, kind, rows, K, N);
    if (c->n == 1) return work_of(b, kind, b->rows, K, N);
    int64_t few = rows / c->n, more = rows % c->n; // pieces of so many, and of one more
    s = (double)(c->n - more) * work_of(b, kind, few, K, N);
    if (more) s += (double)more * work_of(b, kind, few + 1, K, N);
    return c->stripes * s;
}

/* What a ring copies before its first product, or adds up after its last. */
static double ring_work(const Walk *b, const Cut *c, bool comes, int64_t K, int64_t N) {
    int64_t rows = b->rows / c->stripes;
    if (!c->ring) return 0;
    if (comes) return beside(b, WORK_COPY, 0, rows, K);
    return beside(b, WORK_COPY, 0, rows, N) +
           (c->stripes - 1) * beside(b, WORK_BIAS_RESIDUAL, 0, rows, N);
}

/* Of pieces the smallest. */
static double piece_share(const Walk *b, const Cut *c, bool cut) {
    int64_t rows = b->rows / c->stripes;
    return c->ring || b->any ? 0 : cut ? (double)(rows / c->n) / (double)rows : 1;
}

/* share: see Wire. */
static void send(const Walk *b, int along, double times, int64_t floats, double share) {
    double bytes = 4 * times * (double)floats;
    if (b->halves) share = 0; // they compute under all of it
    b->to->all.calls[along] += times, b->to->all.bytes[along] += bytes;
    b->to->exposed.calls[along] += share > 0 ? times : 0;
    b->to->exposed.bytes[along] += share * bytes;
}

/* What bulk puts under something. */
static double late(const Walk *b) {
    return b->any || b->c->overlap.bulk ? 0 : 1;
}

/* So much of what was sent late has nothing to go under, not even the other half. */
static void expose(const Walk *b, int along, double times, int64_t floats) {
    if (late(b) > 0) return;
    b->to->exposed.calls[along] += times;
    b->to->exposed.bytes[along] += 4 * times * (double)floats;
}

static void meanwhile(const Walk *b, int along, int64_t floats) {
    b->to->meanwhile.calls[along]++;
    b->to->meanwhile.bytes[along] += 4 * (double)floats;
}

/* Gathered for each product but dw, its gradient scattered. With bulk a weight may still be there that was made again
 * just before. */
static void weight(const Walk *b, int64_t floats, int forwards) {
    bool there = (b->any || b->c->overlap.bulk) && b->c->recompute == RECOMPUTE_FULL;
    send(b, b->store, forwards + !there, floats, late(b));
    send(b, b->grads, 1, floats, late(b));
}

/* times: an all_reduce is two. */
static Wire wire(int along, int times, int64_t floats, double share) {
    return (Wire){along, times, 4.0 * times * (double)floats, share};
}

/* One linear layer: forward `n` times, and backward. widens: inputs over y, outputs over x. */
static void linear(Walk *b, LinearKind kind, int64_t K, int64_t N, int n) {
    const Layout *l = &b->c->layout;
    bool widens = kind == LINEAR_QKV || kind == LINEAR_UP;
    int in = widens ? ALONG_Y : ALONG_X, out = widens ? ALONG_X : ALONG_Y;
    bool sp = l->sp && b->X > 1, heads = l->heads && b->Y > 1;
    bool x_gathers = widens ? sp : heads, y_scatters = widens ? heads : sp;
    Flow x_side = {x_gathers, x_gathers && widens}, dy_side = {y_scatters, y_scatters && !widens};
    Flow y_side = {(widens ? b->Y : b->X) > 1, dy_side.tokens};
    Flow dx_side = {(widens ? b->X : b->Y) > 1, x_side.tokens};
    Cut f = cut_of(b, x_side, y_side), g = cut_of(b, dy_side, dx_side);
    int64_t x = b->rows * K, y = b->rows * N;
    double xw = cut_work(b, &f, WORK_XW, K, N), dx = cut_work(b, &g, WORK_DX, K, N);
    double dw = work_of(b, WORK_DW, b->rows, K, N);
    xw += ring_work(b, &f, x_side.tokens, K, N), dx += ring_work(b, &g, dy_side.tokens, N, K);
    double x_share = piece_share(b, &f, f.in), y_share = piece_share(b, &f, f.out);
    double dy_share = piece_share(b, &g, g.in), dx_share = piece_share(b, &g, g.out);
    b->to->compute += n * xw + dx + dw;
    b->forward += xw;
    if (x_gathers) send(b, out, n, x, x_share);
    if (x_gathers) send(b, out, 1, x, late(b)); // once more, for dw
    send(b, in, y_scatters ? n : 2 * n, y, y_share);
    if (y_scatters) send(b, in, 1, y, dy_share);
    send(b, out, x_gathers ? 1 : 2, x, late(b)); // dx
    weight(b, K * N, n);
    b->front[kind] = (Window){.first = xw,
                              .in = wire(out, x_gathers, x, x_share),
                              .out = wire(in, 2 - y_scatters, y, y_share)};
    b->back[kind] = (Window){.first = dx,
                             .second = dw,
                             .again = wire(out, x_gathers, x, 0),
                             .in = wire(in, y_scatters, y, dy_share),
                             .out = wire(out, 2 - x_gathers, x, dx_share)};
}

/* Output-stationary: operands and results travel in panels, whose products are not cheaper than one. */
static void linear_stay(Walk *b, LinearKind kind, int64_t K, int64_t N, int n) {
    int64_t w = (K + b->X - 1) / b->X * N;
    double xw = 0, back = 0;
    if (!b->m->measured || b->X * b->Y == 1) { // what was measured need not grow with the panel
        xw = work_of(b, WORK_XW, b->rows, K, N);
        back = work_of(b, WORK_DX, b->rows, K, N) + work_of(b, WORK_DW, b->rows, K, N);
    }
    b->forward += xw;
    b->to->compute += n * xw + back;
    int64_t rows = (K + b->X - 1) / b->X,
            panels = (K + rows - 1) / rows; // or more, where y cuts them
    if (panels < b->Y) panels = b->Y;
    int64_t of_x = b->rows * K / panels, of_w = K * N / panels;
    send(b, STREAM_Y, (double)panels * (n + 2), of_x, late(b)); // x forward, x for dw, dx
    send(b, STREAM_X, (double)panels * (n + 2), of_w, late(b)); // w forward, w for dx, dw
    // the first panel of x is waited for, what else comes and goes is there in the end
    int p = (int)panels;
    double share = 1.0 / p;
    b->front[kind] = (Window){
        .first = xw, .in = wire(STREAM_Y, p, of_x, share), .again = wire(STREAM_X, p, of_w, 0)};
    b->back[kind] = (Window){.first = back,
                             .in = wire(STREAM_Y, 2 * p, of_x, 0),
                             .again = wire(STREAM_X, 2 * p, of_w, 0)};
    weight(b, w, n);
}

/* Norms of a block, of their part of the features: forward, or with its sums backward. */
static double norm(const Walk *b, bool backward) {
    static const WorkKind whole[2] = {WORK_NORM, WORK_NORM_BACKWARD},
                          cut[2][2] = {{WORK_NORM_STATISTICS, WORK_NORM_APPLY},
                                       {WORK_NORM_BACKWARD_SUMS, WORK_NORM_BACKWARD_APPLY}};
    uint32_t flags = b->s->shape.config.norm == NORM_RMS ? WORK_RMS : 0;
    if (b->Y == 1) return beside(b, whole[backward], flags, b->T_x, b->w.C_n);
    return beside(b, cut[backward][0], flags, b->T_x, b->w.C_n) +
           beside(b, cut[backward][1], flags, b->T_x, b->w.C_n);
}

/* Embedding and head, of one pass: their weight comes twice, and so do both its gradients when it is tied. */
static void ends(const Walk *b, double steps) {
    const Widths *w = &b->w;
    bool scattered = b->c->layout.sp || b->c->layout.stay, cut = b->X * b->Y > 1;
    send(b, b->store, 2 * steps, w->V * w->C_all, 1);
    send(b, b->grads, steps, w->V * w->C_all, late(b));
    send(b, b->grads, steps, w->V * w->C_all, 1); // the embedding's
    // the first layer's first weight is wanted at once
    if (!b->halves)
        expose(b, b->store, steps,
               b->c->layout.stay ? w->rows_C * w->qkv : w->K_C * w->blocks * w->qkv);
    // [T, C] is scattered over x and then y, and gathered over x and then y; or reduced over x, and not gathered
    int64_t over_x = scattered ? b->T * w->C_all : b->T * w->C;
    int64_t over_y = scattered ? b->T_x * w->C_all : b->T * w->C_all;
    for (int k = 0; k < 2; k++) { // of the embedding; of the head's dx, under its product dw
        double share = k ? late(b) : 1;
        send(b, ALONG_X, steps, over_x, share);
        send(b, ALONG_X, steps, b->T * w->C, scattered ? 1 : share);
        send(b, ALONG_Y, steps, over_y, share);
        send(b, ALONG_Y, steps, b->T * w->C_all, 1);
    }
    // of them in the backward of the embedding
    if (!b->halves)
        meanwhile(b, ALONG_X, b->T * w->C), meanwhile(b, ALONG_Y, b->T * w->C_all),
            meanwhile(b, b->grads, w->V * w->C_all);
    int64_t rows = head_chunk(b->T, w->V), n = b->T / rows, rest = b->T % rows;
    double head = 0;
    for (int k = 0; k < (rest ? 2 : 1); k++) {
        int64_t r = k ? rest : rows;
        head += (k ? 1 : (double)n) * (work_of(b, WORK_DX, r, w->V_n, w->C_all) +
                                       work_of(b, WORK_XW, r, w->V_n, w->C_all) +
                                       work_of(b, WORK_DW, r, w->V_n, w->C_all));
    }
    if (cut)
        head += beside(b, WORK_CLASSIFIER_STATISTICS, WORK_BACKWARD, b->T, w->V_n) +
                beside(b, WORK_CLASSIFIER_GRADIENT, WORK_BACKWARD, b->T, w->V_n);
    else
        head += beside(b, WORK_CLASSIFIER, WORK_BACKWARD, b->T, w->V_n);
    double embed = beside(b, WORK_EMBEDDING, 0, b->T, w->C_all),
           back = beside(b, WORK_EMBEDDING_BACKWARD, 0, b->T, w->C_all);
    b->to->compute += steps * (head + embed + back);
    b->to->early += steps * (head + embed + back) - back;
}

/* Kernels between the products of a block: after the forward of each linear layer, and after its backward. Where a sum is
 * owed what an epilogue would do comes after it. */
typedef struct Between {
    double front[4], back[4];
    double again; // selective recompute
} Between;

static void between(const Walk *b, Between *t) {
    const Config *c = &b->s->shape.config;
    const Widths *w = &b->w;
    bool gelu = c->act == ACT_GELU, stay = b->c->layout.stay;
    bool wide_owed = stay || b->Y > 1, narrow_owed = stay || b->X > 1;
    uint32_t bias = c->bias ? WORK_BIAS : 0;
    double forward = norm(b, false), backward = norm(b, true);
    double residual =
        narrow_owed ? beside(b, WORK_BIAS_RESIDUAL, WORK_ADDEND | bias, b->T_x, w->C) : 0;
    double act = gelu ? beside(b, WORK_GELU, 0, b->rows * w->F, 0)
                      : beside(b, WORK_SWIGLU, 0, b->rows, w->F);
    Work a = {.kind = WORK_ATTENTION,
              .flags = b->s->shape.bf16 ? WORK_BF16 : 0,
              .threads = b->c->threads,
              .rows = b->sequences,
              .a = b->s->shape.S,
              .b = w->H,
              .c = w->Hkv,
              .d = config_head_size(c)};
    double attend = machine_work(b->m, &a), attend_back;
    a.kind = WORK_ATTENTION_BACKWARD;
    attend_back = machine_work(b->m, &a);
    *t = (Between){
        .front = {attend, residual + forward, gelu && !wide_owed ? 0 : act, residual + forward},
        .back = {backward, attend_back, backward, 0}};
    if (bias && wide_owed) {
        t->front[LINEAR_QKV] += beside(b, WORK_BIAS_RESIDUAL, bias, b->rows, w->qkv);
        t->front[LINEAR_UP] += beside(b, WORK_BIAS_RESIDUAL, bias, b->rows, w->up);
    }
    if (!gelu)
        t->back[LINEAR_DOWN] += beside(b, WORK_SWIGLU_BACKWARD, 0, b->rows, w->F);
    else if (wide_owed)
        t->back[LINEAR_DOWN] += beside(b, WORK_GELU_BACKWARD, 0, b->rows * w->F, 0);
    if (b->c->recompute == RECOMPUTE_SELECTIVE)
        t->again = act + 2 * beside(b, WORK_NORM_APPLY, 0, b->T_x, w->C_n);
}

/* Under the product dw goes what bias adds up, too. */
static double bias_work(const Walk *b, LinearKind kind) {
    const Widths *w = &b->w;
    bool widens = kind == LINEAR_QKV || kind == LINEAR_UP;
    if (!b->s->shape.config.bias) return 0;
    return beside(b, WORK_BIAS_BACKWARD, 0, widens ? b->rows : b->T_x,
                  kind == LINEAR_QKV  ? w->qkv
                  : kind == LINEAR_UP ? w->up
                                      : w->C);
}

static void block(Walk *b) {
    const Widths *w = &b->w;
    int forwards = b->c->recompute == RECOMPUTE_FULL ? 2 : 1;
    bool stay = b->c->layout.stay, keeps_x2 = stay || b->c->layout.size[AXIS_X] > 1;
    const struct {
        int64_t K, N;
        int forwards;
    } layers[] = {{w->K_C, w->blocks * w->qkv, forwards},
                  {w->K_att, w->C, keeps_x2 ? 1 : forwards},
                  {w->K_C, w->blocks * w->up, forwards},
                  {w->K_F, w->C, 1}};
    Between t;
    between(b, &t);
    b->to->compute += t.again;
    for (int i = 0; i < 4; i++) {
        if (stay)
            linear_stay(b, (LinearKind)i, layers[i].K, layers[i].N, layers[i].forwards);
        else
            linear(b, (LinearKind)i, layers[i].K, layers[i].N, layers[i].forwards);
        double bias = bias_work(b, (LinearKind)i);
        b->to->compute += layers[i].forwards * t.front[i] + t.back[i] + bias;
        b->forward += t.front[i];
        b->front[i].after = t.front[i], b->back[i].after = t.back[i], b->back[i].second += bias;
    }
    send(b, ALONG_Y, 2 * forwards, 2 * b->T_x * b->Y, 1); // statistics
    send(b, ALONG_Y, 4, 2 * b->T_x, 1);                   // sums of dnorm, reduced
}

/* ---- windows */

/* next: whose weight comes under it. */
static void add_window(const Walk *b, Windows *to, const Window *w, int next, bool back) {
    static const Wire none = {0};
    const Widths *s = &b->w;
    bool stay = b->c->layout.stay;
    const int64_t sizes[] = {
        stay ? s->rows_C * s->qkv : s->K_C * s->blocks * s->qkv,
        stay ? s->rows_att * s->C : s->K_att * s->C,
        stay ? s->rows_C * s->up : s->K_C * s->blocks * s->up,
        stay ? s->rows_F * s->C : s->K_F * s->C,
    };
    Window *at = &to->window[to->n++];
    *at = *w;
    at->ahead = next < 0 ? none : wire(b->store, 1, sizes[next], 0);
    if (back) at->gone = wire(b->grads, 1, sizes[w - b->back], 0);
}

/* Which weight comes under which product: parallel/stored.c. */
static void windows(Walk *b, double steps) {
    Windows *front = &b->to->front, *back = &b->to->back;
    const Overlap *o = &b->c->overlap;
    bool full = b->c->recompute == RECOMPUTE_FULL, keeps_x2 = b->X > 1 || b->c->layout.stay;
    if (!o->bulk || o->halves) return;
    front->times = back->times = steps;
    front->blocks = back->blocks =
        b->s->shape.config.layers - 1; // the last one has none at its heels
    for (int i = LINEAR_QKV; i <= LINEAR_DOWN; i++)
        add_window(b, front, &b->front[i], (i + 1) % LINEAR_HEAD, false);
    if (full) {
        int next = keeps_x2 ? LINEAR_UP : LINEAR_ATTN_OUT;
        add_window(b, back, &b->front[LINEAR_QKV], next, false);
        if (!keeps_x2) add_window(b, back, &b->front[LINEAR_ATTN_OUT], LINEAR_UP, false);
        add_window(b, back, &b->front[LINEAR_UP], LINEAR_DOWN, false);
    }
    // where the block before is made again, that is under the last sum of this one
    if (full && !o->ring) b->back[LINEAR_QKV].out.calls = b->back[LINEAR_QKV].after = 0;
    add_window(b, back, &b->back[LINEAR_DOWN], full ? -1 : LINEAR_UP, true);
    add_window(b, back, &b->back[LINEAR_UP], LINEAR_ATTN_OUT, true);
    add_window(b, back, &b->back[LINEAR_ATTN_OUT], LINEAR_QKV, true);
    add_window(b, back, &b->back[LINEAR_QKV], full ? LINEAR_QKV : LINEAR_DOWN, true);
}

/* ---- all of it */

/* With bulk the sums of a layer begin when the layer before it is through, so those of the first two, and of the tables,
 * have little to go under: the way of gradients into the embedding. Measured kernels may be slowed by any factor. */
static void last_sums(const Walk *b, int64_t of_block, int passes) {
    const Layout *l = &b->c->layout;
    const Widths *w = &b->w;
    Bound *to = b->to;
    int64_t layers = b->s->shape.config.layers, table = w->V * w->C_all;
    double blocks = layers < 2 ? 1 : 2, turns = l->zero ? 1 : 2;
    if (late(b) > 0 || b->m->measured) return;
    to->last.calls = turns * (blocks * (l->zero ? 4 : 1) + 1);
    to->last.bytes = turns * 4 * (double)(((int64_t)blocks * of_block + table) / l->size[AXIS_Z]);
    int several = b->any && b->halves ? 2 : passes;
    double once = beside(b, WORK_EMBEDDING_BACKWARD, 0, b->T, w->C_all) +
                  beside(b, WORK_POSITION_BACKWARD, 0, b->T_x, w->C) +
                  2 * beside(b, WORK_COPY, 0, b->T, w->C_all) + beside(b, WORK_ZERO, 0, table, 0) +
                  beside(b, WORK_BIAS_RESIDUAL, WORK_ADDEND, 1, table + of_block);
    to->beneath = b->m->slowdown * several * once;
}

/* The end of a step: sums over d, and AdamW. */
static void update(const Walk *b, int64_t weights, int64_t of_block, int passes) {
    const Layout *l = &b->c->layout;
    Bound *to = b->to;
    int64_t cut = (int64_t)l->size[AXIS_Z] * (l->zero ? l->size[AXIS_D] : 1);
    to->update = beside(b, WORK_ADAMW, 0, weights / cut, 0);
    to->squares = beside(b, WORK_SQUARES, 0, weights / cut, 0);
    to->compute += to->update + to->squares;
    if (b->s->shape.apart) return;
    int64_t block = weights / l->size[AXIS_Z];
    // all of a layer together, or matrix by matrix
    double calls = (double)b->s->shape.config.layers * (l->zero ? 4 : 1);
    if (l->zero < 2) { // gradients: scattered,
        send(b, ALONG_D, calls, 0, late(b)), send(b, ALONG_D, 1, block, late(b));
        to->sums.calls += calls, to->sums.bytes += 4 * (double)block;
        int64_t table = b->w.V * b->w.C_all / l->size[AXIS_Z];
        int turns = l->zero ? 1 : 2;
        expose(b, ALONG_D, turns, table); // the last one
        for (int i = 0; i < turns; i++) meanwhile(b, ALONG_D, table);
        last_sums(b, of_block, passes);
    }
    if (l->zero == 3) return;
    send(b, ALONG_D, calls, 0, late(b)), send(b, ALONG_D, 1, block, late(b)); // and gathered,
    Line *t = l->zero ? &to->fresh : &to->sums;                               // or the weights
    if (l->zero && late(b) > 0) return;
    t->calls += calls, t->bytes += 4 * (double)block;
}

/* Local sizes, as parallel/block.h has them. */
static Walk walk_of(Bound *to, const Space *s, const Machine *m, const Choice *c, int64_t micro) {
    const Layout *l = &c->layout;
    Grid g = {.layout = *l, .mesh = mesh_make(&l->factors, 0)};
    Walk b = {.m = m, .s = s, .c = c, .to = to, .w = widths_of(&s->shape.config, &g)};
    int64_t S = s->shape.S, T = micro * S;
    b.X = l->size[AXIS_X], b.Y = l->size[AXIS_Y];
    b.store = l->zero == 3 ? ALONG_ZD : ALONG_Z, b.grads = l->zero >= 2 ? ALONG_ZD : ALONG_Z;
    b.T_x = l->stay ? (micro + b.X - 1) / b.X * S : l->sp ? (T + b.X - 1) / b.X : T;
    b.T = l->stay || l->sp ? b.X * b.T_x : T;
    b.rows = l->stay ? b.T_x : b.T;
    b.sequences = l->stay ? b.T_x / S : micro;
    return b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Floats of activations, and of what backward works on: parallel/model.c, parallel/linear.c. */
static int64_t kept(const Walk *b) {
    const Widths *w = &b->w;
    const Layout *l = &b->c->layout;
    int64_t L = b->s->shape.config.layers, stream = b->T_x * w->C;
    int64_t wide = b->rows * (w->qkv + w->att + w->up), products = wide + stream,
            cheap = 2 * stream + b->rows * w->F;
    bool all = b->c->recompute == RECOMPUTE_NONE, full = b->c->recompute == RECOMPUTE_FULL;
    bool sp = l->sp && b->X > 1, heads = l->heads && b->Y > 1;
    int64_t n = L * stream + (full ? 1 : L) * products + (all ? L : 1) * cheap + wide;
    n += 4 * stream; // of the last block and its norm, and their gradients
    if (full && (l->stay || b->X > 1)) n += (L - 1) * stream;
    n += head_chunk(b->T, w->V) * w->V;
    if (b->X * b->Y > 1) n += 3 * b->T * w->C_all;
    if (l->stay) return n;
    int64_t x = larger(sp ? w->K_C : 0, heads ? larger(w->K_att, w->K_F) : 0);
    int64_t y = larger(sp ? w->C : 0, heads ? w->blocks * larger(w->qkv, w->up) : 0);
    return n + b->rows * (2 * x + y);
}

/* Floats of weights that are whole for a while, and of their gradients. */
static int64_t whole(const Walk *b) {
    const Layout *l = &b->c->layout;
    const Widths *w = &b->w;
    int64_t Z = l->size[AXIS_Z], ZD = Z * l->size[AXIS_D], table = w->V * w->C_all;
    int64_t store = l->zero == 3 ? ZD : Z, grads = l->zero >= 2 ? ZD : Z;
    int64_t most = l->stay ? larger(w->rows_C * larger(w->qkv, w->up), w->rows_F * w->C)
                           : larger(w->K_C * w->blocks * larger(w->qkv, w->up), w->K_F * w->C);
    int64_t n = larger(table, most), second = !b->any && b->c->overlap.bulk ? most : 0;
    return (store > 1 ? n + second : 0) + (grads > 1 ? n + second + (n + second) / grads : 0);
}

static void add_times(Traffic *t, double times) {
    for (int i = 0; i < N_ALONG; i++) t->calls[i] *= times, t->bytes[i] *= times;
}

/* Of any schedule: products are whole, which costs least, and nothing is exposed. */
void seed_bound(Bound *to, const Space *s, const Machine *m, const Choice *c, bool any) {
    const Config *config = &s->shape.config;
    const Layout *l = &c->layout;
    int passes = !any && c->overlap.halves ? 2 : 1; // of a micro-step
    *to = (Bound){.crowd = m->crowd > 1 ? m->crowd : 1,
                  .slowest = m->slowest,
                  .slowdown = m->measured ? 1 : m->slowdown};
    Walk b = walk_of(to, s, m, c, c->micro / passes);
    const Widths *w = &b.w;
    PriceShape shape = seed_shape(s, c);
    double layers = (double)config->layers, micro_steps = (double)price_micro_steps(&shape, l);
    double steps = passes * micro_steps;
    b.any = any;
    b.halves = any ? s->free_overlap ? b.X * b.Y > 1 && c->micro % 2 == 0 : c->overlap.halves
                   : c->overlap.halves;
    block(&b);
    add_times(&to->all, layers * steps), add_times(&to->exposed, layers * steps);
    // all but the backward of the last micro-step
    to->early = layers * ((steps - passes) * to->compute + passes * b.forward);
    to->compute *= steps * layers;
    ends(&b, steps);
    if (!any) windows(&b, steps);
    if (any || c->overlap.bulk) // where a pass turns the last weight is there
        send(&b, b.store, -steps, l->stay ? w->rows_F * w->C : w->K_F * w->C, late(&b));
    int64_t of_block = l->stay ? w->rows_C * (w->qkv + w->up) + (w->rows_att + w->rows_F) * w->C
                               : w->K_C * w->blocks * (w->qkv + w->up) + (w->K_att + w->K_F) * w->C;
    int64_t weights = config->layers * of_block + w->V * w->C_all;
    int64_t Z = l->size[AXIS_Z], ZD = Z * l->size[AXIS_D];
    update(&b, weights, of_block, passes);
    to->memory = 4 * (weights / (l->zero == 3 ? ZD : Z) + weights / (l->zero >= 2 ? ZD : Z) +
                      2 * (weights / (l->zero ? ZD : Z)) + passes * (kept(&b) + whole(&b)));
}
