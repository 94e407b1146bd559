/* whatif -- varies one number of the cluster or the model and shows how the best layout changes.
 *
 *     whatif --cluster h100:16 --model d48 --batch 1048576 --vary network=10Gb/s..1600Gb/s
 *     whatif --cluster a100:8 --model d24 --vary nodes=1..64
 *
 * Prints a row for each value: the best layout with its overlap, and the times of named schemes
 * relative to the best. A bracket joins rows with the same layout and overlap.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/claim.h"
#include "base/clock.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/io.h"
#include "data/output.h"
#include "data/progress.h"
#include "parallel/plan/whatif_vary.h"

// parts of the time of a step: computing, waiting for collectives, waiting for slower ranks
enum { PARTS = 3 };

static const char usage[] =
    "gpt-whatif: how the best layout changes with one number\n"
    "\n"
    "    gpt-whatif --cluster h100:16 --model d48 --batch 1048576 --vary network=10Gb/s..1600Gb/s\n"
    "\n"
    "--vary takes batch seq layers channels; the name of a level: what a rank can send there; "
    "flops; or a\n"
    "number of the cluster's description: nodes ranks_per_node memory memory_rate call slowdown "
    "..., of a level\n"
    "network.latency network.port_rate ..., of the outermost one also latency and port_rate.\n\n";

static struct {
    const char *cluster, *vary, *model, *layout, *overlap, *schemes, *json;
    int64_t points, batch, micro, seq;
    int dtype, recompute;
} o;

static const Opt options[] = {
    {.type = OPT_GROUP, .help = "What is varied"},
    {"vary", OPT_STR, &o.vary, "", 0, 0, "NAME=LOW..HIGH",
     "number to vary, and its lowest and highest value"},
    {"points", OPT_INT, &o.points, "0", 0, WHATIF_POINTS, "N",
     "number of values, in geometric steps; 0: each value is twice the one before"},
    {.type = OPT_GROUP, .help = "What stays"},
    {"cluster", OPT_STR, &o.cluster, "", 0, 0, "FILE|NAME:NODES",
     "a file that describes the cluster, or a preset: h200 h100 a100 v100 consumer cpu"},
    {"model", OPT_STR, &o.model, "d12", 0, 0, "NAME|k=v,...", "model, as of train_gpt"},
    {"seq", OPT_INT, &o.seq, "0", 0, 1e9, "S", "positions of a sequence; 0: the model's"},
    {"batch", OPT_INT, &o.batch, "0", 0, 1e12, "TOKENS",
     "tokens of a step; 0: 4 sequences for each rank"},
    {"dtype", OPT_CHOICE, &o.dtype, "bf16", 0, 0, "fp32|bf16", "type of the operands of matmuls"},
    {"micro", OPT_INT, &o.micro, "0", 0, 1e9, "N", "sequences of a micro-batch; 0: the best"},
    {"recompute", OPT_CHOICE, &o.recompute, "any", 0, 0, "none|selective|full|any",
     "activations that backward computes again; any: the best"},
    {"overlap", OPT_STR, &o.overlap, "any", 0, 0, "any|none|FLAGS",
     "schedule: bulk chunk=n ring fused halves, joined by '+'; any: the best"},
    {"layout", OPT_STR, &o.layout, "auto", 0, 0, "auto|SPEC",
     "price only this layout; auto: the best"},
    {.type = OPT_GROUP, .help = "What is shown"},
    {"schemes", OPT_STR, &o.schemes, "dp,fsdp,megatron-sp", 0, 0, "A,B,...",
     "named schemes or layouts to compare with"},
    {"json", OPT_STR, &o.json, "", 0, 0, "FILE",
     "write all numbers; -: to the standard output, and the table to the standard error"},
    {0}};

/* ---- options */

/* Reads --schemes. list: a copy that is cut into names, which must live as long as w. */
static void read_schemes(WhatIf *w, char *list) {
    char *rest;
    for (char *s = strtok_r(list, ",", &rest); s; s = strtok_r(NULL, ",", &rest)) {
        if (w->n_schemes == WHATIF_SCHEMES) die_usage("--schemes: at most %d", WHATIF_SCHEMES);
        w->scheme[w->n_schemes++] = s;
    }
}

