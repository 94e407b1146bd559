#include "data/weights.h"

#include <string.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/rng.h"
#include "data/hf_config.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/output.h"
#include "data/safetensors.h"
#include "data/slice.h"

enum { MAX_SHARDS = 1024 };

/* ---- writing ---- */

/* What this rank holds of file tensor i. */
static LocalSlice local_slice(const TensorTable *t, int i) {
    const TensorSlice *p = &t->slices[i];
    return (LocalSlice){p, &t->t[p->tensor], PART_PARAM, t->t[p->tensor].param};
}

bool weights_save(const char *path, const TensorTable *t, const char *dtype, const Group *g,
                  uint64_t *n_bytes, uint32_t *crc, Err *e) {
    SafeTensors list = {0};
    SafeWriter w;
    for (int i = 0; i < t->n_slices; i++) {
        int64_t dims[2];
        const TensorSlice *p = &t->slices[i];
        int n_dims = slice_dims(p, &t->t[p->tensor], dims);
        safetensors_add(&list, p->name, dtype, n_dims, dims);
    }
    if (!safetensors_create(&w, path, &list, g, e)) return false;
    bool ok = true;
    for (int i = 0; i < t->n_slices && ok; i++) {
        LocalSlice h = local_slice(t, i);
        ok = slice_put(&h, &w.file, &w.list.t[i], e);
    }
    return safetensors_finish(&w, ok, n_bytes, crc, e);
}

void weights_export_paths(const char *dir, char *paths[EXPORT_FILES]) {
    static const char *const names[EXPORT_FILES] = {"model.safetensors", "config.json",
                                                    "generation_config.json"};
    for (int i = 0; i < EXPORT_FILES; i++) paths[i] = mem_printf("%s/%s", dir, names[i]);
}

/* Rank 0: opens all outputs and writes the texts. Files 1 and up have a text, or NULL: the file is
 * not to exist. */
static bool begin_export(Output out[EXPORT_FILES], char *const *paths, char *const *texts, Err *e) {
    for (int i = 0; i < EXPORT_FILES; i++) {
        if (i > 0 && !texts[i]) continue;
        if (!output_open(&out[i], paths[i], true, e)) return false;
        if (i > 0 && !io_write_file(out[i].part, texts[i], strlen(texts[i]), NULL, e)) return false;
    }
    return true;
}

/* Rank 0: renames the files into place, the weights last. A file that is not to exist is removed,
 * in case an older export left it. */
static bool finish_export(Output out[EXPORT_FILES], char *const *paths, Err *e) {
    for (int i = EXPORT_FILES - 1; i >= 0; i--)
        if (!(out[i].path ? output_commit(&out[i], e) : io_remove_tree(paths[i], e))) return false;
    return true;
}

bool weights_export(const char *dir, const TensorTable *t, const char *dtype, const Group *g,
                    Err *e) {
    bool bf16 = strcmp(dtype, "BF16") == 0;
    char *paths[EXPORT_FILES], *texts[EXPORT_FILES] = {NULL, hf_config_text(&t->config, bf16),
                                                       hf_generation_text(&t->config)};
    Output out[EXPORT_FILES] = {0};
    weights_export_paths(dir, paths);
    bool first = g->rank == 0;
    bool ok =
        group_agree(g, !first || (io_make_dirs(dir, e) && begin_export(out, paths, texts, e)), e);
    char *part = group_broadcast_text(g, out[0].part);
    ok = ok && weights_save(part, t, dtype, g, NULL, NULL, e) &&
         group_agree(g, !first || finish_export(out, paths, e), e);
    for (int i = 0; i < EXPORT_FILES; i++)
        output_abandon(&out[i]), mem_free(paths[i]), mem_free(texts[i]);
    if (!ok) group_barrier(g); // rank 0 has removed its files before any rank may end the program
    mem_free(part);
    return ok;
}

/* ---- reading ---- */

/* The mapped files of one model and their tensors. */
typedef struct Source {
    IoMap maps[MAX_SHARDS];
    SafeTensors parts[MAX_SHARDS];
    int n;
} Source;

