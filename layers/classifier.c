#include "layers/classifier.h"

#include <float.h>
#include <math.h>

#include "base/simd.h"

/* A row is read from memory once. row_sums replaces each logit x by e^(x - max of its chunk), which
 * stays in the L2; row_gradient multiplies each chunk by one factor. So there is one exponential
 * per logit. */
enum { CHUNK = 4096, CHUNKS = 256 }; // least floats of a chunk; most chunks of a row

typedef struct Row {
    int64_t chunk;     // floats per chunk
    float max[CHUNKS]; // of each chunk
    float all_max;
    double sum; // of e^(x - all_max)
} Row;

/* Maximum of a chunk. It starts from the smallest float, so that a chunk of -inf has sums of 0, not
 * of NaN; a NaN is left to the sum. */
static float chunk_max(const float *x, int64_t n) {
    vf least = vf_set1(-FLT_MAX), m[4] = {least, least, least, least};
    int64_t i = 0;
    for (; i + 4 * VF <= n; i += 4 * VF)
        for (int j = 0; j < 4; j++) m[j] = vf_max(vf_load(x + i + j * VF), m[j]);
    for (; i + VF <= n; i += VF) m[0] = vf_max(vf_load(x + i), m[0]);
    float max = vf_hmax(vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])));
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

/* Sum of e^(x - max) over a chunk; stores the exponentials in y unless y is NULL. Prefetches the
 * next chunk: its maximum would otherwise wait for memory. */
static float chunk_sum(float *y, const float *x, float max, int64_t n) {
    vf m = vf_set1(max), s[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VF <= n; i += 4 * VF)
        for (int j = 0; j < 4; j++) {
            vf e = vf_exp(vf_load(x + i + j * VF) - m);
            s[j] += e;
            if (y) vf_store(y + i + j * VF, e);
            prefetch(x + i + j * VF, CHUNK);
        }
    for (; i < n; i += VF) {
        int k = n - i < VF ? (int)(n - i) : VF;
        vf e = vf_first_lanes(vf_exp(vf_load_n(x + i, k) - m), k, vf_zero());
        s[0] += e;
        if (y) vf_store_n(y + i, e, k);
    }
    return vf_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* Maximum and sum of one row, merged from those of its chunks as merge_rows merges those of ranks.
 * keep: each logit is replaced by its exponential. */
static void row_sums(Row *r, float *x, int64_t V, bool keep) {
    float sum[CHUNKS];
    int n = 0;
    r->all_max = -FLT_MAX;
    for (int64_t i = 0; i < V; i += r->chunk, n++) {
        int64_t len = V - i < r->chunk ? V - i : r->chunk;
        r->max[n] = chunk_max(x + i, len);
        sum[n] = chunk_sum(keep ? x + i : NULL, x + i, r->max[n], len);
        if (r->max[n] > r->all_max) r->all_max = r->max[n];
    }
    r->sum = 0;
    for (int i = 0; i < n; i++)
        r->sum += (double)sum[i] * exp((double)r->max[i] - (double)r->all_max);
}

/* x[V] holds the exponentials that row_sums kept, and becomes softmax(logits) times scale. */
static void row_gradient(const Row *r, float *x, int64_t V, float scale) {
    int n = 0;
    for (int64_t i = 0; i < V; i += r->chunk, n++) {
        int64_t end = V - i < r->chunk ? V : i + r->chunk;
        float f = (float)(exp((double)r->max[n] - (double)r->all_max) / r->sum * (double)scale);
        for (int64_t v = i; v < end; v++) x[v] *= f;
    }
}

typedef struct Rows {
    const Classifier *c;
    float *loss, *logits;
    float *stats, *log_sum;
    int64_t n_parts; // of classifier_merge
} Rows;

/* Loss and gradient of whole rows: the tokens begin .. end. */
static void classifier_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *w = ctx;
    const Classifier *c = w->c;
    Row r;
    r.chunk = (c->V + CHUNKS - 1) / CHUNKS;
    if (r.chunk < CHUNK) r.chunk = CHUNK;
    for (int64_t t = begin; t < end; t++) {
        float *x = w->logits + t * c->ld;
        int32_t target = c->targets[t];
        if (target < 0) {
            w->loss[t] = 0;
            if (c->backward) memset(x, 0, (size_t)c->V * sizeof *x);
            continue;
        }
        double logit = (double)x[target];
        row_sums(&r, x, c->V, c->backward);
        w->loss[t] = (float)(log(r.sum) + ((double)r.all_max - logit));
        if (!c->backward) continue;
        row_gradient(&r, x, c->V, c->scale);
        x[target] -= c->scale;
    }
}

