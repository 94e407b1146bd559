/* A bound that no price of a candidate undercuts: the works of a step that weigh most, and the
 * bytes of its matrices, at what a byte costs in each order of the axes. What it adds up is a part
 * of what a tape holds, each at a cost that is not above the tape's; tests compare the two over
 * every layout.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "parallel/plan/search_bound.h"
#include "parallel/step/block.h"

/* One linear layer, forward or backward, from its own weight's arrival to the next one's.
 *
 *     again   x, for the second product         in    what its first product waits for
 *     first   y = x w; or dx = dy w'            out   the sum of what the first made
 *     second  nothing; or dw = x' dy            bias    what it adds up, when dw is on its way
 */
typedef struct Window {
    double before, first, second, bias, after; // seconds of kernels; before: what is made again
    double piece;                              // of the first, the smallest; 0: it is whole
    double norm;                               // of those after: PassLayer
    Wire again, in, out;                       // calls 0: there is none
} Window;

typedef struct Walk {
    const Machine *m;
    const Space *s;
    const Choice *c;
    const Pass *p;
    int store, grads; // along which weights, and gradients, are cut
    bool any;         // schedule
    bool halves;      // that, or with any perhaps that
    bool programs;    // are made: windows are for them
    Bound *to;
    double forward;           // seconds of a block's kernels, once
    Window front[4], back[4]; // of a block's linear layers
    bool coming;              // is a weight on its way?
} Walk;

/* Bytes: of activations, and of weights as matmuls read them; of all else. */
static int64_t acts(const Walk *b, int64_t n) {
    return b->p->word * n;
}
static int64_t floats(int64_t n) {
    return (int64_t)sizeof(float) * n;
}

