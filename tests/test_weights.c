#include "tests/test.h"

#include <unistd.h>

#include "base/simd.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/slice.h"
#include "tests/values.h"

static void export_round_trip(const char *config, const char *dtype) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(config, 1, 1), b = values_make(config, 1, 0);
    Config c;
    CHECK(weights_export(dir, &a.t, dtype, &group_alone, NULL));
    CHECK(weights_config(dir, &c, NULL) && config_equal(&c, &a.t.config));
    CHECK(weights_load(dir, &b.t, &group_alone, NULL));
    for (size_t i = 0; i < a.n && dtype[0] == 'B'; i++)
        a.values[i] = bf16_to_float(bf16_from_float(a.values[i]));
    CHECK(memcmp(a.values, b.values, a.n * sizeof *a.values) == 0);
    char *path = test_path("%s/model.safetensors", dir);
    memset(b.values, 0, b.n * sizeof *b.values);
    CHECK(weights_config(path, &c, NULL) && config_equal(&c, &a.t.config));
    CHECK(weights_load(path, &b.t, &group_alone, NULL));
    CHECK(memcmp(a.values, b.values, a.n * sizeof *a.values) == 0);
}

TEST(weights_export_round_trips) {
    export_round_trip(GPT2, "F32");
    export_round_trip(GPT2, "BF16");
    export_round_trip(LLAMA, "F32");
    export_round_trip(LLAMA, "BF16");
    // rows longer than a panel, and more than one panel of them
    export_round_trip("llama,layers=1,heads=1,channels=1200,ffn=1300,seq=4,vocab=3", "F32");
}

/* What generate() of `transformers` goes by, generation_config.json, comes before config.json. */
TEST(weights_export_keeps_the_ids_of_ends) {
    const char *dir = test_tmpdir(), *say = "{\"eos_token_id\": [2, 3]}";
    Config c;
    OWNED(values_free) Values a = values_make(GPT2, 1, 1);
    a.t.config.ids = (SpecialIds){.n_eos = 1, .eos = {5}, .has_bos = true, .bos = 1};
    CHECK(weights_export(dir, &a.t, "F32", &group_alone, NULL) && weights_config(dir, &c, NULL));
    CHECK(c.ids.n_eos == 1 && c.ids.eos[0] == 5 && c.ids.has_bos && c.ids.bos == 1);
    char *path = test_path("%s/generation_config.json", dir);
    CHECK(io_write_file(path, say, strlen(say), NULL, NULL) && weights_config(dir, &c, NULL));
    CHECK(c.ids.n_eos == 2 && c.ids.eos[0] == 2 && c.ids.eos[1] == 3 && c.ids.bos == 1);
    a.t.config.ids = (SpecialIds){0}; // that file goes when nothing is known
    CHECK(weights_export(dir, &a.t, "F32", &group_alone, NULL) && weights_config(dir, &c, NULL));
    CHECK(c.ids.n_eos == 0 && !io_exists(path));
    a.t.config.ids = (SpecialIds){.has_bos = true, .bos = 4}; // then config.json alone has it
    CHECK(weights_export(dir, &a.t, "F32", &group_alone, NULL));
    c.ids = (SpecialIds){0}, weights_ids(dir, &c); // as a run that is resumed
    CHECK(c.ids.n_eos == 0 && c.ids.has_bos && c.ids.bos == 4);
}

