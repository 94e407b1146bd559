#include "base/median.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void sort_numbers(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
}

double median_of(double *x, int n) {
    sort_numbers(x, n);
    return n > 0 ? (x[(n - 1) / 2] + x[n / 2]) / 2 : NAN;
}

double quartile_of(double *x, int n) {
    sort_numbers(x, n);
    return x[n / 4];
}