static void read_question(WhatIf *w) {
    Err e;
    Machine *m = &w->machine;
    PriceShape *p = &w->space.shape;
    if (!*o.cluster) die_usage("--cluster is needed, like --cluster h100:16");
    if (!*o.vary) die_usage("--vary is needed, like --vary network=10Gb/s..1600Gb/s");
    if (!machine_open(m, o.cluster, &e)) die_usage("--cluster: %s", e.text);
    if (!config_parse(&p->model.config, o.model, &e)) die_usage("--%s", e.text);
    p->model.S = o.seq ? o.seq : p->model.config.seq;
    if (p->model.S > p->model.config.seq)
        die_usage("--seq %" PRId64 " is more than the model's %" PRId64 " positions (--model seq=)",
                  p->model.S, p->model.config.seq);
    p->batch = o.batch ? o.batch : 4 * p->model.S * m->ranks;
    if (p->batch % p->model.S)
        die_usage("--batch %" PRId64 " tokens is no multiple of --seq %" PRId64, p->batch,
                  p->model.S);
    p->model.bf16 = o.dtype == 1, p->model.threads = m->threads;
    p->kernels = machine_kernels(m, p->model.bf16);
    p->model.B = o.micro, p->model.recompute = (Recompute)(o.recompute % 3);
    w->space.p = m->ranks;
    w->space.free_micro = o.micro == 0, w->space.free_recompute = o.recompute == 3;
    w->space.free_overlap = strcmp(o.overlap, "any") == 0;
    if (!w->space.free_overlap && !overlap_parse(&p->model.overlap, o.overlap, &e))
        die_usage("--%s", e.text);
    if (!overlap_check_micro(&p->model.overlap, o.overlap, o.micro, &e)) die_usage("--%s", e.text);
    w->layout = o.layout;
    if (!whatif_vary(w, o.vary, (int)o.points, &e)) die_usage("--vary: %s", e.text);
}

/* ---- the table */

/* Shares of a step: computing, waiting for collectives, waiting for slower ranks. */
static void shares(const Price *p, double part[PARTS]) {
    part[0] = p->compute / p->seconds;
    part[1] = p->exposed / p->seconds;
    part[2] = fmax(0, 1 - part[0] - part[1]);
}

static void print_bar(const Price *p) {
    static const char *const cell[PARTS] = {"█", "▒", "·"};
    enum { CELLS = 20 };
    double part[PARTS], end = 0;
    int at = 0;
    shares(p, part);
    for (int k = 0; k < PARTS; k++)
        for (end += CELLS * part[k]; at < lround(end); at++) printf("%s", cell[k]);
}

/* A text with the numbers that do not vary; freed by mem_free. */
static char *others(const WhatIf *w) {
    const PriceShape *s = &w->space.shape;
    const Machine *m = &w->machine;
    char batch[64] = "", seq[64] = "", ranks[64];
    if (w->kind != VARY_BATCH)
        snprintf(batch, sizeof batch, ", %" PRId64 " tokens a step", s->batch);
    if (w->kind != VARY_SEQ) snprintf(seq, sizeof seq, ", sequences of %" PRId64, s->model.S);
    if (strcmp(w->name, "nodes") == 0)
        snprintf(ranks, sizeof ranks, "nodes of %d rank%s", m->ranks_per_node,
                 m->ranks_per_node > 1 ? "s" : "");
    else if (w->ranks_vary)
        snprintf(ranks, sizeof ranks, "%d node%s", m->nodes, m->nodes > 1 ? "s" : "");
    else
        snprintf(ranks, sizeof ranks, "%d rank%s", m->ranks, m->ranks > 1 ? "s" : "");
    return mem_printf("%s%s%s, %s, on %s: %s", o.model, batch, seq, s->model.bf16 ? "bf16" : "fp32",
                      m->name, ranks);
}

/* Columns of the widest layout. */
static int layout_width(const WhatIf *w, const WhatIfPoint *p) {
    char spec[64];
    size_t widest = strlen("best layout");
    for (int i = 0; i < w->n; i++) {
        size_t n = p[i].found ? strlen(layout_print(&p[i].best.layout, spec)) : 0;
        if (n > widest) widest = n;
    }
    return (int)widest;
}

enum { VALUES = 12, SCHEMES = 7 }; // minimum widths of columns

static int width(const char *head, int least) {
    int n = (int)strlen(head);
    return n > least ? n : least;
}

static void print_head(const WhatIf *w, int wide) {
    char *stays = others(w);
    printf("%s\n", stays);
    mem_free(stays);
    printf("%*s   %-*s %-13s %5s %-9s %10s %9s  %s", width(w->name, VALUES), w->name, wide,
           "best layout", "overlap", "micro", "recompute", "ms", "tokens/s",
           "█ computes ▒ waits  ");
    for (int k = 0; k < w->n_schemes; k++)
        printf("  %*s", width(w->scheme[k], SCHEMES), w->scheme[k]);
    printf("\n");
}

static bool same_form(const WhatIf *w, const WhatIfPoint *a, const WhatIfPoint *b) {
    char x[96], y[96];
    if (!a->found || !b->found) return a->found == b->found;
    return strcmp(whatif_form(w, &a->best, x), whatif_form(w, &b->best, y)) == 0;
}

/* ┌ │ └ join rows with the same layout and overlap; ─ stands alone. */
static const char *bracket(const WhatIf *w, int i, const WhatIfPoint *p) {
    bool above = i > 0 && same_form(w, p - 1, p);
    bool below = i + 1 < w->n && same_form(w, p, p + 1);
    return above ? below ? "│" : "└" : below ? "┌" : "─";
}