TEST(weights_failed_export_leaves_what_was_there) {
    const char *dir = test_tmpdir();
    OWNED(values_free)
    Values a = values_make(GPT2, 1, 1), b = values_make(GPT2, 1, 2), c = values_make(GPT2, 1, 0);
    Err e = {""};
    char *path = test_path("%s/new/folder", dir);
    CHECK(weights_export(path, &a.t, "F32", &group_alone, &e));
    io_inject(0, false);
    CHECK(weights_export(path, &a.t, "F32", &group_alone, &e));
    int calls = io_inject(0, false);
    char *tmp = test_path("%s/generation_config.json", path);
    b.t.config.ids = (SpecialIds){.n_eos = 1};
    CHECK(io_make_dir(tmp, &e) && !weights_export(path, &b.t, "F32", &group_alone, &e));
    CHECK(strstr(e.text, "generation_config.json is a directory") && rmdir(tmp) == 0);
    b.t.config.ids = (SpecialIds){0};
    CHECK(calls >= 10); // two files, written and synced; renamed
    int saved_all = 0;  // a directory that cannot be synced is only warned about
    for (int i = 1; i < calls; i++) {
        io_inject(i, false);
        bool saved = weights_export(path, &b.t, "F32", &group_alone, &e);
        io_inject(0, false);
        CHECK(weights_load(path, &c.t, &group_alone, &e));
        CHECK(memcmp((saved ? b : a).values, c.values, a.n * sizeof *a.values) == 0);
        CHECK(system(test_path("cd %s && test $(ls -A | wc -l) = 2", path)) == 0);
        saved_all += saved;
        CHECK(!saved || weights_export(path, &a.t, "F32", &group_alone, &e));
    }
    CHECK(saved_all == 1); // after config.json's rename; after the last rename nothing is injected
}

TEST(weights_slices_are_columns_transposed) {
    OWNED(values_free) Values m = values_make(LLAMA, 1, 1);
    OWNED(safetensors_free) SafeTensors s = {0};
    char *path = test_path("%s/model.safetensors", test_tmpdir());
    CHECK(weights_save(path, &m.t, "F32", &group_alone, NULL, NULL, NULL));
    OWNED(io_unmap) IoMap map = io_open(path);
    CHECK(safetensors_parse(map.p, map.n, &s, NULL));
    const Tensor *x = &m.t.t[tensors_find(&m.t, "h.1.qkv.weight")];
    const SafeTensor *k = safetensors_find(&s, "model.layers.1.self_attn.k_proj.weight");
    CHECK(k && k->n_dims == 2 && k->dims[0] == 8 && k->dims[1] == 16);
    float row[16];
    safetensors_get(k, 3 * 16, 16, row); // output feature 3 of K: column 16 + 3 of QKV
    for (int c = 0; c < 16; c++) CHECK(row[c] == x->param[c * x->cols + 16 + 3]);
    const SafeTensor *norm = safetensors_find(&s, "model.norm.weight"); // others read no [16, 1]
    CHECK(norm && norm->n_dims == 1 && norm->dims[0] == 16);
}

/* ---- files made by others: GPT-2's tensors under other names, of other types, in shards ---- */

typedef struct Foreign {
    const char *prefix, *dtype, *leave_out, *extra, *reshape;
} Foreign;

static bool write_foreign(const char *path, const Values *m, Foreign f, int from, int to) {
    SafeTensors list = {0};
    SafeWriter w;
    Err e;
    int ids[64], n = 0;
    for (int i = from; i < to; i++) {
        const TensorSlice *p = &m->t.slices[i];
        int64_t dims[2];
        int n_dims = slice_dims(p, &m->t.t[p->tensor], dims);
        if (f.leave_out && strcmp(p->name, f.leave_out) == 0) continue;
        if (f.reshape && strcmp(p->name, f.reshape) == 0) dims[0] *= dims[1], n_dims = 1;
        ids[n++] = i;
        safetensors_add(&list, test_path("%s%s", f.prefix, p->name), f.dtype, n_dims, dims);
    }
    if (f.extra) safetensors_add(&list, f.extra, "F32", 2, (int64_t[]){1, 2});
    if (!safetensors_create(&w, path, &list, &group_alone, &e)) return false;
    bool ok = true;
    for (int i = 0; i < n; i++) {
        const Tensor *t = &m->t.t[m->t.slices[ids[i]].tensor];
        ok = ok && safetensors_put(&w.file, &w.list.t[i], 0, tensor_size(t), t->param, &e);
    }
    if (f.extra) ok = ok && safetensors_put(&w.file, &w.list.t[n], 0, 2, (float[]){1, 2}, &e);
    return safetensors_finish(&w, ok, NULL, NULL, &e);
}

