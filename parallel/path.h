/* path -- collectives that take a matrix from one distribution to another, in order: what dist_path has derived.
 */
#ifndef PARALLEL_PATH_H
#define PARALLEL_PATH_H

#include "parallel/grid.h"

typedef struct Path {
    int n;
    Change change[MAX_CHANGES];
    Comm *comm[MAX_CHANGES];
    const char *what;
    CollPlace place; // of its collectives (parallel/coll.h), from linear_workspace
} Path;

/* A path on its way: path_begin starts its first collective, path_end waits and goes the rest. */
typedef struct PathRun {
    const Path *p;
    CollType type;
    int i, moves; // changes done; those still to come that need another place
    int64_t rows, cols;
    const void *at;
    void *dst, *tmp;
    Ticket ticket;
} PathRun;

/* Local. Dies where there is no path. */
Path path_make(const Grid *g, const Dist *from, const Dist *to, const char *what);
/* Local, pure. Does it begin with a scatter, so that a partial result needs a place of its own? */
bool path_scatters(const Path *p);
/* Local, pure. Is it one collective that gathers from (scatters to) blocks of tokens? */
bool path_gathers_tokens(const Path *p);
bool path_scatters_tokens(const Path *p);
/* Local, pure. Elements of the place that it wants for a matrix of which one rank has [rows, cols]; 0: none. */
int64_t path_place(const Path *p, int64_t rows, int64_t cols);
/* Collective over the axes of the path. Takes src [rows, cols], one rank's block, along it to dst; tmp holds what
 * lies between two steps. With an empty path src itself is returned. */
const void *path_run(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                     void *dst, void *tmp);
/* The same in two parts, between which the rank may compute. path_end again: the same result. */
PathRun path_begin(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                   void *dst, void *tmp);
const void *path_end(PathRun *r);

#endif
