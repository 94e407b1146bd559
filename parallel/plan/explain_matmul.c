#include "parallel/plan/explain_matmul.h"

#include <inttypes.h>
#include <string.h>

static const char *const kinds[] = {"data-parallel", "split-K", "Stream-K"};
enum { N_KINDS = 3 };

/* ---- the question ---- */

bool explain_matmul_parse(Work *w, const char *text, Err *e) {
    enum { MOST = 1 << 24 };
    long long M, N, K;
    int at = 0;
    bool ok = sscanf(text, "%lld,%lld,%lld%n", &M, &N, &K, &at) == 3;
    bool wgrad = ok && strcmp(text + at, ",wgrad") == 0;
    if (!ok || (text[at] && !wgrad))
        return err(e, "\"%.60s\": M,N,K or M,N,K,wgrad is needed, like 768,3072,32768,wgrad", text);
    if (M < 1 || N < 1 || K < 1 || M > MOST || N > MOST || K > MOST)
        return err(e, "\"%.60s\": sizes are from 1 to %d", text, MOST);
    if (!matmul_is_countable(M, N, K))
        return err(e, "\"%.60s\": more steps of tiles than a schedule counts: smaller sizes", text);
    *w = wgrad ? (Work){.kind = WORK_WGRAD, .flags = WORK_ADDEND, .rows = K, .K = M, .N = N}
               : (Work){.kind = WORK_MATMUL, .rows = M, .K = K, .N = N};
    w->flags |= WORK_BF16 | WORK_BF16_STORED;
    return true;
}

/* ---- the table ---- */

static void print_head(FILE *f, const Machine *m, const Work *w, const GpuMatmul *g) {
    int64_t size[3];
    char tiles[80];
    gpu_matmul_sizes(w, size);
    fprintf(f,
            "y[%" PRId64 ",%" PRId64 "] %s a[%" PRId64 ",%" PRId64 "] b[%" PRId64 ",%" PRId64
            "] in bf16 on %s, %d SMs\n",
            size[0], size[1], w->kind == WORK_WGRAD ? "+=" : "=", size[0], size[2], size[2],
            size[1], m->name, m->sms);
    fprintf(f, "Predicted, not measured. FLOPs alone take %.1f us, bytes alone %.1f us.\n",
            1e6 * work_flops(w) / m->flops[1], 1e6 * g->memory);
    if (gpu_matmul_tiles(m, tiles)) fprintf(f, "By %s.\n", tiles);
}

/* Do blocks share a multiprocessor, each with tiles of its own? */
static bool shares(const GpuMatmul *g) {
    return g->worker.sms < 1;
}

/* One schedule. waves: tiles / tiles that are computed at once. lost to quantisation: the share of
 * FLOPs that is not useful, of those that all multiprocessors could do in the steps of the busiest.
 */
static void print_row(FILE *f, const Machine *m, const Work *w, const GpuMatmul *g, bool chosen) {
    const MatmulConfig *c = &g->config;
    const MatmulTile *t = &g->worker.tile;
    char tile[32], name[32];
    const char *of = c->blocks > 1 ? "2x" : shares(g) ? "1/2:" : "";
    int64_t tiles = (int64_t)matmul_tiles(&g->cost.schedule) * c->blocks;
    double at_once = m->sms * c->blocks / g->worker.sms;
    double flops = 2.0 * MATMUL_ROWS * t->n * t->k * (double)g->cost.steps * at_once;
    snprintf(tile, sizeof tile, "%s%dx%d", of, MATMUL_ROWS, t->n);
    snprintf(name, sizeof name, c->kind == MATMUL_SPLIT_K ? "%s by %d" : "%s", kinds[c->kind],
             c->parts);
    fprintf(f, "%-14s %-11s %4" PRId64 " %6.2f %7.1f %% %8.1f us %7.0f TFLOP/s%s\n", name, tile,
            tiles, (double)tiles / at_once, 100 * (1 - work_flops(w) / flops), 1e6 * g->seconds,
            1e-12 * work_flops(w) / g->seconds, chosen ? "  <-" : "");
}

