/* quantity -- numbers with units: 80GiB, 400Gb/s, 5us.
 *
 * Prefixes: k M G T, and Ki Mi Gi Ti for powers of 1024. B/s are bytes, b/s bits. Values are stored
 * in bytes, seconds and FLOP/s.
 */
#ifndef PARALLEL_PLAN_QUANTITY_H
#define PARALLEL_PLAN_QUANTITY_H

#include <stdbool.h>

/* AS_LINK: a rate that must say whether it counts bits; AS_NUMBER: a whole number of any size. */
typedef enum {
    AS_COUNT,
    AS_NUMBER,
    AS_FACTOR,
    AS_FLOPS,
    AS_BYTES,
    AS_RATE,
    AS_LINK,
    AS_SECONDS
} Quantity;
enum { MAX_COUNT = 1 << 20 };

/* Local, pure. Reads the whole text. False: the text is not a quantity of this kind. */
bool quantity_read(double *x, Quantity q, const char *text);
/* Local, pure. Text for tables: "83.2 Gb/s", three digits; whole numbers in full. In bits or powers
 * of 1024 if `like`, a text that was read, is. */
const char *quantity_short(double x, Quantity q, const char *like, char buf[64]);
/* Local, pure. A ratio minus 1 as "+12 %", with this number of decimals; from 10 on the ratio as
 * "12 x", "3.3e6 x". */
const char *quantity_more(double ratio, int digits, char buf[64]);
/* Local, pure. Words for a message: "a time like 5us". */
const char *quantity_example(Quantity q);

#endif
