#include "parallel/mesh/mesh.h"

#include <string.h>

static const char letters[N_AXES + 1] = "dzxy";

bool factors_add(Factors *f, int axis, int size) {
    if (size == 1) return true;
    if (f->n && f->factor[f->n - 1].axis == axis) {
        f->factor[f->n - 1].size *= size;
        return true;
    }
    if (f->n == MAX_FACTORS) return false;
    f->factor[f->n].axis = axis;
    f->factor[f->n++].size = size;
    return true;
}

Mesh mesh_make(const Factors *f, int rank) {
    Mesh m = {.size = {1, 1, 1, 1}, .factors = *f, .p = 1, .rank = rank};
    for (int i = 0; i < f->n; i++) {
        m.size[f->factor[i].axis] *= f->factor[i].size;
        m.p *= f->factor[i].size;
    }
    assert(rank >= 0 && rank < m.p);
    mesh_coords(&m, rank, m.coord);
    return m;
}

/* A rank is a mixed-radix number with one digit for each factor, the last digit for the innermost
 * factor. A coordinate is the number made of the digits of its axis. */
void mesh_coords(const Mesh *m, int rank, int coord[N_AXES]) {
    int unit[N_AXES] = {1, 1, 1, 1}; // weight of the next digit of each axis
    memset(coord, 0, N_AXES * sizeof *coord);
    for (int i = m->factors.n - 1; i >= 0; i--) {
        int axis = m->factors.factor[i].axis, size = m->factors.factor[i].size;
        coord[axis] += rank % size * unit[axis];
        unit[axis] *= size;
        rank /= size;
    }
}

const char *axes_print(Axes a, char buf[2 * N_AXES + 1]) {
    char *p = buf;
    for (int i = 0; i < a.n; i++) {
        if (i) *p++ = '.';
        *p++ = letters[a.axis[i]];
    }
    *p = 0;
    return buf;
}

bool axes_equal(Axes a, Axes b) {
    if (a.n != b.n) return false;
    for (int i = 0; i < a.n; i++)
        if (a.axis[i] != b.axis[i]) return false;
    return true;
}

Axes axes_join(Axes outer, Axes inner) {
    for (int i = 0; i < inner.n; i++) {
        assert(!axes_has(outer, inner.axis[i]));
        outer.axis[outer.n++] = inner.axis[i];
    }
    return outer;
}

Axes axes_without(Axes a, Axes others) {
    Axes left = axes_none();
    for (int i = 0; i < a.n; i++)
        if (!axes_has(others, a.axis[i])) left.axis[left.n++] = a.axis[i];
    return left;
}

Axes mesh_real(const Mesh *m, Axes a) {
    Axes real = axes_none();
    for (int i = 0; i < a.n; i++)
        if (m->size[a.axis[i]] > 1) real.axis[real.n++] = a.axis[i];
    return real;
}

int mesh_block(const Mesh *m, Axes a) {
    return mesh_block_of(m, a, m->rank);
}

int mesh_block_of(const Mesh *m, Axes a, int rank) {
    int coord[N_AXES], block = 0;
    mesh_coords(m, rank, coord);
    for (int i = 0; i < a.n; i++) block = block * m->size[a.axis[i]] + coord[a.axis[i]];
    return block;
}

Placement placement_of(const Mesh *m, Axes a) {
    Placement g = {0};
    int stride = m->p;
    for (int i = 0; i < m->factors.n; i++) {
        int size = m->factors.factor[i].size;
        stride /= size;
        if (size == 1 || !axes_has(a, m->factors.factor[i].axis)) continue;
        bool continues = g.n && g.stride[g.n - 1] == size * stride; // adjacent ranges
        if (!continues) g.size[g.n++] = 1;
        g.size[g.n - 1] *= size;
        g.stride[g.n - 1] = stride;
    }
    return g;
}

int placement_ranks(const Placement *p) {
    int n = 1;
    for (int i = 0; i < p->n; i++) n *= p->size[i];
    return n;
}

bool placement_equal(const Placement *a, const Placement *b) {
    size_t bytes = (size_t)a->n * sizeof a->size[0];
    return a->n == b->n && memcmp(a->size, b->size, bytes) == 0 &&
           memcmp(a->stride, b->stride, bytes) == 0;
}

int64_t placement_extent(const Placement *p) {
    int64_t extent = 0;
    for (int i = 0; i < p->n; i++) extent += (int64_t)(p->size[i] - 1) * p->stride[i];
    return extent;
}
