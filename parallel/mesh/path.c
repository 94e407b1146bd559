#include "parallel/mesh/path.h"

#include <assert.h>

#include "base/die.h"

Path path_make(const Grid *g, const Dist *from, const Dist *to, const char *what) {
    Path p = {.what = what};
    Err e;
    p.n = dist_path(from, to, p.change, &e);
    if (p.n < 0) die("%s: %s", what, e.text);
    for (int i = 0; i < p.n; i++) {
        p.comm[i] = grid_comm(g, (Axes){.n = 1, .axis = {(uint8_t)p.change[i].axis}});
        assert(p.comm[i] && p.change[i].kind != CHANGE_SLICE);
    }
    return p;
}

/* Starts the collective of change i: reads r->at, which then is the buffer it writes. */
static void path_step(PathRun *r) {
    const Change *c = &r->p->change[r->i];
    Comm *comm = r->p->comm[r->i];
    bool moving = c->kind != CHANGE_REDUCE;
    r->moves -= moving;
    void *to = r->moves > 0 ? r->tmp : r->dst;
    if (!moving && r->i > 0) to = (void *)(uintptr_t)r->at; // in place
    int64_t *extent = c->dim == 0 ? &r->rows : &r->cols;
    if (c->kind == CHANGE_SCATTER) *extent /= comm_size(comm);
    CollCall call = {.op = c->kind == CHANGE_GATHER    ? COLL_ALL_GATHER
                           : c->kind == CHANGE_SCATTER ? COLL_REDUCE_SCATTER
                                                       : COLL_ALL_REDUCE,
                     .type = r->type,
                     .dim = moving ? c->dim : 0,
                     .rows = r->rows,
                     .cols = r->cols,
                     .src = r->at,
                     .dst = to,
                     .what = r->p->what,
                     .file = __FILE__,
                     .line = __LINE__,
                     .staging = r->p->staging};
    r->ticket = coll_start(comm, &call);
    if (c->kind == CHANGE_GATHER) *extent *= comm_size(comm);
    r->at = to;
}

PathRun path_begin(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                   void *dst, void *tmp) {
    PathRun r = {
        .p = p, .type = type, .rows = rows, .cols = cols, .at = src, .dst = dst, .tmp = tmp};
    for (int i = 0; i < p->n; i++) r.moves += p->change[i].kind != CHANGE_REDUCE;
    if (p->n > 0) path_step(&r);
    return r;
}

const void *path_end(PathRun *r) {
    while (r->i < r->p->n) {
        coll_wait(r->ticket);
        if (++r->i < r->p->n) path_step(r);
    }
    return r->at;
}

const void *path_run(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                     void *dst, void *tmp) {
    PathRun r = path_begin(p, type, src, rows, cols, dst, tmp);
    return path_end(&r);
}

int64_t path_place(const Path *p, int64_t rows, int64_t cols) {
    int64_t most = 0;
    for (int i = 0; i < p->n; i++) {
        const Change *c = &p->change[i];
        int64_t *extent = c->dim == 0 ? &rows : &cols, size = comm_size(p->comm[i]);
        if (c->kind == CHANGE_GATHER) *extent *= size;
        if (c->kind != CHANGE_REDUCE && c->dim == 1 && rows * cols > most) most = rows * cols;
        if (c->kind == CHANGE_SCATTER) *extent /= size;
    }
    return most;
}

bool path_scatters(const Path *p) {
    return p->n > 0 && p->change[0].kind == CHANGE_SCATTER;
}
bool path_gathers_tokens(const Path *p) {
    return p->n == 1 && p->change[0].kind == CHANGE_GATHER && p->change[0].dim == 0;
}
bool path_scatters_tokens(const Path *p) {
    return p->n == 1 && p->change[0].kind == CHANGE_SCATTER && p->change[0].dim == 0;
}
