/* A lower bound of all prices of a candidate.
 *
 *     list of two layers, matmuls whole       ListTotals  seconds of kernels, bytes along axes
 *     outside + L x layer, x micro-batches    Bound       of a step of L layers, with its end
 *     seconds per call and byte on each axis  bound_in    seconds, for an order of the axes
 *
 * Kernels and collectives count at a cost that no order of the axes, no chunks and no panels
 * undercut. When the schedule is known, the kernels of its own chunks or panels take the place of
 * the whole ones. The end of the step follows from the sizes of the weights. Tests compare the
 * bound with prices over every layout.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/plan/cost.h"
#include "parallel/plan/search_parts.h"
#include "parallel/step/passes.h"

/* ---- the list of a micro-batch ---- */

typedef struct Reader {
    const Program *p;
    const Machine *m;
    ListTotals *to;
    Part part[3]; // [0], [1]: of layers 0 and 1; [2]: outside of layers
    bool panels;  // stay=y: the matmuls of layers are going to be split into panels
} Reader;

static Part *part_of(Reader *r, int layer) {
    return &r->part[layer < 0 ? 2 : layer];
}

/* Adds the seconds of the kernel of operation i, or less: a whole matmul takes no longer than its
 * chunks; a matmul that is going to be split into panels counts 0; and the first micro-batch has no
 * OP_ACCUMULATE, and no addend of a wgrad. (OP_COPY is in split lists alone: of a ring's own block;
 * of a panel, on its root.) */
static void read_kernel(Reader *r, int i) {
    const Op *op = &r->p->op[i];
    PartTotals *total = &part_of(r, op->layer)->total;
    Work w;
    if (op->kind == OP_ACCUMULATE) return;
    if (!op_work(r->p, i, false, &w)) return;
    if (w.kind <= WORK_WGRAD && r->panels && op->layer >= 0) return;
    if (w.kind == WORK_WGRAD) w.flags &= ~(uint32_t)WORK_ADDEND;
    double seconds = (double)op_calls(r->p, i) * machine_work(r->m, &w);
    if (op->root >= 0) seconds /= mesh_blocks(r->p->mesh, op->axes);
    total->kernels += seconds;
    if (op->phase == PHASE_FORWARD) total->forward += seconds;
}

/* Bytes of a collective's whole tensor, without the padding of flat parts. */
static double whole_bytes(const Program *p, const Op *op) {
    const StepTensor *t = &p->tensor[op->kind == OP_ALL_GATHER ? op->out : op->in[0]];
    double n = (double)coll_type_bytes(t->dtype);
    for (int i = 0; i < t->dist.n_dims; i++) n *= (double)step_tensor_local(p, t, i);
    return n;
}

/* A lower bound of the number of ranks whose blocks hold data, from which panels are sent. A
 * dimension is padded to equal blocks, with --exact to blocks of whole panels and heads: by less
 * than ranks x unit elements. */
static double full_blocks(const Program *p, const Op *op) {
    int64_t n = p->tensor[op->in[0]].size[op->dim];
    double size = (double)n, ranks = p->mesh->size[op->axes.axis[0]], unit = 1;
    if (p->layout->exact)
        unit = max_f64((double)exact_panel(n), (double)config_head_size(&p->shape->config));
    return max_f64(0, size - ranks * unit + 1) / size * ranks;
}

static void add_traffic(Traffic *l, double calls, double bytes) {
    l->calls += calls, l->bytes += bytes;
}

/* Adds a collective along one axis to the traffic of that axis. */
static void read_collective(Reader *r, const Op *op) {
    PartTotals *total = &part_of(r, op->layer)->total;
    double bytes = whole_bytes(r->p, op), turns = op->kind == OP_ALL_REDUCE ? 2 : 1;
    if (op->axes.n != 1) return;
    int axis = op->axes.axis[0];
    if (axis == AXIS_Z) {
        add_traffic(op->kind == OP_ALL_GATHER ? &total->gathered : &total->scattered, 1, bytes);
        return;
    }
    int along = axis == AXIS_X ? ALONG_X : ALONG_Y;
    LinearKind kind;
    LinearTensor which;
    if (r->panels && op->layer >= 0 && linear_find(r->p->tensor[op->out].what, &kind, &which)) {
        along = axis == AXIS_X ? STREAM_X : STREAM_Y;
        double ranks = r->p->mesh->size[axis], blocks = full_blocks(r->p, op);
        add_traffic(&total->sent[along], ceil(blocks), blocks / ranks * bytes);
        return;
    }
    add_traffic(&total->sent[along], turns, turns * bytes);
    if (op->phase == PHASE_FORWARD) add_traffic(&total->sent_forward[along], turns, turns * bytes);
}

