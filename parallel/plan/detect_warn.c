/* Warns of what slows a job down and can be seen before its first step. A check looks at one node
 * or at the whole job. The same fault on several nodes gives one warning. */
#include <stdarg.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/detect_parts.h"

enum { TEXT = sizeof((Detected *)0)->warning[0] };

/* Writes a warning; returns true, which a check returns for a fault. */
__attribute__((format(printf, 2, 3))) static bool say(char *text, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, TEXT, fmt, args);
    va_end(args);
    return true;
}

typedef bool NodeCheck(const Detected *d, int node, char *text);
typedef bool JobCheck(const Detected *d, char *text);

/* ---- of a node ---- */

/* users[c]: how many ranks of a node may use core c. Returns the number of cores that any may
 * use. */
static int count_users(const Detected *d, int node, int users[NODE_CORES]) {
    int used = 0;
    memset(users, 0, NODE_CORES * sizeof *users);
    for (int r = 0; r < d->n_ranks; r++)
        for (int c = 0; c < NODE_CORES && d->rank[r].node == node; c++)
            users[c] += rank_has(&d->rank[r], c);
    for (int c = 0; c < NODE_CORES; c++) used += users[c] > 0;
    return used;
}

/* The options that give each rank this number of cores. */
static const char *binding(const Detected *d, int cores, char buf[80]) {
    if (cores < 1) cores = 1;
    if (strcmp(d->backend, "mpi") != 0)
        snprintf(buf, 80, "mpirun --bind-to none, or a taskset with all of them");
    else
        snprintf(buf, 80, "mpirun --map-by slot:PE=%d, srun --cpus-per-task %d", cores, cores);
    return buf;
}

static int count_threads(const Detected *d, int node) {
    int n = 0;
    for (int r = 0; r < d->n_ranks; r++) n += d->rank[r].node == node ? d->rank[r].threads : 0;
    return n;
}

static bool oversubscribed(const Detected *d, int node, char *text) {
    const NodeFacts *f = &d->node[node];
    int ranks = detect_ranks(d, node), threads = count_threads(d, node);
    if (f->cores == 0 || (ranks <= f->cores && threads <= f->threads)) return false;
    return say(text, "%d ranks with %d threads share %d core%s of %s and take turns: %s", ranks,
               threads, f->cores, f->cores > 1 ? "s" : "", f->name,
               ranks <= f->cores ? "fewer --threads"
               : d->on_devices   ? "GPUs will wait for their launches"
                                 : "fewer ranks");
}

static bool on_one_core(const Detected *d, int node, char *text) {
    int users[NODE_CORES], used = count_users(d, node, users), first[NODE_CORES];
    int cores = d->node[node].cores, idle = cores - used;
    char buf[80];
    memset(first, -1, sizeof first);
    for (int r = 0; r < d->n_ranks && idle > 0; r++) {
        const RankFacts *f = &d->rank[r];
        if (f->node != node || f->n_cores != 1) continue;
        int other = first[f->first_core];
        first[f->first_core] = r;
        if (other < 0) continue;
        return say(text,
                   "ranks %d and %d are bound to core %d of %s, and %d of its %d cores to none: %s",
                   other, r, f->first_core, d->node[node].name, idle, cores,
                   binding(d, cores / detect_ranks(d, node), buf));
    }
    return false;
}

/* Cores that no rank may use: mpirun binds each of two ranks to one core unless told otherwise. */
static bool idle_cores(const Detected *d, int node, char *text) {
    int users[NODE_CORES], used = count_users(d, node, users), cores = d->node[node].cores;
    int n = detect_ranks(d, node);
    char buf[80];
    if (n == 0 || used == 0 || cores - used < n || on_one_core(d, node, text)) return false;
    return say(text, "no rank may use %d of the %d cores of %s: %s", cores - used, cores,
               d->node[node].name, binding(d, cores / n, buf));
}

