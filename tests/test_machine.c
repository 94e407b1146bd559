/* parallel/plan/machine: against bytes counted rank by rank, against formulas by hand, and the
 * bound. */
#include "parallel/plan/machine.h"

#include "base/clock.h"
#include "base/rng.h"
#include "tests/parsed.h"
#include "tests/test.h"

/* ---- works ---- */

static Work matmul_work(int64_t T, int64_t K, int64_t N) {
    return (Work){.kind = WORK_MATMUL, .flags = WORK_BF16, .rows = T, .K = K, .N = N};
}

static Machine plain(void) {
    return (Machine){.flops = {1e12, 4e12}, .memory_rate = 1e12};
}

/* Relative; a sum and a quotient of a few numbers round some ten times. */
static const double round_off = 1e-12;
#define CHECK_SAME(a, b) CHECK_NEAR((a) / (b), 1, round_off)

TEST(machine_a_large_matmul_runs_at_the_rate_of_its_type) {
    Machine m = plain();
    Work w = matmul_work(4096, 4096, 4096);
    CHECK_SAME(machine_work(&m, &w), 2 * pow(4096, 3) / 4e12);
    w.flags = 0;
    CHECK_SAME(machine_work(&m, &w), 2 * pow(4096, 3) / 1e12);
    m.call = 1e-3;
    CHECK_SAME(machine_work(&m, &w), 2 * pow(4096, 3) / 1e12 + 1e-3);
}

TEST(machine_the_smallest_dimension_of_a_matmul_makes_it_slow) {
    Machine m = plain();
    m.flops_half = 64;
    double large = 2 * pow(4096, 2) * 64 / 4e12;
    Work ways[] = {matmul_work(64, 4096, 4096), matmul_work(4096, 64, 4096),
                   matmul_work(4096, 4096, 64)};
    for (EACH(way, ways)) CHECK_SAME(machine_work(&m, way), 2 * large);
    // scores of attention are matmuls of [S,D] with [D,S]
    Work heads = {.kind = WORK_ATTENTION, .rows = 8, .S = 4096, .H = 16, .Hkv = 16, .D = 64};
    CHECK_SAME(machine_work(&m, &heads), 2 * work_flops(&heads) / 1e12);
}

/* Of heads that it takes; others are priced as on older devices. */
TEST(machine_attention_of_hopper_has_rates_of_its_own) {
    static const int64_t sizes[] = {16, 64, 80, 128};
    for (EACH(size, sizes)) {
        int64_t D = *size;
        Machine older = plain(), m = older;
        older.gpu = m.gpu = true, older.capability = 80, m.capability = 90;
        Work w = {.kind = WORK_ATTENTION, .flags = WORK_BF16 | WORK_BF16_STORED, .rows = 8};
        w.S = 4096, w.H = w.Hkv = 8, w.D = D;
        double before = machine_work(&older, &w), now = machine_work(&m, &w);
        CHECK(D == 64 || D == 128 ? now > before : now == before);
        w.kind = WORK_ATTENTION_BACKWARD;
        CHECK((machine_work(&m, &w) > machine_work(&older, &w)) == (now > before));
        w.flags = WORK_BF16;
        CHECK_SAME(machine_work(&m, &w), machine_work(&older, &w));
    }
}

TEST(machine_what_computes_little_waits_for_memory) {
    Machine m = plain();
    Work w = {.kind = WORK_ADAMW, .rows = 1000000};
    CHECK_SAME(machine_work(&m, &w), work_bytes(&w) / 1e12);
    Work thin = matmul_work(4096, 4096, 1);
    CHECK_SAME(machine_work(&m, &thin), work_bytes(&thin) / 1e12);
}

/* ---- direct, rank by rank ---- */

static CollGroup group_of(const Placement *place) {
    CollGroup g = {.place = *place, .size = 1};
    for (int k = 0; k < place->n; k++) g.size *= place->size[k];
    return g;
}

static CollGroup stretch(int size, int stride) {
    return group_of(&(Placement){1, {size}, {stride}});
}

