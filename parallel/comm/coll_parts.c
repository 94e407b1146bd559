#include "parallel/comm/coll_parts.h"

#include "base/mem.h"

CollNodes coll_nodes_make(const int *name, int size) {
    size_t max = (size_t)size;
    CollNodes c = {.size = size,
                   .of = mem_calloc(max, sizeof *c.of),
                   .place = mem_calloc(max, sizeof *c.place),
                   .first = mem_calloc(max + 1, sizeof *c.first),
                   .rank = mem_calloc(max, sizeof *c.rank)};
    for (int r = 0, like; r < size; r++) {
        for (like = 0; like < r && !(name && name[like] == name[r]);) like++;
        c.of[r] = like < r ? c.of[like] : c.n++;
        c.place[r] = c.first[c.of[r] + 1]++; // counts ranks at first
    }
    for (int i = 0; i < c.n; i++) c.first[i + 1] += c.first[i];
    for (int r = 0; r < size; r++) c.rank[c.first[c.of[r]] + c.place[r]] = r;
    return c;
}

void coll_nodes_free(CollNodes *n) {
    mem_free(n->of);
    mem_free(n->place);
    mem_free(n->first);
    mem_free(n->rank);
}

/* ---- carriers */

static int ranks_of(const CollNodes *n, int node) {
    return n->first[node + 1] - n->first[node];
}

/* The rank of a node that carries the owner's part. */
static int carrier(const CollNodes *n, int node, int owner) {
    if (n->of[owner] == node) return owner;
    return n->rank[n->first[node] + n->place[owner] % ranks_of(n, node)];
}

static bool has_root(CollOp op) {
    return op == COLL_REDUCE || op == COLL_BROADCAST;
}
static int parts_of(const CollAlgorithm *w) {
    return has_root(w->op) ? 1 : w->hops->size;
}
static int owner_of(const CollAlgorithm *w, int part) {
    return has_root(w->op) ? w->root : part;
}

static int my_node(const CollAlgorithm *w) {
    return w->hops->of[w->rank];
}
static bool carries(const CollAlgorithm *w, int rank, int part) {
    return carrier(w->hops, w->hops->of[rank], owner_of(w, part)) == rank;
}
/* Is the owner of the part on another node? */
static bool comes_from_far(const CollAlgorithm *w, int part) {
    return w->hops->of[owner_of(w, part)] != my_node(w);
}
/* Number of parts in [0, end) that this rank carries. */
static int carried(const CollAlgorithm *w, int end) {
    int n = 0;
    for (int j = 0; j < end; j++) n += carries(w, w->rank, j);
    return n;
}

/* ---- rounds between the members of a row: all ranks in the order of the tree (every rank a hop),
 * or ranks with the same index in their nodes */

static bool is_power(int n) {
    return (n & (n - 1)) == 0;
}

bool coll_may_halve(const CollNodes *nodes, const CollNodes *hops) {
    int k = ranks_of(nodes, 0);
    for (int i = 1; i < nodes->n; i++)
        if (ranks_of(nodes, i) != k) return false;
    return is_power(nodes->n) && (hops == nodes || is_power(k));
}

static bool by_nodes(const CollAlgorithm *w) {
    return w->hops == w->nodes;
}
static int row_size(const CollAlgorithm *w) {
    return by_nodes(w) ? w->nodes->n : w->nodes->size;
}
/* The rank at an index of this rank's row; the index of this rank. */
static int in_row(const CollAlgorithm *w, int at) {
    const CollNodes *n = w->nodes;
    return n->rank[by_nodes(w) ? n->first[at] + n->place[w->rank] : at];
}
static int my_place(const CollAlgorithm *w) {
    const CollNodes *n = w->nodes;
    int node = n->of[w->rank];
    return by_nodes(w) ? node : n->first[node] + n->place[w->rank];
}

int coll_rounds(const CollAlgorithm *w) {
    return __builtin_ctz((unsigned)row_size(w));
}
int coll_places(const CollAlgorithm *w) {
    return w->whole ? 1 : row_size(w);
}

/* Bit reversal over the number of rounds: parts that agree in their low bits become neighbours. */
static int reversed(const CollAlgorithm *w, int at) {
    int r = 0;
    for (int i = coll_rounds(w); i > 0; i--, at >>= 1) r = r << 1 | (at & 1);
    return r;
}

int coll_part_at(const CollAlgorithm *w, int place) {
    return w->whole ? 0 : in_row(w, reversed(w, place));
}

/* Before round i of halving a rank holds the parts of all ranks that agree with it in bits below
 * i. */
