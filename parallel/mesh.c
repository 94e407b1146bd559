#include "parallel/mesh.h"

#include <assert.h>
#include <string.h>

#include "base/die.h"

static const char letters[N_AXES + 1] = "dzxy";

Mesh mesh_make(const int size[N_AXES], const int order[N_AXES], int rank) {
    Mesh m = {.p = 1, .rank = rank};
    for (int i = 0; i < N_AXES; i++) {
        m.size[i] = size[i];
        m.order[i] = order ? order[i] : i;
        m.p *= size[i];
    }
    assert(rank >= 0 && rank < m.p);
    mesh_coords(&m, rank, m.coord);
    return m;
}

void mesh_coords(const Mesh *m, int rank, int coord[N_AXES]) {
    for (int i = N_AXES - 1; i >= 0; i--) { // the last axis is innermost: its digit comes first
        int axis = m->order[i];
        coord[axis] = rank % m->size[axis];
        rank /= m->size[axis];
    }
}

int mesh_rank(const Mesh *m, const int coord[N_AXES]) {
    int rank = 0;
    for (int i = 0; i < N_AXES; i++) rank = rank * m->size[m->order[i]] + coord[m->order[i]];
    return rank;
}

bool axes_parse(Axes *a, const char *text) {
    *a = axes_none();
    for (const char *p = text; *p; p++) {
        int axis = *p == 'd'   ? AXIS_D
                   : *p == 'z' ? AXIS_Z
                   : *p == 'x' ? AXIS_X
                   : *p == 'y' ? AXIS_Y
                               : -1;
        if (axis < 0 || axes_has(*a, axis)) return false;
        a->axis[a->n++] = (uint8_t)axis;
        if (!p[1]) return true;
        if (*++p != '.') return false;
    }
    return !*text; // what ends with a dot has no last letter
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

Axes axes_of(const char *text) {
    Axes a;
    if (!axes_parse(&a, text)) die("\"%s\" names no axes: d, z, x, y joined by dots", text);
    return a;
}

bool axes_has(Axes a, int axis) {
    for (int i = 0; i < a.n; i++)
        if (a.axis[i] == axis) return true;
    return false;
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

Axes mesh_real(const Mesh *m, Axes a) {
    Axes real = axes_none();
    for (int i = 0; i < a.n; i++)
        if (m->size[a.axis[i]] > 1) real.axis[real.n++] = a.axis[i];
    return real;
}

int mesh_blocks(const Mesh *m, Axes a) {
    int n = 1;
    for (int i = 0; i < a.n; i++) n *= m->size[a.axis[i]];
    return n;
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
