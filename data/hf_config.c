#include "data/hf_config.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"

HfKind hf_config_kind(const Config *c) {
    if (c->norm == NORM_LAYER && c->pos == POS_LEARNED && c->act == ACT_GELU && c->bias &&
        c->kv_heads == c->heads && !c->head_dim && !c->qk_norm)
        return HF_GPT2;
    if (c->norm != NORM_RMS || c->pos != POS_ROPE || c->act != ACT_SWIGLU) return HF_OWN;
    if (!c->qk_norm) return c->qkv_bias ? HF_QWEN2 : HF_LLAMA;
    return c->bias || c->qkv_bias ? HF_OWN : HF_QWEN3;
}

static json_t *gpt2_json(const Config *c) {
    return json_pack("{s:s,s:[s],s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:s,s:b,s:f,s:f,s:f,s:f}",
                     "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "n_layer",
                     (json_int_t)c->layers, "n_head", (json_int_t)c->heads, "n_embd",
                     (json_int_t)c->channels, "n_positions", (json_int_t)c->seq, "n_ctx",
                     (json_int_t)c->seq, "n_inner", (json_int_t)c->ffn, "vocab_size",
                     (json_int_t)c->vocab, "layer_norm_epsilon", c->norm_eps, "activation_function",
                     "gelu_new", "tie_word_embeddings", c->tied, "resid_pdrop", 0.0, "embd_pdrop",
                     0.0, "attn_pdrop", 0.0, "initializer_range", 0.02);
}

/* LLaMA's and Qwen's keys are the same. `transformers` gives q, k and v of Qwen 2 biases without a
 * key for them. */
static json_t *llama_json(const Config *c, HfKind kind) {
    static const char *const types[] = {
        [HF_LLAMA] = "llama", [HF_QWEN2] = "qwen2", [HF_QWEN3] = "qwen3"};
    static const char *const classes[] = {[HF_LLAMA] = "LlamaForCausalLM",
                                          [HF_QWEN2] = "Qwen2ForCausalLM",
                                          [HF_QWEN3] = "Qwen3ForCausalLM"};
    json_t *root = json_pack(
        "{s:s,s:[s],s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:s,s:b,s:b,s:b,s:f,s:f}", "model_type",
        types[kind], "architectures", classes[kind], "hidden_size", (json_int_t)c->channels,
        "intermediate_size", (json_int_t)c->ffn, "num_hidden_layers", (json_int_t)c->layers,
        "num_attention_heads", (json_int_t)c->heads, "num_key_value_heads", (json_int_t)c->kv_heads,
        "head_dim", (json_int_t)config_head_size(c), "max_position_embeddings", (json_int_t)c->seq,
        "vocab_size", (json_int_t)c->vocab, "rms_norm_eps", c->norm_eps, "rope_theta",
        c->rope_theta, "hidden_act", "silu", "tie_word_embeddings", c->tied, "attention_bias",
        c->bias, "mlp_bias", c->bias, "attention_dropout", 0.0, "initializer_range", 0.02);
    if (c->rope_factor != 1)
        json_object_set_new(root, "rope_scaling",
                            json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
                                      c->rope_factor, "low_freq_factor", 1.0, "high_freq_factor",
                                      4.0, "original_max_position_embeddings",
                                      (json_int_t)c->rope_seq));
    return root;
}

/* Sets bos_token_id and eos_token_id, to null where no id is known: without the keys `transformers`
 * takes ids of GPT-2's and LLaMA's vocabularies. */
static void put_ids(json_t *root, const Config *c) {
    static const SpecialIds gpt2 = {.n_eos = 1, .eos = {50256}, .has_bos = true, .bos = 50256};
    bool known = c->ids.n_eos || c->ids.has_bos;
    const SpecialIds *x = !known && c->vocab == 50257 ? &gpt2 : &c->ids;
    json_t *eos = x->n_eos > 1 ? json_array() : x->n_eos ? json_integer(x->eos[0]) : json_null();
    for (int i = 0; x->n_eos > 1 && i < x->n_eos; i++)
        json_array_append_new(eos, json_integer(x->eos[i]));
    json_object_set_new(root, "bos_token_id", x->has_bos ? json_integer(x->bos) : json_null());
    json_object_set_new(root, "eos_token_id", eos);
}

