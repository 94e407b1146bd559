/* matmul_schedule -- which worker computes which part of which tile of y[M,N] = a[M,K] b[K,N].
 *
 * A worker is a multiprocessor, or a cluster of them. A tile of y takes `steps` steps along k. All
 * steps of all tiles, tile after tile, form one line. A schedule divides the line into shares;
 * share i belongs to worker i mod workers. Data-parallel, split-K and Stream-K differ only in where
 * the shares begin. Five tiles of four steps on four workers, time to the right, a digit per step,
 * which names its tile:
 *
 *              data-parallel     split-K by 2        Stream-K
 *              a share a tile    two shares a tile   one share a worker
 *
 *     SM 0     0000 4444         00 22 44            1 0000
 *     SM 1     1111              00 22 44            22 111
 *     SM 2     2222              11 33               333 22
 *     SM 3     3333              11 33               4444 3
 *
 *     busy     5/8               5/6                 all
 *
 * Hybrid. With more tiles than workers, Stream-K streams only workers + tiles mod workers tiles and
 * deals out the remaining full waves data-parallel ("two-tile Stream-K + data-parallel"). A share
 * is then longer than a tile, so no tile has more than two parts.
 *
 * Fix-up. A tile that lies in several shares has one part per share, in the order of k. Each part
 * except the last stores its fp32 sums in its share's slot of the workspace, then sets its share's
 * flag. The worker of the last part waits for these flags, adds the parts to its own sums in the
 * order of k, and stores the tile. The order of every sum is fixed: same bits in every run. In the
 * picture SM 0 stores the first step of tile 1; SM 1 adds it to its own 111.
 *
 * Waiting. A worker runs through a share backwards: first the tile that continues in the next
 * share, last the tile that began in a previous one. So a worker waits at the end of its share for
 * what other workers did at the beginning of theirs: at equal speed the wait is over before it
 * begins. A share waits only for shares with smaller numbers, and every worker takes its shares in
 * ascending order: there is no cycle of waits while all workers are resident. With Stream-K a
 * share that waits does so for workers with smaller numbers: the workers need not be resident at
 * once, as long as they start in the order of their numbers.
 *
 * Source: Osama, Merrill, Cecka, Garland, Owens, "Stream-K: Work-centric Parallel Decomposition for
 * Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023 (there the first part's worker adds).
 */
#ifndef LAYERS_CUDA_MATMUL_SCHEDULE_H
#define LAYERS_CUDA_MATMUL_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/host_device.h"
#include "layers/cuda/sizes.h"

typedef enum MatmulKind { MATMUL_DATA_PARALLEL, MATMUL_SPLIT_K, MATMUL_STREAM_K } MatmulKind;

/* Elements of a tile of y, and of a step along k. */
typedef struct MatmulTile {
    int m, n, k;
} MatmulTile;

typedef struct MatmulSchedule {
    int tiles_m, tiles_n; // rows and columns of tiles in y
    int steps;            // of a tile, along k
    int workers;
    int streamed; // tiles at the beginning of the line that are divided
    // shares into which they are divided, of equal length; each later tile is one share
    int divided;
    int group; // rows of tiles that are traversed together: matmul_tile_at
} MatmulSchedule;

/* A part: consecutive steps of one tile, the unit of a worker's loop. The first part of a tile has
 * k_begin == 0, the last one k_end == steps. */
typedef struct MatmulPart {
    int tile_m, tile_n; // row and column of tiles
    int k_begin, k_end; // steps
    int part, parts; // index among, and number of, this tile's parts; part j is in share - part + j
    int share;       // the number of its slot and flag, if it is not the last part
    int begin, end;  // the steps of the line that remain of the share
} MatmulPart;

/* With fewer tiles than workers: least steps of a share of Stream-K, and most shares of a tile (one
 * more, where shares do not begin with the tile), as one worker adds all parts of a tile. */
enum { MATMUL_LEAST_STEPS = 8, MATMUL_MOST_SHARES = 16 };

HOST_DEVICE int matmul_tiles(const MatmulSchedule *s) {
    return s->tiles_m * s->tiles_n;
}
HOST_DEVICE int matmul_shares(const MatmulSchedule *s) {
    return s->divided + matmul_tiles(s) - s->streamed;
}

/* ---- the line ---- */

/* The step of the line at which a share begins. Shares of the streamed tiles differ by at most one
 * step. Computed in 32 bits, as the thread that fetches has few registers: the quotient and the
 * remainder of line / divided, times share. */
HOST_DEVICE int matmul_share_begin(const MatmulSchedule *s, int share) {
    int line = s->streamed * s->steps;
    if (share >= s->divided) return line + (share - s->divided) * s->steps;
    unsigned rest = (unsigned)(line % s->divided) * (unsigned)share;
    return line / s->divided * share + (int)(rest / (unsigned)s->divided);
}
/* The share that contains a step of the line. */
HOST_DEVICE int matmul_share_at(const MatmulSchedule *s, int step) {
    int line = s->streamed * s->steps;
    if (step >= line) return s->divided + (step - line) / s->steps;
    return (int)(((int64_t)(step + 1) * s->divided - 1) / line);
}

/* Row and column of a tile of the line. `group` rows of tiles are traversed together, column by
 * column: so a wave covers about a square of y, reads few rows of a and few columns of b, and L2
 * holds them.
 *
 *     group 2    0 2 4 6    of 3 x 4 tiles
 *                1 3 5 7
 *                8 9 a b
 */
