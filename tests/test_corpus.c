#include "data/corpus_text.h"

#include <ctype.h>

#include "tests/test.h"

enum { STORIES = 3000 };

TEST(corpus_is_a_function_of_seed_and_story) {
    int same = 0;
    for (uint64_t i = 0; i < 50; i++) {
        size_t n, m, k, l;
        OWNED(test_mem_end) char *a = corpus_story(7, i, &n), *b = corpus_story(7, i, &m);
        OWNED(test_mem_end) char *c = corpus_story(8, i, &k), *d = corpus_story(7, i + 1, &l);
        CHECK_STR(a, b);
        CHECK(n == m && n == strlen(a) && n > 40);
        same += strcmp(a, c) == 0, same += strcmp(a, d) == 0;
    }
    CHECK(same == 0);
}

static bool is_sentence_end(char c) {
    return c == '.' || c == '?' || c == '!';
}

/* Shape of one story: plain text, no marks of the grammar left, quotes in pairs, lines whole. */
static void check_shape(const char *s, size_t n) {
    CHECK(n > 2 && s[n - 1] == '\n' && s[n - 2] == '\n');
    int quotes = 0;
    for (size_t i = 0; i < n; i++) {
        CHECK(s[i] == '\n' || (s[i] >= ' ' && s[i] < 0x7f));
        CHECK(!strchr("%^@[]{}#0123456789", s[i]));
        CHECK(!(s[i] == ' ' && (s[i + 1] == ' ' || s[i + 1] == '\n')));
        quotes += s[i] == '"';
        if (s[i] == '\n' && i && s[i - 1] != '\n')
            CHECK(quotes % 2 == 0 &&
                  (is_sentence_end(s[i - 1]) || (s[i - 1] == '"' && is_sentence_end(s[i - 2]))));
        bool starts = i == 0 || s[i - 1] == '\n' || (i > 1 && s[i - 1] == ' ' && s[i - 2] == '.');
        if (starts && isalpha((unsigned char)s[i])) CHECK(isupper((unsigned char)s[i]));
    }
}

/* Every "a" and "an" agrees with the word that follows. */
static int check_articles(const char *s) {
    int n = 0;
    for (const char *p = s; (p = strstr(p, " a")); p++) {
        bool an = p[2] == 'n';
        const char *next = p + (an ? 4 : 3);
        if (next[-1] != ' ') continue;
        if (!strchr("aeiou", tolower((unsigned char)*next)) == an) {
            test_fail("article before \"%.12s\"", next);
            return n;
        }
        n++;
    }
    return n;
}

static int number_at(const char *p, size_t n) {
    for (int i = 0; i <= 40; i++)
        if (strlen(corpus_number(i)) == n && strncasecmp(corpus_number(i), p, n) == 0) return i;
    return -1;
}

/* "<n> and <m> are <sum>": right everywhere. Returns how many there were. */
static int check_sums(const char *s) {
    int n = 0;
    for (const char *p = s; (p = strstr(p, " and ")); p += 5) {
        const char *left = p, *right = p + 5, *sum;
        while (left > s && (isalpha((unsigned char)left[-1]) || left[-1] == '-')) left--;
        size_t right_n = strcspn(right, " .,\"?\n");
        int a = number_at(left, (size_t)(p - left)), b = number_at(right, right_n);
        if (a < 0 || b < 0 || strncmp(right + right_n, " are ", 5) != 0) continue;
        sum = right + right_n + 5;
        if (number_at(sum, strcspn(sum, " .,\"\n")) != a + b) {
            test_fail("wrong sum: \"%.40s\"", left);
            return n;
        }
        n++;
    }
    return n;
}

TEST(corpus_keeps_its_rules) {
    int articles = 0, sums = 0;
    size_t bytes = 0;
    for (uint64_t i = 0; i < STORIES && !test_failed(); i++) {
        size_t n;
        OWNED(test_mem_end) char *s = corpus_story(1, i, &n);
        check_shape(s, n);
        articles += check_articles(s);
        sums += check_sums(s);
        CHECK(!strstr(s, " one apples") && !strstr(s, "One apples") && !strstr(s, "two apple ") &&
              !strstr(s, " i "));
        if (test_failed()) printf("%s", s);
        bytes += n;
    }
    CHECK(articles > STORIES / 4 && sums > STORIES / 4); // the checks above saw something
    CHECK(bytes > 200 * STORIES);
    CHECK(corpus_number(-1) == NULL && corpus_number(41) == NULL);
}
