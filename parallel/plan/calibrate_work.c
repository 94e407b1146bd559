/* Measures works: on memory as cold as in training, at two numbers of rows. */
#include <math.h>

#include "base/median.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/plan/calibrate_parts.h"

/* Each work is measured in several rounds, of which the least time counts: a short disturbance hits
 * one round, not all. A work whose time still looks disturbed gets more rounds. */
enum { ROUNDS = 3, MORE_ROUNDS = 5, REPEATS = 2 };
static const double rounds_share = 0.8; // of the time; the rest is for disturbed works
static const double short_time = 2e-3;  // seconds: a call that takes longer needs no more rows
static const double long_time = 5e-3;   // seconds: one call that takes longer is enough

/* ---- memory
 *
 * Works take their operands one after the other from a window as large as all works' operands
 * together, up to a limit. So the caches hold what they hold during a step. Used memory is filled
 * again outside of the measured time, and has left the caches when the window comes round. */

enum { PATTERN = 4096 }; // floats

typedef struct Pool {
    const CalibrateWhere *where;
    char *workspace, *memory;
    size_t window;     // bytes
    size_t begin, end; // used since the last pool_clean; taken modulo the window
    float pattern[PATTERN];
} Pool;

/* Fills memory with small positive numbers, from which no work makes infinities, NaN or subnormal
 * numbers, which are slow. From the results of other works some would. */
static void pool_fill(Pool *p, size_t begin, size_t end) {
    const CalibrateWhere *w = p->where;
    float *x = (float *)(void *)p->memory + begin / sizeof *x;
    int64_t n = (int64_t)((end - begin) / sizeof *x), rows = n / PATTERN;
    w->kernels->copy(w->team, x, PATTERN, p->pattern, 0, rows, PATTERN, sizeof *x);
    w->kernels->copy(w->team, x + rows * PATTERN, PATTERN, p->pattern, 0, 1, n - rows * PATTERN,
                     sizeof *x);
}

static void pool_open(Pool *p, const CalibrateWhere *w, void *memory, WorkMemory bytes) {
    p->where = w, p->workspace = memory, p->memory = p->workspace + bytes.workspace;
    p->window = bytes.operands;
    for (int i = 0; i < PATTERN; i++)
        p->pattern[i] = 0.01f + 1e-4f * (float)((uint32_t)i * 2654435761u >> 22);
    pool_fill(p, 0, p->window);
}

static void *pool_take(Pool *p, size_t bytes) {
    bool wraps = p->end % p->window + bytes > p->window;
    p->end += wraps ? p->window - p->end % p->window : 0;
    void *x = p->memory + p->end % p->window;
    p->end += bytes;
    return x;
}

static void pool_clean(Pool *p) {
    size_t begin = p->begin % p->window, end = begin + (p->end - p->begin);
    if (end - begin >= p->window) begin = 0, end = p->window;
    pool_fill(p, begin, min_size(end, p->window));
    if (end > p->window) pool_fill(p, 0, end - p->window);
    p->begin = p->end;
}

/* ---- works */

/* Rows that are tried first, and the most that are measured. Matmuls: multiples of three register
 * tiles of 14 rows (layers/matmul_tile.h); a third of these rows hides the packing of weights.
 * Other works: at most 16 MiB. */
static int64_t first_rows(const Work *w) {
    int64_t rows = work_is_attention(w) ? 1 : w->width == 0 ? 4096 : 84;
    return min_i64(rows, w->rows);
}
static int64_t last_rows(const Work *w) {
    Work one = *w;
    one.rows = 1;
    double bytes = work_bytes(&one);
    int64_t first = first_rows(w), rows = 336;
    if (w->kind > WORK_WGRAD) rows = bytes > 0 ? (int64_t)((16 << 20) / bytes) : w->rows;
    return min_i64(max_i64(rows, first), w->rows);
}

/* A matmul with more weights than this is measured on a part of its longer side, and *scale times
 * the part's cost is its own. So a call lasts some milliseconds, less than another program's turn
 * on a core. */
enum { MOST_WEIGHTS = 2 << 20 };
static Work part_of(const Work *w, double *scale) {
    Work part = *w;
    *scale = 1;
    while (w->kind <= WORK_WGRAD && part.K * part.N > MOST_WEIGHTS) {
        int64_t *longer = part.K > part.N ? &part.K : &part.N;
        *longer = (*longer + 1) / 2;
        *scale = (double)(w->K * w->N) / (double)(part.K * part.N);
    }
    return part;
}

WorkMemory calibrate_work_memory(const CalibrateWhere *where, const Work *w) {
    double scale;
    Work most = part_of(w, &scale);
    most.rows = last_rows(w);
    return work_memory(&most, where->kernels, team_size(where->team));
}

typedef struct Job {
    Pool *pool;
    Work whole, work;            // the listed work; the part of it that runs (part_of)
    size_t bytes;                // of operands
    int64_t rows, few_rows;      // the two numbers of rows
    double seconds, few_seconds; // of a call with rows, with few_rows: the least so far
    double scale;                // cost of `whole` relative to the part
    double about;                // seconds of a call, estimated
} Job;

static void work_once(void *ctx) {
    Job *j = ctx;
    const CalibrateWhere *w = j->pool->where;
    void *operands = pool_take(j->pool, j->bytes);
    work_run(&j->work, w->kernels, w->team, operands, j->pool->workspace);
}
static void work_done(void *ctx) {
    pool_clean(((Job *)ctx)->pool);
}

static void set_rows(Job *j, int64_t rows) {
    const CalibrateWhere *w = j->pool->where;
    j->work.rows = rows;
    j->bytes = work_memory(&j->work, w->kernels, team_size(w->team)).operands;
}