/* ---- the picture ---- */

/* What a block does at a time: a digit, the last one of the number of the tile that it computes; +
 * it sums or stores parts of a tile; = it finishes a tile and multiplies nothing meanwhile; .
 * idle. */
static char doing(const GpuMatmul *g, int block, double time) {
    const MatmulCost *c = &g->cost;
    const MatmulSchedule *s = &c->schedule;
    int blocks = g->config.blocks;
    MatmulPart p = matmul_begin(s, block / blocks);
    for (bool more = matmul_next(s, &p); more;) {
        MatmulPart next = p;
        bool last = p.k_end == s->steps;
        more = matmul_next(s, &next);
        time -= (p.k_end - p.k_begin) * c->step;
        if (time < 0) return (char)('0' + (p.end / s->steps * blocks + block % blocks) % 10);
        time -= c->slot * (last ? p.parts - 1 : 1);
        if (time < 0) return '+';
        if (last && !(g->worker.hidden && more)) time -= c->epilogue;
        if (time < 0) return '=';
        p = next;
    }
    return '.';
}

/* A line for each block, called SM if it has a multiprocessor alone. */
static void print_picture(FILE *f, const GpuMatmul *g, double longest) {
    enum { CELLS = 64, FIRST = 6, LAST = 2 };
    int blocks = g->cost.schedule.workers * g->config.blocks;
    for (int b = 0; b < blocks; b++) {
        if (b == FIRST && blocks > FIRST + LAST) {
            fprintf(f, "  ...\n");
            b = blocks - LAST;
        }
        fprintf(f, "  %s %-4d ", shares(g) ? "block" : "SM", b);
        for (int i = 0; i < CELLS; i++) fputc(doing(g, b, (i + 0.5) / CELLS * longest), f);
        fputc('\n', f);
    }
}

typedef struct Kinds {
    GpuMatmul of[N_KINDS];
    int n, chosen;
    double longest;
} Kinds;

static Kinds kinds_of(const Machine *m, const Work *w) {
    Kinds k = {.n = 0};
    MatmulKind chosen = gpu_matmul(m, w).config.kind;
    for (int i = 0; i < N_KINDS; i++) {
        GpuMatmul g = gpu_matmul_of_kind(m, w, (MatmulKind)i);
        if (g.seconds == 0) continue;
        if (g.config.kind == chosen) k.chosen = k.n;
        if (g.seconds > k.longest) k.longest = g.seconds;
        k.of[k.n++] = g;
    }
    return k;
}

/* Explains the signs before tiles that the table has. */
static void print_signs(FILE *f, const Kinds *k) {
    bool clusters = false, sharing = false;
    for (int i = 0; i < k->n; i++)
        clusters |= k->of[i].config.blocks > 1, sharing |= shares(&k->of[i]);
    if (clusters) fprintf(f, "2x: on two multiprocessors, a cluster, which fetch b once.\n");
    if (sharing)
        fprintf(f, "1/2: two blocks share a multiprocessor, each with tiles of its own.\n");
}

void explain_matmul_print(FILE *f, const Machine *m, const Work *w) {
    Kinds k = kinds_of(m, w);
    print_head(f, m, w, &k.of[0]);
    fprintf(f, "%-14s %-11s%5s%7s%10s%12s\n", "schedule", "tile", "tiles", "waves", "lost",
            "predicted");
    for (int i = 0; i < k.n; i++) print_row(f, m, w, &k.of[i], i == k.chosen);
    print_signs(f, &k);
    fprintf(f,
            "\nTime to the right, of all %.1f us. A digit is the last one of a tile's "
            "number;\n+ sums of parts are written or added; = a tile is finished; . idle.\n",
            1e6 * k.longest);
    for (int i = 0; i < k.n; i++) {
        fprintf(f, "%s\n", kinds[k.of[i].config.kind]);
        print_picture(f, &k.of[i], k.longest);
    }
}