static bool loads_foreign(Foreign f, Err *e) {
    OWNED(values_free) Values a = values_make(GPT2, 1, 1), b = values_make(GPT2, 1, 0);
    char *path = test_path("%s/x.safetensors", test_tmpdir());
    return write_foreign(path, &a, f, 0, a.t.n_slices) &&
           weights_load(path, &b.t, &group_alone, e) &&
           memcmp(a.values, b.values, a.n * sizeof *a.values) == 0;
}

TEST(weights_names_prefixes_and_buffers) {
    CHECK(loads_foreign((Foreign){"", "F32", 0, 0, 0}, NULL));
    CHECK(loads_foreign((Foreign){"transformer.", "F32", 0, 0, 0}, NULL));
    CHECK(loads_foreign((Foreign){"", "F32", 0, "h.0.attn.bias", 0}, NULL));
    CHECK(loads_foreign((Foreign){"", "F32", 0, "h.1.attn.masked_bias", 0}, NULL));
    CHECK(loads_foreign((Foreign){"transformer.", "F32", 0, "lm_head.weight", 0}, NULL));
}

TEST(weights_names_what_does_not_fit) {
    static const struct {
        Foreign f;
        const char *says;
    } cases[] = {
        {{"", "F32", "h.1.mlp.c_fc.weight", 0, 0}, "tensor h.1.mlp.c_fc.weight [8, 32] is missing"},
        {{"", "F32", 0, "h.2.ln_1.weight", 0},
         "tensor h.2.ln_1.weight [1, 2] is no part of this model"},
        {{"", "F32", 0, 0, "wte.weight"}, "tensor wte.weight is [88], the model needs [11, 8]"},
        {{"", "F32", 0, "transformer.wpe.weight", 0}, "wpe.weight is given twice"},
        {{"", "I16", 0, 0, 0}, "is I16; F32, BF16 or F16 is needed"}};
    Err e = {""};
    for (EACH(c, cases)) CHECK(!loads_foreign(c->f, &e) && strstr(e.text, c->says));
    CHECK_REFUSED(weights_load("/nowhere.bin", &(TensorTable){0}, &group_alone, &e), e,
                  "cannot open /nowhere.bin: No such file");
    CHECK_REFUSED(weights_load("/nowhere", &(TensorTable){0}, &group_alone, &e), e,
                  "/nowhere: no model.safetensors");
    Config c;
    CHECK_REFUSED(weights_config("/nowhere/x.safetensors", &c, &e), e,
                  "cannot open /nowhere/config.json: No such file");
}

TEST(weights_come_in_shards) {
    const char *dir = test_tmpdir();
    OWNED(values_free) Values a = values_make(GPT2, 1, 1), b = values_make(GPT2, 1, 0);
    Err e = {""};
    Foreign f = {"transformer.", "F32", 0, 0, 0};
    static const char map[] =
        "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"transformer.wte.weight\":"
        "\"model-1-of-2.safetensors\",\"transformer.ln_f.bias\":\"model-2-of-2.safetensors\"}}";
    CHECK_REFUSED(weights_load(dir, &b.t, &group_alone, &e), e,
                  "save_pretrained() of transformers");
    CHECK(io_write_file(test_path("%s/model.safetensors.index.json", dir), map, strlen(map), NULL,
                        &e));
    char *path = test_path("%s/model-1-of-2.safetensors", dir);
    CHECK(write_foreign(path, &a, f, 0, 10));
    CHECK_REFUSED(weights_load(dir, &b.t, &group_alone, &e), e, "model-2-of-2.safetensors");
    path = test_path("%s/model-2-of-2.safetensors", dir);
    CHECK(write_foreign(path, &a, f, 10, a.t.n_slices));
    CHECK(weights_load(dir, &b.t, &group_alone, &e));
    CHECK(memcmp(a.values, b.values, a.n * sizeof *a.values) == 0);
}
