/* mesh -- p ranks as a box d x z x x y, and who of them shares what.
 *
 *   d  data: tokens cut, weights replicated             x, y  the tensor axes: layers that widen (QKV, up)
 *   z  depth: tokens cut, weights stored cut                  cut outputs over x and inputs over y, the
 *                                                             others (attention output, down) exchange them
 *
 * The order in which a SPEC names the axes is the order of ranks: the last one is innermost, its
 * neighbours are ranks r and r+1. d2.x3 on six ranks:
 *
 *             x=0 x=1 x=2
 *      d=0     0   1   2
 *      d=1     3   4   5
 *
 * So the order is a list of factors, an axis with a size each. An axis may come again: its size is the
 * product of its factors, the outer one counting in steps of the inner. x2.y2.x2.y2 on sixteen ranks is
 * a mesh of 4 x 4 in tiles of 2 x 2, and a node of four ranks holds a tile:
 *
 *             y=0 y=1   y=2 y=3
 *      x=0     0   1  |  4   5
 *      x=1     2   3  |  6   7       x = 2 (first digit) + (second digit)
 *            ---------+---------
 *      x=2     8   9  | 12  13
 *      x=3    10  11  | 14  15
 *
 * A list of axes (Axes) cuts a dimension in nested blocks, the first axis outermost: T/d.z.x. The
 * ranks that differ in those axes only form a group, and their index in it is the number of the
 * block they hold.
 */
#ifndef PARALLEL_MESH_H
#define PARALLEL_MESH_H

#include <stdbool.h>
#include <stdint.h>

enum { AXIS_D, AXIS_Z, AXIS_X, AXIS_Y, N_AXES };

/* Some axes, outermost first. */
typedef struct Axes {
    uint8_t n, axis[N_AXES];
} Axes;

/* The order of ranks: factors, outermost first. As many as four levels of a cluster make, each with a tile of all axes. */
enum { MAX_FACTORS = 16 };
typedef struct Factors {
    int n;
    struct {
        int axis, size;
    } at[MAX_FACTORS];
} Factors;

typedef struct Mesh {
    int size[N_AXES]; // of axis d, z, x, y
    Factors factors;
    int p;             // product of the sizes
    int rank;          // of this rank
    int coord[N_AXES]; // of this rank
} Mesh;

/* Local. One more factor, inside the others: none of size 1, one with its neighbour of the same axis. So
 * lists that mean the same order are equal. False, and nothing is changed, when there are MAX_FACTORS. */
bool factors_add(Factors *f, int axis, int size);
/* Local. The mesh of these factors seen from a rank; axes that are not named have size 1. */
Mesh mesh_make(const Factors *f, int rank);
/* Local. Coordinates of a rank, and back. */
void mesh_coords(const Mesh *m, int rank, int coord[N_AXES]);
int mesh_rank(const Mesh *m, const int coord[N_AXES]);

static inline Axes axes_none(void) {
    return (Axes){0};
}
static inline bool axes_has(Axes a, int axis) {
    for (int i = 0; i < a.n; i++)
        if (a.axis[i] == axis) return true;
    return false;
}
/* Local. "d.z.x" and the like; "" is no axis. Unknown or repeated letters: false. Inline, as compilers then read constants
 * themselves: a step asks for its axes by name, and the search prices many steps. */
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
_Noreturn void axes_unknown(const char *text);
static inline Axes axes_of(const char *text) { // axes_parse of a constant
    Axes a;
    if (!axes_parse(&a, text)) axes_unknown(text);
    return a;
}
const char *axes_print(Axes a, char buf[2 * N_AXES + 1]);
bool axes_equal(Axes a, Axes b);
Axes axes_join(Axes outer, Axes inner);
/* Local. a without its axes of size 1 on this mesh: what really is cut. */
Axes mesh_real(const Mesh *m, Axes a);
/* Local. Number of blocks that these axes cut a dimension in, and the block of a rank (of this one). */
int mesh_blocks(const Mesh *m, Axes a);
int mesh_block(const Mesh *m, Axes a);
int mesh_block_of(const Mesh *m, Axes a, int rank);

/* Where the ranks of a group are in the job: nested stretches, outermost first. The members are
 * base + i0 stride[0] + i1 stride[1] + ... with 0 <= i_k < size[k], base the lowest of them. Stretches
 * that continue each other are one: all p ranks are {1, {p}, {1}}, one rank is {0}. The groups along the
 * same axes differ in base alone and cover the job: siblings. */
typedef struct Placement {
    int n;
    int32_t size[MAX_FACTORS], stride[MAX_FACTORS];
} Placement;

/* Local, pure. Where the ranks are that differ in these axes only: a set, in whatever order a names them. */
Placement placement_of(const Mesh *m, Axes a);
/* Local, pure. Ranks from the first to the last of them, less one. */
int64_t placement_extent(const Placement *p);
int placement_ranks(const Placement *p); // that a group has

#endif
