/* parallel/step/allocate.c: on every layout, no two values that are still to be read share memory;
 * a result lies over an operand exactly or not at all; and the arena is hardly larger than what
 * lives at once. */
#include "base/arena.h"
#include "parallel/step/passes.h"
#include "parallel/step/schedule.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

/* Does a collective, which reads until its wait, sum into the memory of its operand? */
static bool sums_in_place(const Program *p, const Op *wait) {
    return p->tensor[wait->in[0]].offset == p->tensor[wait->in[1]].offset;
}

/* When a tensor is made and last read, by kernels and by collectives under way. */
typedef struct Lives {
    const Program *p;
    int *made, *read;
} Lives;

static Lives lives_of(const Program *p) {
    size_t n = (size_t)p->n_tensors;
    Lives l = {p, mem_alloc(2 * n * sizeof(int)), NULL};
    l.read = l.made + n;
    for (size_t t = 0; t < 2 * n; t++) l.made[t] = -1;
    for (int i = 0, kernel = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        if (!op->fused) kernel = i;
        bool wait = op->kind == OP_WAIT, again = wait && sums_in_place(p, op);
        if (!wait) l.made[op->out] = kernel;
        if (op->out2 >= 0) l.made[op->out2] = kernel;
        for (int k = 0; k < (again ? 1 : op->n_in); k++)
            if (l.read[op->in[k]] < kernel) l.read[op->in[k]] = kernel;
    }
    l.read[p->result] = p->n_ops;
    for (int t = 0; t < p->n_tensors; t++) { // a parent lives while rows of it do
        int w = p->tensor[t].parent;
        if (w < 0) continue;
        if (l.made[w] < 0 || (l.made[t] >= 0 && l.made[t] < l.made[w])) l.made[w] = l.made[t];
        if (l.read[t] > l.read[w]) l.read[w] = l.read[t];
    }
    return l;
}

static bool has_memory(const Program *p, int t) {
    const StepTensor *x = &p->tensor[t];
    return x->offset >= 0 && x->storage == STORAGE_TEMPORARY && x->parent < 0;
}

/* May a and b lie where they lie? */
static bool apart(const Lives *l, int a, int b) {
    const StepTensor *x = &l->p->tensor[a], *y = &l->p->tensor[b];
    int64_t x_end = x->offset + step_tensor_bytes(l->p, x),
            y_end = y->offset + step_tensor_bytes(l->p, y);
    if (x_end <= y->offset || y_end <= x->offset) return true;
    if (l->made[b] > l->made[a]) return apart(l, b, a);
    // a is made after b, or in the kernel that makes b
    if (l->made[a] > l->read[b] && l->made[a] > l->made[b]) return true;
    bool exactly = x->offset == y->offset && x_end == y_end;
    bool over_b = l->made[a] >= l->read[b],
         over_a = l->made[a] == l->made[b] && l->made[a] >= l->read[a];
    return exactly && (over_b || over_a);
}

/* Bytes of values that are there while one kernel runs, at most; values in one place counted
 * once. */
