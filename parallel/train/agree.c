#include "parallel/train/agree.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/sha256.h"
#include "parallel/plan/detect.h"

void facts_add(Facts *f, char *name, char *value) {
    f->at = mem_realloc(f->at, (size_t)f->n + 1, sizeof *f->at);
    f->at[f->n++] = (Fact){name, value};
}

static void facts_free(Facts *f) {
    for (int i = 0; i < f->n; i++) mem_free(f->at[i].name), mem_free(f->at[i].value);
    mem_free(f->at);
    *f = (Facts){0};
}

/* All values, NUL-terminated, in one buffer. */
static char *join_values(const Facts *f, size_t *n) {
    *n = 0;
    for (int i = 0; i < f->n; i++) *n += strlen(f->at[i].value) + 1;
    char *text = mem_calloc(*n + 1, 1), *p = text;
    for (int i = 0; i < f->n; i++) p = stpcpy(p, f->at[i].value) + 1;
    return text;
}

static bool all_same(const Group *g, const void *mine, size_t n) {
    char *all = mem_alloc((size_t)g->size * n);
    bool same = true;
    group_all_gather(g, mine, n, all);
    for (int r = 1; r < g->size; r++) same &= memcmp(all, all + (size_t)r * n, n) == 0;
    mem_free(all);
    return same;
}

/* Long values are shown from shortly before the first difference. */
static const char *shown(const char *value, const char *other) {
    enum { LONG = 80, BEFORE = 20 };
    size_t same = 0;
    while (value[same] && value[same] == other[same]) same++;
    return strlen(value) > LONG && same > BEFORE ? value + same - BEFORE : value;
}

/* Writes to e which ranks have which value[rank]. "The others" have the most frequent value. */
static void describe(Err *e, const char *name, const char *const *value, int size) {
    int *item = mem_calloc((size_t)size, sizeof *item), most = 0, largest = 0, shares = 0;
    for (int r = 0; r < size; r++) {
        int n = 0;
        for (int i = 0; i < size; i++) n += strcmp(value[i], value[r]) == 0;
        if (n > largest) most = r, largest = n;
    }
    char text[480];
    size_t at = 0;
    for (int r = 0; r < size && shares < 3; r++) { // a message shows three other values at most
        int n = 0, first = 0;
        while (strcmp(value[first], value[r]) != 0) first++;
        if (first < r || strcmp(value[r], value[most]) == 0) continue;
        for (int i = r; i < size; i++)
            if (strcmp(value[i], value[r]) == 0) item[n++] = i;
        char ranks[60];
        detect_list(ranks, sizeof ranks, item, n);
        const char *begin = shares ? ", " : "", *verb = n > 1 ? " were started" : " was started";
        at += (size_t)snprintf(text + at, sizeof text - at, "%srank%s %s%s with %s%s%.80s", begin,
                               n > 1 ? "s" : "", ranks, shares ? "" : verb, shares ? "" : name,
                               shares ? "" : " ", shown(value[r], value[most]));
        shares++;
    }
    int other = 0;
    while (strcmp(value[other], value[most]) == 0) other++;
    const char *rest = shown(value[most], value[other]);
    if (largest == 1)
        err(e, "%.390s, rank %d with %.80s", text, most, rest);
    else
        err(e, "%.390s, the others with %.80s", text, rest);
    mem_free(item);
}

/* Finds the first value that differs among the ranks. */
static void find_difference(const Facts *f, const Group *g, const char *mine, size_t n, Err *e) {
    size_t *lengths = mem_calloc((size_t)g->size, sizeof *lengths), longest = 0;
    group_all_gather(g, &n, sizeof n, lengths);
    for (int r = 0; r < g->size; r++) longest = lengths[r] > longest ? lengths[r] : longest;
    longest++;
    char *padded = mem_calloc(longest, 1), *all = mem_alloc((size_t)g->size * longest);
    const char **value = mem_calloc((size_t)g->size, sizeof *value);
    memcpy(padded, mine, n);
    group_all_gather(g, padded, longest, all);
    for (int r = 0; r < g->size; r++) value[r] = all + (size_t)r * longest;
    bool differ = false;
    for (int i = 0; !differ; i++) { // ends: the digests differ, so some value does
        for (int r = 1; r < g->size; r++) differ |= strcmp(value[r], value[0]) != 0;
        if (differ) describe(e, i < f->n ? f->at[i].name : "a list of options of", value, g->size);
        for (int r = 0; r < g->size; r++) value[r] += strlen(value[r]) + 1;
    }
    mem_free(value);
    mem_free(all);
    mem_free(padded);
    mem_free(lengths);
}

bool facts_agree(Facts *f, const Group *g, Err *e) {
    size_t n;
    char *values = join_values(f, &n);
    uint8_t digest[SHA256_BYTES];
    Sha256 h = sha256_start();
    sha256_add(&h, values, n);
    sha256_end(&h, digest);
    bool same = all_same(g, digest, sizeof digest);
    if (!same) find_difference(f, g, values, n, e);
    mem_free(values);
    facts_free(f);
    return same;
}
