/* Any bytes as a file of options. What is accepted has names, and lines that are there. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt_file.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    seed_text("lines", "# a comment\nlr = 6e-4 # another\n--steps 10\nseq: 4\nname '#x'\nresume\n");
    seed_text("json", "{'lr': 6e-4,\n 'steps': 10,\n 'resume': true, 'name': 'x'}\n");
    seed_text("record", "{'run':{'options':{'lr':0.1,'layout':'x2'}}}\n{'step':1}\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    OptFile f;
    Err e;
    int lines = 1;
    for (size_t i = 0; i < n; i++) lines += p[i] == '\n';
    if (!opt_file_parse((const char *)p, n, &f, &e)) return 0;
    for (int i = 0; i < f.n; i++)
        if (!f.pair[i].name || f.pair[i].line < 1 || f.pair[i].line > lines) abort();
    opt_file_free(&f);
    return 0;
}
