#include "parallel/mesh/grid.h"

#include <assert.h>

#include "base/die.h"

const Grid *grid_one(void) {
    static const Grid one = {.layout = {.size = {1, 1, 1, 1}},
                             .mesh = {.size = {1, 1, 1, 1}, .p = 1}};
    return &one;
}

Grid grid_described(const Layout *l, bool local_steps) {
    return (Grid){.layout = *l,
                  .mesh = mesh_make(&l->factors, 0),
                  .local_steps = local_steps && l->size[AXIS_D] > 1};
}

HeadBlocks head_blocks(const Config *c, int64_t n, bool whole) {
    int64_t group = c->heads / c->kv_heads; // query heads per key head
    for (int64_t h = div_up(c->heads, n);; h++) {
        bool fits = div_up(c->heads, h) <= n;
        if (fits && h % group == 0) return (HeadBlocks){h, h / group, 1};
        if (fits && group % h == 0 && !whole) return (HeadBlocks){h, 1, group / h};
    }
}

Axes grid_hidden_axes(const Grid *g) {
    if (g->layout.stay) return axes_of("y");
    return g->layout.heads ? axes_of("x.y") : axes_of("x");
}

/* The number of the group of ranks that differ in these axes only. */
static int group_along(const Grid *g, Axes axes) {
    return mesh_block(&g->mesh, axes_without(axes_of("d.z.x.y"), axes));
}

HeadCopies grid_head_copies(const Grid *g, const Config *c) {
    Axes hidden = grid_hidden_axes(g);
    int block = mesh_block(&g->mesh, hidden), n = mesh_blocks(&g->mesh, hidden);
    int copies = (int)head_blocks(c, n, g->layout.heads || g->layout.exact).copies;
    int first = block / copies * copies;
    return (HeadCopies){copies, n - first < copies ? n - first : copies, block - first};
}

/* Collective over the world. The communicator of the ranks whose neighbouring blocks of heads hold
 * copies of one key head; NULL: heads are not copied. */
static Comm *make_kv(Grid *g, const Config *c) {
    Axes hidden = grid_hidden_axes(g);
    HeadCopies h = grid_head_copies(g, c);
    int group = mesh_block(&g->mesh, hidden) / h.max; // along the hidden axes
    if (h.max == 1) return NULL;
    return world_split(g->world, group_along(g, hidden) * g->mesh.p + group, h.rank, "kv");
}

/* The communicator along axes whose sizes are all above 1; NULL: grid_make made none. */
static Comm *find_comm(const Grid *g, Axes real) {
    for (int i = 0; i < g->n_comms; i++)
        if (axes_equal(g->comms[i].axes, real)) return g->comms[i].comm;
    return NULL;
}

/* Collective over the world. Makes a communicator for each list of axes, unless all its axes have
 * size 1 or the communicator exists already. */
static void add_groups(Grid *g, const char *const *lists, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char label[2 * N_AXES + 1];
        Axes real = mesh_real(&g->mesh, axes_of(lists[i])); // d.z becomes d where z has size 1
        if (real.n == 0 || real.n == N_AXES || find_comm(g, real)) continue; // N_AXES: g->all
        g->comms[g->n_comms].axes = real;
        // ranks are ordered by the numbers of their blocks
        g->comms[g->n_comms++].comm = world_split(
            g->world, group_along(g, real), mesh_block(&g->mesh, real), axes_print(real, label));
    }
}

void grid_make(Grid *g, World *w, const Layout *l, const Config *c) {
    static const char *const lists[] = {"d", "z", "x", "y", "x.y", "d.z", "z.d", "d.z.x"};
    *g = (Grid){.layout = *l, .world = w};
    g->mesh = mesh_make(&l->factors, world_rank(w));
    assert(g->mesh.p == world_size(w));
    if (g->mesh.p == 1) return;
    g->all = world_comm(w);
    add_groups(g, lists, sizeof lists / sizeof *lists);
    if (c->qk_norm && (l->heads || l->stay)) add_groups(g, (const char *const[]){"d.z.x.y"}, 1);
    g->kv = make_kv(g, c);
}

void grid_free(Grid *g) {
    while (g->n_comms > 0) comm_free(g->comms[--g->n_comms].comm);
    if (g->kv) comm_free(g->kv);
}

void grid_set_local_steps(Grid *g) {
    static const char *const lists[] = {"z.x", "z.x.y"};
    g->local_steps = g->mesh.size[AXIS_D] > 1;
    add_groups(g, lists, sizeof lists / sizeof *lists);
}

Axes grid_summed_axes(const Grid *g, Axes axes) {
    return g->local_steps ? axes_without(axes, axes_of("d")) : axes;
}

int grid_replicas(const Grid *g) {
    return g->local_steps ? g->mesh.size[AXIS_D] : 1;
}

Comm *grid_comm(const Grid *g, Axes axes) {
    Axes real = mesh_real(&g->mesh, axes);
    if (real.n == 0) return NULL;
    if (axes.n == N_AXES) return g->all;
    Comm *c = find_comm(g, real);
    assert(c);
    return c;
}
