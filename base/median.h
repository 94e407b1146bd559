/* median -- the middle of measurements. */
#ifndef BASE_MEDIAN_H
#define BASE_MEDIAN_H

/* Local. Sorts x[n], smallest first. */
void sort_numbers(double *x, int n);
/* Local. The median of x[n], which is sorted; NAN of none. */
double median_of(double *x, int n);
/* Local. The lower quartile of x[n], n > 0, which is sorted: what else runs on a machine only adds
 * to a time. */
double quartile_of(double *x, int n);

#endif
