/* The theory on simulated ranks: the worked example of parallel/README.md. That every layout's
 * matmuls are those of one rank: test_mesh_model.c. */
#include "tests/page.h"

#include <stdlib.h>
#include <string.h>

#include "parallel/mesh/layout.h"
#include "tests/parsed.h"
#include "tests/test.h"

/* --- the simulator --------------------------------------------------------------------------- */

enum { SIM_RANKS = 64, SIM_SIZE = 36 };

typedef struct Whole {
    int rows, cols;
    long v[SIM_SIZE * SIM_SIZE];
} Whole;

/* A tensor on every rank; n: elements that each rank has received since it was cut. */
typedef struct Cut {
    Dist dist;
    Whole rank[SIM_RANKS];
    int n;
} Cut;

/* Names of ChangeKind. */
static const char *const change_names[] = {"all_gather", "reduce_scatter", "all_reduce", "slice"};

static void whole_matmul(Whole *y, const Whole *a, const Whole *b) {
    *y = (Whole){.rows = a->rows, .cols = b->cols};
    for (int i = 0; i < a->rows; i++)
        for (int j = 0; j < b->cols; j++)
            for (int k = 0; k < a->cols; k++)
                y->v[i * y->cols + j] += a->v[i * a->cols + k] * b->v[k * b->cols + j];
}

static void whole_transpose(Whole *t, const Whole *m) {
    t->rows = m->cols, t->cols = m->rows;
    for (int i = 0; i < m->rows; i++)
        for (int j = 0; j < m->cols; j++) t->v[j * t->cols + i] = m->v[i * m->cols + j];
}

/* Block i of n along a dimension. */
static void take_block(Whole *out, const Whole *m, int dim, int i, int n) {
    Whole b = {.rows = dim ? m->rows : m->rows / n, .cols = dim ? m->cols / n : m->cols};
    for (int r = 0; r < b.rows; r++)
        for (int c = 0; c < b.cols; c++)
            b.v[r * b.cols + c] =
                m->v[(dim ? r : i * b.rows + r) * m->cols + (dim ? i * b.cols + c : c)];
    *out = b;
}

static void put_block(Whole *m, const Whole *b, int dim, int i) {
    for (int r = 0; r < b->rows; r++)
        for (int c = 0; c < b->cols; c++)
            m->v[(dim ? r : i * b->rows + r) * m->cols + (dim ? i * b->cols + c : c)] =
                b->v[r * b->cols + c];
}

static void cut_whole(Cut *out, const Mesh *m, const Dist *d, const Whole *w) {
    out->dist = *d;
    out->n = 0;
    for (int r = 0; r < m->p; r++) {
        take_block(&out->rank[r], w, 0, mesh_block_of(m, d->shard[0], r),
                   mesh_blocks(m, d->shard[0]));
        take_block(&out->rank[r], &out->rank[r], 1, mesh_block_of(m, d->shard[1], r),
                   mesh_blocks(m, d->shard[1]));
    }
}

static void cut_matmul(Cut *y, const Mesh *m, const char *name, const Cut *a, const Cut *b) {
    Err e;
    if (!dist_matmul(&y->dist, name, &a->dist, &b->dist, &e)) die("%s", e.text);
    y->n = 0;
    for (int r = 0; r < m->p; r++) whole_matmul(&y->rank[r], &a->rank[r], &b->rank[r]);
}

static void cut_transpose(Cut *t, const Mesh *m, const Cut *c) {
    t->dist = dist_transposed(&c->dist);
    for (int r = 0; r < m->p; r++) whole_transpose(&t->rank[r], &c->rank[r]);
}

/* The rank that differs from rank r by coordinate i along an axis. */
static int partner(const Mesh *m, int r, int axis, int i) {
    int want[N_AXES], coord[N_AXES], other = 0;
    mesh_coords(m, r, want);
    want[axis] = i;
    while (mesh_coords(m, other, coord), memcmp(coord, want, sizeof coord) != 0) other++;
    return other;
}

