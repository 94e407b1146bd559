/* Any bytes as config.json. What is accepted must be a model that can be, and must survive being
 * written and read again. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Config c, back;
    Err e;
    if (!hf_config_parse((const char *)p, n, &c, &e)) return 0;
    if (!config_check(&c, &e)) abort();
    char *text = hf_config_text(&c);
    if (!hf_config_parse(text, strlen(text), &back, &e)) abort();
    mem_free(text);
    if (hf_config_kind(&c) == HF_GPT2) back.rope_theta = c.rope_theta; // not part of its file
    if (!config_equal(&c, &back)) abort();
    return 0;
}