/* Lowest rank of the group that rank r is in: strides nest. */
static int base_of(const Placement *p, int r) {
    int base = r;
    for (int k = 0; k < p->n; k++) base -= r / p->stride[k] % p->size[k] * p->stride[k];
    return base;
}

static int outside(const Machine *m, const CollGroup *g, int r, int unit) {
    int n = 0;
    for (int j = 0; j < m->ranks; j++)
        n += j / unit != r / unit && base_of(&g->place, j) == base_of(&g->place, r);
    return n;
}

/* Seconds of an all_gather without latencies: every rank sends its block to every other one, and
 * nothing gets quicker outwards. */
static double brute_gather(const Machine *m, const CollGroup *g, int64_t bytes) {
    static double port[4096];
    double seconds = 0, rank_rate = INFINITY, port_rate = INFINITY;
    for (int l = 0; l < m->n_levels; l++) {
        int unit = l == 0 ? 1 : m->level[l - 1].ranks;
        rank_rate = fmin(rank_rate, m->level[l].rank_rate);
        if (m->level[l].port_rate > 0) port_rate = fmin(port_rate, m->level[l].port_rate / unit);
        memset(port, 0, sizeof port);
        for (int r = 0; r < m->ranks; r++) {
            double out = outside(m, g, r, unit) * (double)bytes / g->size;
            seconds = fmax(seconds, out / rank_rate);
            port[r / unit] += out;
        }
        for (int u = 0; u < m->ranks / unit; u++)
            seconds = fmax(seconds, port[u] / (port_rate * unit));
    }
    return seconds;
}

/* ---- machines and groups by chance ---- */

typedef struct Dice {
    uint64_t seed, thrown;
} Dice;

static int pick(Dice *d, int n) {
    return (int)(rng_u64(d->seed, 0, d->thrown++) % (uint64_t)n);
}

static double rate(Dice *d) {
    return 1e8 * (1 + pick(d, 1000));
}

/* Up to four levels of units that have nothing in common with each other but that they nest. */
static Machine any_machine(Dice *d, CollAlgorithm algorithm) {
    Machine m = {.n_levels = 1 + pick(d, MAX_LEVELS), .ranks = 1, .algorithm = algorithm};
    for (int l = 0; l < m.n_levels; l++) {
        m.ranks *= 1 + pick(d, m.n_levels > 2 ? 4 : 12);
        m.level[l] = (Level){.ranks = m.ranks, .latency = 1e-6 * pick(d, 50), .rank_rate = rate(d)};
        if (pick(d, 2)) m.level[l].port_rate = 4 * rate(d);
    }
    return m;
}

/* Ranks as a box whose edges are the machine's ranks in prime factors, in any order: those that
 * differ in some of them. */
static CollGroup any_group(Dice *d, const Machine *m) {
    int factor[20], n = 0, left = m->ranks, stride = m->ranks;
    Placement place = {0};
    for (int f = 2; left > 1; f += left % f ? 1 : 0)
        if (left % f == 0) factor[n++] = f, left /= f;
    for (int i = n - 1; i > 0; i--) {
        int j = pick(d, i + 1), f = factor[i];
        factor[i] = factor[j], factor[j] = f;
    }
    for (int i = 0; i < n; i++) {
        stride /= factor[i];
        bool continues = place.n && place.stride[place.n - 1] == stride * factor[i];
        if (!pick(d, 2) || (!continues && place.n == 2 * N_AXES)) continue;
        if (!continues) place.size[place.n++] = 1;
        place.size[place.n - 1] *= factor[i], place.stride[place.n - 1] = stride;
    }
    return group_of(&place);
}

/* Do the group's stretches end where units do? */
static bool divides(const Machine *m, const CollGroup *g) {
    for (int l = 0; l < m->n_levels; l++)
        for (int k = 0; k < g->place.n; k++) {
            int unit = m->level[l].ranks, stride = g->place.stride[k];
            int span = stride * g->place.size[k];
            bool between = span % unit == 0 && (unit % stride == 0 || stride % unit == 0);
            if (unit % span && !between) return false;
        }
    return true;
}

