/* utf8 -- reads, writes, checks and repairs UTF-8. Names from the system and bytes that a model
 * sampled need not be UTF-8, but text in JSON must be. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Local, pure. The length in bytes of the character at the beginning of p[n], n >= 1, and its code;
 * 0 where no character begins (Unicode 3.9, table 3-7: no overlong forms, no surrogates, nothing
 * above U+10FFFF). A character that is cut short by the end of p[n] is none. */
size_t utf8_decode(const uint8_t *p, size_t n, uint32_t *code);
/* Local. Writes the character with this code, 1 to 4 bytes, and returns their number. */
size_t utf8_write(uint32_t code, uint8_t to[4]);
/* Local. A copy (mem_free) in which every byte that belongs to no character is U+FFFD. */
char *utf8_clean(const char *s);
/* Local. Every byte that belongs to no character becomes '?': in place, the text does not grow. */
void utf8_repair(char *s);

#endif
