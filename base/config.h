/* config -- the shape of one model, and the notation of all shapes.
 *
 *   B sequences, S positions, T = B*S tokens, C channels, H heads (of which Hkv hold keys and
 * values), D head size (C/H unless something else is said), F hidden features of the MLP, V
 * vocabulary, L layers.
 *
 * GPT-2 is the default shape; the LLaMA shape is norm=rms, pos=rope, act=swiglu, kv_heads, bias=0,
 * tied=0. Qwen 2 adds qkv_bias=1 to it, Qwen 3 qk_norm=1 and head_dim.
 */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"

typedef enum { NORM_LAYER, NORM_RMS } NormKind;
typedef enum { POS_LEARNED, POS_ROPE } PosKind;
typedef enum { ACT_GELU, ACT_RELU2, ACT_SWIGLU } ActKind; // GELU in the tanh form

/* Token ids that end and begin a document. Sampling stops at an end id; no other computation
 * depends on these ids. */
enum { MAX_EOS = 8 };
typedef struct SpecialIds {
    int n_eos;
    int32_t eos[MAX_EOS];
    bool has_bos;
    int32_t bos;
} SpecialIds;

enum { ROPE_SEQ = 8192 }; // positions of the first training of LLaMA 3
typedef struct Config {
    int64_t layers, heads, kv_heads, channels, ffn, seq, vocab; // L, H, Hkv, C, F, S (longest), V
    NormKind norm;
    PosKind pos;
    ActKind act;
    bool bias; // of the linear layers and of layer norm
    bool tied; // the head is the embedding
    double norm_eps, rope_theta;
    // Rotary positions that were stretched after a first training, as those of LLaMA 3.1 and later
    // (layers/rope.h): by this factor (1: not), after a training with rope_seq positions
    double rope_factor;
    int64_t rope_seq; // ROPE_SEQ unless something else is said
    int64_t head_dim; // D; 0: C/H
    bool qkv_bias;    // where `bias` is not set: of the linear layers of q, k and v alone
    bool qk_norm;     // RMS norm of each head of q and k (layers/norm.h)
    SpecialIds ids;   // not part of the --model text; config.json has them
} Config;

/* Local. Reads --model: words d6 d12 d24 d36 d48 (GPT-2 sizes) or "llama", and pairs key=value
 * with the keys layers, heads, kv_heads, channels, ffn, seq, vocab, norm=layer|rms,
 * pos=learned|rope, act=gelu|relu2|swiglu, bias=0|1, tied=0|1, eps, theta, rope_factor,
 * rope_seq, head_dim, qkv_bias=0|1, qk_norm=0|1. Words and pairs are joined by commas; later ones
 * override earlier ones. Returns false with a reason, which names the nearest key, when the text is
 * wrong or the shape is impossible. */
bool config_parse(Config *c, const char *text, Err *e);
/* Local. Applies such a text to an existing model: fields that it does not name keep their
 * values. */
bool config_change(Config *c, const char *text, Err *e);
/* Local. Checks that numbers are within their bounds, heads divide channels where there is no
 * head_dim, kv_heads divide heads, and head size is even for rope. */
bool config_check(const Config *c, Err *e);
/* Local, pure. The word of act=WORD, written to buf: "gelu". */
const char *config_act_name(ActKind act, char buf[16]);
/* Local. Text that config_parse reads back to the same Config, without the keys after theta that
 * the model does without. */
void config_print(const Config *c, char *buf, size_t n);
bool config_equal(const Config *a, const Config *b);
/* Local. Writes the first key in which a and b differ, as "key=value" of a and of b. False when
 * they are equal. */
bool config_difference(const Config *a, const Config *b, char in_a[64], char in_b[64]);
/* Local. Parameters of the logical model (the head counted once when tied). */
int64_t config_parameters(const Config *c);
/* Local. FLOPs of one token, forward and backward: 6 N + 6 L H D S, N without tables that are only
 * looked up: positions, an untied embedding (the attention term counts the causal half). */
double config_flops_per_token(const Config *c, int64_t seq);

static inline int64_t config_head_size(const Config *c) {
    return c->head_dim ? c->head_dim : c->channels / c->heads;
}
/* Has a linear layer biases? qkv: is it the one of q, k and v? */
static inline bool config_biased(const Config *c, bool qkv) {
    return c->bias || (qkv && c->qkv_bias);
}
/* Width of packed QKV rows: (H + 2 Hkv) D. */
static inline int64_t config_qkv(const Config *c) {
    return (c->heads + 2 * c->kv_heads) * config_head_size(c);
}

#endif
