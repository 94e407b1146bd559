/* parallel/coll_parts: collectives carried out by their lists, of all ranks of groups on nodes
 * drawn by chance. */
#include "parallel/comm/coll_parts.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/test.h"

enum { MOST = 12, MOST_MOVES = 4 * MOST * MOST };

static uint64_t seed, thrown;
static int pick(int n) {
    return (int)(rng_u64(seed, 0, thrown++) % (uint64_t)n);
}

/* One float is a part. What a rank has not got is no number. */
typedef struct Rank {
    float src[MOST], dst[MOST], slot[MOST * MOST], place[MOST];
    CollMove move[MOST_MOVES];
    int n_moves;
} Rank;

typedef struct Setting {
    int size, node[MOST];
    CollNodes nodes, alone;
    CollAlgorithm way; // of any rank
    Rank rank[MOST];
    int crossed; // messages between nodes
} Setting;

static CollAlgorithm way_of(const Setting *g, int rank) {
    CollAlgorithm w = g->way;
    w.rank = rank;
    return w;
}

/* Terms in pairs, then pairs of pairs; one that is left over goes on alone. */
static float tree(float *x, int n) {
    for (; n > 1; n = (n + 1) / 2)
        for (int i = 0; i < n; i += 2) x[i / 2] = i + 1 < n ? x[i] + x[i + 1] : x[i];
    return x[0];
}

static float expected(const Setting *g, int part) {
    float of_nodes[MOST];
    int n_nodes = 0;
    for (int i = 0; i < g->size; i++) {
        float of_ranks[MOST];
        int n = 0, first = 0;
        while (g->node[first] != g->node[i]) first++;
        for (int r = i; r < g->size && first == i; r++)
            if (g->node[r] == g->node[i]) of_ranks[n++] = g->rank[r].src[part];
        if (n) of_nodes[n_nodes++] = tree(of_ranks, n);
    }
    return tree(of_nodes, n_nodes);
}

static void draw(Setting *g) {
    g->size = 1 + pick(MOST);
    if (pick(2)) g->size = 1 << pick(4);
    int names = 1 + pick(g->size), how = pick(4);
    if (how == 2) names = 1 << pick(3);
    for (int r = 0; r < g->size; r++)
        g->node[r] = how == 0 ? pick(names) : how < 3 ? r * names / g->size : r % names;
    g->nodes = coll_nodes_make(g->node, g->size);
    g->alone = coll_nodes_make(NULL, g->size);
    bool direct = pick(3) == 0;
    g->way = (CollAlgorithm){.nodes = &g->nodes, .hops = direct ? &g->alone : &g->nodes};
    g->way.op = (CollOp)pick(N_COLL_OPS);
    if (g->way.op == COLL_SHIFT && g->size == 1) g->way.op = COLL_REDUCE;
    g->way.root = g->way.op == COLL_SHIFT ? 1 + pick(g->size - 1) : pick(g->size);
    g->way.whole = direct && g->way.op == COLL_ALL_REDUCE && pick(2);
    g->way.halves =
        g->way.op <= COLL_ALL_REDUCE && pick(4) && coll_may_halve(&g->nodes, g->way.hops);
    g->crossed = 0;
    for (int r = 0; r < g->size; r++) {
        Rank *k = &g->rank[r];
        for (int j = 0; j < MOST; j++) {
            uint64_t x = (uint64_t)(r * MOST + (g->way.whole ? 0 : j));
            k->src[j] = (float)(rng_uniform(seed, 1, x) - 0.5) * (r % 3 ? 1 : 1e5f);
            k->dst[j] = NAN;
        }
        for (int i = 0; i < MOST * MOST; i++) k->slot[i] = NAN;
        for (int i = 0; i < MOST; i++) k->place[i] = NAN;
    }
}

/* What lies where a message is sent from. */
static float sent(const Setting *g, int rank, CollStep step, const CollMove *m) {
    const Rank *k = &g->rank[rank];
    bool own = step == COLLECT_FAR && g->way.op != COLL_ALL_REDUCE;
    if (step == SPREAD_FAR && m->slot >= 0) return k->slot[m->slot];
    return own || step <= SPREAD_FAR ? k->src[m->part] : k->dst[m->part];
}

