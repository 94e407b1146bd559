/* corpus_text -- English-like text from a small grammar, for training without other text at hand.
 *
 * Short stories, one paragraph per line. They have enough structure for a small model to show that
 * it learns: spelling and punctuation, "a" and "an", one apple and two apples, he and she, quotes
 * that open and close, people who keep their trade and their home, things that stay where they were
 * put, days in order, sums that are right.
 */
#ifndef DATA_CORPUS_TEXT_H
#define DATA_CORPUS_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Local. Story number `story` of a seed, a function of (seed, story) alone: ASCII, several lines,
 * an empty line at the end. Freed by mem_free; its length is *n. */
char *corpus_story(uint64_t seed, uint64_t story, size_t *n);
/* Local. "zero" .. "forty"; NULL for other numbers. */
const char *corpus_number(int i);

#endif
