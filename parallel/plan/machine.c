/* machine -- seconds of one kernel and of one collective: measured ones if there is a calibration
 * (calibrate.h), else from the numbers of a description.
 *
 * A group of p ranks lies in nested units. A unit below level l holds m of its ranks (one rank for
 * l = 0); n is the bytes of the whole tensor. A message that leaves a unit has crossed all levels
 * inside it, so level l is no faster than these: its latency a [s] is the greatest of levels 0 to
 * l, its rates [bytes/s] are the least,
 *
 *     rank  rank_rate                      of one rank
 *     port  port_rate / ranks of the unit  of one rank while all ranks of the unit send
 *
 * and bytes take the larger one of bytes/rank and bytes/port.
 *
 *                         bytes that leave a unit, per rank             on the way
 *   direct
 *     all_gather,         n (p - m) / p: its block to all outside       largest of all levels
 *     reduce_scatter
 *     all_reduce          twice that, or n (p - m) in one exchange, all to all: the faster one
 *     broadcast, reduce   n (p - m) at the root; through the port (p/m - 1) n: one root for each
 *                         m ranks of the unit
 *     latency             of the farthest rank; cpu_time() of it is CPU time for each of p - 1
 *                         messages
 *     by nodes            if faster, with 2^i ranks in each of several nodes: direct inside the
 *                         node, then direct between nodes with n / 2^i; not broadcast, reduce
 *     shift               n; through the port n (p - m) / (p - 1), the mean over distances; one
 *                         latency. The same in rings
 *   ring
 *     all_gather, ...     n (p-1)/p / m: data enters and leaves a unit  largest of all levels: all
 *                         once, in m parts                              links are busy together
 *     broadcast, reduce   n / m
 *     latency             of p - 1 steps, p/m of them leave a unit
 *   by levels (if faster than the ring: inside a node, for small messages, between few nodes)
 *     all_gather, ...     n (1/m - 1/p): each rank fetches what no      sum: level after level
 *                         other rank of its unit fetches
 *     latency             log2 of the units that meet at a level: doubling
 *
 * Every formula falls when m grows. Each is a line in n, and a collective costs the least of one or
 * two such lines: never less than the least start and the least slope together, which the search
 * uses as its bound.
 *
 * Formulas and calibration have all sibling groups send at the same time. But replicas along d meet
 * only in the sums of gradients, and replicas that share a port soon fall out of step: while one
 * sends, the other computes or sends elsewhere. So machine_collective_in_turn is the time of a
 * collective whose replica has the port alone, and price.c adds the time that replicas wait for
 * each other.
 * A step on 2 racks x 2 hosts x 2 ranks, x between racks, y between hosts, d inside, took 231 to
 * 246 ms; predicted: 291 with all groups in step, 241 in turns. With x between racks and d inside:
 * 265; predicted in turns 259.
 *
 * Source: Hockney's alpha-beta model; Thakur et al., "Optimization of collective communication
 * operations in MPICH", 2005; rings and trees of NCCL (src/graph/tuning.cc);
 * parallel/comm/coll_mpi.c.
 */
#include "parallel/plan/machine.h"

#include <math.h>

#include "base/minmax.h"
#include "parallel/plan/calibrate.h"
#include "parallel/plan/gpu_matmul.h"

/* The part of a message's latency that is CPU time, [s]. Messages to several ranks take it one
 * after the other; the rest of their latencies overlaps. It is about half of the latency with the
 * kernel's TCP and with shared memory; a long cable adds none. */
static const double most_cpu_time = 15e-6;
static double cpu_time(double latency) {
    return latency < 2 * most_cpu_time ? latency / 2 : most_cpu_time;
}

const Kernels *machine_kernels(const Machine *m, bool bf16) {
    return m->gpu ? kernels_cuda_sizes(bf16) : NULL;
}

/* ---- works ---- */

/* A matmul reaches its full rate when all its dimensions are large: the smallest one decides. (For
 * bf16 matmuls of GPUs whose multiprocessors are known gpu_matmul.h has a better model.) */
static double smallest_dimension(const Work *w) {
    if (work_is_attention(w)) return (double)min_i64(w->S, w->D); // scores[S,S] = q[S,D] k'
    return (double)min_i64(w->N, min_i64(w->rows, w->K));
}

