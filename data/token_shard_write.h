/* token_shard_write -- writes token ids as llm.c or nanoGPT shards (layouts in token_shard.h).
 *
 *     PREFIX_train.bin                                   one file
 *     PREFIX_train_000000.bin PREFIX_train_000001.bin    shards of shard_tokens, the last shorter
 *
 * A PREFIX that ends in '/' gets no '_'. No file is in place before all of them are complete and on
 * the disk.
 */
#ifndef DATA_TOKEN_SHARD_WRITE_H
#define DATA_TOKEN_SHARD_WRITE_H

#include <stdint.h>

#include "data/token_shard.h"

typedef struct ShardWriter ShardWriter;

/* Local. `split` is "train" or "val". format: llm.c 16 or 32, or nanoGPT; dies when ids below vocab
 * do not fit it. shard_tokens 0: one file. */
ShardWriter *shard_writer_open(const char *prefix, const char *split, ShardFormat format,
                               int32_t vocab, int64_t shard_tokens);
/* Local. Appends n ids, all in [0, vocab). */
void shard_writer_put(ShardWriter *w, const int32_t *ids, int64_t n);
/* Local. Everything is on the disk, under temporary names. Returns the tokens written. */
int64_t shard_writer_finish(ShardWriter *w);
/* Local. Renames the files into place and frees w. Returns how many there are; no file is made of
 * no tokens. */
int shard_writer_commit(ShardWriter *w);

#endif
