/* zscore -- how unusual is a new value among the last 128?
 *
 * Fewer than 128 values seen: NaN (the window is not full). From the 129th on: (x - mean) / std of
 * the 128 newest values, x included; 0 when they are all equal. The same numbers as llm.c's outlier
 * detector, but the sums are taken anew over the ring each time: no drift, and the state is the
 * values alone.
 *
 * The struct is plain data without padding: its bytes are its saved form, and a resumed run
 * continues bit for bit.
 */
#ifndef BASE_ZSCORE_H
#define BASE_ZSCORE_H

#include <stdint.h>

enum { ZSCORE_WINDOW = 128 };

/* Zero it to begin. */
typedef struct ZScore {
    double ring[ZSCORE_WINDOW];
    int64_t count; // values ever added; the newest is ring[(count - 1) % ZSCORE_WINDOW]
} ZScore;

/* Local. Adds x and returns its z-score. A NaN or an infinity is not added (it would stay for 128
 * steps): returns NaN. */
double zscore_add(ZScore *z, double x);

#endif
