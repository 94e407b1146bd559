/* parallel/step/halves and split: both halves of a micro-batch together, and the chunks or rings of
 * its matmuls, compute and send what the whole does. */
#include "parallel/plan/price.h"
#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

static void shape_of(ModelShape *s, Grid *g, const char *spec, const char *model, Recompute r) {
    *g = mesh_grid(spec, 0);
    *s = mesh_shape(model, g);
    s->S = 42, s->recompute = r;
}

/* Sums over all operations. Counters, traces and messages call collectives by their names. */
typedef struct Sums {
    int64_t bytes;
    double flops;
} Sums;

static Sums sums_of(const Program *p) {
    Sums s = {0};
    for (int i = 0; i < p->n_ops; i++) {
        const StepTensor *out = &p->tensor[p->op[i].out];
        s.bytes += op_bytes(p, &p->op[i]), s.flops += op_flops(p, &p->op[i]);
        if (op_info(p->op[i].kind)->collective && (!out->what || !*out->what))
            test_fail("%s has no name", out->dist.name);
    }
    return s;
}

/* Does operation i of the kernel that begins with operation `first` read what the kernel makes, or
 * what its first operation reads? */
static bool belongs(const Program *p, int first, int i) {
    bool reads = i == first;
    for (int k = first; k < i; k++)
        for (int j = 0; j < p->op[i].n_in; j++) {
            int t = p->op[i].in[j];
            reads |= t == p->op[k].out || t == p->op[k].out2 || t == p->op[first].in[0];
        }
    return reads;
}

static int whole_of(const Program *p, int t) {
    return p->tensor[t].parent < 0 ? t : whole_of(p, p->tensor[t].parent);
}

/* Every tensor is made once, before it is read: rows after their parent, a parent after all of its
 * rows. And each is read, but for the losses and gradients. The operations of a kernel belong
 * together. */
static void check_order(const char *spec, const Program *p) {
    OWNED(test_mem_end)
    bool *made_by = mem_calloc((size_t)p->n_tensors, sizeof *made_by); // an operation of its own
    OWNED(test_mem_end)
    int *left =
        mem_calloc((size_t)p->n_tensors, sizeof *left); // operations that make it, or rows of it
    for (int i = 0; i < p->n_ops; i++) {
        int out = p->op[i].out, parent = p->tensor[out].parent;
        left[out]++, made_by[out] = true;
        if (parent >= 0) left[parent]++;
        if (p->op[i].out2 >= 0) left[p->op[i].out2]++;
    }
    for (int i = 0, first = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        if (!op->fused) first = i;
        if (!belongs(p, first, i)) test_fail("%s: kernel of %d", spec, i);
        for (int k = 0; k < op->n_in; k++) {
            int t = op->in[k], parent = p->tensor[t].parent;
            bool made = parent < 0 || made_by[t];
            if (left[t] > 0 || (!made && left[parent] > 0))
                test_fail("%s: operand of operation %d", spec, i);
        }
        int parent = p->tensor[op->out].parent;
        if (--left[op->out] < 0) test_fail("%s: operation %d twice", spec, i);
        if (parent >= 0) left[parent]--;
        if (op->out2 >= 0) left[op->out2]--;
    }
    OWNED(test_mem_end) bool *read = mem_calloc((size_t)p->n_tensors, sizeof *read);
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < p->op[i].n_in; k++) read[whole_of(p, p->op[i].in[k])] = true;
    for (int i = 0; i < p->n_ops; i++) {
        int t = whole_of(p, p->op[i].out);
        if (!read[t] && t != p->result && p->tensor[t].storage == STORAGE_TEMPORARY)
            test_fail("%s: %s is not read", spec, p->tensor[t].dist.name);
    }
}

/* The order that the scheduler finds, without its waits: p is in this order then. */
static void check_schedule(const char *spec, Program *p, int window) {
    Machine m = machine_of("v100:2");
    OWNED(test_mem_end) OpCost *costs = program_costs(p, &m, false);
    int before = p->n_ops, n = 0;
    program_order(p, costs, window);
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].kind != OP_WAIT) p->op[n++] = p->op[i];
    if (n != before) test_fail("%s: %d of %d operations", spec, n, before);
    p->n_ops = n;
    check_order(spec, p);
}

