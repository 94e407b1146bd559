#include "base/config.h"

#include <math.h>
#include <stdio.h>
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

/* The tables that describe a model have rows for every layer: with 1,000 layers they take 10 MB,
 * and planning takes half a second. With at most 2^50 parameters no size of a model overflows 64
 * bits. */
enum { N_SIZES = sizeof sizes / sizeof sizes[0], MAX_DIM = 1 << 24, MAX_LAYERS = 1000 };
static const double MAX_PARAMETERS = (double)((int64_t)1 << 50);

/* The keys of --model as a table of options (base/opt.h), in the order in which config_print prints
 * them; the values are the fields of c. The words of a choice stand in the order of its enum. */
enum { N_KEYS = 19 };
static void rows_of(Config *c, Opt rows[N_KEYS + 1]) {
    const Opt all[] = {
        {"layers", OPT_INT, &c->layers, "", 1, MAX_DIM, "N", ""},
        {"heads", OPT_INT, &c->heads, "", 1, MAX_DIM, "N", ""},
        {"kv_heads", OPT_INT, &c->kv_heads, "", 1, MAX_DIM, "N", ""},
        {"channels", OPT_INT, &c->channels, "", 1, MAX_DIM, "N", ""},
        {"ffn", OPT_INT, &c->ffn, "", 1, MAX_DIM, "N", ""},
        {"seq", OPT_INT, &c->seq, "", 1, MAX_DIM, "N", ""},
        {"vocab", OPT_INT, &c->vocab, "", 1, MAX_DIM, "N", ""},
        {"norm", OPT_CHOICE, &c->norm, "", 0, 0, "layer|rms", ""},
        {"pos", OPT_CHOICE, &c->pos, "", 0, 0, "learned|rope", ""},
        {"act", OPT_CHOICE, &c->act, "", 0, 0, "gelu|relu2|swiglu", ""},
        {"bias", OPT_BOOL, &c->bias, "", 0, 0, "", ""},
        {"tied", OPT_BOOL, &c->tied, "", 0, 0, "", ""},
        // in fp32 neither 0 nor infinite
        {"eps", OPT_FLOAT, &c->norm_eps, "", 1e-37, 1e37, "X", ""},
        {"theta", OPT_FLOAT, &c->rope_theta, "", 1e-300, 1e300, "X", ""},
        {"rope_factor", OPT_FLOAT, &c->rope_factor, "", 1, 1e6, "X", ""},
        {"rope_seq", OPT_INT, &c->rope_seq, "", 1, MAX_DIM, "N", ""},
        {"head_dim", OPT_INT, &c->head_dim, "", 0, MAX_DIM, "N", ""},
        {"qkv_bias", OPT_BOOL, &c->qkv_bias, "", 0, 0, "", ""},
        {"qk_norm", OPT_BOOL, &c->qk_norm, "", 0, 0, "", ""},
        {0},
    };
    _Static_assert(sizeof all / sizeof *all == N_KEYS + 1, "rows_of");
    memcpy(rows, all, sizeof all);
}

/* Does the model need a key, one of rows_of(c)? Checkpoints older than a key do without it. */
static bool needs(const Config *c, const Opt *row) {
    if (row->value == &c->rope_factor || row->value == &c->rope_seq) return c->rope_factor != 1;
    if (row->value == &c->head_dim) return c->head_dim > 0;
    if (row->value == &c->qkv_bias) return c->qkv_bias;
    return row->value != &c->qk_norm || c->qk_norm;
}

const char *config_act_name(ActKind act, char buf[16]) {
    Config c = {.act = act};
    Opt rows[N_KEYS + 1];
    rows_of(&c, rows);
    return opt_text(opt_find(rows, "act"), buf, 16);
}

/* Applies a word of --model: the name of a size, or "llama". */
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
    // Hugging Face's names of d12, d24, d36 and d48
    static const char *const elsewhere[] = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"};
    names[N_SIZES] = "llama";
    const char *near = opt_nearest(word, names, N_SIZES + 1);
    for (int i = 0; i < 4; i++)
        if (strcmp(word, elsewhere[i]) == 0) near = sizes[i + 1].name;
    return err(e, "model: unknown model \"%s\"%s%s%s: d6 d12 d24 d36 d48 llama, or key=value", word,
               near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* Applies a pair key=value of --model. */
static bool set_pair(Config *c, const char *key, const char *value, Err *e) {
    Opt rows[N_KEYS + 1];
    char why[256];
    const char *names[N_KEYS];
    rows_of(c, rows);
    const Opt *row = opt_find(rows, key);
    if (row)
        return opt_set(row, value, why, sizeof why) ||
               err(e, "model: %s", why + strlen("--")); // a key of --model has no dashes
    char all[256] = "the keys are";
    for (int i = 0; i < N_KEYS; i++) {
        size_t at = strlen(all);
        names[i] = rows[i].name;
        snprintf(all + at, sizeof all - at, " %s", names[i]);
    }
    const char *near = opt_nearest(key, names, N_KEYS);
    return near ? err(e, "model: unknown key \"%s\": did you mean \"%s\"?", key, near)
                : err(e, "model: unknown key \"%s\": %s", key, all);
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
                  .rope_theta = 10000,
                  .rope_factor = 1,
                  .rope_seq = ROPE_SEQ};
    return config_change(c, text, e);
}

