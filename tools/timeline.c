/* timeline -- draws a file of train_gpt --trace: one step of every rank without overlap, and one
 * with it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/timeline_file.h"
#include "parallel/plan/trace.h"

static const char usage[] =
    "gpt-timeline: what every rank computes in a step, and what it is blocked on\n"
    "\n"
    "    gpt-timeline FILE [--step serial|overlap|both] [--width N]\n"
    "\n"
    "FILE is what train_gpt --trace FILE wrote; ui.perfetto.dev shows it, too.\n\n";

/* Columns of the terminal. */
static int columns(void) {
    struct winsize w;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col;
    return 100;
}

static bool colourful(void) {
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0 && !(no && *no);
}

static void print_layers(const Timeline *t) {
    TraceTable table = {.kernels = {t->kernels_ms[0] / 1e3, t->kernels_ms[1] / 1e3}};
    for (; table.n < t->n_layers; table.n++) {
        const TimelineLayer *l = &t->layer[table.n];
        table.row[table.n] = (TraceLayer){.name = l->name,
                                          .calls = l->collectives,
                                          .bytes = l->bytes,
                                          .serial = l->serial_ms / 1e3,
                                          .exposed = l->exposed_ms / 1e3};
    }
    if (table.n == 0) return;
    printf("\n");
    trace_print(stdout, &table, t->says_hidden);
}

int main(int argc, char **argv) {
    int64_t width;
    int step;
    const Opt options[] = {
        {"step", OPT_CHOICE, &step, "both", 0, 0, "serial|overlap|both", "which of the two steps"},
        {"width", OPT_INT, &width, "0", 0, 1010, "N", "columns; 0 is those of the terminal"},
        {0}};
    die_set_program(argv[0]);
    int n_files = opt_parse_files(options, argc, argv, usage);
    const char *path = argv[1];
    if (n_files != 1)
        die_usage("%s: gpt-timeline FILE [options]; train_gpt --trace FILE writes one",
                  n_files ? "one file is drawn at a time" : "no file");
    Timeline t;
    Err e;
    IoMap map = io_open(path);
    int only = step < TIMELINE_STEPS ? step : -1;
    if (!timeline_parse(&t, (const char *)map.p, map.n, &e)) die_user("%s: %s", path, e.text);
    if (timeline_axis(&t, only) <= 0) die_user("%s: that step is not in it", path);
    printf("%s on %d ranks (%s): %s\n\n", t.layout, t.ranks, t.backend, t.model);
    timeline_text(stdout, &t, only, width ? (int)width : columns(), colourful());
    print_layers(&t);
    timeline_free(&t), io_unmap(&map);
    return 0;
}
