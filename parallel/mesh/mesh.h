/* mesh -- p ranks as a box of four axes d, z, x and y, and which ranks share which data.
 *
 *   d  data parallel: tokens sharded, weights replicated
 *   z  depth (FSDP): tokens sharded, weights stored sharded and gathered before use
 *   x  tensor parallel: column-parallel layers (QKV, up) shard their outputs over x
 *   y  tensor parallel: column-parallel layers shard their inputs over y. Row-parallel layers
 *      (attention output, down) exchange x and y.
 *
 * A SPEC names the axes in the order of ranks. The last axis is innermost: neighbours along it are
 * ranks r and r+1. d2.x3 on six ranks:
 *
 *             x=0 x=1 x=2
 *      d=0     0   1   2
 *      d=1     3   4   5
 *
 * The order of ranks is a list of factors, each an axis with a size. An axis may be repeated: its
 * size is the product of its factors, and the outer factor counts in steps of the inner.
 * x2.y2.x2.y2 on sixteen ranks is a mesh of 4 x 4 in tiles of 2 x 2, and a node of four ranks holds
 * a tile:
 *
 *             y=0 y=1   y=2 y=3
 *      x=0     0   1  |  4   5
 *      x=1     2   3  |  6   7       x = 2 (first digit) + (second digit)
 *            ---------+---------
 *      x=2     8   9  | 12  13
 *      x=3    10  11  | 14  15
 *
 * A list of axes (Axes) shards a dimension in nested blocks, the first axis outermost: T/d.z.x. The
 * ranks that differ in those axes only form a group (one communicator). The index of a rank in its
 * group is the number of the block that the rank holds.
 *
 * The first word of a comment on a function says who calls it, here and in all headers. Local: one
 * rank alone, nothing is sent. Collective: all ranks of the group, in the same order.
 */
#ifndef PARALLEL_MESH_MESH_H
#define PARALLEL_MESH_MESH_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum { AXIS_D, AXIS_Z, AXIS_X, AXIS_Y, N_AXES };

/* A list of axes, outermost first. */
typedef struct Axes {
    uint8_t n, axis[N_AXES];
} Axes;

/* The order of ranks: factors, outermost first. MAX_FACTORS: a tile of all four axes on each of
 * four levels of a cluster. */
enum { MAX_FACTORS = 16 };
typedef struct Factors {
    int n;
    struct {
        int axis, size;
    } factor[MAX_FACTORS];
} Factors;

typedef struct Mesh {
    int size[N_AXES]; // of axis d, z, x, y
    Factors factors;
    int p;             // product of the sizes
    int rank;          // of this rank
    int coord[N_AXES]; // of this rank
} Mesh;

/* Local. Appends a factor as the innermost. Size 1 is dropped and a neighbour of the same axis is
 * merged, so lists that mean the same order are equal. False: the list is full (MAX_FACTORS) and
 * stays unchanged. */
bool factors_add(Factors *f, int axis, int size);
/* Local. The mesh of these factors seen from a rank; axes without a factor have size 1. */
Mesh mesh_make(const Factors *f, int rank);
/* Local. Coordinates of a rank. */
void mesh_coords(const Mesh *m, int rank, int coord[N_AXES]);

/* Local, pure. n / part rounded up: the number of parts of `part` elements that hold n elements. */
static inline int64_t div_up(int64_t n, int64_t part) {
    return (n + part - 1) / part;
}

static inline Axes axes_none(void) {
    return (Axes){0};
}
static inline bool axes_has(Axes a, int axis) {
    for (int i = 0; i < a.n; i++)
        if (a.axis[i] == axis) return true;
    return false;
}
/* Local. Reads "d.z.x"; "" is no axis. False: unknown or repeated letters. Inline, so that
 * compilers evaluate constants: a step asks for its axes by name, and the search prices many
 * steps. */
static inline bool axes_parse(Axes *a, const char *text) {
    *a = axes_none();
    if (!text[0]) return true;
    for (int i = 0; i < N_AXES; i++) {
        char letter = text[2 * i], behind;
        int axis = letter == 'd'   ? AXIS_D
                   : letter == 'z' ? AXIS_Z
                   : letter == 'x' ? AXIS_X
                   : letter == 'y' ? AXIS_Y
                                   : -1;
        if (axis < 0 || axes_has(*a, axis)) return false;
        a->axis[a->n++] = (uint8_t)axis;
        behind = text[2 * i + 1];
        if (behind != '.') return !behind;
    }
    return false;
}
static inline Axes axes_of(const char *text) { // axes_parse of a text known to be right
    Axes a;
    bool known = axes_parse(&a, text);
    assert(known);
    return a;
}
const char *axes_print(Axes a, char buf[2 * N_AXES + 1]);
bool axes_equal(Axes a, Axes b);
Axes axes_join(Axes outer, Axes inner);
Axes axes_without(Axes a, Axes others); // a without the axes that are in others
/* Local. a without its axes of size 1 on this mesh. */
Axes mesh_real(const Mesh *m, Axes a);
/* Local. A dimension is sharded over these axes. mesh_blocks: the number of its blocks. mesh_block:
 * the number of the block that this rank holds; mesh_block_of: that another rank holds. */
static inline int mesh_blocks(const Mesh *m, Axes a) { // inline: the search asks often
    int n = 1;
    for (int i = 0; i < a.n; i++) n *= m->size[a.axis[i]];
    return n;
}
int mesh_block(const Mesh *m, Axes a);
int mesh_block_of(const Mesh *m, Axes a, int rank);

/* The rank numbers of a group: nested strided ranges, outermost first. The members are
 * base + i0 stride[0] + i1 stride[1] + ... with 0 <= i_k < size[k], base the lowest of them.
 * Ranges that continue each other are merged: all p ranks are {1, {p}, {1}}, one rank is {0}. The
 * groups along the same axes, siblings, differ only in base and together cover the job. */
typedef struct Placement {
    int n;
    int32_t size[MAX_FACTORS], stride[MAX_FACTORS];
} Placement;

/* Local, pure. The ranks that differ in these axes only. A set: the order of the axes is
 * ignored. */
Placement placement_of(const Mesh *m, Axes a);
/* Local, pure. Last rank minus first rank. */
int64_t placement_extent(const Placement *p);
bool placement_equal(const Placement *a, const Placement *b);
int placement_ranks(const Placement *p); // ranks of a group

#endif