/* A team that would fit into one socket runs on two, so half of its memory is far. */
static bool across_sockets(const Detected *d, int node, char *text) {
    const NodeFacts *f = &d->node[node];
    if (f->sockets < 2) return false;
    for (int r = 0; r < d->n_ranks; r++) {
        const RankFacts *k = &d->rank[r];
        if (k->node != node || k->sockets < 2 || k->threads > f->cores / f->sockets) continue;
        char buf[80];
        return say(text, "rank %d on %s runs %d thread%s on %d sockets, and one has room: %s", r,
                   f->name, k->threads, k->threads > 1 ? "s" : "", k->sockets,
                   binding(d, k->threads, buf));
    }
    return false;
}

static bool quota(const Detected *d, int node, char *text) {
    int threads = count_threads(d, node), grant = d->node[node].quota;
    if (grant == 0 || threads <= grant) return false;
    return say(text,
               "a control group grants %s the time of %d core%s, and %d threads will be stopped in "
               "between: --threads",
               d->node[node].name, grant, grant > 1 ? "s" : "", threads);
}

/* ---- of the job ---- */

static bool unlike_processors(const Detected *d, char *text) {
    for (int i = 1; i < d->n_nodes; i++) {
        const NodeFacts *a = &d->node[0], *b = &d->node[i];
        if (strcmp(a->cpu, b->cpu) == 0 && a->cores == b->cores) continue;
        return say(text, "nodes differ: %.24s has %d cores of %.36s, %.24s %d of %.36s", a->name,
                   a->cores, a->cpu, b->name, b->cores, b->cpu);
    }
    return false;
}

static bool unlike_numbers(const Detected *d, char *text) {
    for (int i = 1; i < d->n_nodes; i++) {
        int a = detect_ranks(d, 0), b = detect_ranks(d, i);
        if (a == b) continue;
        return say(text,
                   "%.24s has %d ranks, %.24s %d: costs are those of a cluster with the fewest on "
                   "every node",
                   d->node[0].name, a, d->node[i].name, b);
    }
    return false;
}

static bool dealt_out(const Detected *d, char *text) {
    if (detect_in_blocks(d)) return false;
    return say(text, "ranks are dealt out to the nodes in turn, and neighbours are on different "
                     "ones: mpirun --map-by slot, srun -m block");
}

/* Slow ranks. Ranks that share a core are left out: another check warns of them. */
static bool straggler(const Detected *d, char *text) {
    static const double enough = 0.8;
    int *slow = mem_calloc((size_t)d->n_ranks, sizeof *slow), n = 0, worst = -1;
    char list[48], unused[TEXT];
    for (int r = 0; r < d->n_ranks && !d->on_devices; r++) {
        if (d->rank[r].speed >= enough || oversubscribed(d, d->rank[r].node, unused) ||
            on_one_core(d, d->rank[r].node, unused))
            continue;
        slow[n++] = r;
        if (worst < 0 || d->rank[r].speed < d->rank[worst].speed) worst = r;
    }
    detect_list(list, sizeof list, slow, n);
    mem_free(slow);
    if (n == 0) return false;
    snprintf(text, TEXT, "rank %d on %.48s reaches %.0f %% of the median rank's speed: all wait",
             worst, d->node[d->rank[worst].node].name, 100 * d->rank[worst].speed);
    if (n > 1) snprintf(text + strlen(text), TEXT - strlen(text), " (slow: %s)", list);
    return true;
}

/* ---- all ---- */

void detect_warn(Detected *d) {
    static NodeCheck *const of_node[] = {oversubscribed, on_one_core, idle_cores, across_sockets,
                                         quota};
    static JobCheck *const of_job[] = {unlike_processors, unlike_numbers, dealt_out, straggler};
    char text[TEXT] = "", more[40];
    d->n_warnings = 0;
    for (size_t c = 0; c < sizeof of_node / sizeof *of_node; c++) {
        int n = 0;
        for (int i = 0; i < d->n_nodes; i++)
            if (of_node[c](d, i, n ? text : d->warning[d->n_warnings])) n++;
        if (n == 0) continue;
        char *w = d->warning[d->n_warnings++];
        snprintf(more, sizeof more, " (and so on %d more)", n - 1);
        if (n > 1) snprintf(w + strlen(w), TEXT - strlen(w), "%s", more);
    }
    for (size_t c = 0; c < sizeof of_job / sizeof *of_job; c++)
        d->n_warnings += of_job[c](d, d->warning[d->n_warnings]);
}