char *hf_generation_text(const Config *c) {
    json_t *root = json_object();
    put_ids(root, c);
    char *text = json_dumps(root, JSON_INDENT(2));
    if (json_is_null(json_object_get(root, "eos_token_id"))) mem_free(text), text = NULL;
    json_decref(root);
    return text;
}

char *hf_config_text(const Config *c, bool bf16) {
    HfKind kind = hf_config_kind(c);
    char ours[512];
    config_print(c, ours, sizeof ours);
    json_t *root = kind == HF_GPT2  ? gpt2_json(c)
                   : kind == HF_OWN ? json_pack("{s:s}", "model_type", "train_gpt")
                                    : llama_json(c, kind);
    put_ids(root, c);
    json_object_set_new(root, "torch_dtype", json_string(bf16 ? "bfloat16" : "float32"));
    json_object_set_new(root, "train_gpt", json_string(ours));
    char *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return text;
}

/* Reads keys of a config.json. After the first error ok is false, and e keeps the reason. */
typedef struct Reader {
    const json_t *root;
    bool ok;
    Err *e;
} Reader;

enum { NEEDED = -1 }; // in place of `otherwise`: a missing key is an error

/* A positive whole number; `otherwise` when the key is absent or null. */
static int64_t get_whole(Reader *r, const char *key, int64_t otherwise) {
    const json_t *x = json_object_get(r->root, key);
    if ((!x || json_is_null(x)) && otherwise != NEEDED) return otherwise;
    if (!r->ok) return 1;
    if (!x)
        r->ok = err(r->e, "the key \"%s\" is missing", key);
    else if (!json_is_integer(x) || json_integer_value(x) < 1)
        r->ok = err(r->e, "\"%s\" is not a positive whole number", key);
    return r->ok ? json_integer_value(x) : 1;
}

static double get_number(Reader *r, const char *key, double otherwise) {
    const json_t *x = json_object_get(r->root, key);
    if (!x || json_is_null(x)) return otherwise;
    if (r->ok && !json_is_number(x)) r->ok = err(r->e, "\"%s\" is not a number", key);
    return json_number_value(x);
}

static bool get_bool(Reader *r, const char *key, bool otherwise) {
    const json_t *x = json_object_get(r->root, key);
    if (!x || json_is_null(x)) return otherwise;
    if (r->ok && !json_is_boolean(x)) r->ok = err(r->e, "\"%s\" is neither true nor false", key);
    return json_is_true(x);
}

/* The key must be absent, null, or one of two words. */
static void demand_word(Reader *r, const char *key, const char *word, const char *other) {
    const json_t *x = json_object_get(r->root, key);
    const char *s = json_string_value(x);
    if (!r->ok || !x || json_is_null(x)) return;
    if (!s || (strcmp(s, word) != 0 && strcmp(s, other) != 0))
        r->ok = err(r->e, "\"%s\" is \"%.60s\"; this trainer knows only \"%s\"", key,
                    s ? s : "no text", word);
}

static void demand_bool(Reader *r, const char *key, bool value) {
    if (get_bool(r, key, value) != value && r->ok)
        r->ok = err(r->e, "\"%s\" is %s, which this trainer does not compute", key,
                    value ? "false" : "true");
}

/* With "is_causal" false or null transformers attends to later tokens as well. */
static void demand_causal(Reader *r) {
    demand_bool(r, "is_causal", true);
    if (r->ok && json_is_null(json_object_get(r->root, "is_causal")))
        r->ok = err(r->e, "\"is_causal\" is null, which transformers takes for false: this trainer "
                          "does not compute it");
}