/* Adds the bytes of an operation's results that backward reads. */
static void read_kept(Reader *r, const Op *op, const bool *kept) {
    const int made[] = {op->out, op->out2};
    for (int k = 0; k < 2; k++)
        if (made[k] >= 0 && kept[made[k]])
            part_of(r, op->layer)->total.kept +=
                (double)step_tensor_bytes(r->p, &r->p->tensor[made[k]]);
}

/* [p->n_tensors], fresh (mem_free): does an operation behind the forward pass read the tensor? */
static bool *kept_of(const Program *p) {
    bool *kept = mem_calloc((size_t)p->n_tensors, sizeof *kept);
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < p->op[i].n_in && p->op[i].phase != PHASE_FORWARD; k++)
            kept[p->op[i].in[k]] = true;
    return kept;
}

static void read_weights(Reader *r) {
    for (int t = 0; t < r->p->n_tensors; t++) {
        if (r->p->tensor[t].storage != STORAGE_WEIGHT) continue;
        StepTensor x = r->p->tensor[t];
        Part *part = part_of(r, x.layer);
        part->tensors++;
        if (x.n_block == NO_FLAT_PARTS) continue; // a vector
        x.dist.shard[0].n = (uint8_t)x.n_block;
        part->weights += step_tensor_local(r->p, &x, 0) * step_tensor_local(r->p, &x, 1);
    }
}

/* From the totals of layer 0, layer 1 and the rest of a list of two layers: ListTotals.outside and
 * .layer. */
static void split_parts(Reader *r) {
    double *outside = (double *)&r->part[2].total;
    const double *first = (double *)&r->part[0].total, *more = (double *)&r->part[1].total;
    for (size_t i = 0; i < sizeof(PartTotals) / sizeof *outside; i++)
        outside[i] += first[i] - more[i];
    r->to->outside = r->part[2], r->to->layer = r->part[1];
}

/* p: resized to the sequences of to->key. kept: kept_of(p). */
static void read_list(ListTotals *to, const Program *p, const bool *kept, const Machine *m) {
    bool panels = p->layout->stay && p->mesh->size[AXIS_X] * p->mesh->size[AXIS_Y] > 1;
    Reader r = {.p = p, .m = m, .to = to, .panels = panels};
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        if (op_info(op->kind)->collective)
            read_collective(&r, op);
        else
            read_kernel(&r, i);
        if (op->phase == PHASE_FORWARD) read_kept(&r, op, kept);
    }
    read_weights(&r);
    split_parts(&r);
}

/* ---- the table of lists that were read ---- */

/* split: of the list with the chunks or panels of c's schedule. */
static ListKey key_of(const Choice *c, bool split) {
    const Overlap *o = &c->overlap;
    return (ListKey){.micro = (int32_t)c->micro,
                     .X = c->layout.size[AXIS_X],
                     .Y = c->layout.size[AXIS_Y],
                     .flags = (uint8_t)(c->layout.sp + 2 * c->layout.heads + 4 * c->layout.stay),
                     .recompute = (uint8_t)c->recompute,
                     .schedule =
                         (uint16_t)(split ? 1 + 2 * o->ring + 4 * o->halves + 8 * o->chunks : 0)};
}

/* The entry of a key, or, where the table has none, the free entry for it. */
static ListTotals *slot_of(ListTable *all, const ListKey *key) {
    uint64_t half[2];
    static_assert(sizeof half == sizeof *key, "no gaps");
    memcpy(half, key, sizeof half);
    uint64_t h = half[0] * 31 + half[1];
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u >> 32;
    for (;; h++) {
        ListTotals *at = &all->at[h % (uint64_t)all->room];
        if (at->key.micro == 0 || memcmp(&at->key, key, sizeof *key) == 0) return at;
    }
}