/* Every message that a rank expects is the next one that its peer sends it, and there are no
 * others. */
static bool deliver(Setting *g, CollStep step) {
    static float value[MOST][MOST_MOVES];
    int taken[MOST][MOST] = {{0}}, n_sent = 0, n_received = 0;
    for (int r = 0; r < g->size; r++)
        for (int i = 0; i < g->rank[r].n_moves; i++)
            value[r][i] = sent(g, r, step, &g->rank[r].move[i]);
    for (int r = 0; r < g->size; r++)
        for (int i = 0; i < g->rank[r].n_moves; i++) {
            const CollMove *to = &g->rank[r].move[i], *from = NULL;
            n_sent += !to->receive;
            if (!to->receive) g->crossed += g->node[to->peer] != g->node[r];
            if (!to->receive) continue;
            n_received++;
            int at = 0, skip = taken[r][to->peer]++;
            for (; at < g->rank[to->peer].n_moves && !from; at++) {
                const CollMove *x = &g->rank[to->peer].move[at];
                if (!x->receive && x->peer == r && skip-- == 0) from = x;
            }
            if (!from || from->part != to->part || to->peer == r) return false;
            float *place =
                step <= SPREAD_FAR ? &g->rank[r].slot[to->slot] : &g->rank[r].dst[to->part];
            if (!isnan(*place)) return false; // something lies there already
            *place = value[to->peer][at - 1];
        }
    return n_sent == n_received;
}

static void add_up(Setting *g, int rank, CollStep step) {
    CollAlgorithm w = way_of(g, rank);
    Rank *k = &g->rank[rank];
    int part[MOST];
    CollTerm term[MOST];
    for (int i = 0, n = coll_sums(&w, step, part); i < n; i++) {
        float stack[MOST], sum;
        int n_terms = coll_terms(&w, step, i, term), top = 0;
        for (int t = 0; t < n_terms; t++) {
            stack[top++] = term[t].slot < 0 ? k->src[part[i]] : k->slot[term[t].slot];
            for (int a = 0; a < term[t].adds; a++, top--) stack[top - 2] += stack[top - 1];
        }
        CHECK(top == 1);
        sum = stack[0];
        if (step == SPREAD_NEAR)
            k->slot[i] = sum;
        else
            k->dst[part[i]] = sum;
    }
}

/* What a rank has of the parts that it carries; of an all_reduce it lies there. */
static void fill_places(Setting *g, int rank, CollStep step) {
    CollAlgorithm w = way_of(g, rank);
    Rank *k = &g->rank[rank];
    for (int i = 0; i < coll_places(&w); i++) {
        int j = coll_part_at(&w, i), slot = coll_slot_of(&w, j);
        if (step == SPREAD_FAR)
            k->place[i] = slot < 0 ? k->src[j] : k->slot[slot];
        else if (g->way.op == COLL_ALL_GATHER)
            k->place[i] = j == rank ? k->src[j] : NAN;
    }
}

/* Round number i. What a rank gives away in halving it has no more. */
static bool fly_round(Setting *g, CollStep step, int i) {
    float before[MOST][MOST];
    for (int r = 0; r < g->size; r++) memcpy(before[r], g->rank[r].place, sizeof before[r]);
    for (int r = 0; r < g->size; r++) {
        CollAlgorithm w = way_of(g, r), theirs;
        CollRound me = coll_round(&w, step, i), peer;
        float *place = g->rank[r].place;
        theirs = way_of(g, me.peer), peer = coll_round(&theirs, step, i);
        if (peer.peer != r || peer.n != me.n || me.peer == r) return false;
        g->crossed += g->node[r] != g->node[me.peer] ? me.n : 0;
        for (int k = 0; k < me.n; k++) {
            int at = me.take + k, from = peer.give + k;
            float own = before[r][at], other = before[me.peer][from];
            if (coll_part_at(&w, at) != coll_part_at(&theirs, from) || isnan(other)) return false;
            if (step == COLLECT_FAR && !isnan(own)) return false; // it is there already
            place[at] = step == COLLECT_FAR ? other : me.first ? own + other : other + own;
            if (step == SPREAD_FAR && !w.whole) place[me.give + k] = NAN;
        }
    }
    return true;
}

