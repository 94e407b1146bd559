/* values -- a model with the values of all its tensors in one array, for tests of file formats:
 * memcmp compares what was written with what was read back. */
#ifndef TESTS_VALUES_H
#define TESTS_VALUES_H

#include <dirent.h>

#include "data/weights.h"
#include "tests/parsed.h"
#include "tests/test.h"

static const char GPT2[] UNUSED = "layers=2,heads=2,channels=8,seq=6,vocab=11";
static const char LLAMA[] UNUSED =
    "llama,layers=2,heads=4,kv_heads=2,channels=16,ffn=24,seq=8,vocab=13";

typedef struct Values {
    TensorTable t;
    float *values; // [parts][n]: parameters, then m, then v
    size_t n;      // number of parameters
} Values;

/* Local. Zeros. parts 1: parameters only (m and v stay NULL); 3: with the moments of AdamW. */
static inline Values values_of(const Config *c, int parts) {
    Values m = {.t = tensors_describe(c), .n = (size_t)config_parameters(c)};
    float *at = m.values = mem_calloc((size_t)parts * m.n, sizeof *m.values);
    for (int i = 0; i < m.t.n; at += tensor_size(&m.t.t[i++])) {
        m.t.t[i].param = at;
        if (parts < 3) continue;
        m.t.t[i].m = at + m.n;
        m.t.t[i].v = at + 2 * m.n;
    }
    return m;
}
/* Values that are a function of the seed; seed 0: zeros. Dies if the config is wrong. */
static inline Values values_make(const char *config, int parts, unsigned seed) {
    Config c = config_of(config);
    Values m = values_of(&c, parts);
    if (seed) test_fill(m.values, (size_t)parts * m.n, 1.0f, seed);
    return m;
}

static inline void values_free(Values *m) {
    mem_free(m->values);
    tensors_free(&m->t);
}

/* Number of names in a folder, hidden ones included; NULL: 0. */
static inline int count_names(const char *dir) {
    int n = -2; // . and ..
    DIR *d = dir ? opendir(dir) : NULL;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

/* Inverts bits of the byte at offset `at` of a file. */
static inline void flip_byte(const char *path, long at, int bits) {
    FILE *f = fopen(path, "r+b");
    if (!f) die("%s", path);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ bits, f);
    fclose(f);
}

#endif
