/* safetensors -- Hugging Face's tensor files.
 *
 *   u64 n, then n bytes of JSON, then the data
 *   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *
 * Little-endian, row-major, offsets count from the end of the JSON; the tensors cover the rest of
 * the file without holes. Source: https://github.com/huggingface/safetensors (README, "Format").
 */
#ifndef DATA_SAFETENSORS_H
#define DATA_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "base/group.h"
#include "data/io.h"

enum { SAFE_MAX_DIMS = 8 };

typedef struct SafeTensor {
    char *name;
    // "F32", "BF16", "F16", or another type of the format, whose values cannot be read
    const char *dtype;
    int n_dims;
    int64_t dims[SAFE_MAX_DIMS];
    int64_t size;        // elements
    uint64_t begin, end; // bytes in the file
    const uint8_t *data; // of a parsed file: the values, of any alignment
} SafeTensor;

typedef struct SafeTensors {
    SafeTensor *t;
    int n;
} SafeTensors;

/* Local, pure. Reads the table of a file in memory, which must outlive `out` (freed by
 * safetensors_free, also after failure). Checks every length: the header, offsets against file and
 * shape, order, holes, repeated names, types. */
bool safetensors_parse(const uint8_t *p, size_t n, SafeTensors *out, Err *e);
void safetensors_free(SafeTensors *s);
/* Local. The tensor of that name; NULL: none. */
const SafeTensor *safetensors_find(const SafeTensors *s, const char *name);
/* Local. Is it a type that safetensors_get reads: F32, BF16 or F16? */
bool safetensors_is_float(const SafeTensor *t);
/* Local. Elements [first, first + n) as fp32. BF16 and F16 widen exactly. */
void safetensors_get(const SafeTensor *t, int64_t first, int64_t n, float *out);
/* Local. "[2, 3]" into buf. */
const char *safetensors_shape(const SafeTensor *t, char *buf, size_t n);

/* Local, pure. Reads the distinct file names of a model.safetensors.index.json, at most max.
 * Returns their number, or -1 with the reason. The names have no folders and are freed by
 * mem_free. */
int safetensors_index_parse(const char *text, size_t n, char **files, int max, Err *e);

/* Writing: first the table, which gives every tensor its range in the file. Then all ranks write
 * values, in any order. Elements that are never put stay zero. */
typedef struct SafeWriter {
    IoFile file;
    SafeTensors list;
    uint64_t n_bytes; // size of the file
    const Group *group;
} SafeWriter;

/* Local. Adds a tensor to the list: dtype "F32" or "BF16". Returns its index. */
int safetensors_add(SafeTensors *list, const char *name, const char *dtype, int n_dims,
                    const int64_t *dims);
/* Collective. Takes ownership of the list, also on failure; the list must be the same on all ranks.
 * Places the tensors and writes the header. */
bool safetensors_create(SafeWriter *w, const char *path, SafeTensors *list, const Group *g, Err *e);
/* Local. Writes elements [first, first + n) of a tensor that has its range in the file (w.list.t[i]
 * in w.file of the writer). BF16 rounds to nearest even. */
bool safetensors_put(IoFile *f, const SafeTensor *t, int64_t first, int64_t n, const float *x,
                     Err *e);
/* Collective. Syncs and closes. ok: all puts of this rank succeeded. When a rank failed, all get
 * false, and rank 0's caller removes the file. *n_bytes, *crc: size and checksum; NULL: none. */
bool safetensors_finish(SafeWriter *w, bool ok, uint64_t *n_bytes, uint32_t *crc, Err *e);

#endif
