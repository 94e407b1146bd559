/* convert -- a model from one format to another, values unchanged.
 *
 *     convert --init gpt2_124M.bin --out gpt2/            llm.c to a folder for `transformers`
 *     convert --init run --out model.bin                  a run's newest checkpoint to llm.c, fp32
 *     convert --init gpt2/ --out small/ --dtype bf16      half the bytes, rounded to nearest
 *
 * A folder gets a copy of the tokenizer that is in the model's folder.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/path.h"
#include "data/checkpoint.h"
#include "data/io.h"
#include "data/llmc.h"
#include "data/tokenizer_folder.h"
#include "data/weights.h"

static const char *init_path, *out_path;
static int dtype;

static const Opt options[] = {
    {"init", OPT_STR, &init_path, "", 0, 0, "FILE",
     "model: llm.c .bin, .safetensors, a folder, or a folder of --save (its newest checkpoint)"},
    {"out", OPT_STR, &out_path, "", 0, 0, "FILE",
     "NAME.bin: a file in llm.c's format; else a new folder for safetensors"},
    {"dtype", OPT_CHOICE, &dtype, "fp32", 0, 0, "fp32|bf16", "type of the values in the file"},
    {0}};

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    opt_parse(options, argc, argv,
              "gpt-convert: a model from one format to another, values unchanged\n\n"
              "    gpt-convert --init FILE --out FILE [--dtype bf16]\n\n");
    if (!*init_path || !*out_path) die_usage("--init and --out are needed");
    if (path_ends(out_path, ".safetensors"))
        die_usage("--out %s: the output is a folder with config.json and model.safetensors: name a "
                  "folder",
                  out_path);
    if (io_exists(out_path)) die_user("%s is there already: choose another name", out_path);
    Config c;
    Err e;
    char *model = checkpoint_find_model(init_path, &group_alone, &e);
    if (!model || !weights_config(model, &c, &e)) die_user("%s", e.text);
    TensorTable t = tensors_describe(&c);
    TokenizerFolder tokenizer = tokenizer_folder(model);
    float *values = mem_alloc((size_t)config_parameters(&c) * sizeof *values), *at = values;
    for (int i = 0; i < t.n; at += tensor_size(&t.t[i++])) t.t[i].param = at;
    if (!weights_load(model, &t, &group_alone, &e)) die_user("%s", e.text);
    bool ok = path_ends(out_path, ".bin")
                  ? llmc_model_save(out_path, &t, dtype ? LLMC_BF16 : LLMC_FP32, &group_alone, &e)
                  : weights_export(out_path, &t, dtype ? "BF16" : "F32", &group_alone, &e) &&
                        tokenizer_folder_write(&tokenizer, out_path, &e);
    if (!ok) {
        rmdir(out_path); // the next try would be refused because of an empty folder
        die_user("%s", e.text);
    }
    printf("%s: %lld parameters, %s\n", out_path, (long long)config_parameters(&c),
           dtype ? "bf16" : "fp32");
    mem_free(model);
    mem_free(values);
    tokenizer_folder_free(&tokenizer);
    tensors_free(&t);
    return 0;
}
