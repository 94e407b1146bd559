#include "parallel/plan/quantity.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"

/* A unit: x in the text is x * times / by in bytes, seconds or FLOP/s. (A division makes 5us the
 * same double as 5e-6; a product with 1e-6 would not.) */
typedef struct Unit {
    const char *text;
    double times, by;
} Unit;

static const Unit none[] = {{"", 1, 1}, {0}};
static const Unit flops[] = {{"FLOP/s", 1, 1}, {"", 1, 1}, {0}};
static const Unit bytes[] = {{"B", 1, 1}, {"", 1, 1}, {0}};
static const Unit rate[] = {{"B/s", 1, 1}, {"b/s", 1, 8}, {"", 1, 1}, {0}};
static const Unit link[] = {{"B/s", 1, 1}, {"b/s", 1, 8}, {0}};
static const Unit seconds[] = {{"s", 1, 1}, {"ms", 1, 1e3}, {"us", 1, 1e6}, {"ns", 1, 1e9}, {0}};

static const struct {
    const Unit *units;
    bool prefix;
    const char *example;
} writing[] = {
    [AS_COUNT] = {none, false, "a whole number from 1 to 1048576"},
    [AS_NUMBER] = {none, true, "a whole number like 65536 or 64Ki"},
    [AS_FACTOR] = {none, false, "a number like 1.1"},
    [AS_FLOPS] = {flops, true, "a rate like 60T or 60TFLOP/s"},
    [AS_BYTES] = {bytes, true, "a size like 80G or 80GiB"},
    [AS_RATE] = {rate, true, "a rate like 3.35TB/s"},
    [AS_LINK] = {link, true, "a rate like 50GB/s (bytes) or 400Gb/s (bits)"},
    [AS_SECONDS] = {seconds, false, "a time like 5us"},
};

bool quantity_read(double *x, Quantity q, const char *text) {
    char *end;
    if (!isdigit((unsigned char)text[0]) || text[1] == 'x' || text[1] == 'X') return false;
    *x = strtod(text, &end);
    const char *rest = end + strspn(end, " ");
    if (writing[q].prefix) *x *= opt_prefix(&rest);
    const Unit *u = writing[q].units;
    while (u->text && strcmp(rest, u->text) != 0) u++;
    if (!u->text) return false;
    *x = *x * u->times / u->by;
    if (q == AS_COUNT) return *x >= 1 && *x <= MAX_COUNT && *x == floor(*x);
    if (q == AS_NUMBER && *x != floor(*x)) return false;
    return *x <= 1e18; // 2^63 bytes are more
}

const char *quantity_short(double x, Quantity q, const char *like, char buf[64]) {
    static const Unit binary[] = {{"Ti", 0x1p40, 1}, {"Gi", 0x1p30, 1}, {"Mi", 0x1p20, 1},
                                  {"Ki", 0x1p10, 1}, {"", 1, 1},        {0}};
    static const Unit decimal[] = {{"T", 1e12, 1}, {"G", 1e9, 1}, {"M", 1e6, 1},
                                   {"k", 1e3, 1},  {"", 1, 1},    {0}};
    if (q == AS_COUNT || q == AS_NUMBER || q == AS_FACTOR) {
        snprintf(buf, 64, q == AS_FACTOR ? "%.4g" : "%.0f", x);
        return buf;
    }
    const Unit *u = q == AS_SECONDS ? seconds : strchr(like, 'i') ? binary : decimal;
    bool bits = strstr(like, "b/s");
    if (bits) x *= 8;
    while (u[1].text && x * u->by / u->times < 1) u++;
    const char *unit = q == AS_SECONDS ? "" : bits ? "b/s" : writing[q].units->text;
    double n = x * u->by / u->times;
    snprintf(buf, 64, n < 999.5 ? "%.3g %s%s" : "%.0f %s%s", n, u->text, unit);
    return buf;
}

const char *quantity_example(Quantity q) {
    return writing[q].example;
}

const char *quantity_more(double ratio, int digits, char buf[64]) {
    char *e;
    double percent = 100 * (ratio - 1);
    if (fabs(percent) < 0.5 * pow(10, -digits)) percent = 0; // not "-0 %"
    if (ratio < 10)
        snprintf(buf, 64, "%+.*f %%", digits, percent);
    else
        snprintf(buf, 64, ratio < 99999.5 ? "%.0f x" : "%.1e x", ratio);
    if (ratio >= 99999.5 && (e = strchr(buf, '+'))) { // 3.3e+06 -> 3.3e6
        size_t zeros = 1 + (e[1] == '0');
        memmove(e, e + zeros, strlen(e + zeros) + 1);
    }
    return buf;
}