static void sum_along(Whole *sum, const Cut *c, const Mesh *m, int r, int axis) {
    *sum = c->rank[partner(m, r, axis, 0)];
    for (int i = 1; i < m->size[axis]; i++)
        for (int k = 0; k < sum->rows * sum->cols; k++)
            sum->v[k] += c->rank[partner(m, r, axis, i)].v[k];
}

static void gather_along(Whole *all, const Cut *c, const Mesh *m, int r, int axis, int dim) {
    int n = m->size[axis];
    const Whole *own = &c->rank[r];
    all->rows = dim ? own->rows : own->rows * n, all->cols = dim ? own->cols * n : own->cols;
    for (int i = 0; i < n; i++) put_block(all, &c->rank[partner(m, r, axis, i)], dim, i);
}

static void forget(Axes *a, int axis) {
    Axes left = axes_none();
    for (int i = 0; i < a->n; i++)
        if (a->axis[i] != axis) left.axis[left.n++] = a->axis[i];
    *a = left;
}

static void cut_change(Cut *c, const Mesh *m, const Change *ch) {
    static Whole next[SIM_RANKS];
    int n = m->size[ch->axis], whole = c->rank[0].rows * c->rank[0].cols, own[N_AXES];
    Axes one = {1, {(uint8_t)ch->axis}};
    for (int r = 0; r < m->p; r++) {
        mesh_coords(m, r, own);
        if (ch->kind == CHANGE_GATHER) gather_along(&next[r], c, m, r, ch->axis, ch->dim);
        if (ch->kind == CHANGE_REDUCE || ch->kind == CHANGE_SCATTER)
            sum_along(&next[r], c, m, r, ch->axis);
        if (ch->kind == CHANGE_SCATTER) take_block(&next[r], &next[r], ch->dim, own[ch->axis], n);
        if (ch->kind == CHANGE_SLICE) take_block(&next[r], &c->rank[r], ch->dim, own[ch->axis], n);
    }
    memcpy(c->rank, next, (size_t)m->p * sizeof *next);
    if (ch->kind == CHANGE_GATHER) {
        c->n += (n - 1) * whole;
        c->dist.shard[ch->dim].n--;
    } else {
        c->n += ch->kind == CHANGE_REDUCE    ? 2 * (n - 1) * whole / n
                : ch->kind == CHANGE_SCATTER ? (n - 1) * whole / n
                                             : 0;
        forget(&c->dist.partial, ch->axis);
        if (ch->dim >= 0) c->dist.shard[ch->dim] = axes_join(c->dist.shard[ch->dim], one);
    }
}

/* --- the worked example of parallel/README.md ------------------------------------------------ */

static void put_whole(Text *t, const char *name, const Whole *m) {
    for (int r = 0; r < m->rows; r++) {
        text_put(t, "%-22s", r ? "" : name);
        for (int c = 0; c < m->cols; c++) text_put(t, "%3ld", m->v[r * m->cols + c]);
        text_end_line(t);
    }
}

/* The blocks of all ranks side by side, with their distribution. */
static void put_cut(Text *t, const Mesh *m, const Cut *c) {
    char name[DIST_TEXT];
    for (int row = 0; row < c->rank[0].rows; row++) {
        text_put(t, "%-22s", row ? "" : dist_print(&c->dist, name));
        for (int r = 0; r < m->p; r++) {
            int at = 0;
            char line[64] = "";
            for (int k = 0; k < c->rank[r].cols; k++)
                at += snprintf(line + at, sizeof line - (size_t)at, "%3ld",
                               c->rank[r].v[row * c->rank[r].cols + k]);
            text_put(t, "%-13s", line);
        }
        text_end_line(t);
    }
}

