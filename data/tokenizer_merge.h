/* tokenizer_merge -- the bytes of one piece to ids, by merging the pair of lowest rank until none
 * is left. */
#ifndef DATA_TOKENIZER_MERGE_H
#define DATA_TOKENIZER_MERGE_H

#include "data/tokenizer_parts.h"

/* Local. Writes at most n ids and returns their number. n < 2^32. Of equal ranks the leftmost pair
 * is merged first. */
size_t merge_piece(const Tokenizer *t, const uint8_t *p, size_t n, int32_t *ids);

#endif
