/* tokenizer -- text to token ids and back: byte-level byte-pair encoding of GPT-2, LLaMA 3, Qwen.
 *
 *     text --nfc (Qwen)--> text --presplit--> pieces --bytes--> ids of bytes --merges--> ids
 *
 * A merge replaces the pair of neighbours of lowest rank by one id, until no pair can be merged.
 *
 *   tokenizer_load reads               encodes   format
 *   "bytes"                            yes       no file: ids 0..255 are the bytes, 256 ends a text
 *   DIR (vocab.json + merges.txt)      yes       GPT-2's encoder.json and vocab.bpe, as HF names
 *                                                them; tokenizer_save writes them
 *   NAMEvocab.json                     yes       the same pair; NAMEmerges.txt lies beside it
 *   tokenizer.json, or DIR with it     yes       HF tokenizers of GPT-2, SmolLM, LLaMA 3, Qwen2,
 *                                                Qwen3; refused unless it is exactly this
 *                                                algorithm
 *   gpt2_tokenizer.bin                 no        llm.c, versions 1 and 2: the bytes of each token,
 *                                                no merges
 *
 * Every string of bytes, UTF-8 or not, encodes, and decodes to the same bytes (but for a
 * tokenizer.json with add_prefix_space, or with the normalizer NFC: then to the normal form of the
 * text, data/nfc.h). The text "<|endoftext|>" is text like any other, as that of every special
 * token: only documents_encode gives the token of that name. Added tokens that are not special
 * (<think>) are cut out of text first; what stands between them is encoded. The rank of a merge is
 * its position in the list of merges; of equal ranks the leftmost pair is merged first, as in HF
 * tokenizers. Time is O(n log n) in the length of a piece.
 */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "base/team.h"

/* The tokenizer_config.json of vocab.json and merges.txt. Without it `transformers` looks for the
 * tokenizer of LLaMA beside a LLaMA model. */
#define TOKENIZER_CONFIG "{\"tokenizer_class\": \"GPT2Tokenizer\"}\n"

typedef struct Tokenizer Tokenizer; // immutable once made: threads may share it

/* Local. Dies with one line that names the file and the defect. */
Tokenizer *tokenizer_load(const char *path);
/* Local. The vocabulary of 256 bytes and the end of text. */
Tokenizer *tokenizer_bytes(void);
void tokenizer_free(Tokenizer *t);
/* Local, pure. Readers of the three formats. On error false, and a reason without a file name. */
bool tokenizer_parse_gpt2(const uint8_t *vocab, size_t n_vocab, const uint8_t *merges,
                          size_t n_merges, Tokenizer **out, Err *e);
bool tokenizer_parse_json(const uint8_t *p, size_t n, Tokenizer **out, Err *e);
bool tokenizer_parse_bin(const uint8_t *p, size_t n, Tokenizer **out, Err *e);
/* Local. Writes DIR/vocab.json, DIR/merges.txt, DIR/tokenizer_config.json (for `transformers`) and
 * DIR/gpt2_tokenizer.bin. Makes DIR; replaces files of these names as a whole. The last is left
 * out, with a warning, without an end-of-text token or if a token does not have 1 to 255 bytes, as
 * llm.c requires. Dies on failure. */
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

/* Local. Encodes a text. *ids is a new array (mem_free); returns the number of ids. Dies when t
 * cannot encode. */
int64_t tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t n, int32_t **ids);
/* A text of documents, and the position up to which it is encoded. A line that is only
 * <|endoftext|> separates two documents and is not encoded itself. Empty documents are left out. */
typedef struct Documents {
    const uint8_t *text;
    size_t n, at;        // bytes of the text; those before `at` are encoded
    size_t doc, doc_end; // the document [doc, doc_end) that contains `at`, if inside
    bool inside;
} Documents;

Documents documents_of(const uint8_t *text, size_t n);
/* Local. Gives the rest of the present document, or the next one; false at the end of the text. */
bool documents_next(Documents *d, const uint8_t **p, size_t *n);
/* Local. Encodes from d->at on: at least `most` bytes, and some more up to the beginning of a
 * piece, or the rest of the text; then d->at == d->n. With eot the end-of-text token, which must
 * exist, comes before each document; where a tokenizer.json says with which token a text begins
 * (LLaMA 3), that one does. The ids of all calls together do not depend on `most` or on
 * the team (NULL: the caller alone). Result as of tokenizer_encode. */
int64_t documents_encode(Documents *d, const Tokenizer *t, Team *team, bool eot, size_t most,
                         int32_t **ids);
/* Local. *text is a new array (mem_free); returns its number of bytes. Dies on an id outside the
 * vocabulary. */
int64_t tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t n, uint8_t **text);

/* Prompts and samples as text; t may be NULL: no tokenizer. */
/* Local. Text of n ids (mem_free): the bytes of the tokens, with U+FFFD in place of byte 0. Without
 * a tokenizer the ids as numbers. An id without a token (padding of the vocabulary) gives no
 * text. */
char *sample_text(const Tokenizer *t, const int32_t *ids, int64_t n);
/* Local. The last `most` ids of the prompt (mem_free), as many as the model can see, behind the
 * token with which a text begins, if there is one. An empty prompt gives that token alone, or that
 * of the end of text, or id 0. vocab: of the model. */
int64_t sample_prompt(const Tokenizer *t, const char *prompt, int64_t most, int64_t vocab,
                      int32_t **ids);

#endif
