#include "data/llmc.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/simd.h"
#include "data/hf_config.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/output.h"
#include "data/piece.h"

enum {
    MODEL_MAGIC = 20240326,
    STATE_MAGIC = 20240327,
    LLAMA_MAGIC = 20240803,
    HEADER_BYTES = 1024
};

enum { LLMC_TENSORS = 16 };

/* Rows and columns in units of C (or 1, V, S), as the file stores one layer. */
static const struct {
    const char *theirs, *ours; // names
    int rows, cols;            // in C; 0 rows is a vector of one row; wte and wpe are set apart
    bool layered, transposed;
} kinds[LLMC_TENSORS] = {{"wte", "wte", 0, 1, false, false},
                         {"wpe", "wpe", 0, 1, false, false},
                         {"ln1w", "ln1.weight", 0, 1, true, false},
                         {"ln1b", "ln1.bias", 0, 1, true, false},
                         {"qkvw", "qkv.weight", 3, 1, true, true},
                         {"qkvb", "qkv.bias", 0, 3, true, false},
                         {"attprojw", "attn_out.weight", 1, 1, true, true},
                         {"attprojb", "attn_out.bias", 0, 1, true, false},
                         {"ln2w", "ln2.weight", 0, 1, true, false},
                         {"ln2b", "ln2.bias", 0, 1, true, false},
                         {"fcw", "up.weight", 4, 1, true, true},
                         {"fcb", "up.bias", 0, 4, true, false},
                         {"fcprojw", "down.weight", 1, 4, true, true},
                         {"fcprojb", "down.bias", 0, 1, true, false},
                         {"lnfw", "lnf.weight", 0, 1, false, false},
                         {"lnfb", "lnf.bias", 0, 1, false, false}};

static int64_t padded_vocab(int64_t vocab) {
    return (vocab + 127) / 128 * 128;
}

/* One of the sixteen, and where it lies in our table. */
typedef struct LlmcTensor {
    int64_t layers;     // L, or 1
    int64_t rows, cols; // of one layer in the file
    int64_t offset;     // elements before it
    bool transposed;    // ours is [cols, rows]
} LlmcTensor;

static LlmcTensor llmc_tensor(const Config *c, int k) {
    LlmcTensor t = {0};
    for (int64_t at = 0, i = 0; i <= k; i++) {
        t = (LlmcTensor){.offset = at, .transposed = kinds[i].transposed};
        t.layers = kinds[i].layered ? c->layers : 1;
        t.rows = i == 0 ? padded_vocab(c->vocab) : i == 1 ? c->seq : kinds[i].rows * c->channels;
        if (t.rows == 0) t.rows = 1;
        t.cols = kinds[i].cols * c->channels;
        at += t.layers * t.rows * t.cols;
    }
    return t;
}

static int64_t all_elements(const Config *c) {
    LlmcTensor last = llmc_tensor(c, LLMC_TENSORS - 1);
    return last.offset + last.layers * last.rows * last.cols;
}

static int llmc_find(const TensorTable *t, int k, int l) {
    char name[64];
    if (!kinds[k].layered) return tensors_find(t, kinds[k].ours);
    snprintf(name, sizeof name, "h.%d.%s", l, kinds[k].ours);
    return tensors_find(t, name);
}

static bool read_header(const uint8_t *p, size_t n, int32_t h[8], Err *e) {
    if (n < HEADER_BYTES) return err(e, "not an llm.c file: %zu bytes", n);
    memcpy(h, p, 8 * sizeof *h);
    return true;
}

static bool check_model_version(const int32_t h[8], Err *e) {
    if (h[0] == LLAMA_MAGIC)
        return err(e, "an llm.c Llama checkpoint; convert it to safetensors (its layouts share one "
                      "magic number and cannot be told apart)");
    if (h[0] == STATE_MAGIC) return err(e, "an llm.c debug state, not a model");
    if (h[0] != MODEL_MAGIC) return err(e, "not an llm.c model (magic %d)", h[0]);
    if (h[1] == LLMC_FP32 || h[1] == LLMC_BF16) return true;
    const char *was = h[1] == 1   ? "fp32 without vocabulary padding"
                      : h[1] == 2 ? "bf16 without vocabulary padding"
                      : h[1] == 4 ? "bf16 with fp32 layer norms"
                                  : "unknown";
    return err(e,
               "version %d of an llm.c model (%s); 3 (fp32) and 5 (bf16) are read: write it again "
               "with a current train_gpt2.py",
               h[1], was);
}

bool llmc_model_parse(const uint8_t *p, size_t n, LlmcModel *out, Err *e) {
    int32_t h[8];
    if (!read_header(p, n, h, e) || !check_model_version(h, e)) return false;
    Config c = {.seq = h[2],
                .vocab = h[3],
                .layers = h[4],
                .heads = h[5],
                .kv_heads = h[5],
                .channels = h[6],
                .bias = true,
                .tied = true,
                .norm_eps = 1e-5,
                .rope_theta = 10000};
    c.ffn = 4 * c.channels;
    if (!config_check(&c, e)) return false;
    if (h[7] != padded_vocab(c.vocab))
        return err(e, "vocabulary %d padded to %d; %lld was expected", h[3], h[7],
                   (long long)padded_vocab(c.vocab));
    *out = (LlmcModel){.config = c, .version = h[1], .padded = h[7], .data = p + HEADER_BYTES};
    // Every dimension is at most 2^24, so layers * 4C * C needs 74 bits: check by division.
    uint64_t width = h[1] == LLMC_FP32 ? 4 : 2, have = (n - HEADER_BYTES) / width;
    uint64_t C = (uint64_t)c.channels;
    if ((uint64_t)c.layers > have / C / C || (uint64_t)all_elements(&c) != have ||
        n != HEADER_BYTES + have * width)
        return err(e,
                   "the file has %zu bytes, not what a model of %d layers, %d channels and "
                   "vocabulary %d takes: it is cut off or damaged",
                   n, h[4], h[6], h[3]);
    return true;
}

