/* Any bytes as an llm.c model. What is accepted is read to its last value. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/llmc.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void read_model(const LlmcModel *m) {
    TensorTable t = tensors_describe(&m->config);
    for (int i = 0; i < t.n; i++)
        t.t[i].param = mem_calloc((size_t)tensor_size(&t.t[i]), sizeof(float));
    llmc_model_read(m, &t);
    for (int i = 0; i < t.n; i++) mem_free(t.t[i].param);
    tensors_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    LlmcModel m;
    Err e;
    if (llmc_model_parse(p, n, &m, &e)) read_model(&m);
    return 0;
}
