/* Any bytes as an llm.c model. What is accepted is read to its last value. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/llmc.h"
#include "tests/fuzz/seeds.h"

static TensorTable table_of(const Config *c) {
    TensorTable t = tensors_describe(c);
    for (int i = 0; i < t.n; i++)
        t.t[i].param = mem_calloc((size_t)tensor_size(&t.t[i]), sizeof(float));
    return t;
}

static void table_free(TensorTable *t) {
    for (int i = 0; i < t->n; i++) mem_free(t->t[i].param);
    tensors_free(t);
}

static void seeds(void) {
    Config c;
    Err e;
    if (!config_parse(&c, "layers=1,heads=1,channels=1,seq=1,vocab=1", &e)) die("%s", e.text);
    TensorTable t = table_of(&c);
    char *fp32 = seed_path("fp32"), *bf16 = seed_path("bf16");
    if (!llmc_model_save(fp32, &t, LLMC_FP32, &group_alone, &e) ||
        !llmc_model_save(bf16, &t, LLMC_BF16, &group_alone, &e))
        die("%s", e.text);
    mem_free(fp32), mem_free(bf16);
    table_free(&t);
}

static void read_model(const LlmcModel *m) {
    TensorTable t = table_of(&m->config);
    llmc_model_read(m, &t);
    table_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    LlmcModel m;
    Err e;
    if (llmc_model_parse(p, n, &m, &e)) read_model(&m);
    return 0;
}
