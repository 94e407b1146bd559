#include "parallel/step/overlap.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt.h"

enum { WORD_BULK, WORD_CHUNK, WORD_RING, WORD_HALVES, N_WORDS };
static const char *const words[N_WORDS] = {"bulk", "chunk=", "ring", "halves"};

static bool wrong(Err *e, const char *word) {
    const char *near = opt_nearest(word, words, N_WORDS);
    return err_set(
        e, "overlap: unknown word \"%.40s\"%s%s%s (words are none, or bulk chunk=n ring halves)",
        word, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* seen: a bit for each word that stood before. */
static bool read_word(Overlap *o, unsigned *seen, const char *word, Err *e) {
    int i = 0;
    while (i < N_WORDS && strncmp(word, words[i], strlen(words[i])) != 0) i++;
    if (i == N_WORDS || (i != WORD_CHUNK && strcmp(word, words[i]) != 0)) return wrong(e, word);
    if (i == WORD_CHUNK) {
        char *end;
        long n = strtol(word + strlen(words[i]), &end, 10);
        if (*end || n < 2 || n > MAX_CHUNKS)
            return err_set(e, "overlap: %.40s: a product is cut into 2 to %d pieces", word,
                           MAX_CHUNKS);
        o->chunks = (int)n;
    }
    if (*seen >> i & 1) return err_set(e, "overlap: %.40s: the word stands there twice", words[i]);
    *seen |= 1u << i;
    o->bulk |= i == WORD_BULK;
    o->ring |= i == WORD_RING;
    o->halves |= i == WORD_HALVES;
    return true;
}

bool overlap_parse(Overlap *o, const char *text, Err *e) {
    *o = (Overlap){0};
    if (strcmp(text, "none") == 0) return true;
    char *copy = mem_strdup(text), *rest = copy;
    bool good = true;
    unsigned seen = 0;
    for (char *word; good && (word = strsep(&rest, "+")) != NULL;)
        good = read_word(o, &seen, word, e);
    mem_free(copy);
    if (good && o->ring && o->chunks)
        return err_set(e, "overlap: %s: a product is cut by chunk or by ring, not by both", text);
    return good;
}

const char *overlap_print(const Overlap *o, char buf[OVERLAP_TEXT]) {
    char chunk[16] = "";
    if (o->chunks) snprintf(chunk, sizeof chunk, "+chunk=%d", o->chunks);
    int n = snprintf(buf, OVERLAP_TEXT, "%s%s%s%s", o->bulk ? "+bulk" : "", chunk,
                     o->ring ? "+ring" : "", o->halves ? "+halves" : "");
    if (n == 0) return strcpy(buf, "none");
    return memmove(buf, buf + 1, (size_t)n); // without the first '+'
}

bool overlap_equal(const Overlap *a, const Overlap *b) {
    return a->bulk == b->bulk && a->ring == b->ring && a->halves == b->halves &&
           a->chunks == b->chunks;
}
