/* presplit -- cuts text into pieces; byte pairs are merged only inside a piece.
 *
 *   SPLIT_GPT2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   SPLIT_DIGITS   each \p{N} is a piece; GPT-2's expression cuts the text between them (SmolLM)
 *   SPLIT_LLAMA3   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *                   ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   SPLIT_QWEN     the same with \p{N} for \p{N}{1,3} (Qwen2, Qwen2.5, Qwen3)
 *
 * The expressions are written out as loops over a table of character classes. Letters, numbers and
 * spaces are those of the Unicode version that data/unicode_table.c names. In text that is not
 * UTF-8, every byte at which no well-formed sequence begins (Unicode 3.9, table 3-7: no overlong
 * forms, no surrogates, nothing above U+10FFFF) counts as one character of no class, so it joins
 * punctuation. Python sees the same text after decode("utf-8", "surrogateescape"). Sources of the
 * expressions: GPT-2's encoder.py; the tokenizer.json of LLaMA 3 and of Qwen2.
 */
#ifndef DATA_PRESPLIT_H
#define DATA_PRESPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE } CharClass;
/* Runs of code points of one class (L, N, White_Space), from U+0000 on: 4 * length + class. 0 ends
 * the list, and all later code points have no class. */
extern const uint32_t unicode_runs[];

/* Local. Class of a code point; CLASS_OTHER above U+10FFFF. */
CharClass unicode_class(uint32_t code);
/* Local. Class of the character at p[0..n), n >= 1; *len is its number of bytes (1..4). */
CharClass utf8_class(const uint8_t *p, size_t n, int *len);
typedef enum { SPLIT_NONE, SPLIT_GPT2, SPLIT_DIGITS, SPLIT_LLAMA3, SPLIT_QWEN } SplitRule;
/* The expressions of SPLIT_LLAMA3 and SPLIT_QWEN, as tokenizer.json has them. */
extern const char presplit_llama3[], presplit_qwen[];
/* Local. Length in bytes of the first piece of the text p[0..n); n >= 1. p must be the beginning of
 * the text or of a piece. SPLIT_NONE: the text is one piece. */
size_t presplit_next(SplitRule rule, const uint8_t *p, size_t n);
/* Local. An offset >= `from` at which a piece begins by every rule, whatever text stands before it;
 * n if there is none. The beginning of a line if one is near, else a blank. */
size_t presplit_safe(const uint8_t *p, size_t n, size_t from);

#endif
