/* corpus_text -- English-like text from a small grammar, to train on where no other text is at
 * hand.
 *
 * Short stories, one paragraph per line. There is enough to learn for a small model to show that it
 * learns: spelling and punctuation, "a" and "an", one apple and two apples, he and she, quotes that
 * open and close, people who keep their trade and their home, things that stay where they were put,
 * days in order, sums that are right.
 */
#ifndef DATA_CORPUS_TEXT_H
#define DATA_CORPUS_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Local. Story number `story` of a seed: ASCII, several lines, an empty line at the end. A fresh
 * string (mem_free), its length in *n. A function of (seed, story) alone. */
char *corpus_story(uint64_t seed, uint64_t story, size_t *n);
/* Local. "zero" .. "forty": the words of the sums; NULL beyond. */
const char *corpus_number(int i);

#endif
