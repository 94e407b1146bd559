/* Which collectives are measured, and at which sizes; and how the others are derived.
 *
 * Let t(n) be the measured time of n bytes, and F(n) the formula of parallel/plan/machine.h on the
 * measured links. Then t(n) = t(small) + slow (F(n) - F(small)), where `slow` is about 1. So the
 * time of a size is known before it is measured, and each collective gets the same time for its
 * bytes: an equal share of the budget.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/plan/calibrate_parts.h"

static const int64_t most_measured = 64 << 20;        // bytes; beyond it time is a line
static const double shortest = 1e-3, longest = 60e-3; // seconds of a large size beyond its latency

static CollGroup group_at(const Placement *p) {
    return (CollGroup){.place = *p, .size = placement_ranks(p)};
}

/* Seconds by the formula: m has no measured costs yet. */
static double formula(const Machine *m, const Placement *place, CollOp op, double bytes) {
    CollGroup g = group_at(place);
    return machine_collective(m, &g, &(Collective){.op = op, .bytes = (int64_t)bytes});
}

/* ---- which collectives */

/* The entry of a listed collective, else that of a group that lies alike; NULL: none. */
static const CollCost *find_alike(const Calibration *c, const Machine *m,
                                  const ListedCollective *l) {
    const CollCost *own = calibration_find_collective(c, &l->group.place, l->op);
    for (int i = 0; i < c->n_collectives && !own; i++) {
        CollGroup other = group_at(&c->collective[i].place);
        if (c->collective[i].op == l->op && machine_alike(m, &other, &l->group))
            own = &c->collective[i];
    }
    return own;
}

/* Is there an entry for at least half of `most` bytes? */
static bool covers(const CollCost *s, int64_t most) {
    return s && s->most * 2 >= most;
}

/* Adds a collective to the jobs, or to the job of a group that lies alike. */
static void add_job(CollJob *job, int *n, const Machine *m, const ListedCollective *l) {
    int i = 0;
    while (i < *n && !(job[i].cost.op == l->op && machine_alike(m, &job[i].group, &l->group))) i++;
    if (i == *n)
        job[(*n)++] = (CollJob){.group = l->group, .cost = {.place = l->group.place, .op = l->op}};
    job[i].cost.most = max_i64(job[i].cost.most, l->most);
}

/* The ops from which most others can be derived come first. */
CollJob *calibrate_jobs(const Calibration *c, const Machine *m, const CalibrateList *list, int *n) {
    static const CollOp order[N_COLL_OPS] = {COLL_ALL_REDUCE, COLL_ALL_GATHER, COLL_REDUCE_SCATTER,
                                             COLL_SHIFT,      COLL_BROADCAST,  COLL_REDUCE};
    CollJob *job = mem_calloc((size_t)list->n_collectives + 1, sizeof *job);
    *n = 0;
    for (int i = 0; i < N_COLL_OPS; i++)
        for (int k = 0; k < list->n_collectives; k++) {
            const ListedCollective *l = &list->collective[k];
            if (l->op == order[i] && !covers(find_alike(c, m, l), l->most)) add_job(job, n, m, l);
        }
    return job;
}

/* ---- at which sizes */

int64_t calibrate_size(const CollJob *job, const Machine *m, double seconds, double slow) {
    const CollCost *s = &job->cost;
    int64_t most = min_i64(s->most, most_measured), least = 2 * COLL_SMALL;
    double target = fmax(seconds, s->seconds[0] / 2) / slow; // less would be lost in the latency
    double first = formula(m, &s->place, s->op, COLL_SMALL);
    while (least < most) {
        int64_t middle = least + (most - least + 1) / 2;
        if (formula(m, &s->place, s->op, (double)middle) - first <= target)
            least = middle;
        else
            most = middle - 1;
    }
    return most;
}

/* Bytes of the whole tensor up to which messages are sent eagerly (CollBackend.eager_limit); 0: on
 * near links a rendezvous is too short to show. */
static int64_t eager_limit_of(const CollJob *job, const CollBackend *backend) {
    CollOp op = job->cost.op;
    bool blocks = coll_has_blocks(op) || op == COLL_ALL_REDUCE;
    return calibrate_far(job->cost.seconds[0])
               ? backend->eager_limit * (blocks ? job->group.size : 1)
               : 0;
}

int calibrate_points(const CollJob *job, int64_t largest, const CollBackend *backend,
                     int64_t size[COLL_POINTS]) {
    int64_t at = eager_limit_of(job, backend), quarter = largest / 4, least = COLL_SMALL;
    int n = 0;
    if (at > least && largest > at + at / 8) least = at, size[n++] = at, size[n++] = at + at / 8;
    if (quarter > 2 * least) size[n++] = quarter;
    if (largest > COLL_SMALL) size[n++] = largest;
    return n;
}

/* A job measures about two large sizes. Each costs as much beside its bytes as the small size did
 * (wall), and its bytes are sent calibrate_calls times. The largest size and a quarter of it take
 * 1.25 times the largest one's time, with smaller points at most 1.5 times. */