static void read_gpt2(Reader *r, Config *c) {
    *c = (Config){.norm = NORM_LAYER, .pos = POS_LEARNED, .act = ACT_GELU, .bias = true};
    c->rope_factor = 1, c->rope_seq = ROPE_SEQ;
    c->layers = get_whole(r, "n_layer", NEEDED), c->heads = get_whole(r, "n_head", NEEDED);
    c->kv_heads = c->heads, c->channels = get_whole(r, "n_embd", NEEDED);
    c->seq = get_whole(r, "n_positions", get_whole(r, "n_ctx", 1024));
    c->vocab = get_whole(r, "vocab_size", NEEDED);
    c->ffn = get_whole(r, "n_inner", c->channels < INT64_MAX / 4 ? 4 * c->channels : 1);
    c->norm_eps = get_number(r, "layer_norm_epsilon", 1e-5), c->rope_theta = 10000;
    c->tied = get_bool(r, "tie_word_embeddings", true);
    demand_word(r, "activation_function", "gelu_new", "gelu_pytorch_tanh");
    demand_bool(r, "scale_attn_weights", true);
    demand_bool(r, "scale_attn_by_inverse_layer_idx", false);
    demand_bool(r, "add_cross_attention", false);
}

/* Reads rope_scaling, or rope_parameters of newer files, which have the base inside. */
static void read_rope(Reader *r, const char *key, Config *c) {
    Reader in = {json_object_get(r->root, key), r->ok, r->e};
    const char *type = json_string_value(json_object_get(in.root, "rope_type"));
    demand_word(&in, "rope_type", "default", "llama3");
    demand_word(&in, "type", "default", "default");
    c->rope_theta = get_number(&in, "rope_theta", c->rope_theta);
    if (type && strcmp(type, "llama3") == 0) {
        c->rope_factor = get_number(&in, "factor", 0);
        c->rope_seq = get_whole(&in, "original_max_position_embeddings", NEEDED);
        if (in.ok && (get_number(&in, "low_freq_factor", 0) != 1 ||
                      get_number(&in, "high_freq_factor", 0) != 4))
            in.ok = err(r->e, "\"low_freq_factor\" and \"high_freq_factor\" must be 1 and 4, as "
                              "in all LLaMA models");
    }
    r->ok = in.ok;
}

/* Reads the config.json of a LLaMA, Qwen 2 or Qwen 3; refuses other activations, biases of other
 * layers than all or q, k and v, rotary positions scaled in other ways than LLaMA 3.1's, and
 * attention in sliding windows. */
static void read_llama(Reader *r, Config *c, HfKind kind) {
    *c = (Config){.norm = NORM_RMS, .pos = POS_ROPE, .act = ACT_SWIGLU};
    c->rope_factor = 1, c->rope_seq = ROPE_SEQ;
    c->layers = get_whole(r, "num_hidden_layers", NEEDED);
    c->heads = get_whole(r, "num_attention_heads", NEEDED);
    c->kv_heads = get_whole(r, "num_key_value_heads", c->heads);
    c->channels = get_whole(r, "hidden_size", NEEDED),
    c->ffn = get_whole(r, "intermediate_size", NEEDED);
    c->seq = get_whole(r, "max_position_embeddings", kind == HF_LLAMA ? 2048 : 32768),
    c->vocab = get_whole(r, "vocab_size", NEEDED);
    c->norm_eps = get_number(r, "rms_norm_eps", 1e-6);
    c->rope_theta = get_number(r, "rope_theta", 10000);
    c->tied = get_bool(r, "tie_word_embeddings", false);
    c->bias = kind != HF_QWEN2 && get_bool(r, "attention_bias", false);
    c->qkv_bias = kind == HF_QWEN2, c->qk_norm = kind == HF_QWEN3;
    demand_bool(r, "use_sliding_window", false);
    demand_word(r, "hidden_act", "silu", "swish");
    bool mlp_bias = get_bool(r, "mlp_bias", false);
    if (r->ok && mlp_bias != c->bias)
        r->ok = err(r->e,
                    "\"attention_bias\" is %s and \"mlp_bias\" is %s: in this trainer all linear "
                    "layers have biases, those of q, k and v alone, or none",
                    c->bias ? "true" : "false", mlp_bias ? "true" : "false");
    read_rope(r, "rope_scaling", c);
    read_rope(r, "rope_parameters", c);
    // where the key is missing `transformers` takes 128 for Qwen 3
    int64_t head = get_whole(r, "head_dim", kind == HF_QWEN3 ? 128 : c->channels / c->heads);
    if (head != c->channels / c->heads || c->channels % c->heads) c->head_dim = head;
}

