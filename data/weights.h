/* weights -- the values of a model, between the table of tensors and files.
 *
 * A file tensor is a Piece of a table tensor (base/tensor.h): some of its columns, as they are or
 * transposed. `--init` takes
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

#include "base/die.h"
#include "base/tensor.h"
#include "data/safetensors.h"

/* Local. The model that a file or folder holds. */
bool weights_config(const char *path, Config *c, Err *e);
/* Local. Fills every param of the table. Refuses, naming the tensor and both shapes, what is
 * missing, extra or of another shape. */
bool weights_load(const char *path, const TensorTable *t, Err *e);
/* Local. Writes every param as one safetensors file with Hugging Face names; dtype "F32" (exact) or
 * "BF16". Size and checksum of the file as io_finish gives them. */
bool weights_save(const char *path, const TensorTable *t, const char *dtype, uint64_t *n_bytes,
                  uint32_t *crc, Err *e);
/* Local. Writes config.json and model.safetensors into a folder, made where it is missing: what `transformers` loads. A
 * failure leaves what was there. */
bool weights_export(const char *dir, const TensorTable *t, const char *dtype, Err *e);

/* Local. The shape of a piece in the file: 1 dimension for a vector, else 2. Returns their number.
 */
int piece_dims(const Piece *p, const Tensor *t, int64_t dims[2]);
/* Local. Rows [row, row + n) of the file tensor, from and to the table tensor's values (all of
 * them, row-major). */
void piece_gather(const Piece *p, const Tensor *t, const float *values, int64_t row, int64_t n,
                  float *file_rows);
void piece_scatter(const Piece *p, const Tensor *t, float *values, int64_t row, int64_t n,
                   const float *file_rows);

#endif