double calibrate_seconds(const CollJob *job, double left) {
    const double sizes = 2, of_largest = 1.5;
    double bytes = (left - sizes * job->wall) / of_largest / calibrate_calls(job->cost.seconds[0]);
    return bytes < shortest ? 0 : fmin(bytes, longest);
}

/* ---- how the others are derived */

/* A measured cost relative to the formula. latency: seconds of a small collective / the formula's;
 * large_latency: the same for large ones, which may need an answer before they are sent; bytes:
 * seconds of bytes / the formula's. */
typedef struct Scale {
    double latency, large_latency, bytes;
    double large_from; // bytes from which on large_latency holds
} Scale;

static Scale scale_of(const CollCost *s, const Machine *m) {
    int last = 0;
    while (last + 1 < s->n && s->bytes[last + 1] <= (double)s->measured) last++;
    int before = last > 0 ? last - 1 : 0;
    double first = formula(m, &s->place, s->op, s->bytes[0]),
           end = formula(m, &s->place, s->op, s->bytes[last]),
           more = end - formula(m, &s->place, s->op, s->bytes[before]);
    Scale scale = {1, 1, 1, s->bytes[before]};
    if (more > 0) scale.bytes = (s->seconds[last] - s->seconds[before]) / more;
    if (first > 0) {
        scale.latency = s->seconds[0] / first;
        scale.large_latency = (s->seconds[last] - scale.bytes * (end - first)) / first;
    }
    if (scale.large_latency < scale.latency) scale.large_latency = scale.latency;
    return scale;
}

void calibrate_extend(CollCost *s, const Machine *m) {
    double last = s->bytes[s->n - 1], at = formula(m, &s->place, s->op, last);
    if ((double)s->most <= last || s->n == COLL_POINTS) return;
    double more = formula(m, &s->place, s->op, (double)s->most) - at;
    s->bytes[s->n] = (double)s->most;
    s->seconds[s->n] = s->seconds[s->n - 1] + fmax(0, scale_of(s, m).bytes * more);
    s->n++;
}

/* How much the costs of two collectives are likely to differ: a score of sizes, levels and ops. */
static double distance(const Machine *m, const CollCost *s, const ListedCollective *l) {
    static const double root = 2, sum = 1, half = 0.5, level = 4;
    CollGroup of = group_at(&s->place);
    bool rooted = l->op == COLL_BROADCAST || l->op == COLL_REDUCE || l->op == COLL_SHIFT,
         theirs = s->op == COLL_BROADCAST || s->op == COLL_REDUCE || s->op == COLL_SHIFT;
    double far = fabs(log2((double)of.size / l->group.size));
    if (machine_level(m, &of) != machine_level(m, &l->group)) far += level;
    if (l->op == s->op) return far;
    if (rooted != theirs) return far + root;
    return far + (l->op == COLL_ALL_REDUCE || s->op == COLL_ALL_REDUCE ? sum : half);
}

/* The cost of a collective by the formula, scaled as for the nearest measured one. False: none was
 * measured. */
static bool derive(const Calibration *c, const Machine *m, const ListedCollective *l,
                   CollCost *out) {
    const Placement *place = &l->group.place;
    const CollCost *nearest = NULL;
    double least = INFINITY;
    for (int i = 0; i < c->n_collectives; i++) {
        double far = c->collective[i].measured > 0 ? distance(m, &c->collective[i], l) : INFINITY;
        if (far < least) least = far, nearest = &c->collective[i];
    }
    if (!nearest) return false;
    Scale scale = scale_of(nearest, m);
    double first = formula(m, place, l->op, COLL_SMALL), most = (double)l->most;
    double from = fmin(fmax(scale.large_from, 2 * COLL_SMALL), most);
    const double size[] = {COLL_SMALL, from, sqrt(from * most), most};
    *out = (CollCost){.place = *place, .op = l->op, .most = l->most};
    for (int i = 0; i < 4; i++) {
        double more = scale.bytes * (formula(m, place, l->op, size[i]) - first);
        if (i > 0 && size[i] <= out->bytes[out->n - 1]) continue;
        out->bytes[out->n] = size[i];
        out->seconds[out->n] = (i ? scale.large_latency : scale.latency) * first + fmax(0, more);
        if (i > 0) out->seconds[out->n] = fmax(out->seconds[out->n], out->seconds[out->n - 1]);
        out->n++;
    }
    return true;
}

bool calibrate_fill(Calibration *c, const Machine *m, const CalibrateList *list) {
    for (int i = 0; i < list->n_collectives; i++) {
        const ListedCollective *l = &list->collective[i];
        CollCost cost;
        if (covers(calibration_find_collective(c, &l->group.place, l->op), l->most)) continue;
        const CollCost *alike = find_alike(c, m, l);
        if (alike && alike->measured > 0) {
            cost = *alike, cost.place = l->group.place;
            if (l->most > cost.most) cost.most = l->most, calibrate_extend(&cost, m);
        } else if (!derive(c, m, l, &cost)) {
            return false;
        }
        calibration_add_collective(c, &cost);
    }
    return true;
}
