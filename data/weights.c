#include "data/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/hf_config.h"
#include "data/llmc.h"

enum { PANEL = 1 << 20, MAX_SHARDS = 1024 }; // floats in a panel on its way between table and file

/* ---- pieces ---- */

int piece_dims(const Piece *p, const Tensor *t, int64_t dims[2]) {
    dims[0] = p->vector || p->transposed ? p->cols : t->rows;
    dims[1] = p->vector ? 1 : p->transposed ? t->rows : p->cols;
    return p->vector ? 1 : 2;
}

/* Length of a row of the file tensor; a vector is one row. */
static int64_t row_length(const Piece *p, const Tensor *t) {
    return p->transposed ? t->rows : p->cols;
}
static int64_t row_count(const Piece *p, const Tensor *t) {
    return p->transposed ? p->cols : t->rows;
}

/* Tiles of 16 columns: 16 streams in step, each line of memory touched once. */
enum { TILE = 16 };

static int64_t rows_per_panel(const Piece *p, const Tensor *t) {
    int64_t n = PANEL / row_length(p, t);
    return n < 1 ? 1 : n < row_count(p, t) ? n : row_count(p, t);
}

void piece_gather(const Piece *p, const Tensor *t, const float *values, int64_t row, int64_t n,
                  float *file_rows) {
    const float *from = values + p->col;
    if (p->transposed)
        for (int64_t j0 = 0; j0 < n; j0 += TILE)
            for (int64_t r = 0; r < t->rows; r++)
                for (int64_t j = j0; j < n && j < j0 + TILE; j++)
                    file_rows[j * t->rows + r] = from[r * t->cols + row + j];
    else
        for (int64_t r = 0; r < n; r++)
            memcpy(file_rows + r * p->cols, from + (row + r) * t->cols,
                   (size_t)p->cols * sizeof *from);
}

void piece_scatter(const Piece *p, const Tensor *t, float *values, int64_t row, int64_t n,
                   const float *file_rows) {
    float *to = values + p->col;
    if (p->transposed)
        for (int64_t j0 = 0; j0 < n; j0 += TILE)
            for (int64_t r = 0; r < t->rows; r++)
                for (int64_t j = j0; j < n && j < j0 + TILE; j++)
                    to[r * t->cols + row + j] = file_rows[j * t->rows + r];
    else
        for (int64_t r = 0; r < n; r++)
            memcpy(to + (row + r) * t->cols, file_rows + r * p->cols, (size_t)p->cols * sizeof *to);
}

/* ---- writing ---- */

static bool put_piece(SafeWriter *w, int i, const Piece *p, const Tensor *t, Err *e) {
    if (!p->transposed && p->cols == t->cols)
        return safetensors_put(w, i, 0, tensor_size(t), t->param, e);
    int64_t len = row_length(p, t), step = rows_per_panel(p, t), rows = row_count(p, t);
    float *panel = mem_alloc((size_t)(step * len) * sizeof *panel);
    bool ok = true;
    for (int64_t row = 0; ok && row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        piece_gather(p, t, t->param, row, n, panel);
        ok = safetensors_put(w, i, row * len, n * len, panel, e);
    }
    mem_free(panel);
    return ok;
}

bool weights_save(const char *path, const TensorTable *t, const char *dtype, uint64_t *n_bytes,
                  uint32_t *crc, Err *e) {
    SafeTensors list = {0};
    SafeWriter w;
    for (int i = 0; i < t->n_pieces; i++) {
        int64_t dims[2];
        const Piece *p = &t->pieces[i];
        int n_dims = piece_dims(p, &t->t[p->tensor], dims);
        safetensors_add(&list, p->name, dtype, n_dims, dims);
    }
    if (!safetensors_create(&w, path, &list, e)) return false;
    for (int i = 0; i < t->n_pieces; i++)
        if (!put_piece(&w, i, &t->pieces[i], &t->t[t->pieces[i].tensor], e)) {
            safetensors_abandon(&w);
            return false;
        }
    return safetensors_finish(&w, n_bytes, crc, e);
}

bool weights_export(const char *dir, const TensorTable *t, const char *dtype, Err *e) {
    char *paths[4] = {mem_printf("%s/config.json", dir), mem_printf("%s/model.safetensors", dir),
                      mem_printf("%s/config.json.tmp", dir),
                      mem_printf("%s/model.safetensors.tmp", dir)};
    char *text = hf_config_text(&t->config);
    bool ok = io_make_dirs(dir, e) && io_write_file(paths[2], text, strlen(text), NULL, e) &&
              weights_save(paths[3], t, dtype, NULL, NULL, e) && io_rename(paths[2], paths[0], e) &&
              io_rename(paths[3], paths[1], e) && io_sync_dir(dir, e);
    if (!ok) io_remove_tree(paths[2], NULL), io_remove_tree(paths[3], NULL);
    for (int i = 0; i < 4; i++) mem_free(paths[i]);
    mem_free(text);
    return ok;
}

/* ---- reading ---- */

/* The files of one model, mapped, and all their tensors. */
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
    Err why;
    IoMap *m = &s->maps[s->n];
    if (!io_map(m, path, e)) return false;
    s->n++; // from here on source_close frees it
    if (!safetensors_parse(m->p, m->n, &s->parts[s->n - 1], &why))
        return err(e, "%.250s: %.240s", path, why.text);
    return true;
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Path of a file of the model: in the folder, or beside FILE.safetensors. */
static char *member(const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    if (!ends_with(path, ".safetensors")) return mem_printf("%s/%s", path, name);
    return slash ? mem_printf("%.*s/%s", (int)(slash - path), path, name) : mem_strdup(name);
}

