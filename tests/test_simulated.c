/* The theory on simulated ranks: the worked example of parallel/README.md. That every layout's
 * matmuls are those of one rank: test_mesh_model.c. */
#include "tests/page.h"

#include "parallel/mesh/layout.h"
#include "tests/parsed.h"
#include "tests/test.h"

/* --- the simulator --------------------------------------------------------------------------- */

enum { SIM_RANKS = 4, SIM_SIZE = 4 };

typedef struct Whole {
    int rows, cols;
    long v[SIM_SIZE * SIM_SIZE];
} Whole;

/* A tensor on every rank. */
typedef struct Cut {
    Dist dist;
    Whole rank[SIM_RANKS];
} Cut;

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

static void cut_whole(Cut *out, const Mesh *m, const Dist *d, const Whole *w) {
    out->dist = *d;
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

/* An all_reduce along an axis. */
static void cut_sum(Cut *c, const Mesh *m, int axis) {
    static Whole sum[SIM_RANKS];
    for (int r = 0; r < m->p; r++) {
        sum[r] = (Whole){.rows = c->rank[r].rows, .cols = c->rank[r].cols};
        for (int i = 0; i < m->size[axis]; i++) {
            const Whole *term = &c->rank[partner(m, r, axis, i)];
            for (int k = 0; k < sum[r].rows * sum[r].cols; k++) sum[r].v[k] += term->v[k];
        }
    }
    memcpy(c->rank, sum, sizeof sum);
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

/* To the type in which it is stored, which on this mesh is an all_reduce. */
static void put_path(Text *t, const Mesh *m, Cut *c, const Dist *to) {
    Change path[MAX_CHANGES];
    char name[2 * N_AXES + 1];
    if (dist_path(&c->dist, to, path, NULL) != 1 || path[0].kind != CHANGE_REDUCE)
        die("%s: more than an all_reduce", c->dist.name);
    int axis = path[0].axis, n = m->size[axis], received = c->rank[0].rows * c->rank[0].cols;
    received = 2 * (n - 1) * received / n;
    cut_sum(c, m, axis);
    c->dist.partial = axes_none();
    text_put(t, "  all_reduce along %s: each rank receives %d numbers\n",
             axes_print((Axes){1, {(uint8_t)axis}}, name), received);
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