/* Parts of an all_reduce that is not a multiple of its ranks differ by an element. */
static void check_same(const char *spec, const char *what, const Program *whole,
                       const Program *parts) {
    Sums a = sums_of(whole), b = sums_of(parts);
    if (fabs((double)(a.bytes - b.bytes)) > 16.0 * parts->n_ops ||
        fabs(b.flops / a.flops - 1) > 1e-9)
        test_fail("%s: %lld bytes, %g flops of the whole, %lld, %g of its %s", spec,
                  (long long)a.bytes, a.flops, (long long)b.bytes, b.flops, what);
}

static int number_of(const Program *p, OpKind kind) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) n += p->op[i].kind == kind;
    return n;
}

static void check_sums(const char *spec, int n) {
    Grid g;
    ModelShape s;
    shape_of(&s, &g, spec, "layers=3,heads=4,channels=64,vocab=96,seq=42", (Recompute)(n % 3));
    int X = g.mesh.size[AXIS_X];
    bool padded = g.layout.stay ? 2 % X : g.layout.sp && 84 % X; // tokens of a half, or sequences
    const Kernels *k = n / 3 % 2 ? kernels_cuda_sizes(true) : NULL;
    OWNED(program_free) Program whole = program_passes(&s, PASS_FUSE, k);
    s.overlap.chunks = 2 + n % 3;
    OWNED(program_free) Program chunks = program_passes(&s, PASS_SPLIT, k);
    s.overlap.chunks = 0, s.overlap.ring = true;
    OWNED(program_free) Program rings = program_passes(&s, PASS_SPLIT, k);
    s.overlap.ring = false, s.overlap.halves = true, s.B /= 2;
    OWNED(program_free) Program both = program_passes(&s, PASS_HALVES, k);
    check_order(spec, &whole);
    check_order(spec, &both);
    check_order(spec, &chunks);
    check_order(spec, &rings);
    check_schedule(spec, &both, WINDOW_HALVES);
    check_schedule(spec, &chunks, WINDOW_BULK);
    check_schedule(spec, &rings, WINDOW_BULK);
    if (!padded) check_same(spec, "halves", &whole, &both);
    check_same(spec, "chunks", &whole, &chunks);
    check_same(spec, "rings", &whole, &rings);
    bool moves = g.mesh.size[AXIS_X] * g.mesh.size[AXIS_Y] > 1 && !g.layout.stay;
    if ((chunks.n_ops > whole.n_ops) != moves) test_fail("%s: chunks", spec);
    bool gathers = X > 1 && g.layout.sp && !g.layout.stay;
    if ((rings.n_ops > whole.n_ops) != gathers) test_fail("%s: rings", spec);
    // a ring in place of a reduce_scatter adds the parts of all ranks
    int scatters = number_of(&whole, OP_REDUCE_SCATTER) - number_of(&rings, OP_REDUCE_SCATTER);
    if (number_of(&rings, OP_ADD) - number_of(&whole, OP_ADD) != (X - 1) * scatters)
        test_fail("%s: sums of rings", spec);
}

TEST(step_halves_chunks_and_rings_compute_and_send_what_the_whole_does) {
    for (EACH_LAYOUT(l, 1, 8)) check_sums(l.spec, l.number);
}

static Price price(const char *spec, const char *machine, const char *overlap) {
    Layout l = layout_of(spec);
    Machine m = machine_of(machine);
    PriceShape s = {.model.config =
                        config_of("layers=12,heads=16,channels=2048,vocab=8192,seq=1024"),
                    .model.S = 1024,
                    .batch = 8 * 1024,
                    .model.B = 8,
                    .model.bf16 = true,
                    .model.overlap = overlap_of(overlap),
                    .model.threads = m.threads,
                    .kernels = machine_kernels(&m, true)};
    Price p;
    price_step(&s, &l, &m, &p);
    return p;
}

/* All-reduces along x, of which bulk hides those of backward alone. */
TEST(step_halves_and_chunks_hide_what_bulk_cannot) {
    static const char *const specs[] = {"x8", "x8+sp", "x4.y2+heads"};
    for (EACH(spec, specs)) {
        Price none = price(*spec, "a100:1", "none"), bulk = price(*spec, "a100:1", "bulk"),
              halves = price(*spec, "a100:1", "halves"),
              chunks = price(*spec, "a100:1", "bulk+chunk=4");
        CHECK(bulk.exposed < none.exposed && halves.exposed < 0.5 * bulk.exposed);
        CHECK(halves.seconds < bulk.seconds);
        CHECK(chunks.exposed < bulk.exposed);
        if (!strstr(*spec, "sp")) continue;
        Price ring = price(*spec, "a100:1", "bulk+ring");
        CHECK(ring.exposed < 0.5 * bulk.exposed);
    }
}
