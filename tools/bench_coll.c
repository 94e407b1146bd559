/* bench_coll -- time and bandwidth of collectives, beside a plain copy.
 *
 *     bench_coll --ranks 2               ranks as threads
 *     mpirun -n 4 bench_coll             ranks as processes
 *
 *     bytes   of the whole tensor: all_gather's dst, reduce_scatter's src, else the buffer
 *     algbw   bytes / time
 *     busbw   algbw x (p-1)/p, for all_reduce x 2(p-1)/p, for broadcast, reduce and shift x 1: the
 *             bytes that the links of a ring carry, as nccl-tests count them
 *     copy    time in which the same ranks, all at once and with the same teams, memcpy as many
 *             bytes as the op brings into each rank's dst: those received from other ranks, and out
 *             of place its own block (all_gather) or buffer (root of broadcast). A rank that
 *             receives nothing copies nothing. The copy goes from one pool of the rank to another.
 *             A sum also reads its own terms, so it does more than this copy
 *     of copy median of copy's time / op's time
 *
 * A repetition is a loop of several calls between two barriers; its time is that of the slowest
 * rank. Op and copy alternate, and medians are printed. Each rank has a pool of --pool MiB for src
 * and one for dst, and each call uses the next part of the pools: large pools measure memory, small
 * ones caches.
 */
#include <string.h>

#include "base/arena.h"
#include "base/die.h"
#include "base/median.h"
#include "base/opt.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"

enum { MAX_REPS = 1001 };

static struct {
    int64_t ranks, threads, from, to, pool_mib, reps, calls, dim;
    const char *only;
    bool in_place;
} o;

typedef struct Bench {
    World *w;
    Group group;
    char *src, *dst; // pools of `pool` bytes
    int64_t pool, at;
} Bench;

/* One op at one size. */
typedef struct Row {
    CollCall call;
    int64_t whole, span; // bytes of the whole tensor; bytes of either buffer that one call may use
    int64_t copied;      // bytes that `copy` copies
    int loop;            // calls of one repetition
} Row;

/* The call of one op at one size, the bytes that the copy moves, and the calls of a repetition. */
static Row row_of(const Bench *b, CollOp op, int64_t whole) {
    // MIN_BYTES of one repetition: its time is well above the jitter of barriers
    enum { MIN_BYTES = 32 << 20, MAX_LOOP = 100 };
    int p = world_size(b->w);
    bool blocks = op == COLL_ALL_GATHER || op == COLL_REDUCE_SCATTER;
    Row r = {.call = {.op = op, .rows = 32, .dim = (int)o.dim, .what = "bench"}};
    r.call.root = op == COLL_SHIFT; // shift by 1: from the rank before
    r.call.cols = whole / 4 / r.call.rows / (blocks ? p : 1);
    r.whole = coll_elements(&r.call) * 4 * (blocks ? p : 1);
    // the copy may use more than the op
    r.span = r.whole * (op == COLL_REDUCE ? p : op == COLL_ALL_REDUCE ? 2 : 1);
    r.copied = coll_bytes(&r.call, world_rank(b->w), p);
    if (!o.in_place && op == COLL_ALL_GATHER) r.copied += r.whole / p;
    if (!o.in_place && op == COLL_BROADCAST && world_rank(b->w) == 0) r.copied += r.whole;
    r.loop = (int)(MIN_BYTES / (whole + 1)) + 1;
    if (r.loop > MAX_LOOP) r.loop = MAX_LOOP;
    if (o.calls) r.loop = (int)o.calls;
    return r;
}

/* Offset of the next call in the pools. */
static int64_t next_place(Bench *b, const Row *r) {
    int64_t span = (r->span + 4095) / 4096 * 4096, at = b->at;
    if (at + span > b->pool) at = 0;
    b->at = at + span;
    return at;
}

/* Makes src and dst overlap, if the op allows that. */
static void set_in_place(CollCall *c, int rank) {
    if (c->op == COLL_ALL_GATHER)
        c->src = coll_own_block(c, rank);
    else if (c->op == COLL_ALL_REDUCE || c->op == COLL_BROADCAST)
        c->src = c->dst;
    else if (c->op == COLL_REDUCE_SCATTER && c->dim == 0)
        c->dst = (char *)c->src + rank * coll_elements(c) * 4;
}

/* Seconds of one call of the op, or of the copy. */
static double seconds_of(Bench *b, const Row *r, Team *team, bool copy) {
    coll_barrier(world_comm(b->w));
    double begin = now_s();
    for (int i = 0; i < r->loop; i++) {
        int64_t at = next_place(b, r);
        CollCall call = r->call;
        call.src = b->src + at, call.dst = b->dst + at;
        if (o.in_place) set_in_place(&call, world_rank(b->w));
        if (copy)
            coll_copy(team, b->dst + at, r->copied, b->src + at, r->copied, 1, r->copied);
        else
            coll_run(world_comm(b->w), &call);
    }
    return (now_s() - begin) / r->loop;
}