CollRound coll_round(const CollAlgorithm *w, CollStep step, int i) {
    bool spreads = step == SPREAD_FAR;
    int bit = spreads ? i : coll_rounds(w) - 1 - i, me = my_place(w);
    CollRound r = {.peer = in_row(w, me ^ (1 << bit)), .n = 1, .first = !(me >> bit & 1)};
    if (w->whole) return r;
    r.n = row_size(w) >> (bit + 1);
    int low = (2 << bit) - 1, mine = reversed(w, me & low), other = mine ^ r.n;
    r.give = spreads ? other : mine;
    r.take = spreads ? mine : other;
    return r;
}

/* ---- slots: for each mate the carried parts, then one for each other node */

/* Mates are the other ranks of a node: the i-th of n ranks without `me`. */
static int among_others(int i, int me) {
    return i < me ? i : i - 1;
}
static int near_slot(const CollAlgorithm *w, int mate, int i, int n_carried) {
    const CollNodes *h = w->hops;
    return among_others(h->place[mate], h->place[w->rank]) * n_carried + i;
}
int coll_slot_of(const CollAlgorithm *w, int part) {
    return ranks_of(w->hops, my_node(w)) == 1 ? -1 : carried(w, part);
}
static int far_slot(const CollAlgorithm *w, int node, int n_carried) {
    return (ranks_of(w->hops, my_node(w)) - 1) * n_carried + among_others(node, my_node(w));
}

/* ---- messages */

static int spread_near(const CollAlgorithm *w, CollMove *list) {
    const CollNodes *h = w->hops;
    int node = my_node(w), k = ranks_of(h, node), me = h->place[w->rank], n = 0;
    int n_parts = parts_of(w), n_carried = carried(w, n_parts);
    const int *mates = h->rank + h->first[node];
    for (int d = 1; d < k; d++) {
        int mate = mates[(me - d + k) % k];
        for (int j = 0, i = 0; j < n_parts; j++)
            if (carries(w, w->rank, j))
                list[n++] = (CollMove){j, mate, near_slot(w, mate, i++, n_carried), true};
    }
    for (int d = 1; d < k; d++) {
        int mate = mates[(me + d) % k];
        for (int j = 0; j < n_parts; j++)
            if (carries(w, mate, j)) list[n++] = (CollMove){j, mate, -1, false};
    }
    return n;
}

static int spread_far(const CollAlgorithm *w, CollMove *list) {
    const CollNodes *h = w->hops;
    int node = my_node(w), n_parts = parts_of(w), n_carried = carried(w, n_parts), n = 0;
    bool owns = !has_root(w->op) || w->rank == w->root;
    for (int d = 1; d < h->n && owns; d++) {
        int from = (node - d + h->n) % h->n;
        list[n++] =
            (CollMove){w->rank, carrier(h, from, w->rank), far_slot(w, from, n_carried), true};
        if (has_root(w->op)) list[n - 1].part = 0;
    }
    for (int d = 0; d < n_parts;
         d++) { // each rank begins with another owner, so that not all send to the same one first
        int j = (w->rank + d) % n_parts;
        if (comes_from_far(w, j) && carries(w, w->rank, j))
            list[n++] = (CollMove){j, owner_of(w, j), coll_slot_of(w, j), false};
    }
    return n;
}

/* Does the owner `from` itself send its part to this rank? */
static bool sent_by_owner(const CollNodes *h, int from, int to) {
    return from != to && (h->of[from] == h->of[to] || carrier(h, h->of[to], from) == to);
}

static int collect_far(const CollAlgorithm *w, CollMove *list) {
    const CollNodes *h = w->hops;
    int n = 0, size = h->size, n_parts = parts_of(w);
    if (w->op == COLL_SHIFT) {
        int from = (w->rank - w->root + size) % size, to = (w->rank + w->root) % size;
        list[0] = (CollMove){from, from, -1, true};
        list[1] = (CollMove){w->rank, to, -1, false};
        return 2;
    }
    for (int d = 0; d < n_parts; d++) {
        int j = (w->rank + n_parts - d) % n_parts, from = owner_of(w, j);
        if (sent_by_owner(h, from, w->rank)) list[n++] = (CollMove){j, from, -1, true};
    }
    if (has_root(w->op) && w->rank != w->root) return n;
    for (int d = 1; d < size; d++) {
        int to = (w->rank + d) % size;
        if (sent_by_owner(h, w->rank, to))
            list[n++] = (CollMove){has_root(w->op) ? 0 : w->rank, to, -1, false};
    }
    return n;
}

