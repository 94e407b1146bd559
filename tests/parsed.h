/* parsed -- parses texts that tests know to be right; dies if one is wrong. */
#ifndef TESTS_PARSED_H
#define TESTS_PARSED_H

#include <string.h>

#include "base/die.h"
#include "parallel/plan/machine.h"
#include "parallel/step/overlap.h"

static inline Config config_of(const char *text) {
    Config c;
    Err e;
    if (!config_parse(&c, text, &e)) die("%s", e.text);
    return c;
}
static inline Layout layout_of(const char *text) {
    Layout l;
    Err e;
    if (!layout_parse(&l, text, 0, &e)) die("%s", e.text);
    return l;
}
static inline Overlap overlap_of(const char *text) {
    Overlap o;
    Err e;
    if (!overlap_parse(&o, text, &e)) die("%s", e.text);
    return o;
}
static inline Machine machine_described(const char *text) {
    Machine m;
    Err e;
    if (!machine_parse(&m, text, strlen(text), &e)) die("%s", e.text);
    return m;
}
static inline Machine machine_of(const char *text) {
    Machine m;
    Err e;
    if (!machine_open(&m, text, &e)) die("%s", e.text);
    return m;
}

#endif
