/* timeline -- draws a file written by train_gpt --trace: one step of every rank without overlap,
 * and one with overlap. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/opt.h"
#include "data/io_map.h"
#include "data/progress.h"
#include "data/timeline_text.h"

static const char usage[] =
    "gpt-timeline: what every rank computes in a step, and what it is blocked on\n"
    "\n"
    "    gpt-timeline FILE [--step serial|overlap|both] [--width N]\n"
    "\n"
    "FILE is what train_gpt --trace FILE wrote; ui.perfetto.dev shows it, too.\n\n";

static bool colourful(void) {
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0 && !(no && *no);
}

int main(int argc, char **argv) {
    int64_t width;
    int step;
    const Opt options[] = {{"step", OPT_CHOICE, &step, "both", 0, 0, "serial|overlap|both",
                            "steps to draw: without overlap, with it, or both"},
                           {"width", OPT_INT, &width, "0", 0, 1010, "N",
                            "width in columns; 0: the width of the terminal"},
                           {0}};
    die_set_program(argv[0]);
    int n_files = opt_parse_files(options, argc, argv, usage);
    const char *path = argv[1];
    if (n_files != 1)
        die_usage("%s: gpt-timeline FILE [options]; train_gpt --trace FILE writes one",
                  n_files ? "one file is drawn at a time" : "no file");
    Err e;
    IoMap map = io_open(path);
    if (!timeline_draw(stdout, (const char *)map.p, map.n, step < TIMELINE_STEPS ? step : -1,
                       width ? (int)width : progress_columns(stdout, 100), colourful(), &e))
        die_user("%s: %s", path, e.text);
    io_unmap(&map);
    return 0;
}
