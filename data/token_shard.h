/* token_shard -- files of token ids, read in place.
 *
 *   format            how it is recognised                  tokens
 *   llm.c 16          int32 LLMC_TOKENS_16, version 1       uint16 from byte 1024
 *   llm.c 32          int32 LLMC_TOKENS_32, version 7       uint32 from byte 1024
 *   Megatron          NAME.bin with NAME.idx beside it      u8 i8 i16 i32 i64 u16, as the .idx says
 *   nanoGPT           NAME.bin, anything else               uint16 from byte 0
 *
 * A shard is a read-only view of a mapped file: nothing is copied until shard_read widens tokens to
 * int32. Positions are 64-bit and count tokens. Integers in the files are little-endian, as on
 * every machine this runs on. Sources: llm.c dev/data/data_common.py and llmc/dataloader.h; nanoGPT
 * data/x/prepare.py; Megatron-LM megatron/core/datasets/indexed_dataset.py (layouts only).
 */
#ifndef DATA_TOKEN_SHARD_H
#define DATA_TOKEN_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "base/team.h"
#include "data/io_map.h"

typedef enum { SHARD_LLMC16, SHARD_LLMC32, SHARD_MEGATRON, SHARD_NANOGPT } ShardFormat;

typedef struct Shard {
    ShardFormat format;
    int width;             // bytes per token: 1, 2, 4, 8
    bool is_signed;        // Megatron's i8 i16 i32 i64; a negative id is never valid
    const uint8_t *tokens; // n_tokens * width bytes, of any alignment
    int64_t n_tokens;      // >= 1
    int64_t n_documents;   // Megatron only, else 0
    const char *path;      // of the file, for messages; NULL when parsed from memory
    IoMap file;            // zero when parsed from memory
} Shard;

/* The shards that --train or --val name, in the order of shard_names. */
typedef struct ShardSet {
    Shard *shards;
    int n;
    int64_t n_tokens; // of all shards together
    int64_t vocab;    // every id is in [0, vocab)
} ShardSet;

/* Local, pure. Reads an llm.c or nanoGPT file of n bytes at p, to which out->tokens will point.
 * `raw` says whether bytes without a known magic may be nanoGPT's. Returns false and a reason
 * without a file name when the file is cut, too long, of another version, or of another kind, which
 * is named if it is known. */
bool shard_parse(const uint8_t *p, size_t n, bool raw, Shard *out, Err *e);
/* Local, pure. As shard_parse, for Megatron: the index of n_idx bytes must describe all n_bin bytes
 * of tokens, without gaps. */
bool shard_parse_megatron(const uint8_t *idx, size_t n_idx, const uint8_t *bin, size_t n_bin,
                          Shard *out, Err *e);
/* Local, pure. Is every id in [0, vocab)? If not, the reason names the first wrong position. The
 * team (NULL: the caller alone) reads at the speed of memory. */
bool shard_check(const Shard *s, int64_t vocab, Team *team, Err *e);

/* Local. Maps and parses one file; ids are not checked. shard_open dies where shard_map returns
 * false. The reason names the file and the defect. */
bool shard_map(const char *path, Shard *out, Err *e);
Shard shard_open(const char *path);
void shard_close(Shard *s);
/* Local. Tokens first .. first+n-1, widened; 0 <= first, first + n <= n_tokens. */
void shard_read(const Shard *s, int64_t first, int64_t n, int32_t *out);
/* Local. "llm.c uint16", "Megatron int32", ...: for headers and messages. */
const char *shard_format_name(const Shard *s);

/* Names of token files, in order. */
typedef struct ShardNames {
    char **at;
    int n;
} ShardNames;
/* Local. The files that `text` names: file names and glob(3) patterns joined by commas, each
 * pattern's files sorted. A Megatron pair may be named by its .bin, its .idx, both, or without
 * ending. Dies when nothing matches. */
ShardNames shard_names(const char *text);
void shard_names_free(ShardNames *names);

/* Local. Opens every file that `names` names (shard_names). Formats may differ. Checks every id
 * against vocab (1 .. 2^31-1) on the team, which may be NULL. Dies when nothing matches, when a
 * file is named twice, and on the first defect of any file. */
ShardSet shards_open(const char *names, int64_t vocab, Team *team);
void shards_close(ShardSet *set);

/* Writes shards of llm.c or nanoGPT. A PREFIX that ends in '/' gets no '_'. Files are renamed into
 * place only when all of them are complete and on the disk.
 *
 *     PREFIX_train.bin                                   one file
 *     PREFIX_train_000000.bin PREFIX_train_000001.bin    shards of shard_tokens, the last shorter
 */
typedef struct ShardWriter ShardWriter;

/* Local. `split` is "train" or "val". format: llm.c 16 or 32, or nanoGPT; dies when ids below vocab
 * do not fit it. shard_tokens 0: one file. */
ShardWriter *shard_writer_open(const char *prefix, const char *split, ShardFormat format,
                               int32_t vocab, int64_t shard_tokens);
/* Local. Appends n ids, all in [0, vocab). */
void shard_writer_put(ShardWriter *w, const int32_t *ids, int64_t n);
/* Local. Completes the files on the disk, under temporary names. Returns the number of tokens
 * written. */
int64_t shard_writer_finish(ShardWriter *w);
/* Local. Renames the files into place and frees w. Returns the number of files: 0 without
 * tokens. */
int shard_writer_commit(ShardWriter *w);

#endif