HOST_DEVICE void matmul_tile_at(const MatmulSchedule *s, int tile, int *tile_m, int *tile_n) {
    int first = tile / (s->group * s->tiles_n) * s->group, in = tile - first * s->tiles_n;
    int rows = s->tiles_m - first < s->group ? s->tiles_m - first : s->group;
    *tile_m = first + in % rows, *tile_n = in / rows;
}

/* ---- the loop of a worker ---- */

/* for (MatmulPart p = matmul_begin(&s, worker); matmul_next(&s, &p);) ... */
HOST_DEVICE MatmulPart matmul_begin(const MatmulSchedule *s, int worker) {
    MatmulPart p = {0, 0, 0, 0, 0, 0, worker - s->workers, 0, 0};
    return p;
}
HOST_DEVICE bool matmul_next(const MatmulSchedule *s, MatmulPart *p) {
    if (p->end == p->begin) {
        p->share += s->workers;
        if (p->share >= matmul_shares(s)) return false;
        p->begin = matmul_share_begin(s, p->share);
        p->end = matmul_share_begin(s, p->share + 1);
    }
    int tile = (p->end - 1) / s->steps, first = tile * s->steps;
    int from = first < p->begin ? p->begin : first;
    p->k_begin = from - first, p->k_end = p->end - first;
    p->end = from;
    matmul_tile_at(s, tile, &p->tile_m, &p->tile_n);
    p->part = p->share - matmul_share_at(s, first);
    p->parts = matmul_share_at(s, first + s->steps - 1) - (p->share - p->part) + 1;
    return true;
}

/* ---- the workspace ---- */

/* Can a tile have several parts? */
HOST_DEVICE bool matmul_fixes_up(const MatmulSchedule *s) {
    return s->divided > s->streamed || (s->divided > 0 && s->streamed % s->divided != 0);
}
/* Bytes of the workspace: for each share of the streamed tiles a slot of a tile in fp32, and 4 more
 * bytes (unused: flags lie in device_zeros()). 0: no tile has several parts. */
HOST_DEVICE size_t matmul_slot_bytes(const MatmulTile *t) {
    return (size_t)t->m * (size_t)t->n * sizeof(float);
}
HOST_DEVICE size_t matmul_schedule_workspace(const MatmulSchedule *s, const MatmulTile *t) {
    if (!matmul_fixes_up(s)) return 0;
    return (size_t)s->divided * (matmul_slot_bytes(t) + sizeof(int32_t));
}

/* The largest number of parts of a tile. */
HOST_DEVICE int matmul_most_parts(const MatmulSchedule *s) {
    int most = 1;
    for (int i = 0; i < s->streamed; i++) {
        int parts = matmul_share_at(s, (i + 1) * s->steps - 1) - matmul_share_at(s, i * s->steps);
        if (parts + 1 > most) most = parts + 1;
    }
    return most;
}

/* Are there enough flags, and do sums of parts fit into the workspace? pieces: flags per share. */
enum { MATMUL_FLAGS = 2048 };
HOST_DEVICE bool matmul_has_room(const MatmulSchedule *s, const MatmulTile *t, int pieces) {
    return s->divided * pieces <= MATMUL_FLAGS &&
           matmul_schedule_workspace(s, t) <= MATMUL_WORKSPACE;
}

/* ---- schedules ---- */

/* Number of rows of tiles with which a wave of `workers` tiles covers about a square of y. */
HOST_DEVICE int matmul_group(const MatmulTile *t, int tiles_m, int workers) {
    int rows = 1;
    while (rows < tiles_m && (int64_t)(rows + 1) * (rows + 1) * t->m <= (int64_t)workers * t->n)
        rows++;
    return rows;
}

/* Local, pure. M, N, K, workers > 0, and fewer than 2^31 steps of all tiles. parts: parts of a tile
 * with split-K; ignored by the other kinds. Tiles are not divided where the shares would be too
 * many for 16 bits. */
HOST_DEVICE MatmulSchedule matmul_schedule(int64_t M, int64_t N, int64_t K, MatmulTile t,
                                           int workers, MatmulKind kind, int parts) {
    MatmulSchedule s = {(int)((M + t.m - 1) / t.m),
                        (int)((N + t.n - 1) / t.n),
                        (int)((K + t.k - 1) / t.k),
                        workers,
                        0,
                        0,
                        1};
    int tiles = s.tiles_m * s.tiles_n, rest = tiles % workers;
    s.group = matmul_group(&t, s.tiles_m, workers);
    if (kind == MATMUL_SPLIT_K && parts > 1 && tiles <= UINT16_MAX / parts) {
        s.streamed = tiles;
        s.divided = tiles * (parts < s.steps ? parts : s.steps);
    } else if (kind == MATMUL_STREAM_K && rest > 0 && tiles > workers) {
        s.streamed = workers + rest, s.divided = workers;
    } else if (kind == MATMUL_STREAM_K && rest > 0) {
        int64_t most = (int64_t)tiles * s.steps / MATMUL_LEAST_STEPS;
        if (most > (int64_t)tiles * MATMUL_MOST_SHARES) most = (int64_t)tiles * MATMUL_MOST_SHARES;
        s.streamed = tiles;
        s.divided = most < tiles ? tiles : most < workers ? (int)most : workers;
    }
    return s;
}

#endif
