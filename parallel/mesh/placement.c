#include "parallel/mesh/mesh.h"

Placement placement_of(const Mesh *m, Axes a) {
    Placement g = {0};
    int stride = m->p;
    for (int i = 0; i < m->factors.n; i++) {
        int size = m->factors.at[i].size;
        stride /= size;
        if (size == 1 || !axes_has(a, m->factors.at[i].axis)) continue;
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