/* Makes room for one more entry: the table stays at most half full. */
static void grow_table(ListTable *all) {
    ListTable old = *all;
    if (2 * all->n < all->room) return;
    all->room = all->room ? 4 * all->room : 256;
    all->at = mem_calloc((size_t)all->room, sizeof *all->at);
    for (int i = 0; i < old.room; i++)
        if (old.at[i].key.micro) *slot_of(all, &old.at[i].key) = old.at[i];
    mem_free(old.at);
}

/* A new entry for a key; NULL: the table has one already. */
static ListTotals *add_list(ListTable *all, const ListKey *key) {
    grow_table(all);
    ListTotals *at = slot_of(all, key);
    if (at->key.micro) return NULL;
    all->n++;
    at->key = *key;
    return at;
}

/* The shape of a list of two layers for a candidate's x and y. z is 2 and d is 1: gathers and
 * scatters along z stand for those of every size of z, and, by the stage of ZeRO, of z and d. The
 * shape points to g. */
static ModelShape shape_of(Grid *g, const Space *s, const Choice *c) {
    int size[N_AXES] = {1, 2, c->layout.size[AXIS_X], c->layout.size[AXIS_Y]};
    *g = (Grid){.layout = layout_of_sizes(size)};
    g->layout.sp = c->layout.sp, g->layout.heads = c->layout.heads, g->layout.stay = c->layout.stay;
    g->layout.exact = c->layout.exact;
    g->mesh = mesh_make(&g->layout.factors, 0);
    ModelShape shape = candidate_shape(s, c).model;
    shape.overlap = (Overlap){0}, shape.training = true, shape.grid = g;
    shape.config.layers = 2;
    return shape;
}

/* Reads the list of a choice at the size of its micro-batch and, where the search chooses the size,
 * at all larger ones: the operations are the same, so the list is built once. */
static void read_lists(ListTable *all, const Choice *c) {
    const Space *s = all->s;
    Grid g;
    ModelShape shape = shape_of(&g, s, c);
    const Kernels *k = s->shape.kernels;
    Program p = program_passes(&shape, PASS_RECOMPUTE, k);
    program_fuse(&p, k && k->bias_with_dw); // without chunks, panels, halves before and after it
    bool *kept = kept_of(&p);
    int64_t data_parallel = (int64_t)c->layout.size[AXIS_D] * c->layout.size[AXIS_Z];
    int64_t share = div_up(s->shape.batch / s->shape.model.S, data_parallel);
    for (int64_t n = c->micro; n == c->micro || (s->free_micro && n < 2 * share); n *= 2) {
        ListKey key = key_of(c, false);
        if (n > c->micro) key.micro = (int32_t)min_i64(n, share);
        shape.B = key.micro;
        program_resize(&p);
        ListTotals *to = add_list(all, &key);
        if (to) read_list(to, &p, kept, all->m);
        if (n > INT32_MAX / 2) break;
    }
    mem_free(kept);
    program_free(&p);
}

/* The figures of a choice's list with whole matmuls. Valid until the next call, which may move the
 * table. */
static const ListTotals *totals_of(ListTable *all, const Choice *c) {
    ListKey key = key_of(c, false);
    if (all->room == 0 || !slot_of(all, &key)->key.micro) read_lists(all, c);
    return slot_of(all, &key);
}

/* The kernels of a choice's list with the chunks, panels or halves of its own schedule. */
static const ListTotals *split_list_of(ListTable *all, const Choice *c) {
    const Overlap *o = &c->overlap;
    ListKey key = key_of(c, true);
    ListTotals *to = add_list(all, &key);
    if (!to) return slot_of(all, &key);
    Grid g;
    ModelShape shape = shape_of(&g, all->s, c);
    shape.overlap = (Overlap){.chunks = o->chunks, .ring = o->ring, .halves = o->halves};
    if (o->halves) shape.B /= 2;
    Program p = program_passes(&shape, PASS_HALVES, all->s->shape.kernels);
    Reader r = {.p = &p, .m = all->m, .to = to};
    for (int i = 0; i < p.n_ops; i++)
        if (!op_info(p.op[i].kind)->collective) read_kernel(&r, i);
    split_parts(&r);
    program_free(&p);
    return to;
}

