/* sample_text -- between a prompt, token ids and the text of a sample, with or without a
 * tokenizer. */
#ifndef DATA_SAMPLE_TEXT_H
#define DATA_SAMPLE_TEXT_H

#include <stdint.h>

#include "data/tokenizer.h"

/* Local. Text of n ids (mem_free): bytes of the tokens, or the numbers themselves where t is
 * NULL. */
char *sample_text(const Tokenizer *t, const int32_t *ids, int64_t n);
/* Local. The prompt's ids (mem_free), the last `most` of them: what the model can see. End-of-text
 * alone (or id 0) when the prompt is empty. vocab: of the model. */
int64_t sample_prompt(const Tokenizer *t, const char *prompt, int64_t most, int64_t vocab,
                      int32_t **ids);

#endif
