/* ranks_job -- a job that does nothing but collectives, for the tests that need processes (tests/mpi.sh).
 *
 *   ranks_job sums [N]   random calls of every op, type and shape, several open at a time. One line per rank
 *                        with the checksum of all its results. Without a launcher N threads are the ranks:
 *                        bit for bit they print the same lines
 *   ranks_job loop [N]   all_reduces without end; before, the line "rank 2 pid 4711" of each rank
 *   ranks_job die        the same, but rank 1 calls die()
 *   ranks_job compute    nobody calls anything for longer than the limit; then all_reduces
 *   ranks_job uneven     rank 1 starts another collective than the others
 *   ranks_job bytes      one all_reduce of 4 MB, an all_gather and a reduce_scatter of 4 MB wholes; prints
 *                        the bytes that each rank counted
 *
 * LIMIT in the environment: seconds that a wait may last (3). START: until all ranks are there (60).
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/coll_backend.h"
#include "parallel/ranks.h"

/* An all_reduce of n floats in place. */
static void add(Comm *c, float *x, int64_t n, const char *what) {
    coll_run(c, &(CollCall){.op = COLL_ALL_REDUCE,
                            .rows = 1,
                            .cols = n,
                            .src = x,
                            .dst = x,
                            .what = what,
                            .file = __FILE__,
                            .line = __LINE__});
}

/* Prints the ranks' lines in their order, all from rank 0. */
static void print_all(World *w, const char *text) {
    char mine[80] = "", *all = mem_alloc((size_t)world_size(w) * sizeof mine);
    snprintf(mine, sizeof mine, "%s", text);
    Group g = comm_group(world_comm(w));
    group_all_gather(&g, mine, sizeof mine, all);
    for (int r = 0; r < world_size(w) && world_rank(w) == 0; r++)
        printf("%s\n", all + (size_t)r * sizeof mine);
    fflush(stdout);
    mem_free(all);
}

/* ---- sums */

enum { ROUNDS = 200, OPEN = 4 };

/* Uniform in [0, n), alike on all ranks. */
static int pick(uint64_t *at, int n) {
    return (int)(rng_u64(1, 0, (*at)++) % (uint64_t)n);
}

static void fill(void *x, CollType type, int64_t n, uint64_t round, int rank) {
    uint64_t stream = 1 + (uint64_t)rank, first = round << 32;
    for (int64_t i = 0; i < n; i++) {
        uint64_t u = rng_u64(2, stream, first + (uint64_t)i);
        double f = (double)(int64_t)u * 0x1p-62;
        switch (type) {
        case COLL_F32:
            ((float *)x)[i] = (float)f;
            break;
        case COLL_F64:
            ((double *)x)[i] = f;
            break;
        case COLL_I64:
            ((uint64_t *)x)[i] = u;
            break;
        case COLL_I32:
            ((uint32_t *)x)[i] = (uint32_t)u;
            break;
        case COLL_U8:
            ((uint8_t *)x)[i] = (uint8_t)u;
            break;
        }
    }
}

/* One random call along c, with buffers of its own; *memory is freed when it is done. */
static CollCall random_call(const Comm *c, uint64_t *at, uint64_t round, char **memory) {
    static const char *const names[] = {"a", "b", "c"};
    CollCall k = {.file = __FILE__, .line = __LINE__};
    k.op = (CollOp)pick(at, N_COLL_OPS);
    k.type = (CollType)pick(at, 5);
    k.fold = (CollFold)pick(at, 2);
    k.dim = pick(at, 2);
    bool large = round % 50 == 49; // more than one piece, and beyond what MPI sends at once
    k.rows = pick(at, large ? 1500 : 40);
    k.cols = pick(at, large ? 1500 : 40);
    if (round == 7) // more than one piece of what is kept for a fold
        k.op = COLL_ALL_REDUCE, k.type = COLL_F32, k.rows = 2003, k.cols = 3001;
    if (round == 9)
        k.op = COLL_REDUCE_SCATTER, k.type = COLL_F32, k.rows = 1501, k.cols = 1001, k.dim = 1;
    k.root = pick(at, comm_size(c));
    k.what = names[pick(at, 3)];
    bool in_place = pick(at, 2);
    int64_t bytes = coll_type_bytes(k.type), n = coll_elements(&k), whole = n * comm_size(c);
    char *m = *memory = mem_calloc((size_t)(2 * whole + 1), (size_t)bytes);
    k.src = m, k.dst = m + whole * bytes;
    if (in_place && k.op == COLL_ALL_GATHER)
        k.src = coll_own_block(&k, comm_rank(c));
    else if (in_place && k.op == COLL_REDUCE_SCATTER && k.dim == 0)
        k.dst = m + comm_rank(c) * n * bytes;
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
        for (int i = 0; i < OPEN; i++) {
            coll_wait(t[i]);
            int64_t n = coll_elements(&k[i]) * coll_type_bytes(k[i].type);
            if (k[i].op == COLL_ALL_GATHER) n *= comm_size(t[i].comm);
            if (k[i].dst) crc = crc32c(crc, k[i].dst, (size_t)n);
            mem_free(memory[i]);
        }
    }
    char line[80];
    snprintf(line, sizeof line, "rank %d of %d: %08" PRIx32, rank, size, crc);
    print_all(w, line);
    return 0;
}

/* ---- the others */

static int run_loop(World *w, int dies) {
    enum { N = 1 << 16 };
    char line[80];
    snprintf(line, sizeof line, "rank %d pid %d", world_rank(w), (int)getpid());
    print_all(w, line);
    float *x = mem_calloc(N, sizeof *x);
    for (int step = 1;; step++) {
        snprintf(line, sizeof line, "step %d", step);
        world_set_phase(w, line);
        add(world_comm(w), x, N, "gradient");
        if (step == 20 && world_rank(w) == dies) die("the disk is full");
    }
}

static int run_compute(World *w, double limit) {
    float x = 1;
    usleep((useconds_t)(1.5e6 * limit));
    add(world_comm(w), &x, 1, "after a long computation");
    char line[80];
    snprintf(line, sizeof line, "rank %d: %g", world_rank(w), x);
    print_all(w, line);
    return 0;
}

static int run_uneven(World *w) {
    float x[4] = {0};
    add(world_comm(w), x, world_rank(w) == 1 ? 3 : 4, "gradient");
    return 0;
}

static int run_bytes(World *w) {
    enum { N = 1 << 20 };
    float *x = mem_calloc(2 * N, sizeof *x);
    CollCall k = {.rows = 1, .cols = N / world_size(w), .src = x, .dst = x + N, .what = "bytes"};
    k.file = __FILE__, k.line = __LINE__;
    world_count_reset(w);
    add(world_comm(w), x, N, "gradient");
    k.op = COLL_ALL_GATHER;
    coll_run(world_comm(w), &k);
    k.op = COLL_REDUCE_SCATTER;
    coll_run(world_comm(w), &k);
    CollCount row[8];
    int64_t sum = 0;
    for (int i = world_counts(w, row, 8); i-- > 0;) sum += row[i].bytes;
    mem_free(x);
    char line[80];
    snprintf(line, sizeof line, "rank %d on %s received %" PRId64, world_rank(w), world_node(w),
             sum);
    print_all(w, line);
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
    die_usage("\"%s\" is none of sums, loop, die, compute, uneven, bytes", verb);
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    ranks_share_usage();
    if (argc < 2) die_usage("usage: ranks_job VERB [RANKS]");
    if (getenv("START")) ranks_set_start_limit(atof(getenv("START")));
    return ranks_run(argc > 2 ? atoi(argv[2]) : 0, rank_main, argv[1]);
}
