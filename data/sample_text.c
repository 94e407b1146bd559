#include "data/sample_text.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

char *sample_text(const Tokenizer *t, const int32_t *ids, int64_t n) {
    size_t used = 0, cap = 64;
    char *text = mem_alloc(cap);
    for (int64_t i = 0; i < n; i++) {
        char number[16];
        size_t len = (size_t)snprintf(number, sizeof number, "%d ", ids[i]);
        const uint8_t *bytes = t ? tokenizer_token(t, ids[i], &len) : NULL;
        if (t && !bytes) len = 0; // rows of the embedding that no token uses
        if (used + len + 1 > cap) text = mem_realloc(text, 1, cap = 2 * (used + len + 1));
        memcpy(text + used, bytes ? (const void *)bytes : number, len);
        used += len;
    }
    text[used] = 0;
    return text;
}

int64_t sample_prompt(const Tokenizer *t, const char *prompt, int64_t most, int64_t vocab,
                      int32_t **ids) {
    int64_t n = 0;
    if (*prompt) n = tokenizer_encode(t, (const uint8_t *)prompt, strlen(prompt), ids);
    if (n == 0) {
        int32_t eot = t ? tokenizer_eot(t) : -1;
        *ids = mem_alloc(sizeof **ids);
        (*ids)[0] = eot >= 0 && eot < vocab ? eot : 0;
        return 1;
    }
    if (n > most) memmove(*ids, *ids + n - most, (size_t)most * sizeof **ids);
    return n < most ? n : most;
}
