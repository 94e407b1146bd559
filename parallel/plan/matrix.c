/* detect_matrix -- the bandwidth between every two ranks, as ATP measures it before it chooses a
 * mesh.
 *
 * A tournament: in each round every rank has one partner, and after all rounds each has met each.
 * Ranks sit around a table and the last one in its middle; in round k those meet who are mirror
 * images in the line through seat k, and the one at seat k meets the last.
 *
 *         round 0:   5 - 0      1 - 4      2 - 3          6 ranks; with 5 the partner of 5 rests
 *         round 1:   5 - 1      2 - 0      3 - 4
 *
 * Each pair is measured with all pairs of its round at once, as in a step, and alone. With many
 * ranks some rounds stand for all, and of each round one pair on a node and one between nodes are
 * measured alone.
 *
 * Source: Cheng et al., "ATP: Adaptive Tensor Parallelism for Foundation Models", 2023:
 * hierarchical communication matrix.
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/detect_parts.h"

enum { MATRIX_RANKS = 16, BLOCK = 1 << 20, MOST_CALLS = 64 };
static const double least_seconds = 0.02; // of a measurement: beyond the jitter of a barrier

/* Bytes/s that each of two ranks receives from the other. 0: not measured. */
typedef struct Rates {
    double alone, together;
} Rates;

typedef struct Matrix {
    World *world;
    Group all;
    int p, rounds;        // of which so many are played
    char (*node)[64];     // [p]
    Rates *mine, *rate;   // [rounds] of this rank; [p, rounds] of all
    char *block, *blocks; // [BLOCK], [2 BLOCK]
} Matrix;

int matrix_partner(int rank, int p, int round) {
    int seats = p - 1 + p % 2; // without the last rank, or without the one who rests
    int other = ((2 * round - rank) % seats + seats) % seats;
    if (rank == seats) return round;
    if (other != rank) return other;
    return seats < p ? seats : -1;
}

static bool same_node(const Matrix *m, int a, int b) {
    return strcmp(m->node[a], m->node[b]) == 0;
}

/* ---- one pair ---- */

static double exchange(Matrix *m, Comm *pair, int calls) {
    CollCall call = {.op = COLL_ALL_GATHER,
                     .type = COLL_U8,
                     .rows = 1,
                     .cols = BLOCK,
                     .src = m->block,
                     .dst = m->blocks,
                     .what = "bandwidth of a pair",
                     .file = __FILE__,
                     .line = __LINE__};
    double begin = coll_now();
    for (int i = 0; i < calls; i++) coll_run(pair, &call);
    return coll_now() - begin;
}

/* Collective over the pair. One call says how many take long enough. */
static double rate_of(Matrix *m, Comm *pair) {
    Group g = comm_group(pair);
    exchange(m, pair, 1); // opens what is opened by the first
    double one = exchange(m, pair, 1), calls = least_seconds / one + 1;
    int n = calls < MOST_CALLS ? (int)calls : MOST_CALLS;
    group_share(&g, &n, sizeof n);
    group_barrier(&g);
    return (double)n * BLOCK / (group_sum(&g, exchange(m, pair, n)) / 2);
}

/* ---- rounds ---- */

/* The i-th round that is played: all, or some that stand for them. */
static int round_of(const Matrix *m, int i) {
    int all = m->p - 1 + m->p % 2;
    return (int)((int64_t)i * all / m->rounds);
}

/* Collective over the world. */
static void play(Matrix *m, int i) {
    int rank = m->all.rank, round = round_of(m, i), other = matrix_partner(rank, m->p, round);
    int first = other < 0 || rank < other ? rank : other;
    bool done[2] = {false, false}; // a pair between nodes, a pair on one
    Comm *pair = world_split(m->world, first, rank, "pair");
    group_barrier(&m->all);
    if (other >= 0) m->mine[i].together = rate_of(m, pair);
    for (int r = 0; r < m->p; r++) {
        int to = matrix_partner(r, m->p, round);
        if (to < r || (m->p > MATRIX_RANKS && done[same_node(m, r, to)])) continue;
        done[same_node(m, r, to)] = true;
        group_barrier(&m->all);
        if (r == first) m->mine[i].alone = rate_of(m, pair);
    }
    group_barrier(&m->all);
}

/* ---- what rank 0 prints ---- */

