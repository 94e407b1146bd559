#include <string.h>

#include "base/mem.h"
#include "parallel/plan/detect_parts.h"

/* ---- a node ---- */

static void print_facts(const NodeFacts *n, FILE *f) {
    fprintf(f, "%-9s %s, %d socket%s, ", n->name, n->cpu, n->sockets, n->sockets == 1 ? "" : "s");
    fprintf(f, "%d core%s", n->cores, n->cores == 1 ? "" : "s");
    if (n->threads > n->cores) fprintf(f, " (%d hardware threads)", n->threads);
    if (n->memory) fprintf(f, ", %.1f GiB free", (double)n->memory / (1 << 30));
    fprintf(f, "\n");
}

/* ---- its ranks ---- */

static bool same_cores(const RankFacts *a, const RankFacts *b) {
    return memcmp(a->core, b->core, sizeof a->core) == 0;
}

/* Writes the ranks of nodes from .. to as text. bound_as: only those with the same cores; NULL:
 * all. */
static void list_ranks(const Detected *d, int from, int to, const RankFacts *bound_as, char *text,
                       size_t n_text) {
    int *item = mem_calloc((size_t)d->n_ranks, sizeof *item), n = 0;
    for (int r = 0; r < d->n_ranks; r++)
        if (d->rank[r].node >= from && d->rank[r].node <= to &&
            (!bound_as || same_cores(&d->rank[r], bound_as)))
            item[n++] = r;
    snprintf(text, n_text, n == 1 ? "rank " : "ranks ");
    detect_list(text + strlen(text), n_text - strlen(text), item, n);
    mem_free(item);
}

static void list_cores(const RankFacts *r, char *text, size_t n_text) {
    int item[NODE_CORES], n = 0;
    for (int c = 0; c < NODE_CORES; c++)
        if (rank_has(r, c)) item[n++] = c;
    snprintf(text, n_text, n == 1 ? "core " : "cores ");
    detect_list(text + strlen(text), n_text - strlen(text), item, n);
}

/* Is r the first rank of its node with these cores? */
static bool is_first(const Detected *d, int r) {
    for (int i = 0; i < r; i++)
        if (d->rank[i].node == d->rank[r].node && same_cores(&d->rank[i], &d->rank[r]))
            return false;
    return true;
}

/* Prints the ranks of a node, those with the same cores together, several to a line. */
static void print_ranks(const Detected *d, int node, FILE *f) {
    enum { WIDTH = 24, PER_LINE = 4 };
    char ranks[64], cores[64];
    int n = 0, width = 0;
    for (int r = 0; r < d->n_ranks; r++) {
        if (d->rank[r].node != node || !is_first(d, r)) continue;
        list_ranks(d, node, node, &d->rank[r], ranks, sizeof ranks);
        list_cores(&d->rank[r], cores, sizeof cores);
        if (n % PER_LINE == 0)
            fprintf(f, "%s%10s", n ? "\n" : "", "");
        else
            fprintf(f, "%*s", width < WIDTH ? WIDTH - width : 2, "");
        width = fprintf(f, "%s  %s", ranks, cores);
        n++;
    }
    fprintf(f, "\n");
}

/* ---- all ---- */

static bool same_facts(const NodeFacts *a, const NodeFacts *b) {
    double ratio = a->memory > 0 ? (double)b->memory / (double)a->memory : 1;
    return strcmp(a->cpu, b->cpu) == 0 && a->sockets == b->sockets && a->cores == b->cores &&
           a->threads == b->threads && a->quota == b->quota && ratio > 0.9 && ratio < 1.1;
}

/* Are two nodes alike, with ranks bound to the same cores? Names may differ, and free memory by a
 * tenth. */
static bool alike(const Detected *d, int a, int b) {
    if (!same_facts(&d->node[a], &d->node[b])) return false;
    for (int i = 0, j = 0;; i++, j++) {
        while (i < d->n_ranks && d->rank[i].node != a) i++;
        while (j < d->n_ranks && d->rank[j].node != b) j++;
        if (i == d->n_ranks || j == d->n_ranks) return i == j;
        if (!same_cores(&d->rank[i], &d->rank[j])) return false;
    }
}

void detect_print(const Detected *d, FILE *f) {
    char ranks[64], names[160];
    fprintf(f, "%d node%s, %d rank%s (%s) of %d thread%s, %s kernels\n", d->n_nodes,
            d->n_nodes == 1 ? "" : "s", d->n_ranks, d->n_ranks == 1 ? "" : "s", d->backend,
            d->rank[0].threads, d->rank[0].threads == 1 ? "" : "s", d->kernels);
    for (int i = 0, last; i < d->n_nodes; i = last + 1) {
        print_facts(&d->node[i], f);
        print_ranks(d, i, f);
        for (last = i; last + 1 < d->n_nodes && alike(d, i, last + 1);) last++;
        if (last == i) continue;
        list_ranks(d, i + 1, last, NULL, ranks, sizeof ranks);
        snprintf(names, sizeof names, "%s%s%s", last > i + 1 ? d->node[i + 1].name : "",
                 last > i + 1 ? " ... " : "", d->node[last].name);
        fprintf(f, "%-9s like %s: %s\n", names, d->node[i].name, ranks);
    }
    if (d->links.rack_nodes)
        fprintf(f, "racks of %d nodes: %.3g Gbit/s from node to node, %.3g out of a rack\n",
                d->links.rack_nodes, 8e-9 * d->links.rack.rate, 8e-9 * d->links.network.rate);
    for (int i = 0; i < d->n_warnings; i++) fprintf(f, "warning: %s\n", d->warning[i]);
}