/* FLOP/s of Hopper's attention kernels (layers/attention_sm90.cu); the masked half of the scores is
 * not counted. Blocks on the diagonal are half masked, which costs short sequences more. Small
 * heads leave the tensor cores waiting for exponentials. The three numbers are fitted to twelve
 * shapes measured on an H200: heads of 64 and 128, 1,024 to 4,096 positions, forward and backward
 * (bench/results/h200-kernels.json). The error is 7 % at the median, 10 % at most. 0: other
 * kernels run. */
static double attention_rate(const Machine *m, const Work *w) {
    double S = (double)w->S, D = (double)w->D;
    bool serves = w->flags & WORK_BF16_STORED && (w->D == 64 || w->D == 128);
    if (!work_is_attention(w) || !serves || !m->gpu || m->capability / 10 != 9) return 0;
    double rate = m->flops[1] * S / (S + 400) * D / (D + 45);
    return w->kind == WORK_ATTENTION ? rate : 0.8 * rate;
}

double machine_work(const Machine *m, const Work *w) {
    double seconds;
    if (m->measured && calibration_work(m->measured, w, &seconds)) return seconds;
    if (gpu_matmul_is(m, w)) return gpu_matmul_seconds(m, w) + m->call;
    double flops = work_flops(w), compute = 0, memory = work_bytes(w) / m->memory_rate;
    if (flops > 0) {
        double size = smallest_dimension(w), rate = attention_rate(m, w);
        if (rate == 0)
            rate = m->flops[w->flags & WORK_BF16 ? 1 : 0] * size / (size + m->flops_half);
        compute = flops / rate;
    }
    return max_f64(compute, memory) + m->call;
}

/* ---- where a group's ranks are ---- */

/* [l]: how many ranks of a group a unit below level l holds; [n_levels]: p. If the sizes do not
 * divide each other units hold different numbers. A rank in a unit with the fewest sends most; the
 * mean decides what a port carries. */
typedef struct Spread {
    double fewest[MAX_LEVELS + 1], mean[MAX_LEVELS + 1];
} Spread;

