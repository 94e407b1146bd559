/* report -- writes an HTML page about one run, or about several runs to compare them.
 *
 *     report [--out report.html] [--title TEXT] run/log.jsonl [other.jsonl ...]
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/claim.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/io_map.h"
#include "data/output.h"
#include "data/report_page.h"

static const char usage[] =
    "gpt-report: one self-contained HTML page from the JSON lines of train_gpt\n"
    "\n"
    "    gpt-report [--out report.html] [--title TEXT] log.jsonl [other.jsonl ...]\n"
    "\n"
    "Several files are drawn over each other. A run that is still going can be reported at any "
    "time.\n";

/* Reads the whole file, which may be a pipe; dies if it cannot. */
static IoMap read_file(const char *path) {
    Err e;
    FILE *f = fopen(path, "rb");
    if (f && !claim_input_path(path, &e)) die_usage("%s", e.text);
    if (!f)
        die_user("cannot open %s: %s; name a file that train_gpt --json wrote", path,
                 strerror(errno));
    IoMap m = io_read(f, path);
    fclose(f);
    return m;
}

int main(int argc, char **argv) {
    const char *out, *title;
    const Opt options[] = {
        {"out", OPT_STR, &out, "report.html", 0, 0, "FILE", "page to write"},
        {"title", OPT_STR, &title, "Training report", 0, 0, "TEXT", "heading of the page"},
        {0}};
    die_set_program(argv[0]);
    int n_files = opt_parse_files(options, argc, argv, usage);
    char **files = argv + 1;
    if (!n_files) die_usage("no file: gpt-report [--out report.html] log.jsonl [other.jsonl ...]");
    Err e;
    if (!claim_output("--out", out, &e)) die_usage("%s", e.text);
    ReportRun *runs = mem_calloc((size_t)n_files, sizeof *runs);
    for (int i = 0; i < n_files; i++) {
        IoMap m = read_file(files[i]);
        report_read(&runs[i], files[i], (const char *)m.p, m.n);
        io_unmap(&m);
        if (!runs[i].header && !runs[i].loss.n && !runs[i].val.n)
            die_user("%s holds no record of a run; name a file that train_gpt --json wrote",
                     files[i]);
        if (runs[i].bad_lines > 1)
            warn("%s: %lld of %lld lines are no JSON and are left out", files[i],
                 (long long)runs[i].bad_lines, (long long)runs[i].lines);
    }
    ReplaceText page;
    replace_text_begin(&page);
    report_write(page.f, title, runs, n_files);
    replace_text_end(&page, "--out", out);
    if (strcmp(out, "-") != 0) printf("%s\n", out);
    for (int i = 0; i < n_files; i++) report_free(&runs[i]);
    mem_free(runs);
    return 0;
}
