/* presplit -- cuts text into the pieces inside which byte pairs are merged, as GPT-2 does.
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * written out as a loop over a table of classes. Letters, numbers and spaces are those of the
 * Unicode version that data/unicode_table.c names. Bytes that are not UTF-8: every byte at which no
 * well-formed sequence begins (Unicode 3.9, table 3-7: no overlong forms, no surrogates, nothing
 * above U+10FFFF) counts as one character of no class, so it joins punctuation. Python sees the
 * same text after decode("utf-8", "surrogateescape"). Source of the expression: GPT-2's encoder.py.
 */
#ifndef DATA_PRESPLIT_H
#define DATA_PRESPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE } CharClass;
/* Runs of code points of one class (L, N, White_Space), from U+0000 on: 4 * their number + the
 * class; 0 ends them, and all later code points are of no class. */
extern const uint32_t unicode_runs[];

/* Local. Class of a code point; CLASS_OTHER above U+10FFFF. */
CharClass unicode_class(uint32_t code);
/* Local. Class of the character at p, n >= 1 bytes long; *len is the number of its bytes (1..4). */
CharClass utf8_class(const uint8_t *p, size_t n, int *len);
/* Local. Bytes of the first piece of the text p[0..n); n >= 1. p must be the begin of the text or
 * of a piece. */
size_t presplit_next(const uint8_t *p, size_t n);
/* Local. The first place at `from` or later where a piece begins whatever the text before it is, n
 * if there is none. It is chosen at the begin of a line where possible, else before a blank. */
size_t presplit_safe(const uint8_t *p, size_t n, size_t from);

#endif
