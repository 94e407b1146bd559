/* nfc -- the canonical normal form C of text: what a tokenizer.json calls normalizer NFC.
 *
 *     e U+0323 U+0302  ->  U+1EC7          characters and their marks become one character
 *     a U+0301 U+0323  ->  U+1EA1 U+0301   marks stand in the order of their combining classes
 *     U+212B           ->  U+00C5          duplicates become the one that is meant
 *
 * The algorithm is that of Unicode Standard Annex 15: decompose, order, compose. The code points
 * are those that Hugging Face's tokenizers knows (tools/unicode_table.py); characters assigned
 * later stay as they are. So does a byte that is not UTF-8; nothing composes with it or moves past
 * it.
 *
 * An ASCII character is never composed with a character before it, so text may be cut before one.
 */
#ifndef DATA_NFC_H
#define DATA_NFC_H

#include <stddef.h>
#include <stdint.h>

/* Combining classes of runs of code points, from U+0000 on: 256 * length + class. 0 ends the list,
 * and all later code points have class 0. */
extern const uint32_t unicode_combining[];
/* Canonical decompositions in the order of code points, three numbers each: twice the distance from
 * the code point before, plus 1 if the parts are not composed again; first part; second part, 0 if
 * there is none. 0 ends the list. */
extern const uint32_t unicode_decompositions[];

/* Local. n: the text p[0..n) is in the normal form. Less: the text before this offset is, nothing
 * moves across it, and what follows may have to change. */
size_t nfc_prefix(const uint8_t *p, size_t n);
/* Local. Writes the normal form of p[0..n) to `to`, at most 3 * n bytes; returns their number. */
size_t nfc_normalize(const uint8_t *p, size_t n, uint8_t *to);

#endif
