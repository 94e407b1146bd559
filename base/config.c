#include "base/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"

static const struct {
    const char *name;
    int64_t layers, heads, channels;
} sizes[] = {{"d6", 6, 6, 384},
             {"d12", 12, 12, 768},
             {"d24", 24, 16, 1024},
             {"d36", 36, 20, 1280},
             {"d48", 48, 25, 1600}};

/* Tables of a model have rows for every layer, whatever its width: 1,000 layers take 10 MB of them,
 * and half a second to plan. With at most 2^50 parameters no size of a model overflows 64 bits. */
enum { N_SIZES = sizeof sizes / sizeof sizes[0], MAX_DIM = 1 << 24, MAX_LAYERS = 1000 };
static const double MAX_PARAMETERS = (double)((int64_t)1 << 50);

/* Keys whose value is a whole number, and where it goes. */
static const struct {
    const char *name;
    size_t offset;
} whole[] = {{"layers", offsetof(Config, layers)},     {"heads", offsetof(Config, heads)},
             {"kv_heads", offsetof(Config, kv_heads)}, {"channels", offsetof(Config, channels)},
             {"ffn", offsetof(Config, ffn)},           {"seq", offsetof(Config, seq)},
             {"vocab", offsetof(Config, vocab)}};

enum { N_WHOLE = sizeof whole / sizeof whole[0] };

static bool set_whole(Config *c, const char *key, const char *value, bool *found, Err *e) {
    *found = false;
    for (int i = 0; i < N_WHOLE; i++) {
        if (strcmp(key, whole[i].name) != 0) continue;
        *found = true;
        char *end;
        long long x = strtoll(value, &end, 10);
        if (*end || end == value || x < 1 || x > MAX_DIM)
            return err(e, "model: %s=%s: a whole number from 1 to %d is needed", key, value,
                       MAX_DIM);
        *(int64_t *)(void *)((char *)c + whole[i].offset) = x;
    }
    return true;
}

static const char *const act_names[] = {
    [ACT_GELU] = "gelu", [ACT_RELU2] = "relu2", [ACT_SWIGLU] = "swiglu"};
enum { N_ACTS = sizeof act_names / sizeof *act_names };

const char *config_act_name(ActKind act) {
    return act_names[act];
}

static bool set_act(Config *c, const char *value, Err *e) {
    char all[64] = "";
    for (int i = 0; i < N_ACTS; i++) {
        if (strcmp(value, act_names[i]) == 0) {
            c->act = (ActKind)i;
            return true;
        }
        strcat(strcat(all, i == 0 ? "" : i == N_ACTS - 1 ? " or " : ", "), act_names[i]);
    }
    return err(e, "model: act=%s: %s", value, all);
}

/* The index of value among two words, or -1. */
static int which(const char *value, const char *zero, const char *one) {
    return strcmp(value, zero) == 0 ? 0 : strcmp(value, one) == 0 ? 1 : -1;
}

static bool set_choice(Config *c, const char *key, const char *value, Err *e) {
    int i;
    if (strcmp(key, "norm") == 0) {
        if ((i = which(value, "layer", "rms")) < 0)
            return err(e, "model: norm=%s: layer or rms", value);
        c->norm = (NormKind)i;
    } else if (strcmp(key, "pos") == 0) {
        if ((i = which(value, "learned", "rope")) < 0)
            return err(e, "model: pos=%s: learned or rope", value);
        c->pos = (PosKind)i;
    } else if (strcmp(key, "act") == 0) {
        return set_act(c, value, e);
    } else if (strcmp(key, "bias") == 0 || strcmp(key, "tied") == 0) {
        if ((i = which(value, "0", "1")) < 0) return err(e, "model: %s=%s: 0 or 1", key, value);
        *(key[0] == 'b' ? &c->bias : &c->tied) = i == 1;
    } else {
        char *end;
        double x = strtod(value, &end);
        if (*end || end == value || !(x > 0) || isinf(x))
            return err(e, "model: %s=%s: a positive number is needed", key, value);
        *(strcmp(key, "eps") == 0 ? &c->norm_eps : &c->rope_theta) = x;
    }
    return true;
}