static void source_close(Source *s) {
    for (int i = 0; i < s->n; i++) {
        safetensors_free(&s->parts[i]);
        io_unmap(&s->maps[i]);
    }
    mem_free(s);
}

static bool source_add(Source *s, const char *path, Err *e) {
    IoMap *m = &s->maps[s->n];
    if (!io_map(m, path, e)) return false;
    s->n++; // from here on source_close frees it
    return safetensors_parse(m->p, m->n, &s->parts[s->n - 1], e) || err_in(e, path);
}

bool weights_named(const char *path, const char *ending) {
    return path_ends(path, ending) && !io_is_folder(path);
}

/* Path of file `name` of a model: in the folder `path`, or beside the file `path`.safetensors. */
static char *model_file(const char *path, const char *name) {
    if (!weights_named(path, ".safetensors")) return mem_printf("%s/%s", path, name);
    return mem_printf("%.*s%s", (int)(path_name(path) - path), path, name);
}

static bool source_add_shards(Source *s, const char *dir, const char *index, Err *e) {
    char *files[MAX_SHARDS];
    IoMap m;
    if (!io_map(&m, index, e)) return false;
    int n = safetensors_index_parse((const char *)m.p, m.n, files, MAX_SHARDS, e);
    io_unmap(&m);
    if (n < 0) return err_in(e, index);
    bool ok = true;
    for (int i = 0; i < n; i++) {
        char *path = mem_printf("%s/%s", dir, files[i]);
        ok = ok && source_add(s, path, e);
        mem_free(path);
        mem_free(files[i]);
    }
    return ok;
}

static bool source_open(Source *s, const char *path, Err *e) {
    if (weights_named(path, ".safetensors")) return source_add(s, path, e);
    char *whole = model_file(path, "model.safetensors");
    char *index = model_file(path, "model.safetensors.index.json");
    bool ok = io_exists(whole)   ? source_add(s, whole, e)
              : io_exists(index) ? source_add_shards(s, path, index, e)
                                 : err(e,
                                       "%s: no model.safetensors and no index of shards; "
                                       "save_pretrained() of transformers writes them",
                                       path);
    mem_free(whole);
    mem_free(index);
    return ok;
}