/* Adds the last measurement's seconds to those of each rank. */
static void add_busy(const Meter *m, double *busy) {
    for (int r = 0; r < m->all.size; r++) busy[r] += m->rank[2 * r];
}

/* Sets j->rows: the first number of rows, then four times as many, until a call takes long enough
 * for the clock. few_rows is a third of them. */
static void choose_rows(Meter *m, Job *j, double *busy) {
    int64_t rows = first_rows(&j->whole), last = last_rows(&j->whole);
    for (;; rows = 4 * rows < last ? 4 * rows : last) {
        set_rows(j, rows);
        j->about = meter_once(m, work_once, j, true).mean;
        if (j->about > short_time && j->about < 5 * short_time) // perhaps it was disturbed
            j->about = fmin(j->about, meter_once(m, work_once, j, true).mean);
        if (rows == last || j->about > short_time) break;
    }
    j->rows = rows, j->few_rows = (rows + 2) / 3;
    j->seconds = j->few_seconds = INFINITY;
    if (j->about <= long_time) return;
    j->seconds = j->about;
    add_busy(m, busy);
}

static void measure(Meter *m, Job *j, double *busy, bool first) {
    int repeats = m->oversubscribed ? 1 : REPEATS;
    if (!first || j->seconds == INFINITY) {
        set_rows(j, j->rows);
        j->seconds = fmin(j->seconds, meter_run(m, work_once, j, j->about, repeats, true).mean);
        add_busy(m, busy);
    }
    if (j->few_rows == j->rows) return;
    set_rows(j, j->few_rows);
    double about = j->about * (double)j->few_rows / (double)j->rows;
    j->few_seconds = fmin(j->few_seconds, meter_run(m, work_once, j, about, repeats, true).mean);
}

/* Of a matmul whose call is long enough for the clock; 0 of other works. */
static double seconds_per_flop(const Job *j) {
    Work w = j->work;
    w.rows = j->rows;
    return w.kind <= WORK_WGRAD && j->about > short_time / 2 ? j->seconds / work_flops(&w) : 0;
}
static double usual_seconds_per_flop(const Job *job, int n) {
    double *x = mem_calloc((size_t)n + 1, sizeof *x);
    int known = 0;
    for (int i = 0; i < n; i++)
        if (seconds_per_flop(&job[i]) > 0) x[known++] = seconds_per_flop(&job[i]);
    double usual = known ? quartile_of(x, known) : 0;
    mem_free(x);
    return usual;
}

/* A matmul far slower per FLOP than most was disturbed. If the larger number of rows takes hardly
 * longer, the measurement of the smaller was. */
static bool looks_disturbed(const Job *j, double usual) {
    // the share of rows that few_rows lacks, which should take at least half that share of the time
    double more = (double)(j->rows - j->few_rows) / (double)j->rows;
    return seconds_per_flop(j) > 1.4 * usual ||
           (seconds_per_flop(j) > 0 && j->seconds - j->few_seconds < 0.5 * more * j->seconds);
}

/* The line through both measurements, with neither `fixed` nor `per_row` below 0. At least a tenth
 * of a long call grows with the rows: if less seems to, noise made both take equally long. */
static WorkCost line(const Job *j) {
    double rows = (double)j->rows, few_rows = (double)j->few_rows;
    double least = j->about > short_time / 2 ? 0.1 * j->seconds / rows : 0;
    double per_row = few_rows < rows
                         ? fmax(least, (j->seconds - j->few_seconds) / (rows - few_rows))
                         : j->seconds / rows;
    double fixed = j->seconds - per_row * rows;
    if (fixed < 0) fixed = 0, per_row = j->seconds / rows;
    return (WorkCost){.work = j->whole, .fixed = j->scale * fixed, .per_row = j->scale * per_row};
}

int calibrate_works(Meter *m, const Work *list, int n, void *memory, WorkMemory bytes, double share,
                    double end, Calibration *c) {
    Pool pool = {0};
    Job *job = mem_calloc((size_t)n, sizeof *job);
    double *busy = mem_calloc((size_t)m->all.size, sizeof *busy), sum = 0, most = 0;
    int done = 0;
    if (n > 0) pool_open(&pool, m->where, memory, bytes);
    meter_agree(m, 0); // on a busy machine the first touch takes seconds
    double left = share * fmax(end - m->elapsed, 1e-3), until = m->elapsed + left, // one at least
        rounds_end = m->elapsed + rounds_share * left;
    m->tidy = work_done;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < (round ? done : n) && m->elapsed < rounds_end; i++) {
            Job *j = &job[i];
            if (round == 0) {
                char name[64];
                meter_progress(m, "%s", work_name(&list[i], name));
                *j = (Job){.pool = &pool, .whole = list[i]};
                j->work = part_of(&list[i], &j->scale);
                choose_rows(m, j, busy);
                done++;
            }
            measure(m, j, busy, round == 0);
        }
    for (int round = 0; round < MORE_ROUNDS; round++) {
        double usual = usual_seconds_per_flop(job, done);
        for (int i = 0; i < done && m->elapsed < until; i++)
            if (looks_disturbed(&job[i], usual)) measure(m, &job[i], busy, false);
    }
    m->tidy = NULL;
    for (int i = 0; i < done; i++) {
        WorkCost cost = line(&job[i]);
        calibration_add_work(c, &cost);
    }
    for (int r = 0; r < m->all.size; r++) sum += busy[r] / m->all.size, most = fmax(most, busy[r]);
    if (n > 0) c->slowest = sum > 0 && !m->oversubscribed ? most / sum : 1;
    mem_free(job), mem_free(busy);
    return done;
}
