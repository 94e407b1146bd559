/* minmax -- the lesser and the greater of two numbers. fmin and fmax ignore a NaN, and are
 * therefore calls of the library. min_f64 and max_f64 are for hot loops; if one number is NaN they
 * return b. */
#ifndef BASE_MINMAX_H
#define BASE_MINMAX_H

#include <stddef.h>
#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}
static inline size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}
static inline double min_f64(double a, double b) {
    return a < b ? a : b;
}
static inline double max_f64(double a, double b) {
    return a > b ? a : b;
}

#endif
