#include "data/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/simd.h"
#include "data/io.h"

enum { MAX_HEADER = 100000000 }; // the limit of the reference reader

static const struct {
    const char *name;
    int n_bytes;
} types[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2},     {"F64", 8},     {"BOOL", 1},
             {"U8", 1},  {"I8", 1},   {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2},
             {"U16", 2}, {"I32", 4},  {"U32", 4},     {"I64", 8},     {"U64", 8}};

enum { N_TYPES = sizeof types / sizeof types[0] };

static int type_find(const char *name) {
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(types[i].name, name) == 0) return i;
    return -1;
}

const char *safetensors_shape(const SafeTensor *t, char *buf, size_t n) {
    size_t at = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < t->n_dims && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
    if (at < n) snprintf(buf + at, n - at, "]");
    return buf;
}

/* ---- reading ---- */

static bool read_shape(SafeTensor *t, const json_t *shape, Err *e) {
    if (!json_is_array(shape) || json_array_size(shape) > SAFE_MAX_DIMS)
        return err(e, "tensor %.100s: \"shape\" is not a list of at most %d numbers", t->name,
                   (int)SAFE_MAX_DIMS);
    t->n_dims = (int)json_array_size(shape), t->size = 1;
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        t->dims[i] = json_integer_value(d);
        // 2^56 elements of 8 bytes still fit an offset
        if (!json_is_integer(d) || t->dims[i] < 0 ||
            __builtin_mul_overflow(t->size, t->dims[i], &t->size) || t->size > (int64_t)1 << 56)
            return err(
                e,
                "tensor %.100s: \"shape\" has a number that is negative, no integer or too large",
                t->name);
    }
    return true;
}

/* Reads one entry of the header: dtype, shape and offsets, which must agree. `data` is the file
 * offset of the values, n the size of the file. */
static bool read_entry(SafeTensor *t, const json_t *info, uint64_t data, uint64_t n, Err *e) {
    const json_t *dtype = json_object_get(info, "dtype");
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!json_is_string(dtype) || !json_is_integer(begin) || !json_is_integer(end) ||
        json_array_size(offsets) != 2)
        return err(e, "tensor %.100s: \"dtype\" and \"data_offsets\" [begin, end] are needed",
                   t->name);
    int type = type_find(json_string_value(dtype));
    if (type < 0)
        return err(e, "tensor %.100s: unknown dtype \"%.20s\"", t->name, json_string_value(dtype));
    t->dtype = types[type].name;
    if (!read_shape(t, json_object_get(info, "shape"), e)) return false;
    json_int_t b = json_integer_value(begin), z = json_integer_value(end);
    if (b < 0 || z < b || (uint64_t)z > n - data)
        return err(e,
                   "tensor %.100s: offsets [%lld, %lld] leave the %llu bytes of data: the file "
                   "is cut off or damaged",
                   t->name, (long long)b, (long long)z, (unsigned long long)(n - data));
    char shape[128];
    if (z - b != t->size * types[type].n_bytes)
        return err(e, "tensor %.100s has %lld bytes, not the size of %s %s", t->name,
                   (long long)(z - b), t->dtype, safetensors_shape(t, shape, sizeof shape));
    t->begin = data + (uint64_t)b, t->end = data + (uint64_t)z;
    return true;
}

static int by_offset(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static bool check_cover(const SafeTensors *s, uint64_t data, uint64_t n, Err *e) {
    uint64_t at = data;
    for (int i = 0; i < s->n; i++) {
        if (s->t[i].begin != at)
            return err(e, "tensor %.100s %s", s->t[i].name,
                       s->t[i].begin < at ? "overlaps another" : "leaves a hole before it");
        at = s->t[i].end;
    }
    if (at != n) return err(e, "%llu bytes follow the last tensor", (unsigned long long)(n - at));
    return true;
}

bool safetensors_parse(const uint8_t *p, size_t n, SafeTensors *out, Err *e) {
    *out = (SafeTensors){0};
    uint64_t len;
    if (n < 8) return err(e, "not a safetensors file: %zu bytes", n);
    memcpy(&len, p, 8);
    if (len > MAX_HEADER || len < 2 || len > n - 8 || p[8] != '{')
        return err(e, len <= MAX_HEADER && len > n - 8 && n > 8 && p[8] == '{'
                          ? "a safetensors file that is cut off inside its header"
                          : "not a safetensors file");
    json_error_t je;
    json_t *root = json_loadb((const char *)p + 8, (size_t)len, JSON_REJECT_DUPLICATES, &je);
    if (!root) return err(e, "the safetensors header is no JSON: %.150s", je.text);
    const uint64_t data = 8 + len;
    out->t = mem_calloc(json_object_size(root), sizeof *out->t);
    bool ok = true;
    const char *name;
    json_t *info;
    json_object_foreach(root, name, info) {
        if (strcmp(name, "__metadata__") == 0) continue;
        SafeTensor *t = &out->t[out->n++];
        t->name = mem_strdup(name);
        if (!read_entry(t, info, data, n, e)) {
            ok = false;
            break;
        }
        t->data = p + t->begin;
    }
    json_decref(root);
    if (!ok) return false;
    qsort(out->t, (size_t)out->n, sizeof *out->t, by_offset);
    return check_cover(out, data, n, e);
}

void safetensors_free(SafeTensors *s) {
    for (int i = 0; i < s->n; i++) mem_free(s->t[i].name);
    mem_free(s->t);
    *s = (SafeTensors){0};
}

const SafeTensor *safetensors_find(const SafeTensors *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->t[i].name, name) == 0) return &s->t[i];
    return NULL;
}