static int64_t most_at_once(const Lives *l) {
    const Program *p = l->p;
    int64_t most = 0;
    for (int i = 0; i < p->n_ops; i++) {
        int64_t sum = 0;
        for (int t = 0; t < p->n_tensors; t++) {
            if (!has_memory(p, t)) continue;
            bool there = l->made[t] <= i && (l->read[t] >= i || l->made[t] == i), again = false;
            for (int u = 0; there && !again && u < t; u++)
                again = has_memory(p, u) && p->tensor[u].offset == p->tensor[t].offset &&
                        l->made[u] <= i && (l->read[u] >= i || l->made[u] == i);
            if (!there || again) continue;
            sum +=
                (step_tensor_bytes(p, &p->tensor[t]) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
        }
        if (sum > most) most = sum;
    }
    return most;
}

typedef struct Worst {
    int n;
    double ratio;
    char spec[96];
} Worst;

static void check_apart(const Lives *l, const char *spec) {
    const Program *p = l->p;
    for (int a = 0; a < p->n_tensors; a++)
        for (int b = 0; b < a; b++) {
            if (!has_memory(p, a) || !has_memory(p, b) || apart(l, a, b)) continue;
            test_fail("%s: %s of layer %d lies over %s of layer %d", spec, p->tensor[a].dist.name,
                      p->tensor[a].layer, p->tensor[b].dist.name, p->tensor[b].layer);
        }
}

/* The parameter in whose stored gradient a tensor lies; -1: in none. */
static int stored_with(const Program *p, const StepTensor *t) {
    return t->gradient < 0 ? -1 : p->tensor[t->gradient].parameter;
}

/* What an operation adds to lies where it adds. */
static bool adds_in_place(const Program *p, const Op *op) {
    if (!op->adds) return true;
    const StepTensor *to = &p->tensor[op->in[op->n_in - 1]], *sum = &p->tensor[op->out];
    return to->offset == sum->offset && stored_with(p, to) == stored_with(p, sum);
}

static void check_program(Program *p, const char *spec, Worst *w) {
    size_t peak = program_allocate(p);
    Lives l = lives_of(p);
    check_apart(&l, spec);
    for (int i = 0; i < p->n_ops; i++) CHECK(adds_in_place(p, &p->op[i]));
    int64_t live = most_at_once(&l);
    CHECK((int64_t)peak >= live);
    if ((double)peak / (double)live > w->ratio)
        w->ratio = (double)peak / (double)live,
        snprintf(w->spec, sizeof w->spec, "%s %d", spec, w->n);
    mem_free(l.made);
    w->n++;
}

static void on_layout(const char *spec, int n, Worst *w) {
    Grid g = mesh_grid(spec, 0);
    g.layout.exact = n / 9 % 2;
    ModelShape s = mesh_shape(mesh_models[n % 3], &g);
    s.recompute = (Recompute)(n / 3 % 3);
    s.overlap.bulk = true;
    OWNED(program_free) Program p = program_passes(&s, PASS_PANELS, NULL);
    program_chunk_head(&p, n % 2 ? 3 : 1000);
    if (g.layout.exact) program_exact(&p);
    program_fuse(&p, false);
    if (n % 4 == 0 && !g.layout.exact) program_fuse_collectives(&p, false);
    if (n % 4 == 1) program_split(&p, 2 + n % 3, false);
    if (n % 4 == 2) program_split(&p, 1, true);
    if (n % 4 > 1) program_halves(&p);
    if (n / 3 % 2) program_order_nominal(&p);
    check_program(&p, spec, w);
}

TEST(step_allocate_keeps_live_values_apart) {
    Worst w = {0};
    for (EACH_LAYOUT(l, 1, 8))
        if (mesh_sampled_thinly(l.number)) on_layout(l.spec, l.number, &w);
    if (w.ratio > 1.16) test_fail("%s: arena %.3f of values at once", w.spec, w.ratio);
    printf("%d programs; arena / values at once: at most %.3f\n", w.n, w.ratio);
}

/* ---- all_reduce in place, beside other kernels */

static Program reduced(ModelShape *s, const Grid *g) {
    *s = mesh_shape(mesh_models[0], g);
    s->overlap.bulk = true;
    return program_passes(s, PASS_SCHEDULE, NULL);
}

/* The operation that operation i waits for; -1: it waits for no all_reduce of a temporary. */
static int reduces(const Program *p, int i) {
    const Op *op = &p->op[i];
    if (op->kind != OP_WAIT || p->tensor[op->in[1]].storage != STORAGE_TEMPORARY) return -1;
    while (--i >= 0)
        if (p->op[i].kind == OP_ALL_REDUCE && p->op[i].out == op->out) return i;
    return -1;
}

TEST(step_allocate_sums_in_place_what_is_reduced) {
    Grid g = mesh_grid("x2.y2", 0);
    ModelShape s;
    OWNED(program_free) Program p = reduced(&s, &g);
    int n = 0;
    program_allocate(&p);
    for (int i = 0; i < p.n_ops; i++)
        if (reduces(&p, i) >= 0 && has_memory(&p, p.op[i].out) && ++n)
            CHECK(sums_in_place(&p, &p.op[i]));
    CHECK(n > 8);
}

/* A kernel between the all_reduce and its wait, or behind the wait, reads the partial sums. */
TEST(step_allocate_keeps_partial_sums_that_another_kernel_reads) {
    Grid g = mesh_grid("x2.y2", 0);
    int n[2] = {0};
    for (int i = 0, more = 1; more; i++)
        for (int later = 0; later < 2; later++) {
            ModelShape s;
            OWNED(program_free) Program p = reduced(&s, &g);
            int reader = later ? i + 1 : i - 1;
            more = i + 1 < p.n_ops;
            if (more && reduces(&p, i) >= 0 && reader > reduces(&p, i) &&
                p.op[reader].kind != OP_WAIT && !op_info(p.op[reader].kind)->collective) {
                p.op[reader].in[0] = p.op[i].in[1];
                program_allocate(&p);
                Lives l = lives_of(&p);
                check_apart(&l, later ? "behind" : "between");
                mem_free(l.made);
                n[later]++;
            }
        }
    CHECK(n[0] > 0 && n[1] > 0);
}

TEST(step_allocate_of_an_empty_list_takes_nothing) {
    ModelShape s = {.B = 1};
    OWNED(program_free) Program p = program_make(&s);
    CHECK(program_allocate(&p) == 0);
    s.unplaced = true;
    CHECK(program_allocate(&p) == 0);
}

/* ---- prompts ---- */

static Program prompt_of(ModelShape *s, int64_t n) {
    s->S = n;
    return program_passes(s, PASS_FUSE, NULL);
}

/* All lies in the arena, rows in their parent. */
static void check_inside(const Program *p, size_t peak, const char *spec) {
    for (int t = 0; t < p->n_tensors; t++) {
        const StepTensor *x = &p->tensor[t];
        const StepTensor *in = x->parent < 0 ? x : &p->tensor[x->parent];
        int64_t end = x->offset + step_tensor_bytes(p, x);
        if (x->offset < 0 || x->stride) continue; // columns, whose last row ends with the parent's
        if (end > (int64_t)peak || x->offset < in->offset ||
            end > in->offset + step_tensor_bytes(p, in))
            test_fail("%s: %s lies outside", spec, x->dist.name);
    }
}

static void prompts_on(const char *spec, int n) {
    Grid g = mesh_grid(spec, 0);
    g.layout.exact = n / 3 % 4 == 0;
    ModelShape s = mesh_shape(mesh_models[n % 3], &g);
    s.B = 1, s.training = false, s.output = OUTPUT_NEXT;
    for (int64_t S = 2 + n % 3; S <= 16; S += 5) {
        OWNED(program_free) Program p = prompt_of(&s, S);
        size_t peak = program_allocate(&p);
        Lives l = lives_of(&p);
        check_apart(&l, spec);
        check_inside(&p, peak, spec);
        mem_free(l.made);
    }
}

TEST(step_allocate_has_room_for_prompts_of_any_length) {
    for (EACH_LAYOUT(l, 1, 8)) prompts_on(l.spec, l.number);
}
