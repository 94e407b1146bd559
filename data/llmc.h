/* llmc -- GPT-2 checkpoints of llm.c, and what the headers of all its files have in common.
 *
 * Little-endian; 256 int32 of header, then the tensors without padding between them.
 *
 *   model   h = LLMC_MODEL, version, longest sequence, V, L, H, C, Vp; version 3 is fp32, 5 is bf16
 *
 * Sixteen tensors in this order, those of the blocks stacked over layers:
 *
 *   wte[Vp,C]    wpe[S,C]    ln1w[L,C]         ln1b[L,C]       qkvw[L,3C,C]  qkvb[L,3C]
 *   attprojw[L,C,C]          attprojb[L,C]     ln2w[L,C]       ln2b[L,C]
 *   fcw[L,4C,C]  fcb[L,4C]   fcprojw[L,C,4C]   fcprojb[L,C]    lnfw[C]       lnfb[C]
 *
 * Vp is V rounded up to 128, the rows from V on are zero; matrices are [out, in], ours are [in,
 * out]. Source: github.com/karpathy/llm.c, train_gpt2.py (write_model).
 */
#ifndef DATA_LLMC_H
#define DATA_LLMC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/die.h"
#include "base/group.h"
#include "base/tensor.h"

/* The first word of a header says what the file is, the second has its version. */
enum {
    LLMC_MODEL = 20240326, // GPT-2
    LLMC_DEBUG_STATE = 20240327,
    LLMC_TOKENIZER = 20240328,
    LLMC_TOKENS_16 = 20240520,
    LLMC_EVALUATION = 20240522,
    LLMC_OPTIMIZER = 20240527,
    LLMC_TOKENS_32 = 20240801,
    LLMC_LLAMA = 20240803
};
enum { LLMC_HEADER = 1024 }; // bytes
/* Word i of a file of n bytes at p; 0: the file is shorter. */
static inline int32_t llmc_word(const uint8_t *p, size_t n, size_t i) {
    int32_t word = 0;
    if (n >= 4 * i + 4) memcpy(&word, p + 4 * i, sizeof word);
    return word;
}

enum { LLMC_FP32 = 3, LLMC_BF16 = 5 }; // versions of LLMC_MODEL

typedef struct LlmcModel {
    Config config;
    int version;         // LLMC_FP32 or LLMC_BF16
    int64_t padded;      // Vp
    const uint8_t *file; // the bytes of the file, of any alignment
} LlmcModel;

/* Local, pure. Checks magic, version and that the file has exactly the bytes its header promises.
 */
bool llmc_model_parse(const uint8_t *p, size_t n, LlmcModel *out, Err *e);
/* Local. Fills what this rank holds of every param of the table. The table's config must be the
 * model's. */
void llmc_model_read(const LlmcModel *m, const TensorTable *t);

/* Local. For files; called by weights_load and weights_config (data/weights.h) for FILE.bin. */
bool llmc_model_config(const char *path, Config *c, Err *e);
bool llmc_model_load(const char *path, const TensorTable *t, Err *e);
/* Pure. Can the format hold such a model? If not, e names the first key that does not fit, or
 * the keys that make GPT-2's shape. */
bool llmc_model_fits(const Config *c, Err *e);
/* Collective. Writes every param to a temporary file, synced, then renamed. Refuses a model that
 * the format cannot hold: other than GPT-2's shape, ffn other than 4C, untied, eps other than 1e-5.
 * version is LLMC_FP32 or LLMC_BF16. */
bool llmc_model_save(const char *path, const TensorTable *t, int version, const Group *g, Err *e);

#endif