/* ---- the bound ---- */

typedef struct Builder {
    const Space *s;
    const Machine *m;
    const Choice *c;
    const ListTotals *list;
    Bound *bound;
    int64_t layers;
    double lists, passes; // lists that run in a step; in a micro-batch: 2 with halves, or 1
    bool serial;          // every collective is waited for where it starts
    double exposed_share; // of the bytes of forward's collectives: forward_exposed
} Builder;

/* Adds collectives `times` times, with this share of their bytes. */
static void add_share(Traffic to[N_ALONG], const Traffic from[N_ALONG], double times,
                      double share) {
    for (int i = 0; i < N_ALONG; i++)
        add_traffic(&to[i], times * from[i].calls, times * share * from[i].bytes);
}

static void add_along(const Builder *b, int along, double times, Traffic l) {
    add_traffic(&b->bound->all[along], times * l.calls, times * l.bytes);
    if (b->serial) add_traffic(&b->bound->exposed[along], times * l.calls, times * l.bytes);
}

/* Adds a part of the list that runs `times` times in a step; `forwards` times of these the
 * collectives of its forward pass are exposed. */
static void add_part(const Builder *b, const PartTotals *part, double times, double forwards) {
    const Layout *l = &b->c->layout;
    Bound *to = b->bound;
    to->compute += times * part->kernels;
    add_share(to->all, part->sent, times, 1);
    if (b->serial)
        add_share(to->exposed, part->sent, times, 1);
    else if (b->exposed_share > 0)
        add_share(to->exposed, part->sent_forward, forwards, b->exposed_share);
    times /= b->passes; // both halves share a gather of weights, and a scatter of gradients
    add_along(b, l->zero == 3 ? ALONG_ZD : ALONG_Z, times, part->gathered);
    add_along(b, l->zero >= 2 ? ALONG_ZD : ALONG_Z, times, part->scattered);
}

static int64_t all_weights(const ListTotals *list, int64_t layers) {
    return list->outside.weights + layers * list->layer.weights;
}

/* Seconds of `calls` kernels over n elements together: each is a line in its elements. */
static double calls_seconds(const Builder *b, WorkKind kind, uint32_t flags, double calls,
                            int64_t n) {
    Work w = {.kind = kind, .flags = flags, .rows = n}, twice = w;
    twice.rows *= 2;
    double once = machine_work(b->m, &w), elements = machine_work(b->m, &twice) - once;
    return elements + calls * (once - elements);
}

static int64_t elem_bytes_of(const Space *s) {
    return s->shape.kernels ? (int64_t)s->shape.kernels->elem_bytes : (int64_t)sizeof(float);
}

/* Adds the end of a step: the gradients' sums along d, their norm, AdamW, and the gathers of new
 * weights along d. Vectors are short, and only their calls are counted. A device adds up squares of
 * gradients that lie side by side in one call (parallel/step/run_end.c). */
static void add_end(const Builder *b) {
    const Layout *l = &b->c->layout;
    Bound *to = b->bound;
    int64_t weights = all_weights(b->list, b->layers), of_z = weights / l->size[AXIS_Z];
    int64_t own = l->zero ? of_z / l->size[AXIS_D] : of_z;
    double tensors = (double)b->list->outside.tensors + (double)b->layers * b->list->layer.tensors;
    bool device = kernels_on_device(b->s->shape.kernels);
    uint32_t stored = elem_bytes_of(b->s) == 2 ? WORK_BF16_STORED : 0;
    to->update = calls_seconds(b, WORK_ADAMW, stored, tensors, own);
    to->squares = calls_seconds(b, WORK_SQUARES, 0, device ? 1 : tensors, own);
    to->compute += to->update + to->squares;
    if (b->s->shape.local_steps) return;
    // with ZeRO each of a layer's matrices is sent alone, without it all of a layer together
    double calls = (double)b->layers * (l->zero ? 4 : 1);
    Traffic floats = {calls, sizeof(float) * (double)of_z};
    if (l->zero < 2) { // the gradients' scatter: the first half of an all_reduce without ZeRO
        add_along(b, ALONG_D, 1, floats);
        to->sums = floats;
    }
    if (l->zero == 3) return;
    // the second half: a gather of gradients; with ZeRO of new weights as matmuls read them
    Traffic gathers = {calls, l->zero ? (double)(elem_bytes_of(b->s) * of_z) : floats.bytes};
    add_along(b, ALONG_D, 1, gathers);
    if (l->zero == 0)
        add_traffic(&to->sums, gathers.calls, gathers.bytes);
    else if (!b->serial)
        to->new_weights = gathers;
}