static bool set_word(Config *c, const char *word, Err *e) {
    const char *names[N_SIZES + 1];
    for (int i = 0; i < N_SIZES; i++) {
        names[i] = sizes[i].name;
        if (strcmp(word, sizes[i].name) != 0) continue;
        c->layers = sizes[i].layers, c->heads = sizes[i].heads, c->channels = sizes[i].channels;
        return true;
    }
    if (strcmp(word, "llama") == 0) {
        c->norm = NORM_RMS, c->pos = POS_ROPE, c->act = ACT_SWIGLU;
        c->bias = c->tied = false;
        return true;
    }
    // the same sizes by their names at Hugging Face
    static const char *const elsewhere[] = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"};
    names[N_SIZES] = "llama";
    const char *near = opt_nearest(word, names, N_SIZES + 1);
    for (int i = 0; i < 4; i++)
        if (strcmp(word, elsewhere[i]) == 0) near = sizes[i + 1].name;
    return err(e, "model: unknown word \"%s\"%s%s%s: d6 d12 d24 d36 d48 llama, or key=value", word,
               near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static bool set_pair(Config *c, const char *key, const char *value, Err *e) {
    static const char *const keys[] = {"layers", "heads", "kv_heads", "channels", "ffn",
                                       "seq",    "vocab", "norm",     "pos",      "act",
                                       "bias",   "tied",  "eps",      "theta"};
    enum { N = sizeof keys / sizeof keys[0] };
    for (int i = 0; i < N; i++) {
        if (strcmp(key, keys[i]) != 0) continue;
        bool found;
        if (!set_whole(c, key, value, &found, e)) return false;
        return found || set_choice(c, key, value, e);
    }
    const char *near = opt_nearest(key, keys, N);
    return err(e, "model: unknown key \"%s\"%s%s%s", key, near ? ": did you mean \"" : "",
               near ? near : "", near ? "\"?" : "");
}

bool config_parse(Config *c, const char *text, Err *e) {
    *c = (Config){.layers = 12,
                  .heads = 12,
                  .channels = 768,
                  .seq = 1024,
                  .vocab = 50257,
                  .bias = true,
                  .tied = true,
                  .norm_eps = 1e-5,
                  .rope_theta = 10000};
    return config_change(c, text, e);
}

bool config_change(Config *c, const char *text, Err *e) {
    char part[128];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        if (n == 0 || n >= sizeof part)
            return err(e, "model: \"%s\": words are joined by single commas", text);
        memcpy(part, p, n);
        part[n] = 0;
        p += n + (p[n] == ',');
        char *eq = strchr(part, '=');
        if (eq) *eq = 0;
        if (!(eq ? set_pair(c, part, eq + 1, e) : set_word(c, part, e))) return false;
    }
    if (!c->kv_heads) c->kv_heads = c->heads;
    // SwiGLU has three matrices instead of two: 8/3 C keeps the parameters, rounded up to 64 as
    // LLaMA does to 256.
    if (!c->ffn)
        c->ffn = c->act == ACT_SWIGLU ? (c->channels * 8 / 3 + 63) / 64 * 64 : 4 * c->channels;
    return config_check(c, e);
}

/* Exact below 2^53; as a double it cannot overflow for any sizes that config_check lets through. */
static double parameters(const Config *c) {
    double C = (double)c->channels, qkv = (double)config_qkv(c), ffn = (double)c->ffn,
           attn = (double)(c->heads * config_head_size(c)), layers = (double)c->layers;
    double up = c->act == ACT_SWIGLU ? 2 * ffn : ffn;
    double norm = c->norm == NORM_LAYER && c->bias ? 2 * C : C;
    double block = C * qkv + attn * C + C * up + ffn * C + 2 * norm;
    if (c->bias) block += qkv + C + up + C;
    return (double)c->vocab * C * (c->tied ? 1 : 2) +
           (c->pos == POS_LEARNED ? (double)c->seq * C : 0) + layers * block + norm;
}

bool config_check(const Config *c, Err *e) {
    for (int i = 0; i < N_WHOLE; i++) {
        int64_t x = *(const int64_t *)(const void *)((const char *)c + whole[i].offset);
        if (x < 1 || x > MAX_DIM)
            return err(e, "model: %s=%lld: from 1 to %d", whole[i].name, (long long)x, MAX_DIM);
    }
    if (c->channels % c->heads)
        return err(e, "model: heads=%lld do not divide channels=%lld", (long long)c->heads,
                   (long long)c->channels);
    if (c->heads % c->kv_heads)
        return err(e, "model: kv_heads=%lld do not divide heads=%lld", (long long)c->kv_heads,
                   (long long)c->heads);
    if (c->pos == POS_ROPE && config_head_size(c) % 2)
        return err(e, "model: pos=rope needs an even head size, channels/heads is %lld",
                   (long long)config_head_size(c));
    if (!(c->norm_eps >= 0) || !(c->rope_theta > 0))
        return err(e, "model: eps and theta must be positive");
    if (c->layers > MAX_LAYERS)
        return err(e, "model: layers=%lld: at most %d", (long long)c->layers, MAX_LAYERS);
    if (parameters(c) > MAX_PARAMETERS)
        return err(e, "model: %.3g parameters: at most %.3g", parameters(c), MAX_PARAMETERS);
    return true;
}

void config_print(const Config *c, char *buf, size_t n) {
    char eps[32], theta[32];
    snprintf(buf, n,
             "layers=%lld,heads=%lld,kv_heads=%lld,channels=%lld,ffn=%lld,seq=%lld,vocab=%lld,norm="
             "%s,pos=%s,act=%s,"
             "bias=%d,tied=%d,eps=%s,theta=%s",
             (long long)c->layers, (long long)c->heads, (long long)c->kv_heads,
             (long long)c->channels, (long long)c->ffn, (long long)c->seq, (long long)c->vocab,
             c->norm == NORM_RMS ? "rms" : "layer", c->pos == POS_ROPE ? "rope" : "learned",
             config_act_name(c->act), c->bias, c->tied, opt_number(c->norm_eps, eps, sizeof eps),
             opt_number(c->rope_theta, theta, sizeof theta));
}

bool config_equal(const Config *a, const Config *b) {
    char x[512], y[512];
    config_print(a, x, sizeof x);
    config_print(b, y, sizeof y);
    return strcmp(x, y) == 0;
}

bool config_difference(const Config *a, const Config *b, char in_a[64], char in_b[64]) {
    char x[512], y[512];
    config_print(a, x, sizeof x);
    config_print(b, y, sizeof y);
    for (const char *p = x, *q = y; *p && *q;) {
        size_t n = strcspn(p, ","), m = strcspn(q, ",");
        if (n != m || memcmp(p, q, n) != 0) {
            snprintf(in_a, 64, "%.*s", (int)n, p);
            snprintf(in_b, 64, "%.*s", (int)m, q);
            return true;
        }
        p += n + (p[n] == ','), q += m + (q[m] == ',');
    }
    return false;
}

int64_t config_parameters(const Config *c) {
    return (int64_t)parameters(c);
}

double config_flops_per_token(const Config *c, int64_t seq) {
    int64_t looked_up = (c->pos == POS_LEARNED ? c->seq : 0) +
                        (c->tied ? 0 : c->vocab); // rows that no matmul reads
    double n = (double)(config_parameters(c) - looked_up * c->channels);
    return 6 * n + 6 * (double)(c->layers * c->channels) * (double)seq;
}
