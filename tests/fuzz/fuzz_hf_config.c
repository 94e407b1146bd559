/* Any bytes as config.json. What is accepted must be a model that can be, and must survive being
 * written and read again. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/hf_config.h"
#include "tests/fuzz/seeds.h"

static void seeds(void) {
    static const char *const models[] = {"layers=2,heads=2,channels=8",
                                         "llama,layers=2,heads=4,kv_heads=2,channels=16,bias=1",
                                         "layers=1,heads=1,channels=4,act=relu2,norm=rms"};
    for (int i = 0; i < 3; i++) {
        Config c;
        Err e;
        char name[] = {(char)('a' + i), 0};
        if (!config_parse(&c, models[i], &e)) die("%s", e.text);
        c.ids = (SpecialIds){.n_eos = i, .eos = {2, 3}, .has_bos = i > 0, .bos = 1};
        char *text = hf_config_text(&c, false);
        seed(name, text, strlen(text));
        mem_free(text);
    }
    seed_text("rope",
              "{'model_type':'llama','num_hidden_layers':1,'num_attention_heads':2,'head_dim':4,"
              "'hidden_size':8,'intermediate_size':9,'vocab_size':7,'hidden_act':'silu',"
              "'rope_scaling':null,'rope_parameters':{'rope_type':'default',"
              "'rope_theta':5e5},'quantization_config':null}");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Config c, back;
    Err e;
    if (!hf_config_parse((const char *)p, n, &c, &e)) return 0;
    if (!config_check(&c, &e)) abort();
    char *text = hf_config_text(&c, false);
    if (!hf_config_parse(text, strlen(text), &back, &e)) abort();
    mem_free(text);
    if (hf_config_kind(&c) == HF_GPT2) back.rope_theta = c.rope_theta; // not part of its file
    if (!config_equal(&c, &back)) abort();
    return 0;
}
