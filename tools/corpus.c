/* corpus -- writes English-like text from a grammar, for a first run without other text. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/corpus_text.h"
#include "data/output.h"

/* Writes whole stories; the last one is cut so that exactly n_bytes are written. r NULL: to the
 * standard output. */
static void write_text(Replace *r, int64_t n_bytes, uint64_t seed) {
    for (uint64_t story = 0; n_bytes > 0; story++) {
        size_t n;
        char *text = corpus_story(seed, story, &n);
        if ((int64_t)n > n_bytes) n = (size_t)n_bytes;
        if (r)
            replace_write(r, text, n);
        else if (fwrite(text, 1, n, stdout) != n)
            die_user("cannot write: %s", strerror(errno));
        mem_free(text);
        n_bytes -= (int64_t)n;
    }
}

int main(int argc, char **argv) {
    int64_t bytes, seed;
    const char *out;
    const Opt options[] = {
        {"bytes", OPT_INT, &bytes, "2000000", 1, 1e15, "N", "length of the text in bytes"},
        {"seed", OPT_INT, &seed, "1", 0, 1e15, "N", "seed of the text"},
        {"out", OPT_STR, &out, "", 0, 0, "FILE", "file to write (default: standard output)"},
        {0},
    };
    die_set_program(argv[0]);
    opt_parse(
        options, argc, argv,
        "gpt-corpus: English-like text from a grammar; the same options give the same bytes\n\n"
        "    gpt-corpus [--bytes N] [--seed N] [--out FILE]\n\n");
    Replace *r = *out ? replace_open(out, false) : NULL;
    write_text(r, bytes, (uint64_t)seed);
    if (r) replace_commit(r);
    if (fflush(stdout)) die_user("cannot write: %s", strerror(errno));
    return 0;
}