static double collective_seconds(const Machine *m, const CollGroup *g, CollOp op, int64_t bytes) {
    return machine_collective(m, g, &(Collective){.op = op, .bytes = bytes});
}

TEST(machine_a_direct_collective_costs_what_its_bytes_take_rank_by_rank) {
    Dice d = {1, 0};
    int same = 0, other = 0;
    for (int i = 0; i < 3000; i++) {
        Machine m = any_machine(&d, ALGORITHM_DIRECT);
        CollGroup g = any_group(&d, &m);
        for (int l = 0; l < m.n_levels; l++) m.level[l].latency = 0;
        if (m.ranks > 300 || g.size < 2) continue;
        double want = brute_gather(&m, &g, 1000000);
        double t = collective_seconds(&m, &g, COLL_ALL_GATHER, 1000000);
        CHECK_SAME(collective_seconds(&m, &g, COLL_REDUCE_SCATTER, 1000000), t);
        CHECK_SAME(collective_seconds(&m, &g, COLL_ALL_REDUCE, 1000000), 2 * t);
        if (divides(&m, &g)) {
            CHECK_SAME(t, want);
            same++;
            continue;
        }
        // a unit that cuts a group in halves at both of its ends need not be there
        CHECK(t >= want * (1 - round_off) && t <= 2 * want * (1 + round_off));
        other++;
    }
    CHECK(same > 1000 && other > 300);
}

/* ---- by hand ---- */

/* Four nodes of eight: 100 GB/s inside, 10 GB/s a rank and 40 GB/s a node outside. */
static Machine small_cluster(CollAlgorithm algorithm) {
    return (Machine){.ranks = 32,
                     .n_levels = 2,
                     .level = {{"node", 8, 1e-6, 100e9, 0}, {"network", 32, 10e-6, 10e9, 40e9}},
                     .algorithm = algorithm};
}

TEST(machine_direct_messages_wait_for_the_processor_one_by_one) {
    Machine m = small_cluster(ALGORITHM_DIRECT);
    CollGroup across = stretch(4, 8), all = stretch(24, 1);
    CHECK_SAME(collective_seconds(&m, &across, COLL_BROADCAST, 0), 10e-6 * (0.5 + 0.5 * 3));
    m.ranks = m.level[1].ranks = 24;
    CollGroup few = stretch(6, 1);
    m.level[0].ranks = 6;
    CHECK_SAME(collective_seconds(&m, &few, COLL_ALL_GATHER, 0), 1e-6 * (0.5 + 0.5 * 5));
    CHECK_SAME(collective_seconds(&m, &all, COLL_REDUCE_SCATTER, 0),
               0.5 * 10e-6 + 0.5 * (5 * 1e-6 + 18 * 10e-6));
}

static double in_turn(const Machine *m, const CollGroup *g, const Collective *s) {
    return machine_collective_in_turn(m, g, s, machine_collective(m, g, s));
}

/* A group across nodes, and replicas beside each other inside them: each rank's share of the port
 * grows with them until its own rate is what counts. */
TEST(machine_replicas_in_turn_have_the_port_for_themselves) {
    Machine m = small_cluster(ALGORITHM_DIRECT);
    Collective s = {.op = COLL_ALL_GATHER, .bytes = 1000000};
    CollGroup across = stretch(4, 8);
    double start = 10e-6 * (0.5 + 0.5 * 3), bytes = 3 / 4. * 1e6;
    m.level[1].rank_rate = 15e9;
    CHECK_SAME(in_turn(&m, &across, &s), start + bytes / 5e9);
    across.replicas = (Placement){1, {2}, {1}};
    CHECK_SAME(in_turn(&m, &across, &s), start + bytes / 10e9);
    across.replicas = (Placement){1, {4}, {2}};
    CHECK_SAME(in_turn(&m, &across, &s), start + bytes / 15e9);
    across = stretch(2, 8), across.replicas = (Placement){1, {2}, {16}}; // on other nodes
    CHECK_SAME(in_turn(&m, &across, &s), machine_collective(&m, &across, &s));
}