/* Tensor k of layer l of a file, as an array without a name: its place, and what this rank holds of
 * it. */
static SafeTensor place(const Config *c, int version, int k, int l) {
    LlmcTensor x = llmc_tensor(c, k);
    uint64_t width = version == LLMC_FP32 ? 4 : 2;
    uint64_t first = (uint64_t)(x.offset + l * x.rows * x.cols);
    return (SafeTensor){.dtype = version == LLMC_FP32 ? "F32" : "BF16",
                        .begin = HEADER_BYTES + first * width};
}

void llmc_model_read(const LlmcModel *m, const TensorTable *t) {
    for (int k = 0; k < LLMC_TENSORS; k++) {
        LlmcTensor x = llmc_tensor(&m->config, k);
        for (int l = 0; l < x.layers; l++) {
            const Tensor *to = &t->t[llmc_find(t, k, l)];
            SafeTensor from = place(&m->config, m->version, k, l);
            from.data = m->data + (from.begin - HEADER_BYTES);
            Piece p = piece_whole(to, x.transposed);
            piece_get(&(PieceHeld){&p, to, PART_PARAM, to->param}, &from);
        }
    }
}

/* ---- files ---- */

static bool open_model(const char *path, IoMap *map, LlmcModel *m, Err *e) {
    Err why;
    if (!io_map(map, path, e)) return false;
    if (llmc_model_parse(map->p, map->n, m, &why)) return true;
    io_unmap(map);
    return err(e, "%.200s: %.300s", path, why.text);
}

bool llmc_model_config(const char *path, Config *c, Err *e) {
    IoMap map;
    LlmcModel m;
    if (!open_model(path, &map, &m, e)) return false;
    *c = m.config;
    io_unmap(&map);
    return true;
}

bool llmc_model_load(const char *path, const TensorTable *t, Err *e) {
    IoMap map;
    LlmcModel m;
    if (!open_model(path, &map, &m, e)) return false;
    char have[512], need[512];
    bool ok = config_equal(&m.config, &t->config);
    config_print(&m.config, have, sizeof have);
    config_print(&t->config, need, sizeof need);
    if (ok) llmc_model_read(&m, t);
    io_unmap(&map);
    return ok || err(e, "%.100s holds %.160s; the model is %.160s", path, have, need);
}

/* The rows that pad the vocabulary are never put: zero. */
static bool put_tensors(IoFile *f, const TensorTable *t, int version, Err *e) {
    for (int k = 0; k < LLMC_TENSORS; k++) {
        LlmcTensor x = llmc_tensor(&t->config, k);
        for (int l = 0; l < x.layers; l++) {
            const Tensor *from = &t->t[llmc_find(t, k, l)];
            SafeTensor to = place(&t->config, version, k, l);
            Piece p = piece_whole(from, x.transposed);
            if (!piece_put(&(PieceHeld){&p, from, PART_PARAM, from->param}, f, &to, e))
                return false;
        }
    }
    return true;
}

bool llmc_model_fits(const Config *c, Err *e) {
    const char *key = hf_config_kind(c) != HF_GPT2        ? "norm, pos, act, bias, kv_heads"
                      : c->ffn != 4 * c->channels         ? "ffn"
                      : !c->tied                          ? "tied"
                      : (float)c->norm_eps != (float)1e-5 ? "eps"
                                                          : NULL;
    return !key || err(e, "an llm.c file cannot hold this model (%s): save safetensors", key);
}

bool llmc_model_save(const char *path, const TensorTable *t, int version, const Group *g, Err *e) {
    const Config *c = &t->config;
    if (!llmc_model_fits(c, e)) return false;
    int32_t h[256] = {MODEL_MAGIC,          version,
                      (int32_t)c->seq,      (int32_t)c->vocab,
                      (int32_t)c->layers,   (int32_t)c->heads,
                      (int32_t)c->channels, (int32_t)padded_vocab(c->vocab)};
    IoFile f;
    Output out = {0};
    uint64_t width = version == LLMC_FP32 ? 4 : 2;
    bool first = g->rank == 0;
    bool ok = group_agree(g, !first || output_open_regular(&out, path, e), e);
    char *part = group_share_text(g, out.part);
    ok = ok && io_share(&f, part, HEADER_BYTES + (uint64_t)all_elements(c) * width, g, e);
    if (ok) {
        bool put = (!first || io_put(&f, 0, h, sizeof h, e)) && put_tensors(&f, t, version, e);
        ok = io_share_finish(&f, put, g, NULL, e);
    }
    ok = ok && group_agree(g, !first || output_commit(&out, e), e);
    output_abandon(&out);
    if (!ok) group_barrier(g); // what was begun is removed before any rank ends the program
    mem_free(part);
    return ok;
}
