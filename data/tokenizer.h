/* tokenizer -- text to token ids and back: byte-level byte-pair encoding as GPT-2 does it.
 *
 *     text --presplit--> pieces --bytes--> ids of bytes --merge the pair of lowest rank, again and
 * again--> ids
 *
 *   tokenizer_load reads               encodes   source of the format
 *   "bytes"                            yes       ids 0..255 are the bytes, 256 ends a text; no file
 *   DIR (vocab.json + merges.txt)      yes       GPT-2's encoder.json and vocab.bpe, as HF names
 * them; tokenizer_save NAMEvocab.json                     yes       the same pair; NAMEmerges.txt
 * lies beside it tokenizer.json, or DIR with it     yes       HF tokenizers; what is not exactly
 * this algorithm is refused gpt2_tokenizer.bin                 no        llm.c, versions 1 and 2:
 * the bytes of each token, no merges
 *
 * Every string of bytes, UTF-8 or not, encodes, and decodes to the same bytes (but for a
 * tokenizer.json with add_prefix_space). The text "<|endoftext|>" is text like any other: the token
 * of that name comes only from documents_encode. Ranks are positions in the list of merges; of
 * equal ranks the leftmost pair is merged first, as in HF tokenizers. Time is O(n log n) in the
 * length of a piece.
 */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "base/team.h"

typedef struct Tokenizer Tokenizer; // immutable once made: threads may share it

/* Local. Dies with one line that names the file and the defect. */
Tokenizer *tokenizer_load(const char *path);
/* Local. The vocabulary of 256 bytes and the end of text. */
Tokenizer *tokenizer_bytes(void);
void tokenizer_free(Tokenizer *t);
/* Local, pure. Readers of the three formats; false and a reason without a file name when something
 * is wrong. */
bool tokenizer_parse_gpt2(const uint8_t *vocab, size_t n_vocab, const uint8_t *merges,
                          size_t n_merges, Tokenizer **out, Err *e);
bool tokenizer_parse_json(const uint8_t *p, size_t n, Tokenizer **out, Err *e);
bool tokenizer_parse_bin(const uint8_t *p, size_t n, Tokenizer **out, Err *e);
/* Local. Writes DIR/vocab.json, DIR/merges.txt and DIR/gpt2_tokenizer.bin (makes DIR, replaces
 * files of these names whole). The last is left out, with a warning, if a token is longer than the
 * 255 bytes that llm.c allows. Dies on failure. */
void tokenizer_save(const Tokenizer *t, const char *dir);

/* Local. Ids are 0..vocab-1. */
int32_t tokenizer_vocab(const Tokenizer *t);
/* Local. Id of <|endoftext|> (or </s>, <|end_of_text|>, <eos>); -1 if the vocabulary has none. */
int32_t tokenizer_eot(const Tokenizer *t);
bool tokenizer_can_encode(const Tokenizer *t);
int64_t tokenizer_merges(const Tokenizer *t);
const char *tokenizer_format(const Tokenizer *t); // "bytes", "GPT-2 vocab.json and merges.txt", ...
/* Local. The bytes of a token (not NUL-terminated, owned by t); NULL when id is outside 0..vocab-1.
 */
const uint8_t *tokenizer_token(const Tokenizer *t, int32_t id, size_t *n);
/* Local. The id of exactly these bytes, or -1. */
int32_t tokenizer_find(const Tokenizer *t, const uint8_t *bytes, size_t n);

/* Local. *ids is a fresh array (mem_free) of as many ids as the function returns. Dies when t
 * cannot encode. */
int64_t tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t n, int32_t **ids);
/* A text of documents and how far it is encoded. A line that is only <|endoftext|> stands between
 * two documents and is no text itself; empty documents are none. */
typedef struct Documents {
    const uint8_t *text;
    size_t n, at;        // bytes of the text; all before `at` is encoded
    size_t doc, doc_end; // the document that `at` is inside of, if inside
    bool inside;
} Documents;

Documents documents_of(const uint8_t *text, size_t n);
/* Local. The rest of the document that d is in, or the next one; false at the end of the text. */
bool documents_next(Documents *d, const uint8_t **p, size_t *n);
/* Local. Encodes the next `most` bytes, or some more, or the rest; d->at == d->n afterwards when
 * all is done. With eot the end-of-text token, which must be there, comes before each document. The
 * ids of all calls together do not depend on `most` or on the team, which may be NULL: the caller
 * alone. Result as above. */
int64_t documents_encode(Documents *d, const Tokenizer *t, Team *team, bool eot, size_t most,
                         int32_t **ids);
/* Local. *text is a fresh array of as many bytes as the function returns. Dies on an id outside the
 * vocabulary. */
int64_t tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t n, uint8_t **text);

/* Between a prompt, ids and the text of a sample; t may be NULL. */
/* Local. Text of n ids (mem_free): bytes of the tokens, U+FFFD in place of a byte 0, or the numbers
 * themselves where t is NULL; nothing for rows of the embedding that no token uses. */
char *sample_text(const Tokenizer *t, const int32_t *ids, int64_t n);
/* Local. The prompt's ids (mem_free), the last `most` of them: what the model can see. End-of-text
 * alone (or id 0) when the prompt is empty. vocab: of the model. */
int64_t sample_prompt(const Tokenizer *t, const char *prompt, int64_t most, int64_t vocab,
                      int32_t **ids);

#endif
