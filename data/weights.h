/* weights -- weights of a model: from files into the table of tensors, and back.
 *
 * All ranks read and write the same files. Each rank handles what it holds of the table
 * (data/slice.h), and all agree on success and on its reason. `--init` takes
 *
 *   a folder            config.json + model.safetensors, or model.safetensors.index.json + shards
 *   FILE.safetensors    with config.json beside it
 *   FILE.bin            an llm.c GPT-2 checkpoint (data/llmc.h)
 *
 * Tensors of type F32, BF16 and F16 are read. Names may have Hugging Face's prefix "transformer."
 * or "model." or lack it. Buffers (attn.bias, attn.masked_bias, rotary_emb.inv_freq) and, in a tied
 * model, lm_head.weight are skipped.
 */
#ifndef DATA_WEIGHTS_H
#define DATA_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/die.h"
#include "base/group.h"
#include "base/tensor.h"

/* Local. Is the path that of a file of weights with this ending? A folder may have any name. */
bool weights_named(const char *path, const char *ending);
/* Local. Does a file or folder describe its model? A .safetensors file without config.json beside
 * it does not. */
bool weights_described(const char *path);
/* Local. Reads the ids of end and begin of text in generation_config.json or config.json, if
 * any. */
void weights_ids(const char *path, Config *c);
/* Local. The model that a file or folder holds, with its ids of end and begin of text. */
bool weights_config(const char *path, Config *c, Err *e);
/* Collective. Fills every param of the table. Refuses a tensor that is missing, extra or of another
 * shape, with its name and shapes. */
bool weights_load(const char *path, const TensorTable *t, const Group *g, Err *e);
/* Collective. Writes every param as one safetensors file with Hugging Face names; dtype "F32"
 * (exact) or "BF16". *n_bytes and *crc are size and checksum of the file (either may be NULL). The
 * bytes of the file do not depend on the mesh. */
bool weights_save(const char *path, const TensorTable *t, const char *dtype, const Group *g,
                  uint64_t *n_bytes, uint32_t *crc, Err *e);
/* Local. Paths of the files that weights_export writes; freed by mem_free. */
enum { EXPORT_FILES = 3 };
void weights_export_paths(const char *dir, char *paths[EXPORT_FILES]);
/* Collective. Writes what `transformers` loads into a folder, made where it is missing:
 * config.json, model.safetensors and, where end-of-text ids are known, generation_config.json. A
 * failure leaves the older files as they were. */
bool weights_export(const char *dir, const TensorTable *t, const char *dtype, const Group *g,
                    Err *e);
/* Collective. A hash of the logical params, the same for every mesh: the sum modulo 2^64, which
 * does not depend on the order, of hashes of (tensor name, element index, bits of the element). */
uint64_t weights_digest(const TensorTable *t, const Group *g);

#endif
