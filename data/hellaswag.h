/* hellaswag -- multiple choice by likelihood, from llm.c's evaluation file (hellaswag_val.bin).
 *
 * The file: int32 header[256] = LLMC_EVALUATION, version 1, examples, bytes of the longest example;
 * then per example a uint16 stream
 *
 *     65535, bytes of this example, its index, label, 4, length and tokens of the context,
 *     4 times length and tokens of a completion
 *
 * It is made from HellaSwag's own JSON lines
 *
 *     {"ctx": "A man is", "label": 3, "endings": ["sitting.", "up a tree.", "a fish.", "a."], ...}
 *
 * whose label may be a text ("3"), as in the copy of the data set that Hugging Face hosts. As in
 * llm.c a completion is encoded with a blank before it, the context as it is, and no token of an
 * end of text is added.
 *
 * A model's answer is the completion whose tokens have the lowest mean loss after the context
 * (llm.c's acc_norm; that of lm-evaluation-harness divides by characters, not by tokens). Source:
 * llm.c dev/data/data_common.py and llmc/dataloader.h (layout only).
 */
#ifndef DATA_HELLASWAG_H
#define DATA_HELLASWAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "data/io_map.h"
#include "data/tokenizer.h"

enum { HELLASWAG_CHOICES = 4 };

typedef struct HellaSwag {
    int64_t n;           // examples
    const uint8_t *data; // the file
    int64_t *at;         // [n] byte offset of each example's delimiter; owned
    int64_t longest_row; // tokens of the longest row: context + completion
    int64_t max_id;      // largest token id
    IoMap file;          // zero when parsed from memory
} HellaSwag;

/* Local, pure but for the table it allocates (hellaswag_close frees it; on false nothing is left).
 * Every length is checked: delimiter, size, running index, label, four completions, no empty
 * context or completion, no bytes after the last example. */
bool hellaswag_parse(const uint8_t *p, size_t n, HellaSwag *out, Err *e);
/* Local. Maps and parses a file and checks its ids against the vocabulary; dies with a line that
 * names the defect. */
HellaSwag hellaswag_open(const char *path, int64_t vocab);
void hellaswag_close(HellaSwag *h);

/* Local. The right answer of an example, 0 .. 3. */
int hellaswag_label(const HellaSwag *h, int64_t example);
/* Local. Tokens of the longest row (context + completion) of an example. A row of more than S + 1
 * tokens cannot be scored. */
int64_t hellaswag_length(const HellaSwag *h, int64_t example);
/* Local. inputs and targets [S] of row c of an example: context, then completion c. A target is the
 * next token where that token belongs to the completion, else -1. Inputs after the end of the row
 * are 0: causal attention hides them from the tokens before. */
void hellaswag_row(const HellaSwag *h, int64_t example, int c, int64_t S, int32_t *inputs,
                   int32_t *targets);
/* Local. The row of loss [4, S] with the lowest mean over its completion, the first among equals;
 * -1 when no mean is finite. */
int hellaswag_pick(const HellaSwag *h, int64_t example, const float *loss, int64_t S);

/* Local. Makes the bytes of an evaluation file from HellaSwag's JSON lines; freed by mem_free. NULL
 * and a reason that names the line when the text is damaged. */
uint8_t *hellaswag_encode(const uint8_t *text, size_t n, const Tokenizer *t, size_t *n_out, Err *e);

#endif
