/* page -- blocks of documents that tests make from the code. A block is fenced, and its first line
 * has a name:
 *
 *     ```text costs
 *     ...
 *     ```
 *
 * A test makes the text anew and compares. TEST_REWRITE=1 build/run_tests WORD writes it over the
 * block instead, for the tests with WORD in their names.
 */
#ifndef TESTS_PAGE_H
#define TESTS_PAGE_H

#include <stdbool.h>
#include <stddef.h>

/* Text that is made line by line. */
typedef struct Text {
    char s[1 << 16];
    size_t n;
} Text;
void text_put(Text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_end_line(Text *t); // without spaces at its end

/* Is it that text? Where not, both are printed; with TEST_REWRITE it is written into the file. */
bool page_block_is(const char *file, const char *fence, const Text *want);
/* The n-th line (from 0) of a file that begins with these words, without its newline. */
bool page_line(const char *file, const char *begin, int n, char *line, size_t size);

/* Of parallel/README.md, "```text NAME". */
void text_of_readme(Text *t, const char *name);
bool text_stands_in_readme(const Text *t, const char *name);

#endif