/* The share of the bytes of forward's collectives under which no kernel can run, as each matmul
 * needs the result of the one before. Whole matmuls: all bytes. Chunks: those of the first chunk to
 * arrive, or of the last to leave. Halves, panels, a ring and fused matmuls: none, as a kernel may
 * run under each of them. */
static double forward_exposed(const Space *s, const Choice *c, bool any) {
    const Overlap *o = &c->overlap;
    int X = c->layout.size[AXIS_X];
    if (c->layout.stay) return 0;
    if (any && s->free_overlap) return X * c->layout.size[AXIS_Y] > 1 ? 0 : 1;
    if (o->ring || o->fused || o->halves) return 0;
    int64_t rows = c->micro * s->shape.model.S / X;
    return o->chunks ? (double)(rows / o->chunks) / (double)(rows + 1) : 1;
}

/* Takes the kernel seconds from the split list, which holds all passes of a micro-batch. */
static void set_kernels(PartTotals *to, const PartTotals *split, int passes) {
    to->kernels = split->kernels / passes, to->forward = split->forward / passes;
}

void candidate_bound(Bound *to, ListTable *all, const Choice *c, bool any) {
    const Space *s = all->s;
    const Machine *m = all->m;
    *to = (Bound){.oversubscription = max_f64(m->oversubscription, 1),
                  .slowest = m->slowest,
                  .slowdown = m->measured ? 1 : m->slowdown};
    PriceShape shape = s->shape;
    shape.model.B = c->micro;
    Choice pass = *c;
    int passes = !any && c->overlap.halves && !c->layout.stay ? 2 : 1;
    pass.micro /= passes;
    const ListTotals *list = totals_of(all, &pass);
    PartTotals outside = list->outside.total, layer = list->layer.total;
    if (!any && (c->layout.stay || c->overlap.chunks || c->overlap.ring)) {
        const ListTotals *split = split_list_of(all, c);
        list = totals_of(all, &pass); // split_list_of may have moved the table
        set_kernels(&outside, &split->outside.total, passes);
        set_kernels(&layer, &split->layer.total, passes);
    }
    Builder b = {.s = s,
                 .m = m,
                 .c = c,
                 .list = list,
                 .bound = to,
                 .layers = s->shape.model.config.layers,
                 .lists = (double)(passes * price_micro_batches(&shape, &c->layout)),
                 .passes = passes};
    b.serial = !any && overlap_equal(&c->overlap, &(Overlap){0});
    b.exposed_share = forward_exposed(s, c, any);
    // With recompute two layers are not counted as exposed. The last layer's and the head's
    // collectives may run under the last layer's second forward pass. The first layer may send less
    // than the second, and the difference is in `outside`.
    bool again = c->recompute != RECOMPUTE_NONE;
    double forwards = again ? max_f64(0, (double)b.layers - 2) : (double)b.layers;
    add_part(&b, &outside, b.lists, again ? 0 : b.lists);
    add_part(&b, &layer, b.lists * (double)b.layers, b.lists * forwards);
    // all kernels but the backward of the last micro-batch
    double once = outside.kernels + (double)b.layers * layer.kernels;
    to->before_sums =
        (b.lists - passes) * once + outside.forward + (double)b.layers * layer.forward;
    add_end(&b);
}

/* ---- seconds in an order of the axes ---- */

static double seconds_on(CostLine l, const Traffic *t) {
    return t->calls * l.start + t->bytes * l.rate;
}

/* Seconds of exposed collectives. Those along x and y follow each other, each with its latency;
 * those along z and d may be in flight together, so only the time of the links counts. */
static double traffic_in(const Traffic t[N_ALONG], const AlongCost along[N_ALONG]) {
    double s = 0;
    for (int i = 0; i < N_ALONG; i++) {
        bool alone = i != ALONG_Z && i != ALONG_D && i != ALONG_ZD;
        s += seconds_on(alone ? along[i].whole : along[i].wire, &t[i]);
    }
    return s;
}

