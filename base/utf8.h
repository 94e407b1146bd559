/* utf8 -- is this text? Names that come from the system, and bytes that a model wrote, need not be
 * UTF-8, and JSON has no words for what is not. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* Local, pure. Bytes of the character at s, which a zero ends; 0: there is none (overlong forms,
 * surrogates, what lies beyond U+10FFFF, and sequences cut short included). */
size_t utf8_length(const char *s);
/* Local. Every byte that belongs to no character becomes '?': in place, the text does not grow. */
void utf8_mend(char *s);

#endif
