/* grid -- the mesh of a rank with the communicators along its axes.
 *
 * One Grid per rank. The communicators are made once, one for every list of axes that the model
 * uses. A list whose axes all have size 1 has no communicator: grid_comm returns NULL, and the
 * caller has nothing to send.
 */
#ifndef PARALLEL_MESH_GRID_H
#define PARALLEL_MESH_GRID_H

#include "base/config.h"
#include "parallel/comm/coll.h"
#include "parallel/mesh/layout.h"

enum { MAX_COMMS = 16 };

typedef struct Grid {
    Layout layout;
    Mesh mesh;
    World *world; // NULL: one rank
    struct {
        Axes axes;
        Comm *comm;
    } comms[MAX_COMMS];
    int n_comms;
    Comm *all;        // all ranks in their own order; NULL: one rank
    Comm *kv;         // ranks with copies of the same key and value heads; NULL: no copies
    bool local_steps; // each coordinate of d trains its own replica: grid_set_local_steps
} Grid;

/* Collective over the world, which must have layout_ranks(l) ranks: asserted. */
void grid_make(Grid *g, World *w, const Layout *l, const Config *c);
/* Collective over the world. Frees the communicators. */
void grid_free(Grid *g);
/* Local. The grid of rank 0 of a described cluster, whose ranks do not exist: without
 * communicators. local_steps: as after grid_set_local_steps. */
Grid grid_described(const Layout *l, bool local_steps);
/* Local. The grid of a single rank. */
const Grid *grid_one(void);
/* Collective over the world, after grid_make. From now on a step communicates only between ranks of
 * the same coordinate of d: each replica takes local steps, and an outer step averages the replicas
 * (DiLoCo, parallel/step/outer.h). */
void grid_set_local_steps(Grid *g);
/* Local. The axes of this list along which every step sums. With local steps d is left out: an
 * outer step averages the replicas. */
Axes grid_summed_axes(const Grid *g, Axes axes);
/* Local. Number of replicas that take local steps: the size of d; 1 without local steps. */
int grid_replicas(const Grid *g);
/* Local. The communicator along these axes; NULL: one rank. A list of all four axes means all ranks
 * in their own order. Asserts that the axes have a communicator. */
Comm *grid_comm(const Grid *g, Axes axes);

/* Local. Heads sharded in n blocks: each block has `heads` query heads and the `kv_heads` key and
 * value heads that these query heads read. With fewer key heads than blocks, `copies` neighbouring
 * blocks hold the same key and value head. With `whole` key heads are never copied: blocks may stay
 * empty instead. */
typedef struct HeadBlocks {
    int64_t heads, kv_heads, copies;
} HeadBlocks;
HeadBlocks head_blocks(const Config *c, int64_t n, bool whole);
/* Local, pure. The group of ranks that hold copies of this rank's key and value heads: its size,
 * and this rank's index in it. max: the size of the largest such group, equal on all ranks; 1:
 * heads are not copied. */
typedef struct HeadCopies {
    int max, size, rank;
} HeadCopies;
HeadCopies grid_head_copies(const Grid *g, const Config *c);
/* Local. Axes over which stored hidden tensors (QKV, attention, MLP) are sharded by features: x;
 * x.y with heads; y with stay=y. */
Axes grid_hidden_axes(const Grid *g);

#endif