/* Seconds for which the links of the busiest level are busy, with the bytes of all replicas. */
static double busiest_of(const Traffic t[N_ALONG], const AlongCost along[N_ALONG]) {
    double links[N_ALONG] = {0}, most = 0; // [level]
    for (int i = 0; i < N_ALONG; i++) {
        double *link = &links[along[i].level];
        *link += seconds_on(along[i].load, &t[i]);
        most = max_f64(most, *link);
    }
    return most;
}

/* A step takes at least each of these:
 *
 *   the kernels, the exposed collectives, and the gathers of new weights beyond AdamW's time
 *   the same, and what kernels lose while collectives are in flight: (1 - 1/slowdown) of that time
 *   the busiest links
 *   the kernels before the sums of gradients, these sums, then norm, AdamW, and the gathers beyond
 *   AdamW's time
 *
 * Ranks that share cores: price_oversubscribed (price.c). */
double bound_in(const Bound *b, const Orders *o, int order) {
    const AlongCost *along = o->along[order];
    double k = b->oversubscription, hidden = 1 - 1 / b->slowdown;
    CostLine d = along[ALONG_D].wire;
    double sums = seconds_on(d, &b->sums), exposed = traffic_in(b->exposed, along);
    double busiest = busiest_of(b->all, along);
    double gathers = seconds_on(d, &b->new_weights), beyond = max_f64(0, gathers - b->update);
    double waits = b->compute + exposed + beyond;
    double step = b->before_sums + sums + b->squares + b->update + beyond;
    step = max_f64(max_f64(step, busiest), waits);
    step = max_f64(step, waits + hidden * (busiest - exposed - gathers));
    if (k == 1) return step + (b->slowest - 1) * b->compute;
    // S is C seconds of kernels and E = S - C exposed. With cores shared by k ranks a step takes
    // 4k/(5k - 1) S at least, which is its time for C = 2k/(5k - 1) S.
    step *= 4 * k / (5 * k - 1);
    return max_f64(step, b->slowest * price_oversubscribed(b->compute, exposed, k) + exposed);
}

double bound_least(const Bound *b, const Orders *o) {
    double least = INFINITY;
    for (int k = 0; k < o->n; k++) least = fmin(least, bound_in(b, o, k));
    return least;
}

/* ---- memory ---- */

/* Bytes of weights, gradients and moments on a rank; `weights`: elements for d = z = 1. */
static int64_t states_of(const Space *s, const Layout *l, int64_t weights) {
    int64_t elem_bytes = elem_bytes_of(s), Z = l->size[AXIS_Z], ZD = Z * l->size[AXIS_D];
    int64_t read = weights / (l->zero == 3 ? ZD : Z), grads = weights / (l->zero >= 2 ? ZD : Z);
    int64_t moments = weights / (l->zero ? ZD : Z), params = elem_bytes == 2 ? moments : read;
    int64_t states = (int64_t)sizeof(float) * (params + grads + 2 * moments);
    return elem_bytes == 2 ? states + elem_bytes * read : states;
}

/* When the second half of a micro-batch begins its backward, the first half may be this many layers
 * into its own, and has freed their activations. */
enum { HALVES_APART = 3 };

int64_t candidate_memory(ListTable *all, const Choice *c, bool any) {
    const Space *s = all->s;
    const ListTotals *list = totals_of(all, c);
    int64_t layers = s->shape.model.config.layers;
    bool halves = any && s->free_overlap ? c->micro % 2 == 0 : c->overlap.halves;
    int64_t kept = halves ? layers - HALVES_APART : layers;
    return states_of(s, &c->layout, all_weights(list, layers)) +
           (kept > 0 ? kept * (int64_t)list->layer.total.kept : 0);
}

int64_t candidate_layer_memory(ListTable *all, const Choice *c) {
    const ListTotals *list = totals_of(all, c);
    int64_t layers = all->s->shape.model.config.layers,
            kept = c->overlap.halves ? layers - 2 * HALVES_APART : layers;
    return states_of(all->s, &c->layout, list->layer.weights) +
           (kept > 0 ? (int64_t)list->layer.total.kept * kept / layers : 0);
}
