/* bpe_train -- learns the merges of a byte-pair vocabulary.
 *
 *     count the pieces of the text (presplit)
 *     repeat: merge the most frequent pair of neighbours everywhere; the new token gets the next id
 *
 * Exact: every step takes the pair that is most frequent at that time. Overlapping occurrences
 * count separately: "aaa" holds the pair (a, a) twice. Among equally frequent pairs the one with
 * the smaller left id is taken, then the one with the smaller right id: the merges are those of
 * HF's BpeTrainer with the byte-level alphabet. Ids are laid out as GPT-2's: 256 bytes in GPT-2's
 * order, merged tokens in the order of their merges, <|endoftext|> last. When two pairs give the
 * same bytes, the second merge reuses the id of the first. Source: Sennrich, Haddow, Birch 2016
 * (arXiv:1508.07909), algorithm 1.
 */
#ifndef DATA_BPE_TRAIN_H
#define DATA_BPE_TRAIN_H

#include "data/tokenizer.h"

typedef struct BpeTrain BpeTrain;

/* Called after every 64 merges with the number of tokens so far and the number wanted. */
typedef void (*BpeProgress)(void *ctx, int32_t done, int32_t wanted);

/* Local. */
BpeTrain *bpe_train_open(void);
/* Local. Adds the pieces of a text to the counts; may be called for several texts. A line that is
 * only <|endoftext|> separates documents. */
void bpe_train_count(BpeTrain *b, const uint8_t *text, size_t n);
/* Local. Makes a tokenizer of `vocab` tokens (257 .. 2^24) and frees b. It has fewer tokens when no
 * pair that occurs at least min_count times is left. progress may be NULL. */
Tokenizer *bpe_train_finish(BpeTrain *b, int32_t vocab, int64_t min_count, BpeProgress progress,
                            void *ctx);

#endif
