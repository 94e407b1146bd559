/* Any bytes as a safetensors file, and as the index of a sharded model. What is accepted must cover
 * the file, and every value must be readable. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/safetensors.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    static const float x[6] = {1, -2, 3, 0.5f, 1e-9f, 7};
    SafeTensors list = {0};
    SafeWriter w;
    Err e;
    char *path = seed_path("two");
    safetensors_add(&list, "a", "F32", 2, (int64_t[]){2, 3});
    safetensors_add(&list, "b", "BF16", 1, (int64_t[]){3});
    bool ok = safetensors_create(&w, path, &list, &group_alone, &e);
    ok = ok && safetensors_finish(&w,
                                  safetensors_put(&w.file, &w.list.t[0], 0, 6, x, &e) &&
                                      safetensors_put(&w.file, &w.list.t[1], 0, 3, x, &e),
                                  NULL, NULL, &e);
    if (!ok) die("%s", e.text);
    mem_free(path);
    // what is read and never written: F16, a type without values here
    SEED("types", "\153\0\0\0\0\0\0\0"
                  "{\"x\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                  "\"y\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[4,12]}}abcdefghijkl");
    seed_text("index", "{'weight_map':{'a':'model-1.safetensors','b':'model-2.safetensors',"
                       "'c':'model-1.safetensors'}}");
}

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
