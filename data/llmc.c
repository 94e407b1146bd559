#include "data/llmc.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/hf_config.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/output.h"
#include "data/slice.h"

/* Names of our tensors in the order of the file. A tensor of the blocks is stored for all layers,
 * one after another. */
static const char *const names[] = {"wte",         "wpe",       "ln1.weight",      "ln1.bias",
                                    "qkv.weight",  "qkv.bias",  "attn_out.weight", "attn_out.bias",
                                    "ln2.weight",  "ln2.bias",  "up.weight",       "up.bias",
                                    "down.weight", "down.bias", "lnf.weight",      "lnf.bias"};
enum { FIRST_OF_BLOCKS = 2, AFTER_BLOCKS = 14, N_NAMES = 16 };

static int64_t padded_vocab(int64_t vocab) {
    return (vocab + 127) / 128 * 128;
}

/* Bytes of a file. No overflow: config_check allows at most 2^50 parameters. */
static uint64_t file_size(const Config *c, int version) {
    int64_t elements = config_parameters(c) + (padded_vocab(c->vocab) - c->vocab) * c->channels;
    return LLMC_HEADER + (uint64_t)elements * (version == LLMC_FP32 ? 4 : 2);
}

static bool check_model_version(const int32_t h[8], Err *e) {
    if (h[0] == LLMC_LLAMA)
        return err(e, "an llm.c Llama checkpoint; convert it to safetensors (its layouts share one "
                      "magic number and cannot be told apart)");
    if (h[0] == LLMC_DEBUG_STATE) return err(e, "an llm.c debug state, not a model");
    if (h[0] != LLMC_MODEL) return err(e, "not an llm.c model (magic %d)", h[0]);
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
    if (n < LLMC_HEADER) return err(e, "not an llm.c file: %zu bytes", n);
    memcpy(h, p, sizeof h);
    if (!check_model_version(h, e)) return false;
    Config c = {.seq = h[2],
                .vocab = h[3],
                .layers = h[4],
                .heads = h[5],
                .kv_heads = h[5],
                .channels = h[6],
                .bias = true,
                .tied = true,
                .norm_eps = 1e-5,
                .rope_theta = 10000,
                .rope_factor = 1,
                .rope_seq = ROPE_SEQ};
    c.ffn = 4 * c.channels;
    if (!config_check(&c, e)) return false;
    if (h[7] != padded_vocab(c.vocab))
        return err(e, "vocabulary %d padded to %d; %lld was expected", h[3], h[7],
                   (long long)padded_vocab(c.vocab));
    *out = (LlmcModel){.config = c, .version = h[1], .padded = h[7], .file = p};
    if (n != file_size(&c, h[1]))
        return err(e,
                   "the file has %zu bytes, not what a model of %d layers, %d channels and "
                   "vocabulary %d takes: it is cut off or damaged",
                   n, h[4], h[6], h[3]);
    return true;
}

/* Walks over all tensors in the order of the file. Writes them to `to`; where `to` is NULL, reads
 * them from `file`. */
static bool move_tensors(const TensorTable *t, int version, const uint8_t *file, IoFile *to,
                         Err *e) {
    uint64_t at = LLMC_HEADER, width = version == LLMC_FP32 ? 4 : 2;
    for (int k = 0; k < N_NAMES; k++) {
        bool in_blocks = k >= FIRST_OF_BLOCKS && k < AFTER_BLOCKS;
        for (int l = 0; l < (in_blocks ? t->config.layers : 1); l++) {
            char name[64];
            snprintf(name, sizeof name, "h.%d.%s", l, names[k]);
            const Tensor *x = &t->t[tensors_find(t, in_blocks ? name : names[k])];
            TensorSlice p = slice_whole(x, in_blocks && x->rows > 1);
            LocalSlice h = {&p, x, PART_PARAM, x->param};
            SafeTensor s = {.dtype = width == 4 ? "F32" : "BF16", .begin = at};
            if (to && !slice_put(&h, to, &s, e)) return false;
            if (file) s.data = file + at, slice_get(&h, &s);
            // rows from V to Vp of wte stay zero
            int64_t rows = k == 0 ? padded_vocab(x->rows) : x->rows;
            at += (uint64_t)(rows * x->cols) * width;
        }
    }
    return true;
}

void llmc_model_read(const LlmcModel *m, const TensorTable *t) {
    move_tensors(t, m->version, m->file, NULL, NULL);
}

/* ---- files ---- */

static bool open_model(const char *path, IoMap *map, LlmcModel *m, Err *e) {
    if (!io_map(map, path, e)) return false;
    if (llmc_model_parse(map->p, map->n, m, e)) return true;
    io_unmap(map);
    return err_in(e, path);
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

bool llmc_model_fits(const Config *c, Err *e) {
    const char *key = hf_config_kind(c) != HF_GPT2
                          ? "norm, pos, act, bias, kv_heads, head_dim, qk_norm"
                      : c->ffn != 4 * c->channels         ? "ffn"
                      : !c->tied                          ? "tied"
                      : (float)c->norm_eps != (float)1e-5 ? "eps"
                                                          : NULL;
    return !key || err(e, "an llm.c file cannot hold this model (%s): save safetensors", key);
}

bool llmc_model_save(const char *path, const TensorTable *t, int version, const Group *g, Err *e) {
    const Config *c = &t->config;
    if (!llmc_model_fits(c, e)) return false;
    int32_t h[256] = {LLMC_MODEL,           version,
                      (int32_t)c->seq,      (int32_t)c->vocab,
                      (int32_t)c->layers,   (int32_t)c->heads,
                      (int32_t)c->channels, (int32_t)padded_vocab(c->vocab)};
    IoFile f;
    Output out = {0};
    bool first = g->rank == 0;
    bool ok = group_agree(g, !first || output_open(&out, path, true, e), e);
    char *part = group_broadcast_text(g, out.part);
    ok = ok && io_share(&f, part, file_size(c, version), g, e);
    if (ok) {
        bool put =
            (!first || io_put(&f, 0, h, sizeof h, e)) && move_tensors(t, version, NULL, &f, e);
        ok = io_share_finish(&f, put, g, NULL, e);
    }
    ok = ok && group_agree(g, !first || output_commit(&out, e), e);
    output_abandon(&out);
    if (!ok) group_barrier(g); // rank 0 has removed its file before any rank may end the program
    mem_free(part);
    return ok;
}