static void empty_places(Setting *g, int rank) {
    CollAlgorithm w = way_of(g, rank);
    Rank *k = &g->rank[rank];
    for (int i = 0; i < coll_places(&w); i++)
        k->dst[w.whole ? rank : coll_part_at(&w, i)] = k->place[i];
}

static void fly_in_rounds(Setting *g, CollStep step) {
    for (int r = 0; r < g->size; r++) fill_places(g, r, step);
    for (int i = 0; i < coll_rounds(&g->way); i++) CHECK(fly_round(g, step, i));
    for (int r = 0; r < g->size; r++) empty_places(g, r);
}

static void fly_directly(Setting *g, CollStep step) {
    for (int r = 0; r < g->size; r++) {
        CollAlgorithm w = way_of(g, r);
        g->rank[r].n_moves = coll_moves(&w, step, g->rank[r].move);
        CHECK(g->rank[r].n_moves <= coll_most_moves(g->way.hops, r));
        for (int i = 0; i < g->rank[r].n_moves; i++)
            CHECK(g->rank[r].move[i].slot < coll_most_slots(g->way.hops));
    }
    CHECK(deliver(g, step));
    for (int r = 0; r < g->size && step <= SPREAD_FAR; r++) add_up(g, r, step);
}

static bool right(const Setting *g, int rank) {
    const float *dst = g->rank[rank].dst;
    for (int j = 0; j < g->size; j++) switch (g->way.op) {
        case COLL_ALL_GATHER:
            if (j != rank && dst[j] != g->rank[j].src[j]) return false;
            break;
        case COLL_REDUCE_SCATTER:
            if (j == rank && dst[j] != expected(g, j)) return false;
            break;
        case COLL_ALL_REDUCE:
            if ((j == rank || !g->way.whole) && dst[j] != expected(g, j)) return false;
            break;
        case COLL_BROADCAST:
            if (rank != g->way.root && dst[0] != g->rank[g->way.root].src[0]) return false;
            break;
        case COLL_REDUCE:
            if (rank == g->way.root && dst[0] != expected(g, 0)) return false;
            break;
        default: {
            int from = (rank - g->way.root + g->size) % g->size;
            if (dst[from] != g->rank[from].src[from]) return false;
        }
        }
    return true;
}

/* Parts sent between nodes: of a part one to or from each other node, or each rank of theirs. */
static int must_cross(const Setting *g) {
    CollOp op = g->way.op;
    bool rooted = op == COLL_BROADCAST || op == COLL_REDUCE;
    bool once = g->way.hops == &g->nodes || g->way.halves;
    int n = 0;
    for (int owner = 0; owner < g->size; owner++) {
        int others = 0;
        if (rooted && owner != g->way.root) continue;
        for (int r = 0; r < g->size; r++) others += g->node[r] != g->node[owner];
        n += once ? g->nodes.n - 1 : others;
    }
    if (op == COLL_SHIFT)
        for (int r = n = 0; r < g->size; r++)
            n += g->node[r] != g->node[(r + g->way.root) % g->size];
    if (g->way.whole && g->way.halves) return g->size * (int)log2(g->nodes.n);
    return op == COLL_ALL_REDUCE && !g->way.whole ? 2 * n : n;
}

