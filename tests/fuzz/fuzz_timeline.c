/* Any bytes as a file of --trace. What is accepted has spans that ascend, do not overlap and lie
 * within their step, and can be drawn. */
#include <stdlib.h>

#include "base/mem.h"
#include "data/timeline_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check(const TimelineRow *r) {
    for (int kind = 0; kind < TIMELINE_KINDS; kind++)
        for (size_t i = 0; i < r->n[kind]; i++) {
            const TimelineSpan *s = &r->span[kind][i];
            if (!(s->begin >= 0 && s->begin < s->end && s->end <= r->ms * (1 + 1e-9))) abort();
            if (i > 0 && s[-1].end > s->begin) abort();
            if (s->part < 0 || s->part >= TIMELINE_PARTS) abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Timeline t;
    Err e;
    char *text = NULL;
    size_t size;
    if (!timeline_parse(&t, (const char *)p, n, &e)) return 0;
    for (int k = 0; k < TIMELINE_STEPS; k++)
        for (int i = 0; i < t.step[k].n; i++) check(&t.step[k].row[i]);
    FILE *f = open_memstream(&text, &size);
    if (!f || !(timeline_axis(&t, -1) > 0)) abort();
    timeline_text(f, &t, -1, 60, true);
    fclose(f);
    mem_free(text);
    timeline_free(&t);
    return 0;
}
