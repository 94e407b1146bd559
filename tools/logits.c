/* logits -- writes the logits that a model gives each next token, for another program to read.
 *
 *     logits --init gpt2/ --tokens 15496,11,995 --out logits.f32
 *
 * Writes fp32[S, V], row-major, little-endian: row i scores the token after tokens 0..i.
 * tests/check_transformers.py compares them with those of `transformers`.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "data/checkpoint.h"
#include "data/output.h"
#include "data/weights.h"
#include "parallel/step/model.h"

static const char *init_path, *tokens_text, *out_path;

static const Opt options[] = {
    {"init", OPT_STR, &init_path, "", 0, 0, "FILE",
     "model: llm.c .bin, .safetensors, a folder, or a folder of --save (its newest checkpoint)"},
    {"tokens", OPT_STR, &tokens_text, "", 0, 0, "IDS", "token ids joined by commas"},
    {"out", OPT_STR, &out_path, "", 0, 0, "FILE", "file to write: logits as fp32[S, V]"},
    {0}};

/* Parses --tokens. Returns the ids; *n: their number. */
static int32_t *read_tokens(const Config *c, int64_t *n) {
    int32_t *ids = NULL;
    char *end = NULL;
    for (const char *p = tokens_text; *n == 0 || *end == ','; p = end + 1) {
        long long id = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ','))
            die_usage("--tokens: a number is needed at \"%s\"", p);
        if (id < 0 || id >= c->vocab)
            die_usage("--tokens: %lld is no id of a vocabulary of %lld", id, (long long)c->vocab);
        if (*n == c->seq) die_usage("--tokens: the model takes at most %lld", (long long)c->seq);
        ids = mem_realloc(ids, (size_t)*n + 1, sizeof *ids);
        ids[(*n)++] = (int32_t)id;
    }
    return ids;
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    opt_parse(options, argc, argv, "usage: logits --init FILE --tokens 1,2,3 --out FILE\n\n");
    if (!*init_path || !*tokens_text || !*out_path)
        die_usage("--init, --tokens and --out are needed");
    ModelShape shape = {.B = 1};
    Err e;
    char *path = checkpoint_find_model(init_path, &group_alone, &e);
    if (!path || !weights_config(path, &shape.config, &e)) die_user("%s", e.text);
    int32_t *ids = read_tokens(&shape.config, &shape.S);
    Team *team = team_create(0);
    Model m;
    model_plan(&m, &shape, kernels_cpu(NULL), team);
    model_allocate(&m);
    if (!weights_load(path, &m.tensors, &group_alone, &e)) die_user("%s", e.text);
    size_t bytes = (size_t)(shape.S * shape.config.vocab) * sizeof(float);
    float *logits = mem_alloc(bytes);
    model_logits(&m, ids, logits);
    replace_whole("", out_path, logits, bytes);
    mem_free(logits);
    mem_free(ids);
    mem_free(path);
    model_free(&m);
    team_destroy(team);
    return 0;
}