/* share: see Wire. */
static void send(const Walk *b, int along, double times, int64_t each, double share) {
    double bytes = times * (double)each;
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
static void expose(const Walk *b, int along, double times, int64_t each) {
    if (late(b) > 0) return;
    b->to->exposed.calls[along] += times;
    b->to->exposed.bytes[along] += times * (double)each;
}

static void meanwhile(const Walk *b, int along, int64_t bytes) {
    b->to->meanwhile.calls[along]++;
    b->to->meanwhile.bytes[along] += (double)bytes;
}

/* Gathered for each product but dw, its gradient scattered. With bulk a weight may still be there
 * that was made again just before. */
static void weight(const Walk *b, int64_t n, int forwards) {
    bool there = (b->any || b->c->overlap.bulk) && b->c->recompute == RECOMPUTE_FULL;
    send(b, b->store, forwards + !there, acts(b, n), late(b));
    send(b, b->grads, 1, floats(n), late(b));
}

/* times: an all_reduce is two. */
static Wire wire(int along, int times, int64_t each, double share) {
    return (Wire){along, times, times * (double)each, share};
}

/* One linear layer: forward `n` times, and backward. */
static void linear(Walk *b, LinearKind kind, int n) {
    const PassLayer *l = &b->p->layer[kind];
    bool widens = kind == LINEAR_QKV || kind == LINEAR_UP;
    int in = widens ? ALONG_Y : ALONG_X, out = widens ? ALONG_X : ALONG_Y;
    int64_t x = acts(b, b->p->rows * l->K), y = acts(b, b->p->rows * l->N);
    if (l->x_gathers) send(b, out, n, x, l->x_share);
    if (l->x_gathers) send(b, out, 1, x, late(b)); // once more, for dw
    send(b, in, l->y_scatters ? n : 2 * n, y, l->y_share);
    if (l->y_scatters) send(b, in, 1, y, l->dy_share);
    send(b, out, l->x_gathers ? 1 : 2, x, late(b)); // dx
    if (!b->programs) return;
    b->front[kind] = (Window){.first = l->xw,
                              .piece = l->xw_piece,
                              .in = wire(out, l->x_gathers, x, l->x_share),
                              .out = wire(in, 2 - l->y_scatters, y, l->y_share)};
    b->back[kind] = (Window){.first = l->dx,
                             .second = l->dw,
                             .piece = l->dx_piece,
                             .again = wire(out, l->x_gathers, x, 0),
                             .in = wire(in, l->y_scatters, y, l->dy_share),
                             .out = wire(out, 2 - l->x_gathers, x, l->dx_share)};
}

/* Output-stationary: operands and results travel in panels. */
static void linear_stay(Walk *b, LinearKind kind, int n) {
    const PassLayer *l = &b->p->layer[kind];
    int64_t panels = l->panels, of_x = acts(b, b->p->rows * l->K / panels),
            w = l->K * l->N / panels, of_w = acts(b, w);
    send(b, STREAM_Y, (double)panels * (n + 2), of_x, late(b)); // x forward, x for dw, dx
    send(b, STREAM_X, (double)panels * (n + 1), of_w, late(b)); // w forward, w for dx
    send(b, STREAM_X, (double)panels, floats(w), late(b));      // dw
    if (!b->programs) return;
    // the first panel of x is waited for, what else comes and goes is there in the end
    int p = (int)panels;
    double share = 1.0 / p;
    b->front[kind] = (Window){
        .first = l->xw, .in = wire(STREAM_Y, p, of_x, share), .again = wire(STREAM_X, p, of_w, 0)};
    b->back[kind] = (Window){.first = l->dx + l->dw,
                             .in = wire(STREAM_Y, 2 * p, of_x, 0),
                             .again = wire(STREAM_X, 2 * p, (of_w + floats(w)) / 2, 0)};
}

/* Embedding and head, of one pass: their weight comes twice, and so do both its gradients when it
 * is tied. */
static void ends(const Walk *b, double steps) {
    const Pass *p = b->p;
    const Widths *w = &p->w;
    bool scattered = b->c->layout.sp || b->c->layout.stay;
    send(b, b->store, 2 * steps, acts(b, p->table), 1);
    send(b, b->grads, steps, floats(p->table), late(b));
    send(b, b->grads, steps, floats(p->table), 1); // the embedding's
    // the first layer's first weight is wanted at once
    if (!b->halves) expose(b, b->store, steps, acts(b, p->layer[LINEAR_QKV].weights));
    // [T, C] is scattered over x and then y, and gathered over x and then y; or reduced over x, and
    // not gathered
    int64_t whole = acts(b, p->T * w->C_all), part = acts(b, p->T * w->C);
    int64_t over_x = scattered ? whole : part;
    int64_t over_y = scattered ? acts(b, p->T_x * w->C_all) : whole;
    for (int k = 0; k < 2; k++) { // of the embedding; of the head's dx, under its product dw
        double share = k ? late(b) : 1;
        send(b, ALONG_X, steps, over_x, share);
        send(b, ALONG_X, steps, part, scattered ? 1 : share);
        send(b, ALONG_Y, steps, over_y, share);
        send(b, ALONG_Y, steps, whole, 1);
    }
    // of them in the backward of the embedding
    if (!b->halves)
        meanwhile(b, ALONG_X, part), meanwhile(b, ALONG_Y, whole),
            meanwhile(b, b->grads, floats(p->table));
    b->to->compute += steps * (p->head + p->embed + p->embed_back);
    b->to->early += steps * (p->head + p->embed + p->embed_back) - p->embed_back;
}

static void block(Walk *b) {
    const Pass *p = b->p;
    int all = b->c->recompute == RECOMPUTE_FULL ? 2 : 1;
    bool stay = b->c->layout.stay, keeps_x2 = stay || p->X > 1;
    const int forwards[] = {all, keeps_x2 ? 1 : all, all, 1};
    bool selective = b->c->recompute == RECOMPUTE_SELECTIVE;
    for (int i = 0; i < 4; i++) {
        const PassLayer *l = &p->layer[i];
        if (stay)
            linear_stay(b, (LinearKind)i, forwards[i]);
        else
            linear(b, (LinearKind)i, forwards[i]);
        weight(b, l->weights, forwards[i]);
        b->to->compute += forwards[i] * (l->xw + l->front) + l->dx + l->dw + l->bias + l->back;
        if (selective) b->to->compute += l->again;
        b->forward += l->xw + l->front;
        if (!b->programs) continue;
        b->front[i].after = l->front, b->front[i].norm = l->front_norm;
        b->back[i].after = l->back, b->back[i].norm = l->back_norm;
        b->back[i].bias = l->bias, b->back[i].before = selective ? l->again : 0;
    }
    send(b, ALONG_Y, 2 * all, floats(2 * p->T_x * p->Y), 1); // statistics
    send(b, ALONG_Y, 4, floats(2 * p->T_x), 1);              // sums of dnorm, reduced
}

/* ---- programs */

/* GONE: two, that take turns. LATE: a sum under which the block before is made again. */
enum { T_AHEAD, T_AGAIN, T_IN, T_OUT, T_LATE, T_NORM, T_GONE };

static Move *move(Program *p, MoveKind kind, int ticket) {
    assert(p->n < MAX_MOVES);
    Move *m = &p->move[p->n++];
    *m = (Move){.kind = (uint8_t)kind, .ticket = (uint8_t)ticket};
    return m;
}

static void run(Program *p, double seconds) {
    if (seconds > 0) move(p, MOVE_RUN, 0)->seconds = seconds;
}

static bool travels(const Walk *b, int along) {
    const int *n = b->c->layout.size;
    const int ranks[] = {[ALONG_X] = n[AXIS_X],
                         [ALONG_Y] = n[AXIS_Y],
                         [ALONG_Z] = n[AXIS_Z],
                         [ALONG_D] = n[AXIS_D],
                         [STREAM_X] = n[AXIS_X],
                         [STREAM_Y] = n[AXIS_Y],
                         [ALONG_ZD] = n[AXIS_Z] * n[AXIS_D]};
    return ranks[along] > 1;
}

/* Part of a wire: its calls where `calls` says so. NULL: nothing travels. */
static Move *start(const Walk *b, Program *p, int ticket, const Wire *w, bool calls, double share) {
    if (w->calls == 0 || !travels(b, w->along)) return NULL;
    Move *m = move(p, MOVE_START, ticket);
    m->along = (uint8_t)w->along, m->sure = true;
    m->calls = calls ? w->calls : 0, m->bytes = share * w->bytes;
    return m;
}

static void wait(const Walk *b, Program *p, int ticket, const Wire *w) {
    if (w->calls > 0 && travels(b, w->along)) move(p, MOVE_WAIT, ticket);
}

/* What nothing hides is among the exposed already, unless another pass may. */
static void in_sight(const Program *p, Move *m) {
    if (m) m->plain = p->passes == 1;
}

static void statistics(const Walk *b, Program *p, bool back) {
    int64_t n = floats(2 * b->p->T_x);
    Wire w = back ? wire(ALONG_Y, 2, n, 0) : wire(ALONG_Y, 1, n * b->p->Y, 0);
    in_sight(p, start(b, p, T_NORM, &w, true, 1));
    wait(b, p, T_NORM, &w);
}

static void run_after(const Walk *b, Program *p, const Window *w, bool back) {
    run(p, w->after - w->norm);
    if (w->norm > 0) statistics(b, p, back);
    run(p, w->norm);
}

/* The first product, with what it waits for and what it makes; of pieces the first to come and the
 * last to go have nothing to go under, others come before the last piece and go when the first one
 * is there, or later. */
static void first_product(const Walk *b, Program *p, const Window *w, int out) {
    double in = w->in.share, last = w->out.share;
    bool more_in = in < 1 && w->in.calls > 0, more_out = last < 1 && w->out.calls > 0;
    bool panels = b->c->layout.stay && in > 0;
    Move *m;
    if (in > 0 && (m = start(b, p, T_IN, &w->in, !panels, in)) && !panels) in_sight(p, m);
    if (in > 0) wait(b, p, T_IN, &w->in);
    if (panels && (m = start(b, p, T_AGAIN, &w->again, true, 1 - in))) m->sure = false;
    if (more_in && (m = start(b, p, T_IN, &w->in, in == 0 || panels, 1 - in))) m->sure = false;
    run(p, w->piece);
    if (more_out && (m = start(b, p, out, &w->out, last == 0, 1 - last))) m->sure = false;
    run(p, w->first - (more_in ? 2 : 1) * w->piece);
    if (more_in) wait(b, p, T_IN, &w->in);
    if (more_in) run(p, w->piece);
    if (last > 0 && (m = start(b, p, out, &w->out, true, last)) && w->second == 0) in_sight(p, m);
}

/* w: of b->front or b->back. next: whose weight comes under it; -1: none. late: its sum is waited
 * for later. */
static void linear_moves(Walk *b, Program *p, const Window *w, int next, bool late_out) {
    bool back = w >= b->back && w < b->back + 4;
    int out = late_out ? T_LATE : T_OUT;
    bool panels = b->c->layout.stay;
    Wire own = wire(b->store, 1, 0, 0), gone = own;
    Move *m;
    run(p, w->before);
    if (b->coming) wait(b, p, T_AHEAD, &own);
    b->coming = next >= 0;
    if (next >= 0) own = wire(b->store, 1, acts(b, b->p->layer[next].weights), 0);
    if (next >= 0) start(b, p, T_AHEAD, &own, true, 1);
    if (panels && w->in.share > 0) // of w the first one: others begin under a product
        start(b, p, T_AGAIN, &w->again, false, w->in.share);
    else if ((m = start(b, p, T_AGAIN, &w->again, true, 1)))
        m->sure = !panels;
    first_product(b, p, w, out);
    wait(b, p, T_AGAIN, &w->again);
    if (back) {
        int kind = (int)(w - b->back), ticket = T_GONE + kind % 2;
        gone = wire(b->grads, 1, floats(b->p->layer[kind].weights), 0);
        wait(b, p, ticket, &gone);
        run(p, w->second);
        start(b, p, ticket, &gone, true, 1);
        run(p, w->bias);
    }
    if (late_out) return;
    wait(b, p, out, &w->out);
    run_after(b, p, w, back);
}

static bool is(const Move *m, MoveKind kind, int ticket) {
    return m->kind == kind && (ticket < 0 || m->ticket == ticket);
}

/* The first weight of the next block comes with the last start of one, and is waited for first. A
 * program begins behind this wait, or behind the last one: so a pass that comes to the end of a
 * block has run all of its kernels, and the other pass, too. */
static void rotate(Program *p) {
    Move moved[MAX_MOVES];
    int start = p->n - 1, first = 0, from = p->n - 1;
    while (start >= 0 && !is(&p->move[start], MOVE_START, T_AHEAD)) start--;
    while (first < p->n && !is(&p->move[first], MOVE_WAIT, T_AHEAD)) first++;
    while (from >= 0 && !is(&p->move[from], MOVE_WAIT, -1)) from--;
    if (start >= 0 && first < p->n)
        p->move[start].ahead = p->move[first].ahead = true, from = first;
    for (int i = 0; i < p->n; i++) moved[i] = p->move[(from + 1 + i) % p->n];
    memcpy(p->move, moved, (size_t)p->n * sizeof *moved);
}

/* The block is made again, and what it waits for. */
static void again_moves(Walk *b, Program *p, bool early) {
    bool keeps_x2 = b->p->X > 1 || b->c->layout.stay;
    statistics(b, p, false);
    linear_moves(b, p, &b->front[LINEAR_QKV], keeps_x2 ? LINEAR_UP : LINEAR_ATTN_OUT, false);
    if (keeps_x2)
        statistics(b, p, false);
    else
        linear_moves(b, p, &b->front[LINEAR_ATTN_OUT], LINEAR_UP, false);
    linear_moves(b, p, &b->front[LINEAR_UP], LINEAR_DOWN, false);
    if (!early) return; // the sum that it was made again under
    wait(b, p, T_LATE, &b->back[LINEAR_QKV].out);
    run_after(b, p, &b->back[LINEAR_QKV], true);
}

/* Without bulk nothing runs beside; halves of pieces take more turns than are known here. */
static bool has_programs(const Choice *c) {
    const Overlap *o = &c->overlap;
    bool pieces = o->chunks || o->ring || c->layout.stay;
    return o->bulk && !(o->halves && pieces);
}

/* Which weight comes under which product: parallel/step/stored.c. */
static void programs(Walk *b) {
    Program *front = &b->to->front, *back = &b->to->back;
    const Overlap *o = &b->c->overlap;
    bool full = b->c->recompute == RECOMPUTE_FULL, early = full && !o->ring;
    front->times = back->times = (double)b->p->micro_steps;
    front->blocks = back->blocks = b->s->shape.config.layers;
    front->passes = back->passes = b->p->of_step;
    b->coming = true;
    for (int i = LINEAR_QKV; i <= LINEAR_DOWN; i++)
        linear_moves(b, front, &b->front[i], (i + 1) % LINEAR_HEAD, false);
    b->coming = true;
    if (full) again_moves(b, back, early);
    linear_moves(b, back, &b->back[LINEAR_DOWN], full ? -1 : LINEAR_UP, false);
    linear_moves(b, back, &b->back[LINEAR_UP], LINEAR_ATTN_OUT, false);
    linear_moves(b, back, &b->back[LINEAR_ATTN_OUT], LINEAR_QKV, false);
    linear_moves(b, back, &b->back[LINEAR_QKV], full ? LINEAR_QKV : LINEAR_DOWN, early);
    rotate(front), rotate(back);
}

/* ---- all of it */

/* With bulk the sums of a layer begin when the layer before it is through, so those of the first
 * two, and of the tables, have little to go under: the way of gradients into the embedding.
 * Measured kernels may be slowed by any factor. */
static void last_sums(const Walk *b) {
    const Layout *l = &b->c->layout;
    Bound *to = b->to;
    int64_t layers = b->s->shape.config.layers;
    double blocks = layers < 2 ? 1 : 2, turns = l->zero ? 1 : 2;
    if (late(b) > 0 || b->m->measured) return;
    to->last.calls = turns * (blocks * (l->zero ? 4 : 1) + 1);
    to->last.bytes =
        turns * (double)floats(((int64_t)blocks * b->p->of_block + b->p->table) / l->size[AXIS_Z]);
    int several = b->any && b->halves ? 2 : b->p->of_step;
    to->beneath = b->m->slowdown * several * b->p->last;
}

static int64_t all_weights(const Space *s, const Pass *p) {
    return s->shape.config.layers * p->of_block + p->table;
}

/* A work of each matrix, of its part; of each vector, which is short: the call. */
static double each_matrix(const Walk *b, WorkKind kind, uint32_t flags, int64_t cut) {
    const Pass *p = b->p;
    double block = 0;
    for (int i = 0; i < 4; i++) block += pass_beside(p, kind, flags, p->layer[i].weights / cut, 0);
    return (double)b->s->shape.config.layers * block +
           pass_beside(p, kind, flags, p->table / cut, 0);
}
static double vectors(const Walk *b, WorkKind kind, double n) {
    return b->m->measured ? 0 : n * pass_beside(b->p, kind, 0, 0, 0);
}

static double each_tensor(const Walk *b, WorkKind kind, uint32_t flags, int64_t cut) {
    const Config *c = &b->s->shape.config;
    int n = 2 + (c->norm == NORM_LAYER && c->bias ? 2 : 0) + (c->bias ? 4 : 0);
    return each_matrix(b, kind, flags, cut) + vectors(b, kind, (double)c->layers * n);
}

/* A device adds up at once what lies side by side: parallel/step/update.c. */
static double squares(const Walk *b, int64_t cut) {
    const Layout *l = &b->c->layout;
    if (!b->p->device) return each_tensor(b, WORK_SQUARES, 0, cut);
    bool gaps = l->zero == 1 && l->size[AXIS_D] > 1;
    return vectors(b, WORK_SQUARES, 1) +
           (gaps ? each_matrix(b, WORK_SQUARES, 0, cut)
                 : pass_beside(b->p, WORK_SQUARES, 0, all_weights(b->s, b->p) / cut, 0));
}

/* The end of a step: sums over d, and AdamW. */
static void update(const Walk *b) {
    const Layout *l = &b->c->layout;
    Bound *to = b->to;
    int64_t weights = all_weights(b->s, b->p);
    int64_t cut = (int64_t)l->size[AXIS_Z] * (l->zero ? l->size[AXIS_D] : 1);
    to->update = each_tensor(b, WORK_ADAMW, b->p->words, cut);
    to->squares = squares(b, cut);
    to->compute += to->update + to->squares;
    if (b->s->shape.apart) return;
    int64_t of_z = weights / l->size[AXIS_Z], block = floats(of_z);
    // all of a layer together, or matrix by matrix
    double calls = (double)b->s->shape.config.layers * (l->zero ? 4 : 1);
    if (l->zero < 2) { // gradients: scattered,
        send(b, ALONG_D, calls, 0, late(b)), send(b, ALONG_D, 1, block, late(b));
        to->sums.calls += calls, to->sums.bytes += (double)block;
        int64_t table = floats(b->p->table / l->size[AXIS_Z]);
        int turns = l->zero ? 1 : 2;
        expose(b, ALONG_D, turns, table); // the last one
        for (int i = 0; i < turns; i++) meanwhile(b, ALONG_D, table);
        last_sums(b);
    }
    if (l->zero == 3) return;
    if (l->zero) block = acts(b, of_z); // and gathered, or what matmuls read of new weights
    send(b, ALONG_D, calls, 0, late(b)), send(b, ALONG_D, 1, block, late(b));
    Line *t = l->zero ? &to->fresh : &to->sums;
    if (l->zero && late(b) > 0) return;
    t->calls += calls, t->bytes += (double)block;
}

static void add_times(Traffic *t, double times) {
    for (int i = 0; i < N_ALONG; i++) t->calls[i] *= times, t->bytes[i] *= times;
}

/* Of any schedule: matmuls are whole, which costs least, and nothing is exposed. */
void seed_bound(Bound *to, Pass *p, const Space *s, const Machine *m, const Choice *c, bool any,
                Closeness close) {
    const Layout *l = &c->layout;
    pass_of(p, s, m, c, any);
    pass_time(p);
    memset(to, 0, offsetof(Bound, front));
    to->front.n = to->back.n = 0;
    to->crowd = m->crowd > 1 ? m->crowd : 1;
    to->slowest = m->slowest;
    to->slowdown = m->measured ? 1 : m->slowdown;
    Walk b = {.m = m, .s = s, .c = c, .p = p, .to = to, .any = any};
    b.programs = close == BOUND_PROGRAMS && has_programs(c);
    double layers = (double)s->shape.config.layers, passes = p->of_step,
           steps = passes * (double)p->micro_steps;
    b.store = l->zero == 3 ? ALONG_ZD : ALONG_Z, b.grads = l->zero >= 2 ? ALONG_ZD : ALONG_Z;
    b.halves = c->overlap.halves;
    if (any && s->free_overlap) b.halves = p->X * p->Y > 1 && c->micro % 2 == 0;
    block(&b);
    add_times(&to->all, layers * steps), add_times(&to->exposed, layers * steps);
    // all but the backward of the last micro-batch
    to->early = layers * ((steps - passes) * to->compute + passes * b.forward);
    to->compute *= steps * layers;
    ends(&b, steps);
    if (b.programs) programs(&b);
    if (any || c->overlap.bulk) // where a pass turns the last weight is there
        send(&b, b.store, -steps, acts(&b, p->layer[LINEAR_DOWN].weights), late(&b));
    update(&b);
}

/* ---- memory */

/* Activations, and what backward works on: parallel/step/model.c, parallel/step/linear.c. */
static int64_t kept(const Pass *p, const Choice *c) {
    const Widths *w = &p->w;
    const Layout *l = &c->layout;
    int64_t L = p->s->shape.config.layers, stream = p->T_x * w->C;
    int64_t wide = p->rows * (w->qkv + w->att + w->up), products = wide + stream,
            cheap = 2 * stream + p->rows * w->F;
    bool all = c->recompute == RECOMPUTE_NONE, full = c->recompute == RECOMPUTE_FULL;
    bool sp = l->sp && p->X > 1, heads = l->heads && p->Y > 1;
    int64_t n = L * stream + (full ? 1 : L) * products + (all ? L : 1) * cheap + wide;
    n += 4 * stream; // of the last block and its norm, and their gradients
    if (full && (l->stay || p->X > 1)) n += (L - 1) * stream;
    n += head_chunk(p->T, w->V, p->device) * w->V;
    if (p->X * p->Y > 1) n += 3 * p->T * w->C_all;
    if (l->stay) return n;
    int64_t x = larger(sp ? w->K_C : 0, heads ? larger(w->K_att, w->K_F) : 0);
    int64_t y = larger(sp ? w->C : 0, heads ? w->blocks * larger(w->qkv, w->up) : 0);
    return n + p->rows * (2 * x + y);
}

/* Bytes of weights that are whole for a while, and of their gradients. */
static int64_t whole(const Pass *p, const Choice *c) {
    const Layout *l = &c->layout;
    int64_t Z = l->size[AXIS_Z], ZD = Z * l->size[AXIS_D], most = 0;
    int64_t store = l->zero == 3 ? ZD : Z, grads = l->zero >= 2 ? ZD : Z;
    for (int i = 0; i < 4; i++) most = larger(most, p->layer[i].weights);
    int64_t n = larger(p->table, most), second = !p->any && c->overlap.bulk ? most : 0;
    n += second;
    return (store > 1 ? p->word * n : 0) + (grads > 1 ? floats(n + n / grads) : 0);
}

int64_t seed_memory(Pass *p, const Space *s, const Machine *m, const Choice *c, bool any) {
    const Layout *l = &c->layout;
    pass_of(p, s, m, c, any);
    int64_t Z = l->size[AXIS_Z], ZD = Z * l->size[AXIS_D], weights = all_weights(s, p);
    int64_t read = weights / (l->zero == 3 ? ZD : Z), grads = weights / (l->zero >= 2 ? ZD : Z);
    int64_t moments = weights / (l->zero ? ZD : Z), params = p->words ? moments : read;
    int64_t states = floats(params + grads + 2 * moments);
    if (p->words) states += p->word * read;
    return states + p->of_step * (p->word * kept(p, c) + whole(p, c));
}