/* One exchange sends everything to all: more bytes, one latency less. */
TEST(machine_a_small_all_reduce_is_of_all_of_it) {
    Machine m = small_cluster(ALGORITHM_DIRECT);
    m.ranks = m.level[1].ranks = 64;
    CollGroup three = group_of(&(Placement){1, {3}, {8}}), four = stretch(4, 8),
              eight = stretch(8, 8);
    double start = 10e-6 * (0.5 + 0.5 * 2);
    CHECK_SAME(collective_seconds(&m, &four, COLL_ALL_REDUCE, 0), 2 * 10e-6);
    CHECK_SAME(collective_seconds(&m, &four, COLL_ALL_REDUCE, 100),
               2 * 10e-6 + 8 * 3 * 100. / 40e9);
    CHECK_SAME(collective_seconds(&m, &four, COLL_ALL_REDUCE, 1000000),
               2 * (2 * 10e-6 + 8 * 3 / 4. * 1e6 / 40e9));
    CHECK_SAME(collective_seconds(&m, &eight, COLL_ALL_REDUCE, 100),
               4 * 10e-6 + 8 * 7 * 100. / 40e9);
    m.ranks = m.level[1].ranks = 24;
    CHECK_SAME(collective_seconds(&m, &three, COLL_ALL_REDUCE, 100), start + 8 * 2 * 100. / 40e9);
}

/* All of it inside each node of eight, an eighth of it by each rank between nodes. */
TEST(machine_a_direct_collective_of_nodes_crosses_the_network_once_for_all_ranks_of_a_node) {
    Machine m = small_cluster(ALGORITHM_DIRECT);
    m.ranks_per_node = 8;
    CollGroup all = stretch(32, 1), node = stretch(8, 1), across = stretch(4, 8);
    double near = 7 / 8. * 1e6 / 100e9 + 1e-6 * (0.5 + 0.5 * 7);
    double far = 3 / 4. * 1e6 / 40e9 + 10e-6 * (0.5 + 0.5 * 3);
    CHECK_SAME(collective_seconds(&m, &all, COLL_ALL_GATHER, 1000000), near + far);
    CHECK_SAME(collective_seconds(&m, &all, COLL_ALL_REDUCE, 1000000), 2 * (near + far));
    CHECK_SAME(collective_seconds(&m, &node, COLL_ALL_GATHER, 1000000), near);
    CollGroup groups[] = {all, node, across};
    for (int i = 0; i < 3; i++) { // those of a root, and those of one node or of one rank a node
        Machine flat = m;
        flat.ranks_per_node = 0;
        CHECK_SAME(collective_seconds(&m, &groups[i], COLL_BROADCAST, 1000000),
                   collective_seconds(&flat, &groups[i], COLL_BROADCAST, 1000000));
        if (i > 0)
            CHECK_SAME(collective_seconds(&m, &groups[i], COLL_REDUCE_SCATTER, 1000000),
                       collective_seconds(&flat, &groups[i], COLL_REDUCE_SCATTER, 1000000));
    }
    // six ranks of a node are no power of two; groups of six on nodes of eight have 6, or 2 + 4
    for (int i = 0; i < 2; i++) {
        CollGroup uneven = stretch(i ? 6 : 12, 1);
        m.level[0].ranks = m.ranks_per_node = i ? 8 : 6;
        m.ranks = m.level[1].ranks = 48;
        Machine flat = m;
        flat.ranks_per_node = 0;
        CHECK_SAME(collective_seconds(&m, &uneven, COLL_ALL_GATHER, 1000000),
                   collective_seconds(&flat, &uneven, COLL_ALL_GATHER, 1000000));
    }
}

TEST(machine_a_shift_is_one_message_of_every_rank) {
    Machine m = small_cluster(ALGORITHM_DIRECT);
    CollGroup node = stretch(8, 1), across = stretch(4, 8), all = stretch(32, 1);
    CHECK_SAME(collective_seconds(&m, &node, COLL_SHIFT, 1000000), 1e-6 + 1e6 / 100e9);
    CHECK_SAME(collective_seconds(&m, &across, COLL_SHIFT, 0), 10e-6);
    for (int l = 0; l < 2; l++) m.level[l].latency = 0;
    CHECK_SAME(collective_seconds(&m, &across, COLL_SHIFT, 1000000),
               8 * 1e6 / 40e9); // all eight groups
    // round all the distances: what an all_gather of such blocks brings
    CHECK_SAME(31 * collective_seconds(&m, &all, COLL_SHIFT, 1000000),
               collective_seconds(&m, &all, COLL_ALL_GATHER, 32000000));
}

