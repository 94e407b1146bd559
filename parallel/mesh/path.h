/* path -- the collectives that dist_path derived, with their communicators: changes the
 * distribution of a matrix.
 */
#ifndef PARALLEL_MESH_PATH_H
#define PARALLEL_MESH_PATH_H

#include "parallel/mesh/grid.h"

typedef struct Path {
    int n;
    Change change[MAX_CHANGES];
    Comm *comm[MAX_CHANGES];
    const char *what;
    CollStaging staging; // of its collectives (parallel/comm/coll.h), from linear_workspace
} Path;

/* A path in flight: path_begin starts the first collective, path_end waits and runs the others. */
typedef struct PathRun {
    const Path *p;
    CollType type;
    int i, moves; // changes done; changes left that cannot be done in place
    int64_t rows, cols;
    const void *at;
    void *dst, *tmp;
    Ticket ticket;
} PathRun;

/* Local. Dies if there is no path. */
Path path_make(const Grid *g, const Dist *from, const Dist *to, const char *what);
/* Local, pure. Does the path begin with a reduce_scatter? Then a partial result needs a buffer of
 * its own. */
bool path_scatters(const Path *p);
/* Local, pure. Is the path a single all_gather (reduce_scatter) along the token dimension? */
bool path_gathers_tokens(const Path *p);
bool path_scatters_tokens(const Path *p);
/* Local, pure. Size of the staging buffer in elements, for a matrix of which this rank holds
 * [rows, cols]; 0: none needed. */
int64_t path_place(const Path *p, int64_t rows, int64_t cols);
/* Collective over the axes of the path. Changes the distribution of src, this rank's block
 * [rows, cols], and writes the new block to dst, which is returned. tmp holds intermediate blocks.
 * An empty path returns src and copies nothing. */
const void *path_run(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                     void *dst, void *tmp);
/* path_run in two halves, between which the rank may compute. Calling path_end again returns the
 * same result. */
PathRun path_begin(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                   void *dst, void *tmp);
const void *path_end(PathRun *r);

#endif
