/* Any bytes as an llm.c model, or (first byte odd) as a debug state of a small model. What is
 * accepted is read to its last value. */
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
    LlmcState s;
    Config c;
    Err e;
    if (n < 1) return 0;
    if (p[0] % 2 == 0) {
        if (llmc_model_parse(p + 1, n - 1, &m, &e)) read_model(&m);
        return 0;
    }
    if (!config_parse(&c, "layers=1,heads=1,channels=1,seq=4,vocab=2", &e)) abort();
    if (!llmc_state_parse(p + 1, n - 1, &c, &s, &e)) return 0;
    if (s.x < p || s.x >= s.y || s.y >= s.logits || s.logits >= s.grads) abort();
    LlmcTensor last = llmc_tensor(&c, LLMC_TENSORS - 1);
    if (s.grads + 4 * (last.offset + last.layers * last.rows * last.cols) != p + n) abort();
    return 0;
}
