#include "parallel/plan/detect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "base/version.h"
#include "data/stamp.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/detect_parts.h"
#include "parallel/step/memory.h"

/* ---- one rank ---- */

static void member_set(void *ctx, int member, int size) {
    cpu_set_t *set = (cpu_set_t *)ctx + member;
    (void)size;
    if (sched_getaffinity(0, sizeof *set, set)) CPU_ZERO(set);
}

/* The cores of all members of a team. (In a team as large as the rank's share of the cores each
 * member is bound to one core.) */
static cpu_set_t team_set(Team *team) {
    cpu_set_t *set = mem_calloc((size_t)team_size(team), sizeof *set), all;
    team_run(team, member_set, set);
    CPU_ZERO(&all);
    for (int i = 0; i < team_size(team); i++) CPU_OR(&all, &all, &set[i]);
    mem_free(set);
    return all;
}

/* FLOP/s of a matmul that takes each thread about a millisecond: the fastest of 7 calls, as other
 * programs only add time. */
static double matmul_rate(const Kernels *k, Team *team, bool bf16) {
    Work w = {.kind = WORK_MATMUL, .flags = bf16 ? WORK_BF16 : 0, .K = 512, .N = 512};
    w.rows = (int64_t)128 * team_size(team);
    return work_flops(&w) / work_seconds(&w, k, team, 7);
}

/* ---- all of them ---- */

/* What each rank reports to the others. */
typedef struct RankReport {
    NodeFacts node;
    double rate[2]; // of a matmul in fp32 and bf16
    RankFacts facts;
} RankReport;

static double median_rate(const RankReport *report, int n, bool bf16) {
    double *rate = mem_calloc((size_t)n, sizeof *rate);
    for (int r = 0; r < n; r++) rate[r] = report[r].rate[bf16];
    double median = median_of(rate, n);
    mem_free(rate);
    return median;
}

/* The facts of a node are those that its first rank reports. */
static void set_facts(Detected *d, const RankReport *report, World *w) {
    int *node = ranks_nodes(w);
    for (int r = 0; r < d->n_ranks; r++) {
        d->rank[r] = report[r].facts;
        d->rank[r].node = node[r];
        if (node[r] == d->n_nodes) d->node[d->n_nodes++] = report[r].node;
    }
    mem_free(node);
}

static NodeFacts node_here(World *w) {
    NodeFacts n = {.memory = memory_available()};
    cpu_set_t allowed;
    snprintf(n.name, sizeof n.name, "%s", world_node(w));
    cpus_allowed(&allowed);
    node_cpus(&n, cpus_here(), &allowed);
    stamp_cpu(n.cpu, sizeof n.cpu);
    n.quota = detect_quota(w, "");
    return n;
}

static const char *kernels_name(const Kernels *k) {
    const char *const *set = kernels_cpu_sets();
    if (!k) return "cuda";
    while (*set && kernels_cpu(*set) != k) set++;
    return *set ? *set : "other";
}

void detect(Detected *d, World *w, const Kernels *k, Team *team, bool bf16) {
    Group g = comm_group(world_comm(w));
    cpu_set_t cores = team_set(team);
    RankReport mine = {.facts.threads = team_size(team)},
               *report = mem_calloc((size_t)g.size, sizeof mine);
    memset(d, 0, sizeof *d);
    mine.node = node_here(w);
    rank_cores(&mine.facts, cpus_here(), &cores);
    group_barrier(&g); // all ranks run the matmul at once: those that share cores are slower
    if (k) mine.rate[0] = mine.rate[1] = matmul_rate(k, team, bf16);
    if (k && k->bf16_units) mine.rate[!bf16] = matmul_rate(k, team, !bf16);
    group_all_gather(&g, &mine, sizeof mine, report);

    d->n_ranks = g.size, d->on_devices = !k;
    d->rank = mem_calloc((size_t)g.size, sizeof *d->rank);
    d->node = mem_calloc((size_t)g.size, sizeof *d->node);
    set_facts(d, report, w);
    for (int i = 0; i < 2; i++) d->flops[i] = median_rate(report, g.size, i);
    for (int r = 0; r < g.size; r++) d->rank[r].speed = report[r].rate[bf16] / d->flops[bf16];
    snprintf(d->backend, sizeof d->backend, "%s", world_backend(w));
    snprintf(d->kernels, sizeof d->kernels, "%s", kernels_name(k));
    group_broadcast(&g, d->kernels, sizeof d->kernels); // where processors differ, rank 0's
    detect_warn(d);
    mem_free(report);
}

void detect_free(Detected *d) {
    mem_free(d->node);
    mem_free(d->rank);
    d->node = NULL, d->rank = NULL;
}

/* ---- questions to the facts ---- */

int detect_ranks(const Detected *d, int node) {
    int n = 0;
    for (int r = 0; r < d->n_ranks; r++) n += d->rank[r].node == node;
    return n;
}

int detect_fewest(const Detected *d) {
    int64_t least = d->n_ranks;
    for (int i = 0; i < d->n_nodes; i++) least = min_i64(least, detect_ranks(d, i));
    return (int)least;
}

bool detect_in_blocks(const Detected *d) {
    for (int r = 1; r < d->n_ranks; r++)
        if (d->rank[r].node < d->rank[r - 1].node) return false;
    return true; // nodes are numbered in the order of their first ranks
}

void detect_list(char *text, size_t n, const int *item, int n_items) {
    size_t at = 0;
    *text = 0;
    for (int i = 0, last; i < n_items; i = last + 1) {
        char part[32];
        for (last = i; last + 1 < n_items && item[last + 1] == item[last] + 1;) last++;
        if (last > i)
            snprintf(part, sizeof part, "%s%d-%d", i ? " " : "", item[i], item[last]);
        else
            snprintf(part, sizeof part, "%s%d", i ? " " : "", item[i]);
        bool ends = last + 1 == n_items;
        if (at + strlen(part) + (ends ? 1 : 5) > n) {
            snprintf(text + at, n - at, " ...");
            return;
        }
        at += (size_t)snprintf(text + at, n - at, "%s", part);
    }
}

/* ---- the key ---- */

static uint64_t add_text(uint64_t h, char *text) {
    h = rng_hash(h, text, strlen(text) + 1);
    mem_free(text);
    return h;
}

/* A hash of every name and every binding. Free memory and measured speeds are left out: they change
 * at every start. */
static uint64_t digest_facts(const Detected *d) {
    uint64_t h = rng_stream("");
    for (int i = 0; i < d->n_nodes; i++) {
        const NodeFacts *n = &d->node[i];
        h = add_text(h, mem_printf("%s %s %d %d %d %d", n->name, n->cpu, n->sockets, n->cores,
                                   n->threads, n->quota));
    }
    for (int r = 0; r < d->n_ranks; r++) {
        const RankFacts *f = &d->rank[r];
        h = add_text(h, mem_printf("%d %d", f->node, f->threads));
        h = rng_hash(h, f->core, sizeof f->core);
    }
    return h;
}

void detect_key(const Detected *d, char key[256]) {
    snprintf(key, 256, "%.32s-%dnodes-%.48s-%dranks-%dthreads-%s-%s-%.40s-%s-%016" PRIx64,
             d->node[0].name, d->n_nodes, d->node[0].cpu, d->n_ranks, d->rank[0].threads,
             d->kernels, d->backend, version_commit(), version_build(), digest_facts(d));
    utf8_repair(key); // the cut may have split a letter
}