TEST(coll_parts_bring_every_part_to_whom_it_belongs) {
    static Setting g;
    int nested = 0, uneven = 0, halved[2] = {0};
    for (seed = 1; seed <= 6000 && !test_failed(); seed++) {
        thrown = 0;
        draw(&g);
        bool by_nodes = coll_nodes_nest(&g.nodes) && g.way.hops == &g.nodes;
        nested += by_nodes;
        uneven += g.size % g.nodes.n != 0;
        if (g.way.halves && g.size > 2) halved[by_nodes]++;
        int step = (int)coll_step_from(&g.way, 0);
        for (; step < N_COLL_STEPS; step = (int)coll_step_from(&g.way, step + 1)) {
            bool far = step == SPREAD_FAR || step == COLLECT_FAR;
            if (g.way.halves && far)
                fly_in_rounds(&g, (CollStep)step);
            else
                fly_directly(&g, (CollStep)step);
        }
        for (int r = 0; r < g.size; r++) CHECK(right(&g, r));
        CHECK(g.crossed == must_cross(&g));
        coll_nodes_free(&g.nodes), coll_nodes_free(&g.alone);
    }
    CHECK(nested > 1000 && uneven > 1000 && halved[0] > 300 && halved[1] > 100);
}

/* Four nodes of three, in turns: each rank has a third of what its node sends to others. */
TEST(coll_parts_are_carried_by_all_ranks_alike) {
    int name[12];
    for (int r = 0; r < 12; r++) name[r] = r % 4;
    CollNodes n = coll_nodes_make(name, 12);
    CollAlgorithm w = {.nodes = &n, .hops = &n, .op = COLL_REDUCE_SCATTER};
    for (w.rank = 0; w.rank < 12; w.rank++) {
        CollMove move[64];
        int k = coll_moves(&w, SPREAD_FAR, move), sent = 0;
        for (int i = 0; i < k; i++) sent += !move[i].receive;
        CHECK(sent == 3 && k == 6);
    }
    coll_nodes_free(&n);
}

TEST(coll_parts_number_nodes_by_their_first_ranks) {
    CollNodes n = coll_nodes_make((int[]){7, 3, 7, 3, 3, 9}, 6);
    const int of[] = {0, 1, 0, 1, 1, 2}, place[] = {0, 0, 1, 1, 2, 0}, first[] = {0, 2, 5, 6},
              rank[] = {0, 2, 1, 3, 4, 5};
    CHECK(n.n == 3 && coll_nodes_nest(&n));
    CHECK(memcmp(n.of, of, sizeof of) == 0 && memcmp(n.place, place, sizeof place) == 0);
    CHECK(memcmp(n.first, first, sizeof first) == 0 && memcmp(n.rank, rank, sizeof rank) == 0);
    coll_nodes_free(&n);
    n = coll_nodes_make((int[]){5, 5, 5}, 3);
    CHECK(n.n == 1 && !coll_nodes_nest(&n));
    coll_nodes_free(&n);
    n = coll_nodes_make(NULL, 3);
    CHECK(n.n == 3 && !coll_nodes_nest(&n));
    coll_nodes_free(&n);
}

/* Two nodes of two ranks: the picture in the header. */
TEST(coll_parts_of_two_nodes_of_two_are_as_drawn) {
    CollNodes n = coll_nodes_make((int[]){0, 0, 1, 1}, 4);
    CollAlgorithm w = {.nodes = &n, .hops = &n, .op = COLL_ALL_REDUCE};
    static const int of_part_0[][3] = {{SPREAD_NEAR, 1, 0}, {SPREAD_NEAR, 3, 2},
                                       {SPREAD_FAR, 2, 0},  {COLLECT_FAR, 0, 1},
                                       {COLLECT_FAR, 0, 2}, {COLLECT_NEAR, 2, 3}};
    int found = 0;
    for (int step = 0; step < N_COLL_STEPS; step++)
        for (w.rank = 0; w.rank < 4; w.rank++) {
            CollMove move[16];
            for (int i = 0, k = coll_moves(&w, (CollStep)step, move); i < k; i++) {
                if (move[i].part != 0 || move[i].receive) continue;
                const int *want = of_part_0[found++];
                CHECK(want[0] == step && want[1] == w.rank && want[2] == move[i].peer);
            }
        }
    CHECK(found == 6);
    coll_nodes_free(&n);
}
