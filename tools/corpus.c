/* corpus -- writes English-like text from a grammar, for a first run where no other text is at
 * hand. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/corpus.h"

/* Whole stories, the last one cut so that exactly n_bytes are written. */
static bool write_text(FILE *f, int64_t n_bytes, uint64_t seed) {
    for (uint64_t story = 0; n_bytes > 0; story++) {
        size_t n;
        char *text = corpus_story(seed, story, &n);
        if ((int64_t)n > n_bytes) n = (size_t)n_bytes;
        bool ok = fwrite(text, 1, n, f) == n;
        mem_free(text);
        if (!ok) return false;
        n_bytes -= (int64_t)n;
    }
    return fflush(f) == 0;
}

/* A pipe, device or link is written in place; a file under another name first, so that no
 * cut text carries its name. */
static void write_file(const char *path, int64_t n_bytes, uint64_t seed) {
    struct stat st;
    bool in_place = lstat(path, &st) == 0 && !S_ISREG(st.st_mode);
    char *part = in_place ? mem_strdup(path) : mem_printf("%s.part", path);
    FILE *f = fopen(part, "w");
    if (!f) die_user("cannot create %s: %s", part, strerror(errno));
    bool ok = write_text(f, n_bytes, seed);
    int why = errno;
    if (fclose(f) && ok) ok = false, why = errno;
    if (ok && !in_place && rename(part, path)) ok = false, why = errno;
    if (!ok && !in_place) unlink(part);
    if (!ok) die_user("cannot write %s: %s", path, strerror(why));
    mem_free(part);
}

int main(int argc, char **argv) {
    int64_t bytes, seed;
    const char *out;
    const Opt options[] = {
        {"bytes", OPT_INT, &bytes, "2000000", 1, 1e15, "N", "length of the text"},
        {"seed", OPT_INT, &seed, "1", 0, 1e15, "N", "another seed, another text"},
        {"out", OPT_STR, &out, "", 0, 0, "FILE", "file to write (default: standard output)"},
        {0},
    };
    die_set_program(argv[0]);
    opt_parse(options, argc, argv,
              "corpus [--bytes N] [--seed N] [--out FILE]\n"
              "Writes English-like text from a grammar. The same options give the same bytes.\n\n");
    if (*out)
        write_file(out, bytes, (uint64_t)seed);
    else if (!write_text(stdout, bytes, (uint64_t)seed))
        die_user("cannot write: %s", strerror(errno));
    return 0;
}