/* "1.25x"; from 1000 on "3.3e6 x", so that a ratio fits its column. */
static const char *times(double ratio, char buf[64]) {
    if (ratio >= 1000) return quantity_more(ratio, 0, buf);
    snprintf(buf, 64, "%.2fx", ratio);
    return buf;
}

static void print_row(const WhatIf *w, int i, const WhatIfPoint *p, int wide) {
    char value[64], spec[64], words[OVERLAP_TEXT], text[64];
    const Choice *c = &p->best;
    printf("%*s %s ", width(w->name, VALUES), whatif_value(w, i, value), bracket(w, i, p));
    if (!p->found) {
        printf("nothing fits\n");
        return;
    }
    printf("%-*s %-13s %5" PRId64 " %-9s %10.2f %9.0f  ", wide, layout_print(&c->layout, spec),
           overlap_print(&c->overlap, words), c->micro, recompute_name(c->recompute),
           1e3 * c->price.seconds, (double)p->space.shape.batch / c->price.seconds);
    print_bar(&c->price);
    for (int k = 0; k < w->n_schemes; k++) {
        double ratio = p->scheme[k].price.seconds / c->price.seconds;
        printf("  %*s", width(w->scheme[k], SCHEMES), p->has[k] ? times(ratio, text) : "-");
    }
    printf("\n");
}

static void print_table(const WhatIf *w, const WhatIfPoint *p) {
    char unit[64];
    int wide = layout_width(w, p);
    if (w->merged && *whatif_unit(w, unit))
        warn("values left out: %d, because rounded to whole %s they equal others", w->merged, unit);
    print_head(w, wide);
    for (int i = 0; i < w->n; i++) print_row(w, i, &p[i], wide);
}

/* ---- files */

static json_t *json_choice(const Choice *c) {
    char spec[64], words[OVERLAP_TEXT];
    return json_pack("{s:s,s:s,s:I,s:s,s:f,s:f,s:f,s:f,s:f,s:I,s:I}", "layout",
                     layout_print(&c->layout, spec), "overlap", overlap_print(&c->overlap, words),
                     "micro", (json_int_t)c->micro, "recompute", recompute_name(c->recompute), "ms",
                     1e3 * c->price.seconds, "compute_ms", 1e3 * c->price.compute, "exposed_ms",
                     1e3 * c->price.exposed, "hidden_ms", 1e3 * c->price.hidden, "waiting_ms",
                     1e3 * c->price.waiting, "received_bytes", (json_int_t)c->price.received,
                     "memory_bytes", (json_int_t)c->price.memory);
}

static json_t *json_point(const WhatIf *w, int i, const WhatIfPoint *p) {
    json_t *schemes = json_object();
    for (int k = 0; k < w->n_schemes; k++)
        json_object_set_new(schemes, w->scheme[k],
                            p->has[k] ? json_choice(&p->scheme[k]) : json_null());
    return json_pack("{s:f,s:i,s:I,s:o,s:o}", "value", w->value[i], "ranks", p->space.p, "batch",
                     (json_int_t)p->space.shape.batch, "best",
                     p->found ? json_choice(&p->best) : json_null(), "schemes", schemes);
}

static void write_json(const WhatIf *w, const WhatIfPoint *p) {
    json_t *points = json_array();
    for (int i = 0; i < w->n; i++) json_array_append_new(points, json_point(w, i, &p[i]));
    json_t *all = json_pack("{s:s,s:s,s:s,s:o}", "vary", w->name, "cluster", o.cluster, "model",
                            o.model, "points", points);
    replace_json("--json", o.json, all, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(all);
}

/* Searches the best layout for every value. */
static void search_all(const WhatIf *w, WhatIfPoint *p) {
    Err e;
    char value[64], what[128];
    Progress *progress = progress_open(stderr, 0);
    double begin = now_s();
    for (int i = 0; i < w->n; i++) {
        snprintf(what, sizeof what, "searching: %s %s, %d of %d", w->name,
                 whatif_value(w, i, value), i + 1, w->n);
        progress_part(progress, what, (double)i / w->n, now_s() - begin);
        if (!whatif_at(w, i, &p[i], &e)) die_usage("%s", e.text);
    }
    progress_close(progress);
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    opt_parse(options, argc, argv, usage);
    if (strcmp(o.json, "-") == 0) io_keep_stdout();
    Err e;
    if (!claim_output("--json", o.json, &e)) die_usage("%s", e.text);
    WhatIf *w = mem_calloc(1, sizeof *w);
    char *schemes = mem_strdup(o.schemes);
    read_question(w);
    read_schemes(w, schemes);
    WhatIfPoint *p = mem_calloc((size_t)w->n, sizeof *p);
    search_all(w, p);
    print_table(w, p);
    if (*o.json) write_json(w, p);
    mem_free(p), mem_free(w), mem_free(schemes);
    return 0;
}
