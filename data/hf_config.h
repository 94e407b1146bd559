/* hf_config -- config.json, the description of a model beside its weights.
 *
 * Four kinds of model are Hugging Face's own and load in `transformers`:
 *
 *   gpt2    norm=layer pos=learned act=gelu bias=1 kv_heads=heads      GPT2LMHeadModel
 *   llama   norm=rms   pos=rope    act=swiglu                          LlamaForCausalLM
 *                                                (bias=1 is attention_bias and mlp_bias)
 *   qwen2   as llama, qkv_bias=1                                       Qwen2ForCausalLM
 *   qwen3   as llama, bias=0 qk_norm=1                                 Qwen3ForCausalLM
 *
 * Every other combination (layer norm with rotary positions, say) is saved with model_type
 * "train_gpt", and no other program loads it. All have a key "train_gpt" with the text that
 * config_parse reads; a model of the last kind is read from that key alone.
 */
#ifndef DATA_HF_CONFIG_H
#define DATA_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"

typedef enum { HF_GPT2, HF_LLAMA, HF_QWEN2, HF_QWEN3, HF_OWN } HfKind;

HfKind hf_config_kind(const Config *c);
/* Local. The text of config.json for weights in fp32 or bf16, freed by mem_free. */
char *hf_config_text(const Config *c, bool bf16);
/* Local. The text of generation_config.json, from which generate() of `transformers` knows where to
 * stop; freed by mem_free. NULL where no end-of-text id is known. */
char *hf_generation_text(const Config *c);
/* Local. Reads the ids of end and begin of text from a generation_config.json or a config.json. A
 * text that is no JSON or has no such ids changes nothing. */
void hf_ids_parse(const char *text, size_t n, Config *c);
/* Local, pure. Refuses, naming the key, a model that this trainer would compute differently:
 * another model_type, exact GELU, scaled rotary positions, attention in sliding windows, quantized
 * weights. */
bool hf_config_parse(const char *text, size_t n, Config *c, Err *e);

#endif
