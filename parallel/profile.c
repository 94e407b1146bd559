#include "parallel/profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/watch.h"

enum { MAX_ROWS = 96 };

typedef struct Row {
    char name[64];
    int64_t calls;
    double s, flops;
} Row;

static Row rows[MAX_ROWS];
static int n_rows;

/* Products are told apart by their form and shape. */
static void name_row(char name[64], const KernelSpan *s) {
    const Product *p = s->product;
    if (p)
        snprintf(name, 64, "%-7s %-5s %" PRId64 " x %" PRId64 " x %" PRId64, s->name,
                 product_form(p), p->M, p->N, p->K);
    else
        snprintf(name, 64, "%s", s->name);
}

/* When the table is full the last row takes the rest. */
static void add(void *ctx, const KernelSpan *s) {
    char name[64];
    int i = 0;
    (void)ctx;
    name_row(name, s);
    while (i < n_rows && strcmp(rows[i].name, name) != 0) i++;
    if (i == MAX_ROWS) i--;
    if (i == n_rows) memcpy(rows[n_rows++].name, name, sizeof name);
    rows[i].calls++;
    rows[i].s += s->end - s->begin;
    rows[i].flops += s->flops;
}

const Kernels *profile_kernels(const Kernels *inner) {
    return kernels_watched(inner, add, NULL);
}

void profile_reset(void) {
    n_rows = 0, memset(rows, 0, sizeof rows);
}

static int slower_first(const void *a, const void *b) {
    const Row *x = a, *y = b;
    return x->s > y->s ? -1 : x->s < y->s;
}

void profile_print(FILE *f, int64_t steps, double step_ms, double peak_flops) {
    double sum_ms = 0;
    if (steps <= 0) return;
    qsort(rows, (size_t)n_rows, sizeof rows[0], slower_first);
    fprintf(f, "per step, mean of %" PRId64 "%*scalls       ms  share  GFLOP/s  of peak\n", steps,
            19, "");
    for (int i = 0; i < n_rows; i++) {
        const Row *r = &rows[i];
        double ms = 1e3 * r->s / (double)steps;
        sum_ms += ms;
        fprintf(f, "  %-38s %6.1f %8.2f %5.1f%%", r->name, (double)r->calls / (double)steps, ms,
                100 * ms / step_ms);
        if (r->flops > 0)
            fprintf(f, " %8.1f %7.1f%%", r->flops / r->s / 1e9, 100 * r->flops / r->s / peak_flops);
        fprintf(f, "\n");
    }
    fprintf(f, "  %-38s %6s %8.2f %5.1f%%\n", "everything else", "", step_ms - sum_ms,
            100 * (1 - sum_ms / step_ms));
}
