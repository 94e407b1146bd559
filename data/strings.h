/* strings -- a numbered list of byte strings with a hash table to find their numbers: the
 * vocabulary of a tokenizer, the pieces of a text. */
#ifndef DATA_STRINGS_H
#define DATA_STRINGS_H

#include <stddef.h>
#include <stdint.h>

typedef struct Strings {
    uint8_t *bytes; // bytes of all strings, one after another
    size_t n_bytes, cap_bytes;
    size_t n, cap, *first; // string i is bytes[first[i]..first[i + 1])
    uint32_t *slots;       // [n_slots] hash table: number + 1; 0: free
    size_t n_slots;        // a power of two
} Strings;

/* Local. Appends a string. If an equal one exists already, strings_find still finds the older
 * one. */
void strings_add(Strings *s, const uint8_t *p, size_t n);
/* Local. The number of the first string with these bytes; -1: none. */
int64_t strings_find(const Strings *s, const uint8_t *p, size_t n);
/* Local. The number of the first string with these bytes; appends them if there is none. */
size_t strings_number(Strings *s, const uint8_t *p, size_t n);
/* Local. String i and its length. */
const uint8_t *strings_at(const Strings *s, size_t i, size_t *n);
void strings_free(Strings *s);

#endif
