/* weights -- the values of a model, between the table of tensors and files.
 *
 * All ranks read and write the same files, each what it holds of the table (data/piece.h), and
 * agree on success and on its reason. `--init` takes
 *
 *   a folder            config.json + model.safetensors, or model.safetensors.index.json + shards
 *   FILE.safetensors    with config.json beside it
 *   FILE.bin            an llm.c GPT-2 checkpoint (data/llmc.h)
 *
 * Tensors of type F32, BF16 and F16 are read. Names may have Hugging Face's prefix "transformer."
 * or "model." or lack it; buffers (attn.bias, attn.masked_bias, rotary_emb.inv_freq) and, in a tied
 * model, lm_head.weight are passed over.
 */
#ifndef DATA_WEIGHTS_H
#define DATA_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/die.h"
#include "base/group.h"
#include "base/tensor.h"

/* Local. Does a file or folder describe its model? A .safetensors file without config.json does
 * not. */
bool weights_described(const char *path);
/* Local. The ids of ends and begins that a folder's generation_config.json or config.json has, if
 * any. */
void weights_ids(const char *path, Config *c);
/* Local. The model that a file or folder holds, with those ids. */
bool weights_config(const char *path, Config *c, Err *e);
/* Collective. Fills every param of the table. Refuses, naming the tensor and both shapes, what is
 * missing, extra or of another shape. */
bool weights_load(const char *path, const TensorTable *t, const Group *g, Err *e);
/* Collective. Writes every param as one safetensors file with Hugging Face names; dtype "F32"
 * (exact) or "BF16". Size and checksum of the file to n_bytes and crc (either may be NULL). The
 * bytes do not depend on who holds what. */
bool weights_save(const char *path, const TensorTable *t, const char *dtype, const Group *g,
                  uint64_t *n_bytes, uint32_t *crc, Err *e);
/* Local. The files of weights_export; freed by mem_free. */
enum { EXPORT_FILES = 3 };
void weights_export_paths(const char *dir, char *paths[EXPORT_FILES]);
/* Collective. Writes config.json, model.safetensors and, where ids of ends are known,
 * generation_config.json into a folder, made where it is missing: what `transformers` loads. A
 * failure leaves what was there. */
bool weights_export(const char *dir, const TensorTable *t, const char *dtype, const Group *g,
                    Err *e);
/* Collective. A hash of the logical params, the same for every mesh: the sum modulo 2^64, in any
 * order, of hashes of (name of the tensor, index of the element, its bits). */
uint64_t weights_digest(const TensorTable *t, const Group *g);

#endif
