#include "tests/page.h"

#include <stdarg.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/test.h"

void text_put(Text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    t->n += (size_t)vsnprintf(t->s + t->n, sizeof t->s - t->n, fmt, ap);
    va_end(ap);
}

void text_end_line(Text *t) {
    while (t->n && t->s[t->n - 1] == ' ') t->n--;
    t->n += (size_t)snprintf(t->s + t->n, sizeof t->s - t->n, "\n");
}

/* Where the block of that name begins and ends; NULL: there is none. */
static char *find_block(char *page, const char *fence, char **end) {
    char *open = mem_printf("\n```%s\n", fence), *at = strstr(page, open);
    if (at) at += strlen(open);
    mem_free(open);
    if (!at) return NULL;
    *end = strncmp(at, "```", 3) == 0 ? at : strstr(at, "\n```");
    if (!*end) return NULL;
    if (*end > at) ++*end;
    return at;
}

/* The block below the line "```FENCE" of a file; empty: there is none. */
static void page_block(Text *t, const char *file, const char *fence) {
    OWNED(test_mem_end) char *page = test_read(file, NULL);
    char *end, *at = page ? find_block(page, fence, &end) : NULL;
    t->s[t->n = 0] = 0;
    if (at) text_put(t, "%.*s", (int)(end - at), at);
}

/* Tests run at the same time: the file is locked. */
static bool rewrite(const char *file, const char *fence, const Text *want) {
    FILE *f = fopen(file, "r+");
    if (!f || flock(fileno(f), LOCK_EX) != 0) return false;
    OWNED(test_mem_end) char *page = test_read(file, NULL);
    char *end, *at = find_block(page, fence, &end);
    bool ok = at != NULL;
    if (ok) {
        ok = fprintf(f, "%.*s%s%s", (int)(at - page), page, want->s, end) > 0 && fflush(f) == 0 &&
             ftruncate(fileno(f), ftell(f)) == 0;
        printf("%s: wrote %s\n", file, fence);
    }
    fclose(f);
    return ok;
}

bool page_block_is(const char *file, const char *fence, const Text *want) {
    static Text have;
    page_block(&have, file, fence);
    if (strcmp(want->s, have.s) == 0) return true;
    if (getenv("TEST_REWRITE") && rewrite(file, fence, want)) return true;
    fprintf(stderr,
            "%s should say\n```%s\n%s```\nTEST_REWRITE=1 build/run_tests WORD writes it there\n",
            file, fence, want->s);
    return false;
}

bool page_line(const char *file, const char *begin, int n, char *line, size_t size) {
    FILE *f = fopen(file, "r");
    bool found = false;
    if (!f) return false;
    while (!found && fgets(line, (int)size, f))
        found = strncmp(line, begin, strlen(begin)) == 0 && n-- == 0;
    fclose(f);
    line[strcspn(line, "\n")] = 0;
    return found;
}

void text_of_readme(Text *t, const char *name) {
    char fence[64];
    snprintf(fence, sizeof fence, "text %s", name);
    page_block(t, "parallel/README.md", fence);
}

bool text_stands_in_readme(const Text *want, const char *name) {
    char fence[64];
    snprintf(fence, sizeof fence, "text %s", name);
    return page_block_is("parallel/README.md", fence, want);
}
