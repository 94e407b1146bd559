/* Any bytes as JSON lines of HellaSwag. What is accepted is a file that the reader takes, with the
 * same number of examples. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/hellaswag.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    seed_text("two",
              "{'ctx': 'A b', 'label': '1', 'endings': ['c', 'd.', 'e', 'f g']}\n\n"
              "{'ctx': 'Z', 'ind': 4, 'label': 0, 'endings': ['1', '2', '3', '4']}\r\n \t\r\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const Tokenizer *t;
    HellaSwag h;
    Err e;
    size_t size = 0;
    int64_t lines = 0; // that are not blank
    if (!t) t = tokenizer_load("bytes");
    uint8_t *file = hellaswag_encode(p, n, t, &size, &e);
    if (!file) return 0;
    if (!hellaswag_parse(file, size, &h, &e)) abort();
    bool counted = false;
    for (size_t i = 0; i < n; i++) {
        if (!counted) lines += counted = !memchr(" \t\r\n", p[i], 4);
        if (p[i] == '\n') counted = false;
    }
    if (h.n != lines || h.max_id >= tokenizer_vocab(t)) abort();
    for (int64_t i = 0; i < h.n; i++)
        if (hellaswag_label(&h, i) < 0 || hellaswag_label(&h, i) >= HELLASWAG_CHOICES) abort();
    hellaswag_close(&h);
    mem_free(file);
    return 0;
}