static void read_own(Reader *r, Config *c) {
    const char *text = json_string_value(json_object_get(r->root, "train_gpt"));
    if (!text)
        r->ok = err(r->e, "the key \"train_gpt\" is missing");
    else
        r->ok = config_parse(c, text, r->e);
}

/* Reads one token id; false for a value of another type and for an id outside the vocabulary. */
static bool read_id(const json_t *x, int64_t vocab, int32_t *id) {
    bool ok = json_is_integer(x) && json_integer_value(x) >= 0 && json_integer_value(x) < vocab;
    if (ok) *id = (int32_t)json_integer_value(x);
    return ok;
}

static void read_ids(const json_t *root, Config *c) {
    const json_t *eos = json_object_get(root, "eos_token_id");
    SpecialIds x = {0};
    x.has_bos = read_id(json_object_get(root, "bos_token_id"), c->vocab, &x.bos);
    x.n_eos = read_id(eos, c->vocab, x.eos);
    for (size_t i = 0; i < json_array_size(eos) && x.n_eos < MAX_EOS; i++)
        x.n_eos += read_id(json_array_get(eos, i), c->vocab, &x.eos[x.n_eos]);
    if (x.has_bos) c->ids.has_bos = true, c->ids.bos = x.bos;
    if (x.n_eos) memcpy(c->ids.eos, x.eos, sizeof x.eos), c->ids.n_eos = x.n_eos;
}

void hf_ids_parse(const char *text, size_t n, Config *c) {
    json_t *root = json_loadb(text, n, 0, NULL);
    read_ids(root, c);
    json_decref(root);
}

static void refuse_quantized(Reader *r) {
    const json_t *q = json_object_get(r->root, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (r->ok && q && !json_is_null(q))
        r->ok = err(r->e,
                    "\"quantization_config\" (%.60s): the weights are quantized; this trainer "
                    "reads F32, BF16 and F16 values, so take the model that was not quantized",
                    method ? method : "no \"quant_method\"");
}

bool hf_config_parse(const char *text, size_t n, Config *c, Err *e) {
    json_error_t je;
    json_t *root = json_loadb(text, n, 0, &je);
    if (!root) return err(e, "no JSON: line %d: %.150s", je.line, je.text);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    Reader r = {.root = root, .ok = true, .e = e};
    if (!type)
        r.ok = err(e, "no model description: the key \"model_type\" is missing");
    else if (strcmp(type, "gpt2") == 0)
        read_gpt2(&r, c);
    else if (strcmp(type, "llama") == 0)
        read_llama(&r, c, HF_LLAMA);
    else if (strcmp(type, "qwen2") == 0)
        read_llama(&r, c, HF_QWEN2);
    else if (strcmp(type, "qwen3") == 0)
        read_llama(&r, c, HF_QWEN3);
    else if (strcmp(type, "train_gpt") == 0)
        read_own(&r, c);
    else
        r.ok = err(e, "model_type \"%.60s\": only gpt2, llama, qwen2 and qwen3 can be read", type);
    refuse_quantized(&r);
    demand_causal(&r);
    if (r.ok) read_ids(root, c);
    json_decref(root);
    return r.ok && config_check(c, e);
}