bool config_change(Config *c, const char *text, Err *e) {
    char part[128];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        if (n == 0 || n >= sizeof part)
            return err(e, "model: \"%s\": its parts are joined by single commas", text);
        memcpy(part, p, n);
        part[n] = 0;
        p += n + (p[n] == ',');
        char *eq = strchr(part, '=');
        if (eq) *eq = 0;
        if (!(eq ? set_pair(c, part, eq + 1, e) : set_word(c, part, e))) return false;
    }
    if (!c->kv_heads) c->kv_heads = c->heads;
    // SwiGLU has three matrices instead of two: F = 8/3 C keeps the number of parameters of F = 4
    // C. Rounded up to a multiple of 64; LLaMA rounds up to one of 256.
    if (!c->ffn)
        c->ffn = c->act == ACT_SWIGLU ? (c->channels * 8 / 3 + 63) / 64 * 64 : 4 * c->channels;
    if (c->head_dim * c->heads == c->channels) c->head_dim = 0; // one text for one model
    if (c->bias) c->qkv_bias = false;
    return config_check(c, e);
}

/* Number of parameters. Exact below 2^53; no dimensions up to MAX_DIM overflow a double. */
static double parameters(const Config *c) {
    double C = (double)c->channels, qkv = (double)config_qkv(c), ffn = (double)c->ffn,
           attn = (double)(c->heads * config_head_size(c)), layers = (double)c->layers;
    double up = c->act == ACT_SWIGLU ? 2 * ffn : ffn;
    double norm = c->norm == NORM_LAYER && c->bias ? 2 * C : C;
    double block = C * qkv + attn * C + C * up + ffn * C + 2 * norm;
    if (config_biased(c, true)) block += qkv;
    if (c->bias) block += C + up + C;
    if (c->qk_norm) block += 2 * (double)config_head_size(c);
    return (double)c->vocab * C * (c->tied ? 1 : 2) +
           (c->pos == POS_LEARNED ? (double)c->seq * C : 0) + layers * block + norm;
}

bool config_check(const Config *c, Err *e) {
    Config copy = *c;
    Opt rows[N_KEYS + 1];
    rows_of(&copy, rows);
    for (const Opt *o = rows; o->name; o++) {
        double x = o->type == OPT_INT     ? (double)*(const int64_t *)o->value
                   : o->type == OPT_FLOAT ? *(const double *)o->value
                                          : o->min;
        if (!(x >= o->min && x <= o->max))
            return err(e, "model: %s=%.10g: from %.10g to %.10g", o->name, x, o->min, o->max);
    }
    if (!c->head_dim && c->channels % c->heads)
        return err(e, "model: heads=%lld do not divide channels=%lld, and there is no head_dim",
                   (long long)c->heads, (long long)c->channels);
    if (c->heads % c->kv_heads)
        return err(e, "model: kv_heads=%lld do not divide heads=%lld", (long long)c->kv_heads,
                   (long long)c->heads);
    if (c->pos == POS_ROPE && config_head_size(c) % 2)
        return err(e, "model: pos=rope needs an even head size, not %lld",
                   (long long)config_head_size(c));
    if (c->layers > MAX_LAYERS)
        return err(e, "model: layers=%lld: at most %d", (long long)c->layers, MAX_LAYERS);
    if (parameters(c) > MAX_PARAMETERS)
        return err(e, "model: %.3g parameters: at most %.3g", parameters(c), MAX_PARAMETERS);
    return true;
}

void config_print(const Config *c, char *buf, size_t n) {
    Config copy = *c;
    Opt rows[N_KEYS + 1];
    char value[32];
    rows_of(&copy, rows);
    for (int i = 0, at = 0; i < N_KEYS && at < (int)n; i++)
        if (needs(&copy, &rows[i]))
            at += snprintf(buf + at, n - (size_t)at, "%s%s=%s", i ? "," : "", rows[i].name,
                           opt_text(&rows[i], value, sizeof value));
}

bool config_equal(const Config *a, const Config *b) {
    char in_a[64], in_b[64];
    return !config_difference(a, b, in_a, in_b);
}

bool config_difference(const Config *a, const Config *b, char in_a[64], char in_b[64]) {
    Config copy[2] = {*a, *b};
    Opt x[N_KEYS + 1], y[N_KEYS + 1];
    char p[32], q[32];
    rows_of(&copy[0], x), rows_of(&copy[1], y);
    for (int i = 0; i < N_KEYS; i++) {
        if (!needs(&copy[0], &x[i]) && !needs(&copy[1], &y[i])) continue;
        if (strcmp(opt_text(&x[i], p, sizeof p), opt_text(&y[i], q, sizeof q)) == 0) continue;
        snprintf(in_a, 64, "%s=%s", x[i].name, p);
        snprintf(in_b, 64, "%s=%s", y[i].name, q);
        return true;
    }
    return false;
}

int64_t config_parameters(const Config *c) {
    return (int64_t)parameters(c);
}

double config_flops_per_token(const Config *c, int64_t seq) {
    // rows of embeddings that are only looked up, never multiplied
    int64_t looked_up = (c->pos == POS_LEARNED ? c->seq : 0) + (c->tied ? 0 : c->vocab);
    double n = (double)(config_parameters(c) - looked_up * c->channels);
    double heads = (double)(c->heads * config_head_size(c));
    return 6 * n + 6 * (double)c->layers * heads * (double)seq;
}