static bool source_add_shards(Source *s, const char *dir, const char *index, Err *e) {
    char *files[MAX_SHARDS];
    IoMap m;
    Err why;
    if (!io_map(&m, index, e)) return false;
    int n = safetensors_index_parse((const char *)m.p, m.n, files, MAX_SHARDS, &why);
    io_unmap(&m);
    if (n < 0) return err(e, "%.250s: %.240s", index, why.text);
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
    if (ends_with(path, ".safetensors")) return source_add(s, path, e);
    char *whole = member(path, "model.safetensors");
    char *index = member(path, "model.safetensors.index.json");
    bool ok = io_exists(whole)   ? source_add(s, whole, e)
              : io_exists(index) ? source_add_shards(s, path, index, e)
                                 : err(e, "%s: no model.safetensors and no index of shards", path);
    mem_free(whole);
    mem_free(index);
    return ok;
}

/* Names without the prefix that depends on which class saved the file. */
static const char *bare(const char *name) {
    static const char *const prefixes[] = {"transformer.", "model."};
    for (int i = 0; i < 2; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return name + strlen(prefixes[i]);
    return name;
}

static bool ignored(const char *name, const Config *c) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
           ends_with(name, "rotary_emb.inv_freq") ||
           (c->tied && strcmp(name, "lm_head.weight") == 0);
}

static bool read_piece(const SafeTensor *x, const Piece *p, const Tensor *t, Err *e) {
    int64_t dims[2], len = row_length(p, t), rows = row_count(p, t), step = rows_per_panel(p, t);
    SafeTensor want = {.n_dims = piece_dims(p, t, dims), .dims = {dims[0], dims[1]}};
    char have[160], need[64];
    if (x->n_dims != want.n_dims || memcmp(x->dims, dims, (size_t)x->n_dims * sizeof *dims) != 0)
        return err(e, "tensor %.100s is %s, the model needs %s", x->name,
                   safetensors_shape(x, have, sizeof have),
                   safetensors_shape(&want, need, sizeof need));
    if (!safetensors_is_float(x))
        return err(e, "tensor %.100s is %s; F32, BF16 or F16 is needed", x->name, x->dtype);
    float *panel = mem_alloc((size_t)(step * len) * sizeof *panel);
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        safetensors_get(x, row * len, n * len, panel);
        piece_scatter(p, t, t->param, row, n, panel);
    }
    mem_free(panel);
    return true;
}

/* The pieces in the order of their bare names, for bisection. */
typedef struct Named {
    const char *name;
    int piece;
    const SafeTensor *from;
} Named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const Named *)a)->name, ((const Named *)b)->name);
}

static bool match(const Source *s, const TensorTable *t, Named *named, Err *e) {
    for (int i = 0; i < t->n_pieces; i++)
        named[i] = (Named){.name = bare(t->pieces[i].name), .piece = i};
    qsort(named, (size_t)t->n_pieces, sizeof *named, by_name);
    for (int k = 0; k < s->n; k++)
        for (int i = 0; i < s->parts[k].n; i++) {
            const SafeTensor *x = &s->parts[k].t[i];
            Named key = {.name = bare(x->name)};
            Named *to = bsearch(&key, named, (size_t)t->n_pieces, sizeof *named, by_name);
            char shape[160];
            if (to && to->from) return err(e, "tensor %.200s is there twice", x->name);
            if (to)
                to->from = x;
            else if (!ignored(x->name, &t->config))
                return err(e, "tensor %.200s %s is no part of this model", x->name,
                           safetensors_shape(x, shape, sizeof shape));
        }
    for (int i = 0; i < t->n_pieces; i++)
        if (!named[i].from) {
            const Piece *p = &t->pieces[named[i].piece];
            int64_t dims[2];
            SafeTensor want = {.n_dims = piece_dims(p, &t->t[p->tensor], dims),
                               .dims = {dims[0], dims[1]}};
            char need[64];
            return err(e, "tensor %s %s is missing", p->name,
                       safetensors_shape(&want, need, sizeof need));
        }
    return true;
}

bool weights_load(const char *path, const TensorTable *t, Err *e) {
    if (ends_with(path, ".bin")) return llmc_model_load(path, t, e);
    Source *s = mem_calloc(1, sizeof *s);
    Named *named = mem_calloc((size_t)t->n_pieces, sizeof *named);
    Err why;
    bool ok = source_open(s, path, e);
    if (ok && !match(s, t, named, &why)) ok = err(e, "%.250s: %.250s", path, why.text);
    for (int i = 0; ok && i < t->n_pieces; i++) {
        const Piece *p = &t->pieces[named[i].piece];
        if (!read_piece(named[i].from, p, &t->t[p->tensor], &why))
            ok = err(e, "%.250s: %.250s", path, why.text);
    }
    mem_free(named);
    source_close(s);
    return ok;
}

bool weights_config(const char *path, Config *c, Err *e) {
    if (ends_with(path, ".bin")) return llmc_model_config(path, c, e);
    char *config = member(path, "config.json");
    IoMap m;
    Err why;
    bool ok = io_map(&m, config, e);
    if (ok) {
        ok = hf_config_parse((const char *)m.p, m.n, c, &why);
        io_unmap(&m);
        if (!ok) err(e, "%.250s: %.240s", config, why.text);
    }
    mem_free(config);
    return ok;
}
