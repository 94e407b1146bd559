/* utf8 -- is this text? Names that come from the system, and bytes that a model wrote, need not be
 * UTF-8, and JSON has no words for what is not. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Local, pure. Bytes of the character with which the n >= 1 bytes at p begin, and its code; 0: none
 * begins there (Unicode 3.9, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF;
 * nor is a sequence that is cut short one). */
size_t utf8_decode(const uint8_t *p, size_t n, uint32_t *code);
/* Local. A copy (mem_free) in which every byte that belongs to no character is U+FFFD. */
char *utf8_clean(const char *s);
/* Local. Every byte that belongs to no character becomes '?': in place, the text does not grow. */
void utf8_mend(char *s);

#endif
