/* Any bytes as an evaluation file. What is accepted must give rows, labels and lengths that agree
 * with each other. */
#include <stdlib.h>

#include "data/hellaswag.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    static const char text[] =
        "{\"ctx\": \"A man is\", \"label\": 3, \"endings\": [\"up.\", \"a tree.\", \"a\", \"b\"]}\n"
        "{\"ctx\": \"It\", \"label\": 0, \"endings\": [\"is\", \"was not yet\", \"a\", \"b\"]}\n";
    Err e;
    size_t n;
    Tokenizer *t = tokenizer_bytes();
    uint8_t *file = hellaswag_encode((const uint8_t *)text, sizeof text - 1, t, &n, &e);
    if (!file) die("%s", e.text);
    seed("two", file, n);
    mem_free(file);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    enum { S = 32 };
    static int32_t inputs[HELLASWAG_CHOICES * S], targets[HELLASWAG_CHOICES * S];
    static float loss[HELLASWAG_CHOICES * S];
    HellaSwag h;
    Err e;
    if (!hellaswag_parse(p, n, &h, &e)) return 0;
    int64_t refused = 0;
    for (int64_t i = 0; i < h.n; i++) {
        int label = hellaswag_label(&h, i);
        if (label < 0 || label >= HELLASWAG_CHOICES) abort();
        if (hellaswag_length(&h, i) > S + 1) {
            if (h.longest_row <= S + 1) abort();
            refused++;
            continue;
        }
        for (int c = 0; c < HELLASWAG_CHOICES; c++)
            hellaswag_row(&h, i, c, S, inputs + (int64_t)c * S, targets + (int64_t)c * S);
        for (int k = 0; k < HELLASWAG_CHOICES * S; k++)
            if (inputs[k] < 0 || inputs[k] > h.max_id || targets[k] > h.max_id) abort();
        if (hellaswag_pick(&h, i, loss, S) != 0) abort(); // all losses equal: the first row
    }
    if (h.longest_row > S + 1 && !refused) abort();
    hellaswag_close(&h);
    return 0;
}