void classifier(Team *t, const Classifier *c, float *loss, Act *logits) {
    team_for(t, c->T, 1, classifier_rows, &(Rows){.c = c, .loss = loss, .logits = logits});
}

/* The number of columns of the part that begins at column i. */
static int64_t part_from(const Classifier *c, int64_t i) {
    return c->part && i + c->part < c->V ? c->part : c->V - i;
}

/* Statistics of a part. All its exponentials are relative to one maximum, so that the gradient
 * needs one factor. The part is read twice: for the maximum, then for the sum, from the cache. */
static void part_statistics(const Classifier *c, float *stats, float *x, int64_t V) {
    stats[0] = chunk_max(x, V);
    double sum = 0;
    for (int64_t i = 0; i < V; i += CHUNK)
        sum += (double)chunk_sum(c->backward ? x + i : NULL, x + i, stats[0],
                                 V - i < CHUNK ? V - i : CHUNK);
    stats[1] = (float)sum;
}

static void statistics_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *w = ctx;
    const Classifier *c = w->c;
    for (int64_t t = begin; t < end; t++) {
        float *x = w->logits + t * c->ld, *stats = w->stats + 3 * t;
        int64_t target = classifier_has_target(c, t) ? c->targets[t] - c->first : -1, i = 0, V;
        do {
            V = part_from(c, i);
            stats[0] = -FLT_MAX, stats[1] = 0;
            stats[2] = target >= i && target < i + V ? x[target] : 0;
            if (c->targets[t] >= 0) part_statistics(c, stats, x + i, V);
            i += V, stats += 3 * c->T;
        } while (i < c->V);
    }
}

void classifier_statistics(Team *t, const Classifier *c, float *stats, Act *logits) {
    team_for(t, c->T, 1, statistics_rows, &(Rows){.c = c, .stats = stats, .logits = logits});
}

/* Loss and log_sum of the tokens begin .. end, from the statistics of all parts of their rows. */
static void merge_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *w = ctx;
    const Classifier *c = w->c;
    for (int64_t t = begin; t < end; t++) {
        double max = -(double)FLT_MAX, sum = 0, logit = 0;
        for (int64_t i = 0; i < w->n_parts; i++) {
            double m = (double)w->stats[3 * (i * c->T + t)];
            if (m > max) max = m;
        }
        for (int64_t i = 0; i < w->n_parts; i++) {
            const float *s = w->stats + 3 * (i * c->T + t);
            sum += (double)s[1] * exp((double)s[0] - max);
            logit += (double)s[2];
        }
        bool counts = c->targets[t] >= 0;
        w->loss[t] = counts ? (float)(log(sum) + (max - logit)) : 0;
        w->log_sum[t] = counts ? (float)(log(sum) + max) : 0;
    }
}

void classifier_merge(Team *t, const Classifier *c, float *loss, float *log_sum, const float *stats,
                      int64_t n_parts) {
    Rows w = {.c = c, .loss = loss, .log_sum = log_sum, .n_parts = n_parts};
    w.stats = (float *)stats; // only read
    team_for(t, c->T, 1, merge_rows, &w);
}

static void gradient_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *w = ctx;
    const Classifier *c = w->c;
    for (int64_t t = begin; t < end; t++) {
        float *x = w->logits + t * c->ld;
        const float *stats = w->stats + 3 * t;
        int64_t n = c->targets[t] < 0 ? 0 : c->V; // columns whose gradient is not 0
        for (int64_t i = 0, last; i < n; i = last, stats += 3 * c->T) {
            last = i + part_from(c, i);
            float f = (float)(exp((double)stats[0] - (double)w->log_sum[t]) * (double)c->scale);
            for (int64_t v = i; v < last; v++) x[v] *= f;
        }
        for (int64_t v = n; v < c->ld; v++) x[v] = 0;
        if (classifier_has_target(c, t)) x[c->targets[t] - c->first] -= c->scale;
    }
}

void classifier_gradient(Team *t, const Classifier *c, const float *stats, const float *log_sum,
                         Act *logits) {
    Rows w = {.c = c, .logits = logits};
    w.stats = (float *)stats, w.log_sum = (float *)log_sum; // only read
    team_for(t, c->T, 1, gradient_rows, &w);
}