/* Greatest common divisor. */
static int32_t divisor(int32_t a, int32_t b) {
    while (b) {
        int32_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* Ranks in a unit below a level. */
static int32_t unit_below(const Machine *m, int level) {
    return level == 0 ? 1 : m->level[level - 1].ranks;
}

/* How many ranks of a group one unit of `unit` ranks holds. The group has `size` ranks that are
 * `stride` apart, and begins at a multiple of its span, size x stride (its siblings fill the gaps).
 * If neither span nor unit divides the other, the ends of units cut some group at every multiple of
 * d = gcd(span, unit) from its beginning: the shortest piece spans d ranks. A group of s ranks that
 * is cut into m and s - m sends 2 m (s - m) blocks across; the mean counts the worst case, in which
 * both ends of a unit cut a group in halves. */
static void ranks_in_unit(int32_t size, int32_t stride, int32_t unit, double *fewest,
                          double *mean) {
    int32_t span = size * stride;
    if (unit % span == 0) {
        *fewest = *mean = size;
    } else if (span % unit == 0 && unit % stride == 0) {
        *fewest = *mean = unit / stride;
    } else {
        int32_t few = divisor(span, unit) / stride;
        double s = size, room = (double)unit / stride;
        *fewest = max_f64(few, 1);
        *mean = max_f64(1, s < room ? s - s * s / (2 * room) : room / 2);
    }
}

/* How many ranks of a placement a unit below a level holds: the fewest, and the mean. */
static void ranks_below(const Machine *m, const Placement *p, int level, double *fewest,
                        double *mean) {
    *fewest = *mean = 1;
    for (int k = 0; k < p->n; k++) {
        double few, usual;
        ranks_in_unit(p->size[k], p->stride[k], unit_below(m, level), &few, &usual);
        *fewest *= few, *mean *= usual;
    }
}

static void spread_of(Spread *s, const Machine *m, const CollGroup *g) {
    s->fewest[0] = s->mean[0] = 1;
    for (int l = 1; l < m->n_levels; l++) ranks_below(m, &g->place, l, &s->fewest[l], &s->mean[l]);
    s->fewest[m->n_levels] = s->mean[m->n_levels] = g->size;
}

/* ---- collectives ---- */

/* Rates (bytes/s, per rank) and latency of a message that crosses all levels up to some level. */
typedef struct Path {
    double rank, port, latency;
} Path;

static const Path path_start = {INFINITY, INFINITY, 0};

static void path_cross(Path *w, const Machine *m, int l) {
    const Level *level = &m->level[l];
    double port = level->port_rate > 0 ? level->port_rate / unit_below(m, l) : INFINITY;
    w->rank = min_f64(w->rank, level->rank_rate);
    w->port = min_f64(w->port, port);
    w->latency = max_f64(w->latency, level->latency);
}

static bool rooted(CollOp op) {
    return op == COLL_BROADCAST || op == COLL_REDUCE;
}

/* Seconds of a direct collective among the units below level `from`, all of whose ranks send an
 * equal share of a unit's bytes. */
static double direct(const Machine *m, const Spread *s, CollOp op, int from, double p, double n) {
    Path w = path_start;
    double bytes = 0, messages = 0, turns = op == COLL_ALL_REDUCE ? 2 : 1, below = s->fewest[from];
    for (int l = 0; l < m->n_levels && s->fewest[l] < p; l++) {
        path_cross(&w, m, l);
        if (l < from) continue;
        double by_rank = n * (p - s->fewest[l]), by_port = n * (p / s->mean[l] - 1);
        if (!rooted(op)) by_rank /= p, by_port *= s->mean[l] / p;
        bytes = max_f64(bytes, max_f64(by_rank / w.rank, by_port / w.port));
        messages += (s->fewest[l + 1] - s->fewest[l]) * cpu_time(w.latency);
    }
    return turns * (bytes / below + w.latency - cpu_time(w.latency) + messages / below);
}

/* Inside each node, then among the ranks with the same index in their nodes (coll_mpi_flight.h).
 * INFINITY: this algorithm does not apply. */
static double by_nodes(const Machine *m, const Spread *s, CollOp op, double p, double n) {
    int out = 1;
    while (out < m->n_levels && m->level[out - 1].ranks != m->ranks_per_node) out++;
    double in_node = out < m->n_levels ? s->fewest[out] : 1; // ranks of the group
    bool halves = in_node == s->mean[out] && ((int)in_node & ((int)in_node - 1)) == 0;
    if (in_node == 1 || in_node >= p || !halves || rooted(op)) return INFINITY;
    return direct(m, s, op, 0, in_node, n) + direct(m, s, op, out, p, n);
}

static double ring(const Machine *m, const Spread *s, CollOp op, double p, double n) {
    Path w = path_start;
    double bytes = 0, steps = 0, turns = op == COLL_ALL_REDUCE ? 2 : 1;
    double stream = rooted(op) ? n : n * (p - 1) / p;
    for (int l = 0; l < m->n_levels && s->fewest[l] < p; l++) {
        path_cross(&w, m, l);
        bytes =
            max_f64(bytes, max_f64(stream / s->fewest[l] / w.rank, stream / s->mean[l] / w.port));
        steps += (p / s->fewest[l] - p / s->fewest[l + 1]) * w.latency;
    }
    return turns * (bytes + steps);
}

static double shift(const Machine *m, const Spread *s, double p, double n) {
    Path w = path_start;
    double bytes = 0;
    for (int l = 0; l < m->n_levels && s->fewest[l] < p; l++) {
        path_cross(&w, m, l);
        bytes = max_f64(bytes, max_f64(n / w.rank, n * (p - s->mean[l]) / (p - 1) / w.port));
    }
    return bytes + w.latency;
}

/* in: Spread.fewest, as the units with the fewest ranks take longest. */
static double by_levels(const Machine *m, const double *in, CollOp op, double p, double n) {
    Path w = path_start;
    double bytes = 0, steps = 0, turns = op == COLL_ALL_REDUCE ? 2 : 1;
    for (int l = 0; l < m->n_levels && in[l] < p; l++) {
        path_cross(&w, m, l);
        bytes += n * (1 / in[l] - 1 / in[l + 1]) / min_f64(w.rank, w.port);
        steps += log2(in[l + 1] / in[l]) * w.latency;
    }
    return turns * (bytes + steps);
}

/* Seconds of a collective by the formulas. */
static double formula_seconds(const Machine *m, const Spread *s, CollOp op, int size,
                              int64_t bytes) {
    double p = size, n = (double)bytes;
    if (op == COLL_SHIFT) return shift(m, s, p, n);
    if (m->algorithm == ALGORITHM_DIRECT) {
        double t = min_f64(direct(m, s, op, 0, p, n), by_nodes(m, s, op, p, n));
        return op == COLL_ALL_REDUCE ? min_f64(t, direct(m, s, COLL_ALL_GATHER, 0, p, n * p)) : t;
    }
    double t = ring(m, s, op, p, n);
    return rooted(op) ? t : min_f64(t, by_levels(m, s->fewest, op, p, n));
}

bool machine_across(const Machine *m, const CollGroup *g) {
    return placement_extent(&g->place) >= m->ranks_per_node;
}

double machine_slowdown(const Machine *m, const CollGroup *g) {
    double measured = m->measured ? m->measured->slowdown[machine_across(m, g)] : 0;
    return measured > 0 ? measured : m->slowdown;
}

double machine_collective(const Machine *m, const CollGroup *g, const Collective *c) {
    Spread s;
    double seconds;
    if (g->size < 2) return 0;
    bool known = m->measured && calibration_collective(m->measured, g, c->op, c->bytes, &seconds);
    if (known && !m->low_latency) return seconds;
    spread_of(&s, m, g);
    double by_formula = formula_seconds(m, &s, c->op, g->size, c->bytes), none;
    if (!known) return by_formula;
    calibration_collective(m->measured, g, c->op, 0, &none);
    return min_f64(by_formula, seconds - none + formula_seconds(m, &s, c->op, g->size, 0));
}

bool machine_alike(const Machine *m, const CollGroup *a, const CollGroup *b) {
    Spread x, y;
    if (a->size != b->size) return false;
    spread_of(&x, m, a), spread_of(&y, m, b);
    for (int l = 0; l <= m->n_levels; l++)
        if (x.fewest[l] != y.fewest[l] || x.mean[l] != y.mean[l]) return false;
    return true;
}

int machine_level(const Machine *m, const CollGroup *g) {
    int64_t extent = placement_extent(&g->place);
    int l = 0;
    while (l < m->n_levels - 1 && extent >= m->level[l].ranks) l++;
    return l;
}

bool machine_high_latency(const Machine *m, const CollGroup *g) {
    double latency = 0;
    if (m->algorithm == ALGORITHM_RING) return false;
    for (int l = machine_level(m, g); l >= 0; l--) latency = max_f64(latency, m->level[l].latency);
    return latency > 2 * most_cpu_time;
}

Machine machine_low_latency(const Machine *m) {
    Machine low = *m;
    low.low_latency = true;
    for (int l = 0; l < m->n_levels; l++)
        low.level[l].latency = min_f64(m->level[l].latency, 2 * most_cpu_time);
    return low;
}

double machine_turn(const Machine *m, const CollGroup *g, CollOp op) {
    const int64_t much = (int64_t)1 << 50; // bytes: beyond them a collective's cost is a line
    Machine alone = *m;
    Spread s;
    double rate[2];
    bool shared = false;
    if (g->size < 2 || g->replicas.n == 0) return 1;
    for (int l = machine_level(m, g); l >= 0; l--) {
        double port = m->level[l].port_rate, n, mean; // n: replicas that share a port
        ranks_below(m, &g->replicas, l, &n, &mean);
        alone.level[l].port_rate *= n;
        shared |= n > 1 && port > 0 && port < m->level[l].rank_rate * unit_below(m, l);
    }
    if (!shared) return 1;
    spread_of(&s, m, g);
    for (int i = 0; i < 2; i++) {
        const Machine *at = i ? &alone : m;
        rate[i] = formula_seconds(at, &s, op, g->size, 2 * much) -
                  formula_seconds(at, &s, op, g->size, much);
    }
    return rate[1] / rate[0];
}

double machine_collective_in_turn(const Machine *m, const CollGroup *g, const Collective *c,
                                  double all) {
    double part = machine_turn(m, g, c->op);
    if (part >= 1) return all;
    Collective none = *c;
    none.bytes = 0;
    return part * all + (1 - part) * machine_collective(m, g, &none);
}