TEST(machine_groups_that_straddle_nodes_wait_for_the_rank_with_the_fewest_neighbours) {
    Machine m = small_cluster(ALGORITHM_DIRECT);
    m.ranks = m.level[1].ranks = 48;
    for (int l = 0; l < 2; l++) m.level[l].latency = 0;
    m.level[1].port_rate = 0;
    CollGroup twelve = stretch(12, 1), three = stretch(3, 1), pairs = stretch(6, 2);
    CHECK_SAME(collective_seconds(&m, &twelve, COLL_ALL_GATHER, 12000),
               8 * 1000 / 10e9); // 8 + 4, 4 + 8
    CHECK_SAME(collective_seconds(&m, &three, COLL_ALL_GATHER, 3000), 2 * 1000 / 10e9); // 6 7 | 8
    CHECK_SAME(collective_seconds(&m, &pairs, COLL_ALL_GATHER, 6000),
               4 * 1000 / 10e9); // 0 2 4 6 | 8 10
}

TEST(machine_a_direct_root_sends_to_each) {
    Machine m = small_cluster(ALGORITHM_DIRECT);
    for (int l = 0; l < 2; l++) m.level[l].latency = 0;
    CollGroup node = stretch(8, 1), across = stretch(4, 8), all = stretch(32, 1);
    CHECK_SAME(collective_seconds(&m, &node, COLL_REDUCE, 1000000), 7 * 1e6 / 100e9);
    // the roots of all eight groups are in one node
    CHECK_SAME(collective_seconds(&m, &across, COLL_BROADCAST, 1000000), 8 * 3 * 1e6 / 40e9);
    CHECK_SAME(collective_seconds(&m, &all, COLL_BROADCAST, 1000000), 24 * 1e6 / 10e9); // one root
}

TEST(machine_a_ring_crosses_each_node_once_for_all_ranks_in_it) {
    Machine m = small_cluster(ALGORITHM_RING);
    const int64_t N = 1000000000; // latencies are a thousandth of the time of the bytes
    CollGroup node = stretch(8, 1), across = stretch(4, 8), all = stretch(32, 1);
    double step = 1e-6;
    // a node alone: the bytes of a ring, the steps of doubling, which broadcasts have not
    CHECK_SAME(collective_seconds(&m, &node, COLL_ALL_GATHER, N), 7 / 8. * 1e9 / 100e9 + 3 * step);
    CHECK_SAME(collective_seconds(&m, &node, COLL_ALL_REDUCE, N),
               2 * (7 / 8. * 1e9 / 100e9 + 3 * step));
    CHECK_SAME(collective_seconds(&m, &node, COLL_BROADCAST, N), 1e9 / 100e9 + 7 * step);
    // eight groups share the port of a node
    CHECK_SAME(collective_seconds(&m, &across, COLL_REDUCE_SCATTER, N),
               8 * 3 / 4. * 1e9 / 40e9 + 20e-6);
    // one group, whose stream leaves by four ranks' worth of the port; 3 steps between nodes, 28
    // inside
    CHECK_SAME(collective_seconds(&m, &all, COLL_BROADCAST, N), 1e9 / 40e9 + 28 * step + 30e-6);
}

