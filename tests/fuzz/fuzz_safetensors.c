/* Any bytes as a safetensors file, and as the index of a sharded model. What is accepted must cover
 * the file, and every value must be readable. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void read_all(const SafeTensors *s, size_t n) {
    uint64_t at = 0;
    for (int i = 0; i < s->n; i++) {
        const SafeTensor *t = &s->t[i];
        if (t->begin < 8 || t->end > n || (i > 0 && t->begin != at)) abort();
        at = t->end;
        if (!safetensors_is_float(t)) continue;
        char shape[32];
        float x[64];
        safetensors_shape(t, shape, sizeof shape);
        for (int64_t j = 0; j < t->size; j += 64)
            safetensors_get(t, j, t->size - j < 64 ? t->size - j : 64, x);
        if (!safetensors_find(s, t->name)) abort();
    }
    if (s->n > 0 && at != n) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    SafeTensors s;
    Err e;
    char *files[4];
    if (safetensors_parse(p, n, &s, &e)) read_all(&s, n);
    safetensors_free(&s);
    int found = safetensors_index_parse((const char *)p, n, files, 4, &e);
    for (int i = 0; i < found; i++) {
        if (strchr(files[i], '/') || !files[i][0]) abort();
        mem_free(files[i]);
    }
    return 0;
}