static const char *gigabytes(double rate, char buf[16]) {
    snprintf(buf, 16, "%.3g", rate / 1e9);
    return buf;
}

static Rates rates(const Matrix *m, int r, int c) {
    for (int i = 0; i < m->rounds; i++)
        if (matrix_partner(r, m->p, round_of(m, i)) == c) return m->rate[r * m->rounds + i];
    return (Rates){0, 0};
}

static void print_rows(const Matrix *m, FILE *f) {
    char buf[16];
    fprintf(f,
            "GB/s from one rank to another while as much goes back; above the diagonal one pair "
            "alone, below it\nwith all pairs of a round at once\n%16s",
            "");
    for (int c = 0; c < m->p; c++) fprintf(f, "%7d", c);
    fprintf(f, "\n");
    for (int r = 0; r < m->p; r++) {
        bool begins = r == 0 || !same_node(m, r, r - 1);
        fprintf(f, "%-12.12s%4d", begins ? m->node[r] : "", r);
        for (int c = 0; c < m->p; c++) {
            Rates x = rates(m, r, c);
            fprintf(f, "%7s", r == c ? "." : gigabytes(c > r ? x.alone : x.together, buf));
        }
        fprintf(f, "\n");
    }
}

/* Least, mean and greatest of a level. */
typedef struct Range {
    int n;
    double least, sum, most;
} Range;

static void range_add(Range *x, double rate) {
    if (rate <= 0) return;
    if (x->n == 0 || rate < x->least) x->least = rate;
    if (x->n == 0 || rate > x->most) x->most = rate;
    x->sum += rate;
    x->n++;
}

static void print_range(const Range *x, int width, FILE *f) {
    char least[16], mean[16], most[16], range[48] = "";
    if (x->n > 1)
        snprintf(range, sizeof range, " (%s to %s)", gigabytes(x->least, least),
                 gigabytes(x->most, most));
    fprintf(f, "  %8s%-*s", gigabytes(x->sum / x->n, mean), width, range);
}

static void print_levels(const Matrix *m, FILE *f) {
    static const char *const name[] = {"same node", "other node"};
    fprintf(f, "%-12s%6s  %-27s  %s\n", "GB/s", "pairs", "   alone", "   all at once");
    for (int level = 0; level < 2; level++) {
        Range alone = {0}, together = {0};
        for (int r = 0; r < m->p; r++)
            for (int i = 0; i < m->rounds; i++) {
                int to = matrix_partner(r, m->p, round_of(m, i));
                if (to < r || same_node(m, r, to) != (level == 0)) continue;
                range_add(&alone, m->rate[r * m->rounds + i].alone);
                range_add(&together, m->rate[r * m->rounds + i].together);
            }
        if (together.n == 0) continue;
        fprintf(f, "%-12s%6d", name[level], together.n);
        print_range(&alone, 20, f);
        print_range(&together, 0, f);
        fprintf(f, "\n");
    }
}

void detect_matrix(World *w, FILE *f) {
    Matrix m = {.world = w, .all = comm_group(world_comm(w)), .p = world_size(w)};
    size_t p = (size_t)m.p;
    char mine[64] = "";
    if (m.p == 1) {
        fprintf(f, "one rank: no pairs\n");
        return;
    }
    int all = m.p - 1 + m.p % 2;
    m.rounds = all < MATRIX_RANKS ? all : MATRIX_RANKS;
    m.node = mem_calloc(p, sizeof *m.node);
    m.mine = mem_calloc((size_t)m.rounds, sizeof *m.mine);
    m.rate = mem_calloc(p * (size_t)m.rounds, sizeof *m.rate);
    m.block = mem_calloc(1, BLOCK);
    m.blocks = mem_calloc(2, BLOCK);
    snprintf(mine, sizeof mine, "%s", world_node(w));
    group_all_gather(&m.all, mine, sizeof mine, m.node);
    for (int i = 0; i < m.rounds; i++) play(&m, i);
    group_all_gather(&m.all, m.mine, (size_t)m.rounds * sizeof *m.mine, m.rate);
    if (m.all.rank == 0 && m.p <= MATRIX_RANKS) print_rows(&m, f);
    if (m.all.rank == 0) print_levels(&m, f);
    mem_free(m.node), mem_free(m.mine), mem_free(m.rate), mem_free(m.block), mem_free(m.blocks);
}