TEST(machine_levels_apart_are_quicker_than_a_ring_between_few_nodes) {
    Machine m = small_cluster(ALGORITHM_RING);
    const double N = 1e9;
    CollGroup all = stretch(32, 1), few = stretch(16, 1);
    // 3/4 of the whole comes into a node once, spread over its ranks, then 7/8 of it goes around
    // inside; the ring of 32 takes 31/32 into every node at the same time as inside
    double levels = 3 / 4. * N / 40e9 + 7 / 8. * N / 100e9 + 3 * 1e-6 + 2 * 10e-6;
    double ring = 31 / 32. * N / 40e9 + 28 * 1e-6 + 3 * 10e-6;
    CHECK(ring < levels);
    CHECK_SAME(collective_seconds(&m, &all, COLL_ALL_GATHER, (int64_t)N), ring);
    levels = 1 / 2. * N / 40e9 + 7 / 8. * N / 100e9 + 3 * 1e-6 + 10e-6;
    CHECK(levels < 15 / 16. * N / 40e9);
    CHECK_SAME(collective_seconds(&m, &few, COLL_ALL_GATHER, (int64_t)N), levels);
    // nothing to carry: doubling
    CHECK_SAME(collective_seconds(&m, &all, COLL_ALL_REDUCE, 0), 2 * (3 * 1e-6 + 2 * 10e-6));
}

/* NVIDIA's nccl-tests on DGX H100 (published runs): all_reduce of 1 GB on 8 GPUs at 370 GB/s or
 * more of bus bandwidth without the switches' sums, on 16 at about the eight adapters' 8 x 46; 8
 * bytes in 20 to 40 us. */
TEST(machine_an_h100_reduces_at_the_bus_bandwidth_that_is_published) {
    Machine m = machine_of("h100:2");
    CollGroup node = stretch(8, 1), all = stretch(16, 1);
    double bus8 = 2 * 7 / 8. * 1e9 / collective_seconds(&m, &node, COLL_ALL_REDUCE, 1000000000);
    double bus16 = 2 * 15 / 16. * 1e9 / collective_seconds(&m, &all, COLL_ALL_REDUCE, 1000000000);
    CHECK(bus8 > 330e9 && bus8 < 371e9);
    CHECK(bus16 > 250e9 && bus16 < 371e9);
    double little = collective_seconds(&m, &node, COLL_ALL_REDUCE, 8);
    CHECK(little > 20e-6 && little < 40e-6);
}

/* ---- the bound ---- */

/* What the search takes for granted: parallel/plan/search_bound.c. */
TEST(machine_no_collective_is_cheaper_than_its_start_and_its_slope) {
    Dice d = {2, 0};
    int n = 0, tight = 0;
    for (int i = 0; i < 50000; i++) {
        Machine m = any_machine(&d, pick(&d, 2) ? ALGORITHM_RING : ALGORITHM_DIRECT);
        CollGroup g = any_group(&d, &m);
        m.ranks_per_node = m.level[pick(&d, m.n_levels)].ranks;
        CollOp op = (CollOp)pick(&d, N_COLL_OPS);
        int64_t bytes = 1 << pick(&d, 30), much = (int64_t)1 << 50;
        double t = collective_seconds(&m, &g, op, bytes), start = collective_seconds(&m, &g, op, 0),
               rate = (collective_seconds(&m, &g, op, 2 * much) -
                       collective_seconds(&m, &g, op, much)) /
                      (double)much;
        double least = (start + rate * (double)bytes) * (1 - 1e-9); // sums round
        if (!(least <= t))
            test_fail("%d of %d ranks: %.17g s, least %.17g", g.size, m.ranks, t, least);
        n += g.size > 1;
        tight += g.size > 1 && least > t * (1 - 1e-6);
    }
    CHECK(n > 25000 && tight > n / 4); // and it is often what it costs
}

/* The search asks a million times. */
TEST(machine_a_cost_does_not_walk_over_ranks) {
    Machine m = machine_of("h100:2048");
    CollGroup g = group_of(&(Placement){2, {128, 4}, {64, 2}});
    enum { CALLS = 20000 };
    double sum = 0, begin = now_s();
    for (int i = 0; i < CALLS; i++) sum += collective_seconds(&m, &g, COLL_ALL_REDUCE, i);
    double ns = 1e9 * (now_s() - begin);
    CHECK(sum > 0);
    // 50 ns on an idle machine; a look at each of 16,384 ranks would take longer even there
    CHECK(ns / CALLS < 10000);
}