static int collect_near(const CollAlgorithm *w, CollMove *list) {
    const CollNodes *h = w->hops;
    int node = my_node(w), k = ranks_of(h, node), me = h->place[w->rank], n = 0;
    int n_parts = parts_of(w);
    const int *mates = h->rank + h->first[node];
    for (int receive = 1; receive >= 0; receive--)
        for (int d = 1; d < k; d++) {
            int mate = mates[(receive ? me - d + k : me + d) % k];
            for (int j = 0; j < n_parts; j++)
                if ((w->halves || comes_from_far(w, j)) && carries(w, receive ? mate : w->rank, j))
                    list[n++] = (CollMove){j, mate, -1, receive};
        }
    return n;
}

CollStep coll_step_from(const CollAlgorithm *w, int step) {
    bool spreads = coll_spreads(w->op), nests = w->hops->n < w->hops->size && w->op != COLL_SHIFT;
    bool collects = !spreads || (w->op == COLL_ALL_REDUCE && !w->whole);
    const bool made[] = {[SPREAD_NEAR] = spreads && nests,
                         [SPREAD_FAR] = spreads,
                         [COLLECT_FAR] = collects,
                         [COLLECT_NEAR] = collects && nests};
    while (step < N_COLL_STEPS && !made[step]) step++;
    return (CollStep)step;
}

int coll_moves(const CollAlgorithm *w, CollStep step, CollMove *list) {
    static int (*const moves[])(const CollAlgorithm *,
                                CollMove *) = {[SPREAD_NEAR] = spread_near,
                                               [SPREAD_FAR] = spread_far,
                                               [COLLECT_FAR] = collect_far,
                                               [COLLECT_NEAR] = collect_near};
    return moves[step](w, list);
}

/* ---- sums */

int coll_sums(const CollAlgorithm *w, CollStep step, int *part) {
    int n = 0;
    for (int j = 0; j < parts_of(w); j++) {
        bool mine = step == SPREAD_NEAR ? carries(w, w->rank, j) : owner_of(w, j) == w->rank;
        if (mine) part[n++] = j;
    }
    return step == SPREAD_NEAR && ranks_of(w->hops, my_node(w)) == 1 ? 0 : n;
}

static int near_terms(const CollAlgorithm *w, int i, CollTerm *list) {
    const CollNodes *h = w->hops;
    int node = my_node(w), k = ranks_of(h, node), n_carried = carried(w, parts_of(w));
    for (int t = 0; t < k; t++) {
        int r = h->rank[h->first[node] + t];
        list[t] = (CollTerm){r == w->rank ? -1 : near_slot(w, r, i, n_carried), coll_adds(t, k)};
    }
    return k;
}

/* One term of each hop, in the order of nodes. */
static int far_terms(const CollAlgorithm *w, CollTerm *list) {
    const CollNodes *h = w->hops, *s = w->nodes;
    int n_parts = parts_of(w), n_carried = carried(w, n_parts), n = 0;
    int own = coll_slot_of(w, has_root(w->op) ? 0 : w->rank);
    for (int node = 0; node < s->n; node++) {
        int k = by_nodes(w) ? 1 : ranks_of(s, node);
        for (int i = 0; i < k; i++) {
            int hop = h->of[s->rank[s->first[node] + i]];
            list[n++] = (CollTerm){hop == my_node(w) ? own : far_slot(w, hop, n_carried),
                                   coll_adds(i, k) + (i + 1 == k ? coll_adds(node, s->n) : 0)};
        }
    }
    return n;
}

int coll_terms(const CollAlgorithm *w, CollStep step, int i, CollTerm *list) {
    return step == SPREAD_NEAR ? near_terms(w, i, list) : far_terms(w, list);
}

/* ---- upper bounds */

static int most_carried(const CollNodes *h, int rank) {
    return carried(&(CollAlgorithm){.hops = h, .op = COLL_ALL_REDUCE, .rank = rank}, h->size);
}

int coll_most_slots(const CollNodes *hops) {
    int most = 0;
    for (int r = 0; r < hops->size; r++) {
        int k = ranks_of(hops, hops->of[r]);
        int n = (k > 1 ? (k - 1) * most_carried(hops, r) : 0) + hops->n - 1;
        if (n > most) most = n;
    }
    return most;
}

int coll_most_moves(const CollNodes *hops, int rank) {
    int near = ranks_of(hops, hops->of[rank]) * most_carried(hops, rank);
    return hops->size + (near > hops->size ? near : hops->size);
}