/* A tensor's name without the prefix, which depends on the class that saved the file. */
static const char *bare_name(const char *name) {
    static const char *const prefixes[] = {"transformer.", "model."};
    for (int i = 0; i < 2; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return name + strlen(prefixes[i]);
    return name;
}

/* Is this tensor of Hugging Face's files skipped? Buffers are, and the head of a tied model. */
static bool is_ignored(const char *name, const Config *c) {
    return path_ends(name, ".attn.bias") || path_ends(name, ".attn.masked_bias") ||
           path_ends(name, "rotary_emb.inv_freq") ||
           (c->tied && strcmp(name, "lm_head.weight") == 0);
}

/* The shape of slice i in the file. */
static SafeTensor shape_of(const TensorTable *t, int i) {
    SafeTensor s = {0};
    s.n_dims = slice_dims(&t->slices[i], &t->t[t->slices[i].tensor], s.dims);
    return s;
}

static bool read_slice(const SafeTensor *x, const TensorTable *t, int i, Err *e) {
    SafeTensor want = shape_of(t, i);
    LocalSlice h = local_slice(t, i);
    char have[160], need[64];
    if (x->n_dims != want.n_dims ||
        memcmp(x->dims, want.dims, (size_t)x->n_dims * sizeof *x->dims) != 0)
        return err(e, "tensor %.100s is %s, the model needs %s", x->name,
                   safetensors_shape(x, have, sizeof have),
                   safetensors_shape(&want, need, sizeof need));
    if (!safetensors_is_float(x))
        return err(e, "tensor %.100s is %s; F32, BF16 or F16 is needed", x->name, x->dtype);
    slice_get(&h, x);
    return true;
}

/* Finds the file tensor of every slice: from[i] is that of slice i. */
static bool match_tensors(const Source *s, const TensorTable *t, const SafeTensor **from, Err *e) {
    for (int k = 0; k < s->n; k++)
        for (int i = 0; i < s->parts[k].n; i++) {
            const SafeTensor *x = &s->parts[k].t[i];
            const char *name = bare_name(x->name);
            char shape[160];
            int to = 0;
            while (to < t->n_slices && strcmp(bare_name(t->slices[to].name), name) != 0) to++;
            if (to < t->n_slices && from[to])
                return err(e, "tensor %.200s is given twice", x->name);
            if (to < t->n_slices)
                from[to] = x;
            else if (!is_ignored(x->name, &t->config))
                return err(e, "tensor %.200s %s is no part of this model", x->name,
                           safetensors_shape(x, shape, sizeof shape));
        }
    for (int i = 0; i < t->n_slices; i++)
        if (!from[i]) {
            SafeTensor want = shape_of(t, i);
            char need[64];
            return err(e, "tensor %s %s is missing", t->slices[i].name,
                       safetensors_shape(&want, need, sizeof need));
        }
    return true;
}

static bool load_here(const char *path, const TensorTable *t, Err *e) {
    Source *s = mem_calloc(1, sizeof *s);
    const SafeTensor **from = mem_calloc((size_t)t->n_slices, sizeof *from);
    bool ok = source_open(s, path, e) && (match_tensors(s, t, from, e) || err_in(e, path));
    for (int i = 0; ok && i < t->n_slices; i++)
        ok = read_slice(from[i], t, i, e) || err_in(e, path);
    mem_free(from);
    source_close(s);
    return ok;
}

bool weights_load(const char *path, const TensorTable *t, const Group *g, Err *e) {
    bool bin = weights_named(path, ".bin");
    return group_agree(g, bin ? llmc_model_load(path, t, e) : load_here(path, t, e), e);
}

bool weights_described(const char *path) {
    char *config = model_file(path, "config.json");
    bool yes = weights_named(path, ".bin") || io_exists(config);
    mem_free(config);
    return yes;
}

/* generation_config.json is read last, so that its ids count: generate() takes them from there. */
void weights_ids(const char *path, Config *c) {
    static const char *const names[] = {"config.json", "generation_config.json"};
    for (int i = 0; i < 2; i++) {
        IoMap m;
        char *file = model_file(path, names[i]);
        if (io_exists(file) && io_map(&m, file, NULL)) {
            hf_ids_parse((const char *)m.p, m.n, c);
            io_unmap(&m);
        }
        mem_free(file);
    }
}

bool weights_config(const char *path, Config *c, Err *e) {
    if (weights_named(path, ".bin")) return llmc_model_config(path, c, e);
    char *config = model_file(path, "config.json");
    IoMap m;
    bool ok = io_map(&m, config, e);
    if (ok) {
        ok = hf_config_parse((const char *)m.p, m.n, c, e) || err_in(e, config);
        io_unmap(&m);
    }
    if (ok) weights_ids(path, c);
    mem_free(config);
    return ok;
}

/* ---- the digest ---- */

/* A bijection in which every bit of x changes about half the bits of the result: the finalizer of
 * SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators"). */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t weights_digest(const TensorTable *t, const Group *g) {
    uint64_t mine = 0, sum = 0, *all = mem_alloc((size_t)g->size * sizeof *all);
    for (int i = 0; i < t->n; i++) {
        const Tensor *x = &t->t[i];
        uint64_t name = rng_stream(x->name);
        TensorRun r;
        for (TensorRuns it = tensor_runs(x, PART_PARAM, true); tensor_next(&it, &r);) {
            uint64_t at = name + (uint64_t)(r.row * x->cols + r.col);
            for (int64_t k = 0; k < r.n; k++) {
                uint32_t bits;
                memcpy(&bits, x->param + r.offset + k, sizeof bits);
                mine += mix(mix(at + (uint64_t)k) ^ bits);
            }
        }
    }
    group_all_gather(g, &mine, sizeof mine, all);
    for (int i = 0; i < g->size; i++) sum += all[i];
    mem_free(all);
    return sum;
}
