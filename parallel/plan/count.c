#include "parallel/plan/count.h"

#include <inttypes.h>
#include <string.h>

static bool same(const CollCount *a, const CollCount *b) {
    return a->op == b->op && strcmp(a->what, b->what) == 0 && strcmp(a->label, b->label) == 0;
}

int count_find(const CollCount *rows, int n, const CollCount *like) {
    int at = 0;
    while (at < n && !same(&rows[at], like)) at++;
    return at;
}

/* predicted, measured: NULL prints dashes. */
static void print_row(FILE *f, const CollCount *name, const CollCount *predicted,
                      const CollCount *measured) {
    fprintf(f, "%-26s %-14s %-6s %5d", name->what, *name->label ? coll_op_name(name->op) : "",
            name->label, name->size);
    if (predicted)
        fprintf(f, " %9" PRId64 " %12" PRId64, predicted->calls, predicted->bytes);
    else
        fprintf(f, " %9s %12s", "-", "-");
    if (measured)
        fprintf(f, " %8" PRId64 " %12" PRId64 " %9.2f", measured->calls, measured->bytes,
                1000 * measured->seconds);
    else
        fprintf(f, " %8s %12s %9s", "-", "-", "-");
    fprintf(f, "\n");
}

static void add_to(CollCount *sum, const CollCount *row) {
    sum->calls += row->calls, sum->bytes += row->bytes, sum->seconds += row->seconds;
}

void count_print(FILE *f, int ranks, const CollCount *predicted, int n_predicted,
                 const CollCount *measured, int n) {
    CollCount all_predicted = {.what = "all", .label = "", .size = ranks},
              all_measured = all_predicted;
    fprintf(f, "%-26s %-14s %-6s %5s %9s %12s %8s %12s %9s\n", "collective", "", "along", "ranks",
            "predicted", "bytes", "measured", "bytes", "ms");
    for (int i = 0; i < n_predicted; i++) {
        int at = count_find(measured, n, &predicted[i]);
        print_row(f, &predicted[i], &predicted[i], at < n ? &measured[at] : NULL);
        add_to(&all_predicted, &predicted[i]);
    }
    for (int j = 0; j < n; j++) {
        bool known = count_find(predicted, n_predicted, &measured[j]) < n_predicted;
        if (!known) print_row(f, &measured[j], NULL, &measured[j]);
        add_to(&all_measured, &measured[j]);
    }
    print_row(f, &all_predicted, &all_predicted, &all_measured);
}
