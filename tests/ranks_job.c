/* ranks_job -- a job that does nothing but collectives, for the tests that need processes
 * (tests/mpi.sh).
 *
 *   ranks_job sums [N]   random calls of every op, type and shape, several open at a time and
 *                        waited for in any order. One line per rank with the checksum of all its
 *                        results. Without a launcher N threads are the ranks: bit for bit they
 *                        print the same lines.
 *   ranks_job loop [N]   all_reduces without end; before, the line "rank 2 pid 4711" of each rank
 *   ranks_job die        the same, but rank 1 calls die()
 *   ranks_job compute    nobody calls anything for longer than the limit; then all_reduces
 *   ranks_job uneven     rank 1 starts another collective than the others
 *   ranks_job bytes      one all_reduce of 4 MB, an all_gather and a reduce_scatter of 4 MB wholes;
 *                        prints the bytes that each rank counted
 *
 *   ranks_job overlap    an all_reduce of 4 MB, matmuls that take about 0.8 of its time, and both
 *                        at once: what share of the shorter one is hidden when the matmuls look
 *                        after the message between their panels, and when they do not
 *
 *   ranks_job together   milliseconds of an all_gather of 256 KiB, and of four that are under way
 *                        at once
 *
 * In the environment LIMIT: seconds that a wait may last (3); START: until all ranks are there (60)
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/crc32c.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/team.h"
#include "layers/kernels.h"
#include "parallel/comm/coll.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"

/* Prints the ranks' lines in their order, all from rank 0. */
static void print_all(World *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void print_all(World *w, const char *fmt, ...) {
    char mine[80] = "", *all = mem_alloc((size_t)world_size(w) * sizeof mine);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(mine, sizeof mine, fmt, ap);
    va_end(ap);
    Group g = comm_group(world_comm(w));
    group_all_gather(&g, mine, sizeof mine, all);
    for (int r = 0; r < world_size(w) && world_rank(w) == 0; r++)
        printf("%s\n", all + (size_t)r * sizeof mine);
    fflush(stdout);
    mem_free(all);
}

/* ---- sums */

enum { ROUNDS = 416, OPEN = 16 };

/* Uniform in [0, n), alike on all ranks. */
static int pick(uint64_t *at, int n) {
    return (int)(rng_u64(1, 0, (*at)++) % (uint64_t)n);
}

static void fill(void *x, CollType type, int64_t n, uint64_t round, int rank) {
    uint64_t u = rng_u64(2, 1 + (uint64_t)rank, round);
    for (int64_t i = 0; i < n; i++) {
        u = u * 6364136223846793005u + 1442695040888963407u; // high bits are the random ones
        double f = (double)(int64_t)u * 0x1p-62;
        float f32 = (float)f;
        uint32_t word = (uint32_t)(u >> 32);
        uint8_t byte = (uint8_t)(u >> 56);
        uint16_t half = bf16_from_float(f32);
        const void *const from[] = {[COLL_F32] = &f32,  [COLL_F64] = &f,   [COLL_I64] = &u,
                                    [COLL_I32] = &word, [COLL_U8] = &byte, [COLL_BF16] = &half};
        memcpy((char *)x + i * coll_type_bytes(type), from[type], (size_t)coll_type_bytes(type));
    }
}

/* One random call along c, with buffers of its own; *memory is freed when it is done. */
static CollCall random_call(const Comm *c, uint64_t *at, uint64_t round, char **memory) {
    static const char *const names[] = {"a", "b", "c"};
    CollCall k = {0};
    k.op = (CollOp)pick(at, N_COLL_OPS);
    k.type = (CollType)pick(at, 6);
    k.dim = pick(at, 2);
    bool large = round % 50 == 49; // more than one piece, and beyond what MPI sends at once
    int most = large ? 1500 : round % 2 ? 120 : 40;
    k.rows = pick(at, most);
    k.cols = pick(at, most);
    if (round == 7) // more than one piece of what is kept for a reduction
        k.op = COLL_ALL_REDUCE, k.type = COLL_F32, k.rows = 2003, k.cols = 3001;
    if (round == 9)
        k.op = COLL_REDUCE_SCATTER, k.type = COLL_F32, k.rows = 1501, k.cols = 1001, k.dim = 1;
    k.root = pick(at, comm_size(c));
    if (k.op == COLL_SHIFT && k.root == 0) k.op = COLL_BROADCAST; // in a group of one, too
    k.what = names[pick(at, 3)];
    bool in_place = pick(at, 2);
    int64_t bytes = coll_type_bytes(k.type), n = coll_elements(&k);
    bool blocks = k.op == COLL_ALL_GATHER || k.op == COLL_REDUCE_SCATTER;
    if (blocks && k.dim == 0 && k.rows % 2) k.stride = n + k.cols;
    int64_t whole = coll_block_stride(&k) * comm_size(c);
    char *m = *memory = mem_calloc((size_t)(2 * whole + 1), (size_t)bytes);
    k.src = m, k.dst = m + whole * bytes;
    if (in_place && k.op == COLL_ALL_GATHER)
        k.src = coll_own_block(&k, comm_rank(c));
    else if (in_place && k.op == COLL_REDUCE_SCATTER && k.dim == 0)
        k.dst = m + comm_rank(c) * coll_block_stride(&k) * bytes;
    else if (in_place && (k.op == COLL_ALL_REDUCE || k.op == COLL_BROADCAST))
        k.src = k.dst;
    int64_t row = coll_src_stride(&k, comm_rank(c), comm_size(c));
    if (k.op == COLL_ALL_GATHER)
        for (int64_t r = 0; r < k.rows; r++)
            fill((char *)k.src + r * row * bytes, k.type, k.cols, round + (uint64_t)r,
                 comm_rank(c));
    else
        fill((char *)k.src, k.type, k.op == COLL_REDUCE_SCATTER ? whole : n, round, comm_rank(c));
    if (k.op == COLL_REDUCE && comm_rank(c) != k.root) k.dst = NULL;
    return k;
}

static int run_sums(World *w) {
    int rank = world_rank(w), size = world_size(w);
    Comm *groups[] = {world_comm(w), world_split(w, rank % 2, -rank, "parity"),
                      world_split(w, rank / 2, rank, "pairs"), world_split(w, 0, -rank, "back")};
    uint32_t crc = 0;
    for (int i = 0; i < 20; i++) { // groups may come and go
        Comm *gone = world_split(w, rank % 3, i, "gone");
        coll_barrier(gone);
        comm_free(gone);
    }
    uint64_t at = 0;
    for (uint64_t round = 0; round < ROUNDS; round += OPEN) {
        CollCall k[OPEN];
        Ticket t[OPEN];
        char *memory[OPEN];
        for (uint64_t i = 0; i < OPEN; i++) {
            Comm *c = groups[(round + i) * 7 / 3 % 4];
            k[i] = random_call(c, &at, round + i, &memory[i]);
            t[i] = coll_start(c, &k[i]);
            if (round % 3 == 0) coll_progress(w);
            if (round % 40 == 0 && i == 1) coll_barrier(world_comm(w));
        }
        for (int n_open = OPEN, i; n_open > 0; n_open--) {
            for (i = pick(&at, OPEN); !memory[i];) i = (i + 1) % OPEN;
            coll_wait(t[i]);
            int64_t n = coll_elements(&k[i]) * coll_type_bytes(k[i].type);
            if (k[i].op == COLL_ALL_GATHER)
                n = coll_block_stride(&k[i]) * comm_size(t[i].comm) * coll_type_bytes(k[i].type);
            if (k[i].dst) crc = crc32c(crc, k[i].dst, (size_t)n);
            mem_free(memory[i]);
            memory[i] = NULL;
        }
    }
    print_all(w, "rank %d of %d: %08" PRIx32, rank, size, crc);
    return 0;
}

/* ---- the others */

static int run_loop(World *w, int dies) {
    enum { N = 1 << 16 };
    print_all(w, "rank %d pid %d", world_rank(w), (int)getpid());
    float *x = mem_calloc(N, sizeof *x);
    for (int step = 1;; step++) {
        char line[80];
        snprintf(line, sizeof line, "step %d", step);
        world_set_phase(w, line);
        coll_sum(world_comm(w), COLL_F32, x, N, "gradient");
        if (step == 20 && world_rank(w) == dies) die("the disk is full");
    }
}

static int run_compute(World *w, double limit) {
    float x = 1;
    usleep((useconds_t)(1.5e6 * limit));
    coll_sum(world_comm(w), COLL_F32, &x, 1, "after a long computation");
    print_all(w, "rank %d: %g", world_rank(w), x);
    return 0;
}

static int run_uneven(World *w) {
    float x[4] = {0};
    coll_sum(world_comm(w), COLL_F32, x, world_rank(w) == 1 ? 3 : 4, "gradient");
    return 0;
}

static int run_bytes(World *w) {
    enum { N = 1 << 20 };
    float *x = mem_calloc(2 * N, sizeof *x);
    CollCall k = {.rows = 1, .cols = N / world_size(w), .src = x, .dst = x + N, .what = "bytes"};
    world_count_reset(w);
    coll_sum(world_comm(w), COLL_F32, x, N, "gradient");
    k.op = COLL_ALL_GATHER;
    coll_run(world_comm(w), &k);
    k.op = COLL_REDUCE_SCATTER;
    coll_run(world_comm(w), &k);
    CollCount row[8];
    int64_t sum = 0;
    for (int i = world_counts(w, row, 8); i-- > 0;) sum += row[i].bytes;
    mem_free(x);
    print_all(w, "rank %d on %s received %" PRId64, world_rank(w), world_node(w), sum);
    return 0;
}

/* ---- several at once */

/* Of all ranks: on a long link one comes out of a barrier before another. */
static double most(World *w, double mine) {
    double all[64], longest = mine;
    Group g = comm_group(world_comm(w));
    if (g.size > 64) die("more than 64 ranks");
    group_all_gather(&g, &mine, sizeof mine, all);
    for (int r = 0; r < g.size; r++) longest = fmax(longest, all[r]);
    return longest;
}

static int run_together(World *w) {
    enum { MOST = 4, N = 1 << 16, TRIES = 5 };
    float *x = mem_calloc(MOST * 2 * N, sizeof *x);
    double ms[2];
    for (int k = 0; k < 2; k++) {
        ms[k] = INFINITY;
        for (int try = 0; try < TRIES; try++) {
            Ticket t[MOST];
            coll_barrier(world_comm(w));
            double begin = now_s();
            int n = k ? MOST : 1;
            for (int i = 0; i < n; i++)
                t[i] = coll_start(world_comm(w), &(CollCall){.op = COLL_ALL_GATHER,
                                                             .rows = 1,
                                                             .cols = N / world_size(w),
                                                             .src = x + 2 * i * N,
                                                             .dst = x + (2 * i + 1) * N,
                                                             .what = "together"});
            for (int i = 0; i < n; i++) coll_wait(t[i]);
            ms[k] = fmin(ms[k], most(w, 1e3 * (now_s() - begin)));
        }
    }
    if (world_rank(w) == 0) printf("one %.1f ms, four %.1f ms\n", ms[0], ms[1]);
    mem_free(x);
    return 0;
}

/* ---- overlap */

enum { REDUCED = 1 << 20, SIDE = 384, REPEATS = 5 };

typedef struct Both {
    World *w;
    Team *team;
    float *reduced;
    Matmul matmul;
    int matmuls;
} Both;

/* Seconds, the mean of all ranks, the median of some times; with or without the all_reduce and the
 * matmuls. */
static double both_seconds(Both *b, bool reduces, bool computes) {
    double s[REPEATS];
    Group all = comm_group(world_comm(b->w));
    for (int i = 0; i < REPEATS; i++) {
        CollCall k = {.op = COLL_ALL_REDUCE, .rows = 1, .cols = REDUCED, .what = "gradient"};
        k.src = k.dst = b->reduced;
        coll_barrier(world_comm(b->w));
        double begin = now_s();
        Ticket t = reduces ? coll_start(world_comm(b->w), &k) : (Ticket){0};
        for (int n = 0; n < b->matmuls && computes; n++)
            kernels_cpu("auto")->matmul(b->team, &b->matmul);
        coll_wait(t);
        s[i] = group_sum(&all, now_s() - begin) / all.size;
    }
    for (int i = 1; i < REPEATS; i++)
        for (int j = i; j > 0 && s[j] < s[j - 1]; j--) {
            double x = s[j];
            s[j] = s[j - 1], s[j - 1] = x;
        }
    return s[REPEATS / 2];
}

/* reduce: the seconds of the all_reduce alone. */
static void print_hidden(Both *b, const char *how, double reduce) {
    double compute = both_seconds(b, false, true), both = both_seconds(b, true, true),
           least = reduce < compute ? reduce : compute;
    if (world_rank(b->w) == 0)
        printf("%s: all_reduce %.1f ms, matmuls %.1f ms, both %.1f ms: %.0f %% hidden\n", how,
               1e3 * reduce, 1e3 * compute, 1e3 * both, 100 * (reduce + compute - both) / least);
}

static int run_overlap(World *w) {
    const Kernels *k = kernels_cpu("auto");
    float *m = mem_calloc(3 * SIDE * SIDE, sizeof *m);
    Both b = {.w = w, .team = team_create(1), .reduced = mem_calloc(REDUCED, 4), .matmuls = 20};
    b.matmul = (Matmul){.M = SIDE, .N = SIDE, .K = SIDE, .a = m, .a_row = SIDE, .a_col = 1};
    b.matmul.b = m + SIDE * SIDE, b.matmul.b_row = SIDE, b.matmul.b_col = 1;
    b.matmul.y = m + 2 * SIDE * SIDE, b.matmul.ldy = SIDE;
    b.matmul.workspace = mem_alloc_aligned(k->matmul_workspace(1), 64);
    double reduce = both_seconds(&b, true, false), some = both_seconds(&b, false, true);
    b.matmuls = (int)(0.8 * b.matmuls * reduce / some) + 1;
    print_hidden(&b, "without polls", reduce);
    world_set_team(w, b.team);
    print_hidden(&b, "with polls", reduce);
    world_set_team(w, NULL);
    team_destroy(b.team);
    mem_free(b.matmul.workspace), mem_free(b.reduced), mem_free(m);
    return 0;
}

static int rank_main(World *w, void *ctx) {
    const char *verb = ctx, *text = getenv("LIMIT");
    double limit = text ? atof(text) : 3;
    world_set_limit(w, limit);
    if (strcmp(verb, "sums") == 0) return run_sums(w);
    if (strcmp(verb, "loop") == 0) return run_loop(w, -1);
    if (strcmp(verb, "die") == 0) return run_loop(w, 1);
    if (strcmp(verb, "compute") == 0) return run_compute(w, limit);
    if (strcmp(verb, "uneven") == 0) return run_uneven(w);
    if (strcmp(verb, "bytes") == 0) return run_bytes(w);
    if (strcmp(verb, "overlap") == 0) return run_overlap(w);
    if (strcmp(verb, "together") == 0) return run_together(w);
    die_usage("\"%s\" is none of overlap, together, sums, loop, die, compute, uneven, bytes", verb);
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    ranks_share_usage();
    if (argc < 2) die_usage("usage: ranks_job VERB [RANKS]");
    if (getenv("START")) ranks_set_start_limit(atof(getenv("START")));
    return ranks_run(argc > 2 ? atoi(argv[2]) : 0, rank_main, argv[1]);
}
