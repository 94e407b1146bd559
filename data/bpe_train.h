/* bpe_train -- learns the merges of a byte-pair vocabulary.
 *
 *     count the pieces of the text (presplit)
 *     repeat: merge the most frequent pair of neighbours, everywhere; its product is the next token
 *
 * Exact: every step takes the pair that is most frequent now, overlaps ("aaa" holds a a twice)
 * counted as they stand. Of equally frequent pairs the one with the smaller left id is taken, then
 * the smaller right id: the merges are those of HF's BpeTrainer with the byte-level alphabet. Ids
 * are laid out as GPT-2's: 256 bytes in GPT-2's order, products in the order of their merges,
 * <|endoftext|> last. A product that is a token already (made of another pair) gets no second id.
 * Source: Sennrich, Haddow, Birch 2016 (arXiv:1508.07909), algorithm 1.
 */
#ifndef DATA_BPE_TRAIN_H
#define DATA_BPE_TRAIN_H

#include "data/tokenizer.h"

typedef struct BpeTrain BpeTrain;

/* Called now and then with the tokens that exist and that are wanted. */
typedef void (*BpeProgress)(void *ctx, int32_t done, int32_t wanted);

/* Local. */
BpeTrain *bpe_train_open(void);
/* Local. Counts the pieces of a text; may be called for many. Lines of only <|endoftext|> separate
 * documents. */
void bpe_train_count(BpeTrain *b, const uint8_t *text, size_t n);
/* Local. Makes a tokenizer of `vocab` tokens (257 .. 2^24), or fewer when no pair is left that
 * occurs min_count times, and frees b. progress may be NULL. */
Tokenizer *bpe_train_finish(BpeTrain *b, int32_t vocab, int64_t min_count, BpeProgress progress,
                            void *ctx);

#endif