static void put_path(Text *t, const Mesh *m, Cut *c, const Dist *to) {
    Change path[MAX_CHANGES];
    int n = dist_path(&c->dist, to, path, NULL);
    for (int i = 0; i < n; i++) {
        char axis[2 * N_AXES + 1];
        int before = c->n;
        Axes one = {1, {(uint8_t)path[i].axis}};
        cut_change(c, m, &path[i]);
        text_put(t, "  %s along %s: each rank receives %d numbers\n", change_names[path[i].kind],
                 axes_print(one, axis), c->n - before);
    }
    put_cut(t, m, c);
}

static void whole_set(Whole *m, int rows, int cols, const long *v) {
    *m = (Whole){.rows = rows, .cols = cols};
    memcpy(m->v, v, (size_t)(rows * cols) * sizeof *v);
}

/* Layer 1 widens, layer 2 narrows: up and down of an MLP without its activation. */
static void example(Text *t) {
    static const long vx[] = {1, 2, 0, 1, 3, 1, 2, 0}, vdy[] = {1, 0, 0, 2, 0, 1, 1, 0};
    static const long vw[] = {1, 0, 2, 1, 0, 1, 1, 0, 2, 1, 0, 1, 1, 0, 1, 2};
    static const long vv[] = {1, 0, 0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 0, 1, 0, 1};
    static Whole X, W, V, DY;
    static Cut x, w, v, y, z, dy, dx, dw, wt, xt;
    Layout l = layout_of("x2.y2");
    Mesh m = mesh_make(&l.factors, 0);
    LinearDist up = layout_linear(&l, LINEAR_UP), down = layout_linear(&l, LINEAR_DOWN);
    whole_set(&X, 2, 4, vx), whole_set(&W, 4, 4, vw), whole_set(&V, 4, 4, vv);
    whole_set(&DY, 2, 4, vdy);
    put_whole(t, "x", &X);
    put_whole(t, "w", &W);
    text_put(t, "\n%-22s", "");
    for (int r = 0; r < m.p; r++)
        text_put(t, "%-13s", (char[]){'r', 'a', 'n', 'k', ' ', (char)('0' + r), 0});
    text_end_line(t);
    text_put(t, "%-22s", "");
    for (int r = 0; r < m.p; r++) {
        int coord[N_AXES];
        mesh_coords(&m, r, coord);
        text_put(t, "x=%d y=%d      ", coord[AXIS_X], coord[AXIS_Y]);
    }
    text_end_line(t);
    cut_whole(&x, &m, &up.x, &X), cut_whole(&w, &m, &up.w, &W);
    put_cut(t, &m, &x), put_cut(t, &m, &w);
    text_put(t, "\ny = x w\n");
    cut_matmul(&y, &m, "y", &x, &w), put_cut(t, &m, &y);
    put_path(t, &m, &y, &up.y_stored);
    text_put(t, "\nz = y v: x and y have exchanged their roles\n");
    cut_whole(&v, &m, &down.w, &V);
    snprintf(v.dist.name, sizeof v.dist.name, "v");
    memcpy(v.dist.dim[0], y.dist.dim[1], sizeof v.dist.dim[0]);
    put_cut(t, &m, &v);
    cut_matmul(&z, &m, "z", &y, &v), put_cut(t, &m, &z);
    put_path(t, &m, &z, &down.y_stored);
    text_put(t, "\nbackward of y = x w\n");
    Dist ddy = up.y_stored;
    snprintf(ddy.name, sizeof ddy.name, "dy");
    cut_whole(&dy, &m, &ddy, &DY), put_cut(t, &m, &dy);
    cut_transpose(&wt, &m, &w), cut_matmul(&dx, &m, "dx", &dy, &wt), put_cut(t, &m, &dx);
    put_path(t, &m, &dx, &up.x_stored);
    cut_transpose(&xt, &m, &x), cut_matmul(&dw, &m, "dw", &xt, &dy), put_cut(t, &m, &dw);
}

TEST(the_worked_example_of_the_readme_is_what_the_code_computes) {
    static Text want;
    want.n = 0;
    example(&want);
    CHECK(text_stands_in_readme(&want, "example"));
}
