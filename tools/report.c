/* report -- writes the page about one run, or about several to compare them.
 *
 *     report [--out report.html] [--title TEXT] run/log.jsonl [other.jsonl ...]
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/report.h"

static const char usage[] =
    "report: one self-contained HTML page from the JSON lines of train_gpt\n"
    "\n"
    "    report [--out report.html] [--title TEXT] log.jsonl [other.jsonl ...]\n"
    "\n"
    "Several files are drawn over each other. A run that is still going can be reported at any "
    "time.\n";

/* Reads the whole file; dies when that is not possible. */
static char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f)
        die_user("cannot open %s: %s; name a file that train_gpt --json wrote", path,
                 strerror(errno));
    char *p = NULL;
    size_t cap = 0, got;
    *n = 0;
    do {
        if (*n == cap) cap = cap ? 2 * cap : 1 << 16, p = mem_realloc(p, cap, 1);
        got = fread(p + *n, 1, cap - *n, f);
        *n += got;
    } while (got > 0);
    if (ferror(f)) die_user("cannot read %s: %s", path, strerror(errno));
    fclose(f);
    return p;
}

/* run/log.jsonl -> log, freed never: the runs need their names to the end. */
static char *run_name(const char *path) {
    const char *slash = strrchr(path, '/');
    char *name = mem_strdup(slash ? slash + 1 : path), *dot = strrchr(name, '.');
    if (dot && dot != name) *dot = 0;
    return name;
}

/* Written beside its place and renamed: a page that is open in a browser is never half a page. A name that is no
 * regular file (/dev/stdout, a pipe) is written to and never replaced. */
static void write_page(const char *out, const char *title, const ReportRun *runs, int n) {
    struct stat st;
    bool direct = stat(out, &st) == 0 && !S_ISREG(st.st_mode);
    char *part = mem_printf(direct ? "%s" : "%s.part", out);
    FILE *f = fopen(part, "wb");
    if (!f) die_user("cannot write %s: %s", part, strerror(errno));
    report_write(f, title, runs, n);
    bool bad = ferror(f) != 0;
    if (fclose(f) || bad) {
        int why = errno;
        if (!direct) remove(part);
        die_user("cannot write %s: %s", out, strerror(why));
    }
    if (!direct && rename(part, out))
        die_user("cannot rename %s to %s: %s", part, out, strerror(errno));
    mem_free(part);
}

int main(int argc, char **argv) {
    const char *out, *title;
    const Opt options[] = {
        {"out", OPT_STR, &out, "report.html", 0, 0, "FILE", "the page"},
        {"title", OPT_STR, &title, "Training report", 0, 0, "TEXT", "its heading"},
        {0}};
    die_set_program(argv[0]);
    // words that belong to no option are files
    char **words = mem_calloc((size_t)argc + 1, sizeof *words),
         **files = mem_calloc((size_t)argc, sizeof *files);
    int n_words = 1, n_files = 0;
    words[0] = argv[0];
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            files[n_files++] = argv[i];
            continue;
        }
        words[n_words++] = argv[i];
        if (strncmp(argv[i], "--", 2) == 0 && opt_find(options, argv[i] + 2) && i + 1 < argc)
            words[n_words++] = argv[++i];
    }
    opt_parse(options, n_words, words, usage);
    if (!n_files) die_usage("no file: report [--out report.html] log.jsonl [other.jsonl ...]");
    ReportRun *runs = mem_calloc((size_t)n_files, sizeof *runs);
    for (int i = 0; i < n_files; i++) {
        size_t n;
        char *p = read_file(files[i], &n);
        report_read(&runs[i], run_name(files[i]), p, n);
        mem_free(p);
        if (runs[i].lines == runs[i].bad_lines)
            die_user("%s holds no JSON lines; name a file that train_gpt --json wrote", files[i]);
        if (runs[i].bad_lines > 1)
            warn("%s: %lld of %lld lines are no JSON and are left out", files[i],
                 (long long)runs[i].bad_lines, (long long)runs[i].lines);
    }
    write_page(out, title, runs, n_files);
    printf("%s\n", out);
    for (int i = 0; i < n_files; i++) report_free(&runs[i]);
    mem_free(runs), mem_free(words), mem_free(files);
    return 0;
}