bool safetensors_is_float(const SafeTensor *t) {
    return strcmp(t->dtype, "F32") == 0 || strcmp(t->dtype, "BF16") == 0 ||
           strcmp(t->dtype, "F16") == 0;
}

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h >> 15) << 31, exp = h >> 10 & 31, frac = h & 1023, u;
    if (exp == 31)
        u = sign | 0x7f800000u | frac << 13;
    else if (exp > 0)
        u = sign | (exp + 112) << 23 | frac << 13;
    else { // zero or subnormal: frac * 2^-24, exact in fp32
        float x = (float)frac * 0x1p-24f;
        return sign ? -x : x;
    }
    float x;
    memcpy(&x, &u, 4);
    return x;
}

void safetensors_get(const SafeTensor *t, int64_t first, int64_t n, float *out) {
    if (t->dtype[0] == 'F' && t->dtype[1] == '3') {
        memcpy(out, t->data + first * 4, (size_t)n * 4);
        return;
    }
    bool bf16 = t->dtype[0] == 'B';
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, t->data + (first + i) * 2, 2);
        out[i] = bf16 ? bf16_to_float(h) : half_to_float(h);
    }
}

/* ---- a sharded model's index ---- */

static bool plain_name(const char *s) {
    return s[0] && s[0] != '.' && !strchr(s, '/') && !strchr(s, '\\') && strlen(s) < 256;
}

int safetensors_index_parse(const char *text, size_t n, char **files, int max, Err *e) {
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    json_t *map = json_object_get(root, "weight_map"), *file;
    int found = 0;
    bool ok = json_is_object(map) && json_object_size(map) > 0;
    if (!ok) err(e, "no index of a sharded model: \"weight_map\" with tensors is needed");
    const char *name;
    json_object_foreach(map, name, file) {
        if (!ok) break;
        const char *s = json_string_value(file);
        int i = 0;
        if (!s || !plain_name(s)) {
            ok = err(e, "tensor %.100s: its file must be a plain name", name);
            break;
        }
        while (i < found && strcmp(files[i], s) != 0) i++;
        if (i < found) continue;
        if (found == max) {
            ok = err(e, "the index names more than %d files", max);
            break;
        }
        files[found++] = mem_strdup(s);
    }
    json_decref(root);
    if (ok) return found;
    while (found > 0) mem_free(files[--found]);
    return -1;
}

/* ---- writing ---- */

int safetensors_add(SafeTensors *list, const char *name, const char *dtype, int n_dims,
                    const int64_t *dims) {
    list->t = mem_realloc(list->t, (size_t)list->n + 1, sizeof *list->t);
    SafeTensor *t = &list->t[list->n];
    *t = (SafeTensor){.name = mem_strdup(name), .n_dims = n_dims, .size = 1};
    t->dtype = types[type_find(dtype)].name;
    for (int i = 0; i < n_dims; i++) t->dims[i] = dims[i], t->size *= dims[i];
    return list->n++;
}

/* Places the tensors one after another and returns the header's JSON (freed by mem_free). begin and
 * end count from the end of the header, whose length is not yet known. */
static char *make_header(SafeTensors *list) {
    json_t *root = json_object();
    json_object_set_new(root, "__metadata__", json_pack("{s:s}", "format", "pt"));
    uint64_t at = 0;
    for (int i = 0; i < list->n; i++) {
        SafeTensor *t = &list->t[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
        t->begin = at;
        t->end = at += (uint64_t)t->size * (uint64_t)types[type_find(t->dtype)].n_bytes;
        json_object_set_new(root, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape,
                                      "data_offsets", (json_int_t)t->begin, (json_int_t)t->end));
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

bool safetensors_create(SafeWriter *w, const char *path, SafeTensors *list, const Group *g,
                        Err *e) {
    *w = (SafeWriter){.list = *list, .group = g};
    *list = (SafeTensors){0};
    char *json = make_header(&w->list);
    // Spaces after the JSON move the data to a multiple of 64 bytes: in a mapped file it is aligned
    // for any vector.
    uint64_t n_json = strlen(json), len = (8 + n_json + 63) / 64 * 64 - 8;
    char *header = mem_alloc(8 + len);
    memset(header, ' ', 8 + len);
    memcpy(header, &len, 8);
    memcpy(header + 8, json, n_json);
    mem_free(json);
    for (int i = 0; i < w->list.n; i++) w->list.t[i].begin += 8 + len, w->list.t[i].end += 8 + len;
    w->n_bytes = w->list.n > 0 ? w->list.t[w->list.n - 1].end : 8 + len;
    bool ok = io_share(&w->file, path, w->n_bytes, g, e);
    if (ok && !group_agree(g, g->rank > 0 || io_put(&w->file, 0, header, 8 + len, e), e))
        ok = io_share_finish(&w->file, false, g, NULL, e);
    mem_free(header);
    if (!ok) safetensors_free(&w->list);
    return ok;
}

bool safetensors_put(IoFile *f, const SafeTensor *t, int64_t first, int64_t n, const float *x,
                     Err *e) {
    if (t->dtype[0] == 'F') return io_put(f, t->begin + (uint64_t)first * 4, x, (size_t)n * 4, e);
    enum { CHUNK = 16384 };
    uint16_t half[CHUNK];
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t m = n - at < CHUNK ? n - at : CHUNK;
        for (int64_t j = 0; j < m; j++) half[j] = bf16_from_float(x[at + j]);
        if (!io_put(f, t->begin + (uint64_t)(first + at) * 2, half, (size_t)m * 2, e)) return false;
    }
    return true;
}

bool safetensors_finish(SafeWriter *w, bool ok, uint64_t *n_bytes, uint32_t *crc, Err *e) {
    safetensors_free(&w->list);
    if (n_bytes) *n_bytes = w->n_bytes;
    return io_share_finish(&w->file, ok, w->group, crc, e);
}
