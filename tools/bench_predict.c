/* bench_predict -- predicted times of all matmuls of a training step, before any is measured.
 *
 *     bench_predict --json bench/results/gpu_matmul_prediction.json
 *
 * The matmuls are those of the lists that a rank would run (parallel/plan/price.h): a micro-batch
 * whose gradients are added to those of others, with the epilogues that are fused into them. A row
 * for each shape and form has the fastest schedule and the fastest data-parallel one
 * (parallel/plan/gpu_matmul.h).
 */
#include <inttypes.h>
#include <jansson.h>

#include "base/claim.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/version.h"
#include "data/output.h"
#include "data/stamp.h"
#include "parallel/plan/gpu_matmul.h"
#include "parallel/plan/price.h"

static const char *const clusters[] = {"h200:1", "h100:1"};
static const struct {
    const char *name;
    int64_t sequences; // of a micro-batch
} models[] = {{"d12", 32}, {"d24", 32}, {"d36", 16}, {"d48", 16}};
enum { N_CLUSTERS = 2, N_MODELS = sizeof models / sizeof *models, MOST = 64 };

static const char *json;
static const Opt options[] = {
    {"json", OPT_STR, &json, "", 0, 0, "FILE", "all rows, with the commit and the date"}, {0}};

/* A matmul of a micro-batch, and how often it is there. */
typedef struct Row {
    Work work;
    const char *form;
    int64_t times;
} Row;
typedef struct Rows {
    Row row[MOST];
    int n;
} Rows;

static void add(Rows *r, const Work *w, const char *form, int64_t times) {
    int i = 0;
    while (i < r->n && !(r->row[i].form == form && r->row[i].work.rows == w->rows &&
                         work_alike(&r->row[i].work, w)))
        i++;
    if (i == MOST) die("more than %d shapes", MOST);
    if (i == r->n) r->row[r->n++] = (Row){*w, form, 0};
    r->row[i].times += times;
}

static void add_list(Rows *r, const Program *p, const Widths *widths) {
    for (int i = 0; i < p->n_ops; i++) {
        Work w;
        bool forward = p->op[i].phase == PHASE_FORWARD;
        if (!op_work(p, i, widths, false, &w) || w.kind > WORK_WGRAD) continue;
        add(r, &w, w.kind == WORK_WGRAD ? "wgrad" : forward ? "forward" : "dgrad", op_calls(p, i));
    }
}

static Rows rows_of(const char *model, int64_t sequences, const Machine *m) {
    Rows r = {.n = 0};
    Layout one;
    Err e;
    PriceShape shape = {.micro = sequences,
                        .bf16 = true,
                        .threads = 1,
                        .whole = true,
                        .kernels = machine_kernels(m, true)};
    if (!config_parse(&shape.config, model, &e) || !layout_parse(&one, "d1", 1, &e))
        die("%s", e.text);
    shape.S = shape.config.seq, shape.batch = 3 * sequences * shape.S;
    StepLists *s = mem_alloc(sizeof *s);
    StepPart part[STEP_PARTS];
    price_lists(s, &shape, &one, 0, 0);
    price_parts(s, 0, part);
    add_list(&r, part[1].p, &s->model[0].w); // neither the first micro-batch nor the last
    price_free(s);
    mem_free(s);
    return r;
}

static const char *const kinds[] = {"data-parallel", "split-K", "Stream-K"};

static json_t *json_of(const GpuMatmul *g, const Work *w) {
    return json_pack("{s:s, s:[i,i], s:i, s:i, s:f, s:f, s:f}", "schedule", kinds[g->kind], "tile",
                     g->tile.m, g->tile.n, "cluster", g->blocks, "parts", g->parts, "waves",
                     g->waves, "us", 1e6 * g->seconds, "tflops",
                     1e-12 * work_flops(w) / g->seconds);
}

static void predict(json_t *to, const char *cluster, int k) {
    Machine m;
    Err e;
    double best_ms = 0, tiles_ms = 0;
    if (!machine_open(&m, cluster, &e)) die("%s", e.text);
    Rows r = rows_of(models[k].name, models[k].sequences, &m);
    json_t *rows = json_array();
    for (int i = 0; i < r.n; i++) {
        const Work *w = &r.row[i].work;
        GpuMatmul best = gpu_matmul(&m, w), tiles = gpu_matmul_of_kind(&m, w, MATMUL_DATA_PARALLEL);
        int64_t size[3];
        gpu_matmul_sizes(w, size);
        best_ms += 1e3 * (double)r.row[i].times * best.seconds;
        tiles_ms += 1e3 * (double)r.row[i].times * tiles.seconds;
        json_array_append_new(
            rows, json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:o, s:o}", "form", r.row[i].form,
                            "M", (json_int_t)size[0], "N", (json_int_t)size[1], "K",
                            (json_int_t)size[2], "times", (json_int_t)r.row[i].times, "activation",
                            (w->flags & (WORK_EPI_ACT | WORK_EPI_DACT)) != 0, "addend",
                            (w->flags & WORK_ADDEND) != 0, "best", json_of(&best, w),
                            "data_parallel", json_of(&tiles, w)));
    }
    printf("%-7s %-4s B = %" PRId64 ": %.2f ms of matmuls a micro-batch, data-parallel %.2f ms\n",
           cluster, models[k].name, models[k].sequences, best_ms, tiles_ms);
    json_array_append_new(to,
                          json_pack("{s:s, s:s, s:I, s:f, s:f, s:o}", "cluster", m.name, "model",
                                    models[k].name, "B", (json_int_t)models[k].sequences, "ms",
                                    best_ms, "data_parallel_ms", tiles_ms, "rows", rows));
}

int main(int argc, char **argv) {
    Err e;
    char now[32];
    die_set_program(argv[0]);
    opt_parse(options, argc, argv, "bench_predict: matmuls of training steps, predicted\n\n");
    if (!claim_output("--json", json, &e)) die_usage("%s", e.text);
    json_t *cases = json_array();
    for (int c = 0; c < N_CLUSTERS; c++)
        for (int k = 0; k < N_MODELS; k++) predict(cases, clusters[c], k);
    stamp_time(now, sizeof now);
    json_t *all = json_pack("{s:s, s:s, s:s, s:o}", "what", "predicted, not measured", "commit",
                            version_commit(), "date", now, "cases", cases);
    if (*json) replace_json("--json", json, all, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(all);
    return 0;
}
