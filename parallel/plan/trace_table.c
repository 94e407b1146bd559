#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/trace.h"

/* Rows in the order of the table. Gathers of weights and reductions of their gradients have rows of
 * their own: any layer may hide them. */
static const char *const names[] = {"embedding", "qkv",          "attn_out", "up",      "down",
                                    "norms",     "head",         "loss",     "weights", "gradients",
                                    "replicas",  COLL_AGREEMENT, "others"};
enum { N_NAMES = sizeof names / sizeof *names };

static bool begins(const char *what, const char *word) {
    return strncmp(what, word, strlen(word)) == 0;
}

static const char *layer_of(const char *what) {
    if (begins(what, "w of ") || begins(what, "new weights")) return "weights";
    if (begins(what, "dw of ") || begins(what, "gradient")) return "gradients";
    if (strcmp(what, COLL_AGREEMENT) == 0) return COLL_AGREEMENT;
    if (strstr(what, "norm")) return "norms";
    if (strstr(what, "loss")) return "loss";
    const char *of = strstr(what, " of ");
    for (int i = 0; i < N_NAMES; i++)
        if (of && strcmp(of + 4, names[i]) == 0) return names[i];
    return "others";
}

static void add_span(TraceLayer *row, const TraceSpan *s) {
    const char *layer = layer_of(s->name);
    TraceLayer *r = row;
    while (strcmp(r->name, layer) != 0) r++;
    if (s->step == TRACE_SERIAL) {
        r->serial += trace_exposed(s);
        return;
    }
    r->calls++;
    r->bytes += (double)s->bytes;
    r->exposed += trace_exposed(s);
}

static void add_row(TraceLayer *to, const TraceLayer *from, double share) {
    to->calls += share * from->calls, to->bytes += share * from->bytes;
    to->serial += share * from->serial, to->exposed += share * from->exposed;
}

void trace_table(TraceTable *table, const Trace *t, const Group *g) {
    TraceTable mine = {0}, *all = mem_calloc((size_t)g->size, sizeof *all); // with empty rows
    TraceLayer sum = {.name = "all"};
    *table = (TraceTable){0};
    for (int i = 0; i < N_NAMES; i++) mine.row[i].name = names[i];
    for (int64_t i = 0; i < t->n; i++) {
        const TraceSpan *s = &t->span[i];
        if (s->label)
            add_span(mine.row, s);
        else
            mine.kernels[s->step] += s->end - s->begin;
    }
    group_all_gather(g, &mine, sizeof mine, all);
    for (int i = 0; i < N_NAMES; i++) {
        TraceLayer row = {.name = names[i]};
        for (int k = 0; k < g->size; k++) add_row(&row, &all[k].row[i], 1.0 / g->size);
        add_row(&sum, &row, 1);
        if (row.calls > 0) table->row[table->n++] = row;
    }
    table->row[table->n++] = sum;
    for (int step = 0; step < TRACE_STEPS; step++)
        for (int k = 0; k < g->size; k++) table->kernels[step] += all[k].kernels[step] / g->size;
    mem_free(all);
}

double trace_efficiency(const TraceLayer *l) {
    return l->serial >= 50e-6 ? 1 - l->exposed / l->serial : NAN;
}

double trace_charged(const TraceTable *t) {
    TraceLayer all = t->row[t->n - 1];
    all.exposed += fmax(0, t->kernels[TRACE_OVERLAP] - t->kernels[TRACE_SERIAL]);
    return trace_efficiency(&all);
}

static void print_rows(FILE *f, const TraceTable *t, bool efficiency) {
    fprintf(f, "blocked on        collectives        MB   serial ms  exposed ms%s\n",
            efficiency ? "      E" : "");
    for (int i = 0; i < t->n; i++) {
        const TraceLayer *r = &t->row[i];
        fprintf(f, "  %-15s %11.1f %9.2f %11.3f %11.3f", r->name, r->calls, r->bytes / 1e6,
                1e3 * r->serial, 1e3 * r->exposed);
        if (!efficiency)
            fprintf(f, "\n");
        else if (isfinite(trace_efficiency(r)))
            fprintf(f, " %6.2f\n", trace_efficiency(r));
        else
            fprintf(f, "      -\n");
    }
}

void trace_print(FILE *f, const TraceTable *t, bool efficiency) {
    if (t->row[t->n - 1].bytes > 0)
        print_rows(f, t, efficiency);
    else
        fprintf(f, "no collective sends a byte: nothing is waited for\n");
    fprintf(f, "kernels take %.3f ms, beside communication %.3f", 1e3 * t->kernels[TRACE_SERIAL],
            1e3 * t->kernels[TRACE_OVERLAP]);
    if (efficiency && isfinite(trace_charged(t)))
        fprintf(f, ": charged to it, E is %.2f", trace_charged(t));
    fprintf(f, "\n");
}
