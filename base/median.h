/* median -- the middle of measurements. */
#ifndef BASE_MEDIAN_H
#define BASE_MEDIAN_H

/* Local. Sorts x[n], smallest first. */
void sort_numbers(double *x, int n);
/* Local. Sorts x[n] and returns its median; NAN when n is 0. */
double median_of(double *x, int n);
/* Local. Sorts x[n], n > 0, and returns the lower quartile: of measured times a better estimate
 * than the median, because other programs on the machine can only add to a time. */
double quartile_of(double *x, int n);

#endif
