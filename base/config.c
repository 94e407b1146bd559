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

static const char *const norm_names[] = {[NORM_LAYER] = "layer", [NORM_RMS] = "rms", NULL};
static const char *const pos_names[] = {[POS_LEARNED] = "learned", [POS_ROPE] = "rope", NULL};
static const char *const act_names[] = {
    [ACT_GELU] = "gelu", [ACT_RELU2] = "relu2", [ACT_SWIGLU] = "swiglu", NULL};
static const char *const switch_names[] = {"0", "1", NULL};

const char *config_act_name(ActKind act) {
    return act_names[act];
}

/* The keys in the order of config_print: what each takes, where that goes, its words. */
typedef enum { WHOLE, CHOICE, SWITCH, NUMBER } ValueKind; // int64_t, an enum, bool, double
typedef struct Key {
    const char *name;
    ValueKind kind;
    size_t offset;
    const char *const *words; // of a choice or switch, ended by NULL
} Key;
static const Key keys[] = {{"layers", WHOLE, offsetof(Config, layers), NULL},
                           {"heads", WHOLE, offsetof(Config, heads), NULL},
                           {"kv_heads", WHOLE, offsetof(Config, kv_heads), NULL},
                           {"channels", WHOLE, offsetof(Config, channels), NULL},
                           {"ffn", WHOLE, offsetof(Config, ffn), NULL},
                           {"seq", WHOLE, offsetof(Config, seq), NULL},
                           {"vocab", WHOLE, offsetof(Config, vocab), NULL},
                           {"norm", CHOICE, offsetof(Config, norm), norm_names},
                           {"pos", CHOICE, offsetof(Config, pos), pos_names},
                           {"act", CHOICE, offsetof(Config, act), act_names},
                           {"bias", SWITCH, offsetof(Config, bias), switch_names},
                           {"tied", SWITCH, offsetof(Config, tied), switch_names},
                           {"eps", NUMBER, offsetof(Config, norm_eps), NULL},
                           {"theta", NUMBER, offsetof(Config, rope_theta), NULL}};
enum { N_KEYS = sizeof keys / sizeof *keys };

static const void *value_at(const Config *c, const Key *k) {
    return (const char *)c + k->offset;
}

static bool choose(const Key *k, const char *value, int *x, Err *e) {
    char all[64] = "";
    for (int i = 0; k->words[i]; i++) {
        if (strcmp(value, k->words[i]) == 0) return *x = i, true;
        strcat(strcat(all, i == 0 ? "" : k->words[i + 1] ? ", " : " or "), k->words[i]);
    }
    return err(e, "model: %s=%s: %s", k->name, value, all);
}

static bool set_value(Config *c, const Key *k, const char *value, Err *e) {
    void *to = (char *)c + k->offset;
    char *end;
    int word = 0;
    if (k->kind == WHOLE) {
        long long x = strtoll(value, &end, 10);
        if (*end || end == value || x < 1 || x > MAX_DIM)
            return err(e, "model: %s=%s: a whole number from 1 to %d is needed", k->name, value,
                       MAX_DIM);
        *(int64_t *)to = x;
    } else if (k->kind == NUMBER) {
        double x = strtod(value, &end);
        if (*end || end == value || !(x > 0) || isinf(x))
            return err(e, "model: %s=%s: a positive number is needed", k->name, value);
        *(double *)to = x;
    } else if (!choose(k, value, k->kind == CHOICE ? to : &word, e)) {
        return false;
    } else if (k->kind == SWITCH) {
        *(bool *)to = word;
    }
    return true;
}

static const char *value_text(const Config *c, const Key *k, char buf[32]) {
    const void *at = value_at(c, k);
    if (k->kind == CHOICE) return k->words[*(const int *)at];
    if (k->kind == SWITCH) return k->words[*(const bool *)at];
    if (k->kind == NUMBER) return opt_number(*(const double *)at, buf, 32);
    snprintf(buf, 32, "%lld", (long long)*(const int64_t *)at);
    return buf;
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
    const char *names[N_KEYS];
    for (int i = 0; i < N_KEYS; i++) {
        if (strcmp(key, keys[i].name) == 0) return set_value(c, &keys[i], value, e);
        names[i] = keys[i].name;
    }
    const char *near = opt_nearest(key, names, N_KEYS);
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
    for (int i = 0; i < N_KEYS && keys[i].kind == WHOLE; i++) {
        int64_t x = *(const int64_t *)value_at(c, &keys[i]);
        if (x < 1 || x > MAX_DIM)
            return err(e, "model: %s=%lld: from 1 to %d", keys[i].name, (long long)x, MAX_DIM);
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
    char value[32];
    for (int i = 0, at = 0; i < N_KEYS && at < (int)n; i++)
        at += snprintf(buf + at, n - (size_t)at, "%s%s=%s", i ? "," : "", keys[i].name,
                       value_text(c, &keys[i], value));
}

bool config_equal(const Config *a, const Config *b) {
    char in_a[64], in_b[64];
    return !config_difference(a, b, in_a, in_b);
}

bool config_difference(const Config *a, const Config *b, char in_a[64], char in_b[64]) {
    char x[32], y[32];
    for (int i = 0; i < N_KEYS; i++) {
        const char *p = value_text(a, &keys[i], x), *q = value_text(b, &keys[i], y);
        if (strcmp(p, q) == 0) continue;
        snprintf(in_a, 64, "%s=%s", keys[i].name, p);
        snprintf(in_b, 64, "%s=%s", keys[i].name, q);
        return true;
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