/* Collective. Replaces each s[i] by that of the slowest rank. */
static void take_slowest(const Bench *b, double *s, int n) {
    for (int i = 0; i < n; i++) s[i] = group_max(&b->group, s[i]);
}

/* Measures one op at one size beside the copy; rank 0 prints the row. */
static void measure(Bench *b, const Row *r, Team *team) {
    static _Thread_local double op[MAX_REPS], copy[MAX_REPS], share[MAX_REPS];
    int reps = (int)o.reps, p = world_size(b->w);
    for (int i = -1; i < reps; i++) { // -1: warm-up
        double s = seconds_of(b, r, team, false), t = seconds_of(b, r, team, true);
        if (i >= 0) op[i] = s, copy[i] = t;
    }
    take_slowest(b, op, reps), take_slowest(b, copy, reps);
    for (int i = 0; i < reps; i++) share[i] = copy[i] / op[i];
    double s = median_of(op, reps), alg = (double)r->whole / s * 1e-9, bus = 1;
    if (r->call.op < COLL_BROADCAST) bus = (double)(p - 1) / p;
    if (r->call.op == COLL_ALL_REDUCE) bus *= 2;
    if (world_rank(b->w) == 0)
        printf("  %-14s %11lld %11.1f %8.2f %8.2f %11.1f %7.0f%%\n", coll_op_name(r->call.op),
               (long long)r->whole, s * 1e6, alg, alg * bus, median_of(copy, reps) * 1e6,
               100 * median_of(share, reps));
}

static int bench(World *w, void *ctx) {
    Bench b = {.w = w, .group = comm_group(world_comm(w)), .pool = o.pool_mib << 20};
    (void)ctx;
    int64_t least = (o.to + 4096) * (world_size(w) + 1);
    if (b.pool < least) b.pool = least;
    Arena a = arena_measure("bench");
    for (int walk = 0; walk < 2; walk++) {
        if (walk) arena_commit(&a);
        b.src = arena_take(&a, (size_t)b.pool), b.dst = arena_take(&a, (size_t)b.pool);
    }
    NodeShare node = ranks_on_node(w);
    Team *team = team_create(o.threads > 0 ? (int)o.threads : ranks_threads(&node, 0));
    world_set_team(w, team);
    memset(b.src, 1, (size_t)b.pool), memset(b.dst, 2, (size_t)b.pool);
    if (world_rank(w) == 0)
        printf(
            "%d ranks (%s), %d thread%s each, f32, dim %d%s\n  %-14s %11s %11s %8s %8s %11s %8s\n",
            world_size(w), world_backend(w), team_size(team), team_size(team) > 1 ? "s" : "",
            (int)o.dim, o.in_place ? ", in place" : "", "", "bytes", "us", "algbw", "busbw",
            "copy us", "of copy");
    for (int op = 0; op < (world_size(w) > 1 ? N_COLL_OPS : COLL_SHIFT); op++)
        for (int64_t n = o.from; n <= o.to; n *= 4)
            if (strstr(coll_op_name((CollOp)op), o.only)) {
                Row r = row_of(&b, (CollOp)op, n);
                measure(&b, &r, team);
            }
    team_destroy(team);
    arena_free(&a);
    return 0;
}

int main(int argc, char **argv) {
    const Opt options[] = {
        {"ranks", OPT_INT, &o.ranks, "0", 0, 64, "N", "ranks as threads (0: the launcher's, or 1)"},
        {"threads", OPT_INT, &o.threads, "0", 0, 1024, "N",
         "of each rank (0: its share of the cores)"},
        {"from", OPT_INT, &o.from, "1024", 128, 1e12, "BYTES",
         "smallest size; each next is 4 times it"},
        {"to", OPT_INT, &o.to, "67108864", 128, 1e12, "BYTES", "largest size"},
        {"pool", OPT_INT, &o.pool_mib, "256", 0, 1e6, "MIB", "memory that calls walk through"},
        {"reps", OPT_INT, &o.reps, "11", 1, MAX_REPS, "N", "repetitions; the median is printed"},
        {"calls", OPT_INT, &o.calls, "0", 0, 1e6, "N",
         "calls of a repetition (0: 32 MiB of them, at most 100)"},
        {"dim", OPT_INT, &o.dim, "0", 0, 1, "N", "blocks below each other (0) or side by side (1)"},
        {"in-place", OPT_BOOL, &o.in_place, "0", 0, 0, "", "src and dst overlap where they may"},
        {"only", OPT_STR, &o.only, "", 0, 0, "WORD", "only ops whose name contains WORD"},
        {0}};
    die_set_program(argv[0]);
    opt_parse(options, argc, argv, "bench_coll: time and bandwidth of collectives\n\n");
    return ranks_run((int)o.ranks, bench, NULL);
}
