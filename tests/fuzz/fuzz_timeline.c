/* Any bytes as a file of --trace: it is drawn, or refused in words. */
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "data/timeline_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Err e;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f) abort();
    bool ok = timeline_draw(f, (const char *)p, n, -1, 60, true, &e);
    fclose(f);
    if (ok != (size > 0)) abort();
    mem_free(text);
    return 0;
}
