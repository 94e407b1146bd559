/* machine_file -- descriptions of clusters.
 *
 *     # two racks of eight nodes
 *     name           = lab
 *     nodes          = 16
 *     ranks_per_node = 2
 *     threads        = 4                  of a rank's team
 *     flops_fp32     = 400G               that large matmuls reach, a rank
 *     flops_bf16     = 800G
 *     flops_half     = 16                 smallest dimension of a matmul that reaches half of flops
 *     multiprocessors = 132               of a GPU; its bf16 matmuls are then priced by their waves
 *     memory         = 32GiB              a rank may take
 *     memory_rate    = 20GB/s             a rank
 *     call           = 2us
 *     slowdown       = 1.1                of kernels while a collective is in flight
 *     slowest        = 1.05               kernel time of the slowest rank, relative to others
 *     algorithm      = direct             or ring
 *     kernels        = cpu                or cuda, where activations in bf16 are two bytes; sm_80:
 *                                         cuda, of that compute capability (without: sm_90)
 *     level          = node    ranks=2   latency=2us  rank_rate=10GB/s
 *     level          = rack    ranks=16  latency=15us rank_rate=1Gb/s port_rate=1Gb/s
 *     level          = trunk   ranks=all latency=20us rank_rate=1Gb/s port_rate=10Gb/s
 *
 * Numbers take the prefixes k M G T (Ki Mi Gi Ti are powers of 1024) and a unit; B/s are bytes and
 * b/s bits, and the rates of a level must say which. The ranks of a level are those of one of its
 * units.
 */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include "base/opt.h"
#include "base/opt_file.h"
#include "base/utf8.h"
#include "parallel/plan/machine.h"
#include "parallel/plan/quantity.h"

typedef enum { IN_DOUBLE, IN_INT, IN_INT64 } NumberType;
typedef struct Key {
    const char *name;
    Quantity as;
    size_t offset; // in a Machine or a Level
    NumberType type;
    bool needed, zero; // the key must be given; its number may be 0
} Key;

#define FIELD(name, member, as, ...)                                                               \
    { name, as, offsetof(Machine, member), __VA_ARGS__ }
static const Key keys[] = {
    FIELD("nodes", nodes, AS_COUNT, IN_INT, true, false),
    FIELD("ranks_per_node", ranks_per_node, AS_COUNT, IN_INT, true, false),
    FIELD("ranks", ranks, AS_COUNT, IN_INT, false, false),
    FIELD("threads", threads, AS_COUNT, IN_INT, false, false),
    FIELD("flops_fp32", flops[0], AS_FLOPS, IN_DOUBLE, true, false),
    FIELD("flops_bf16", flops[1], AS_FLOPS, IN_DOUBLE, false, false),
    FIELD("flops_half", flops_half, AS_FACTOR, IN_DOUBLE, false, true),
    FIELD("multiprocessors", sms, AS_COUNT, IN_INT, false, false),
    FIELD("memory", memory, AS_BYTES, IN_INT64, false, true),
    FIELD("memory_rate", memory_rate, AS_RATE, IN_DOUBLE, true, false),
    FIELD("call", call, AS_SECONDS, IN_DOUBLE, false, true),
    FIELD("slowdown", slowdown, AS_FACTOR, IN_DOUBLE, false, false),
    FIELD("slowest", slowest, AS_FACTOR, IN_DOUBLE, false, false),
};
#undef FIELD
static const Key level_keys[] = {
    {"ranks", AS_COUNT, offsetof(Level, ranks), IN_INT, true, false},
    {"latency", AS_SECONDS, offsetof(Level, latency), IN_DOUBLE, true, true},
    {"rank_rate", AS_LINK, offsetof(Level, rank_rate), IN_DOUBLE, true, false},
    {"port_rate", AS_LINK, offsetof(Level, port_rate), IN_DOUBLE, false, false},
};
enum {
    N_KEYS = sizeof keys / sizeof *keys,
    N_LEVEL_KEYS = sizeof level_keys / sizeof *level_keys,
    KEY_NAME = N_KEYS,
    KEY_ALGORITHM,
    KEY_KERNELS,
    KEY_LEVEL,
    N_NAMES
};

typedef struct Reader {
    Machine *m;
    Err *e;
    int line, seen[N_NAMES]; // the line at hand; [key]: the line that has the key, or 0
} Reader;

__attribute__((format(printf, 2, 3))) static bool wrong(const Reader *r, const char *fmt, ...) {
    char why[384];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err(r->e, "line %d: %s", r->line, why);
}

/* The index of word in names[n]. Unknown: n, and a message with the nearest name. what: "key". */
static int find(const Reader *r, const char *what, const char *word, const char *const *names,
                int n) {
    int k = 0;
    while (k < n && strcmp(word, names[k]) != 0) k++;
    const char *near = k < n ? NULL : opt_nearest(word, names, n);
    if (k == n)
        wrong(r, "unknown %s \"%.60s\"%s%s%s", what, word, near ? ", did you mean \"" : "",
              near ? near : "", near ? "\"?" : "");
    return k;
}

static void set_number(const Key *key, void *of, double x) {
    char *at = (char *)of + key->offset;
    if (key->type == IN_DOUBLE) *(double *)(void *)at = x;
    if (key->type == IN_INT) *(int *)(void *)at = (int)x;
    if (key->type == IN_INT64) *(int64_t *)(void *)at = (int64_t)x;
}

static bool read_number(const Reader *r, const Key *key, void *of, const char *text) {
    double x;
    if (!quantity_read(&x, key->as, text))
        return wrong(r, "%s = %.60s: %s is needed", key->name, text, quantity_example(key->as));
    if (!key->zero && !(x > 0)) return wrong(r, "%s is 0", key->name);
    set_number(key, of, x);
    return true;
}

static bool read_name(const Reader *r, char *to, size_t n, const char *text) {
    size_t length = strlen(text);
    if (length >= n)
        return wrong(r, "the name \"%.60s\" has more than %d letters", text, (int)n - 1);
    if (strpbrk(text, "#\"'") || strchr(" \t", text[0]) || strchr(" \t", text[length - 1]))
        return wrong(r, "the name \"%.60s\" has a quote, a # or a space at an end", text);
    memcpy(to, text, length + 1);
    utf8_repair(to); // plans are printed as JSON
    return true;
}

/* One "key=value" of a level; ranks=all is 0 until all lines are read. */
static bool level_pair(const Reader *r, Level *l, char *pair, bool seen[N_LEVEL_KEYS]) {
    const char *names[N_LEVEL_KEYS];
    char *value = strchr(pair, '=');
    if (!value) return wrong(r, "a level's \"%.60s\" should be like ranks=8", pair);
    *value++ = 0;
    for (int i = 0; i < N_LEVEL_KEYS; i++) names[i] = level_keys[i].name;
    int k = find(r, "key of a level", pair, names, N_LEVEL_KEYS);
    if (k == N_LEVEL_KEYS) return false;
    if (seen[k]) return wrong(r, "%s is there twice", pair);
    seen[k] = true;
    return (k == 0 && strcmp(value, "all") == 0) || read_number(r, &level_keys[k], l, value);
}

/* NVLink ranks=8 latency=5us rank_rate=450GB/s */
static bool read_level(const Reader *r, char *text) {
    Machine *m = r->m;
    bool seen[N_LEVEL_KEYS] = {false};
    char *rest, *word = strtok_r(text, " \t", &rest);
    if (m->n_levels == MAX_LEVELS) return wrong(r, "more than %d levels", MAX_LEVELS);
    Level *l = &m->level[m->n_levels++];
    if (!word || strchr(word, '='))
        return wrong(r, "a level begins with its name: node %.60s ...", word ? word : "");
    if (!read_name(r, l->name, sizeof l->name, word)) return false;
    while ((word = strtok_r(NULL, " \t", &rest)))
        if (!level_pair(r, l, word, seen)) return false;
    for (int k = 0; k < N_LEVEL_KEYS; k++)
        if (level_keys[k].needed && !seen[k])
            return wrong(r, "level %s has no %s=", l->name, level_keys[k].name);
    return true;
}

/* cpu, cuda, or sm_80: cuda on devices of compute capability 8.0. */
static bool read_kernels(const Reader *r, const char *value) {
    int capability, end = 0;
    bool given = sscanf(value, "sm_%3d%n", &capability, &end) == 1 && !value[end] && capability > 0;
    if (given) r->m->capability = capability;
    r->m->gpu = given || strcmp(value, "cuda") == 0;
    return r->m->gpu || strcmp(value, "cpu") == 0 ||
           wrong(r, "kernels is cpu, cuda or like sm_80, not \"%.60s\"", value);
}

static bool read_algorithm(const Reader *r, const char *value) {
    bool ring = strcmp(value, "ring") == 0;
    r->m->algorithm = ring ? ALGORITHM_RING : ALGORITHM_DIRECT;
    return ring || strcmp(value, "direct") == 0 ||
           wrong(r, "algorithm is direct or ring, not \"%.60s\"", value);
}

static bool read_pair(Reader *r, const char *name, char *value) {
    const char *names[N_NAMES] = {[KEY_NAME] = "name",
                                  [KEY_ALGORITHM] = "algorithm",
                                  [KEY_KERNELS] = "kernels",
                                  [KEY_LEVEL] = "level"};
    for (int i = 0; i < N_KEYS; i++) names[i] = keys[i].name;
    int k = find(r, "key", name, names, N_NAMES);
    if (k == N_NAMES) return false;
    if (!value || !*value) return wrong(r, "%s has no value", name);
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\t') return wrong(r, "byte %d is no text", *c);
    if (k == KEY_LEVEL) return read_level(r, value);
    if (r->seen[k]) return wrong(r, "%s is in line %d already", name, r->seen[k]);
    r->seen[k] = r->line;
    if (k < N_KEYS) return read_number(r, &keys[k], r->m, value);
    if (k == KEY_NAME) return read_name(r, r->m->name, sizeof r->m->name, value);
    if (k == KEY_KERNELS) return read_kernels(r, value);
    return read_algorithm(r, value);
}

static bool factors_valid(const Machine *m, Err *e) {
    if (m->slowdown >= 1 && m->slowest >= 1) return true;
    return err(e, "slowdown and slowest are factors of time: 1 is none, 1.1 a tenth more");
}

/* Does each level hold whole units of the level inside it, and whole nodes or parts of one, and the
 * last level all ranks? */
static bool levels_nest(const Machine *m, Err *e) {
    int below = 1, node = m->ranks_per_node;
    for (int l = 0; l < m->n_levels; l++) {
        int unit = m->level[l].ranks;
        const char *name = m->level[l].name;
        if (unit % below)
            return err(e,
                       "levels do not nest: %s has %d ranks, which %d of the level inside it do "
                       "not make",
                       name, unit, below);
        if (unit % node && node % unit)
            return err(e, "level %s has %d ranks, a node %d: neither is a multiple of the other",
                       name, unit, node);
        below = unit;
    }
    if (below != m->ranks)
        return err(e, "the last level, %s, has %d ranks, all are %d: write ranks=all",
                   m->level[m->n_levels - 1].name, below, m->ranks);
    return true;
}

/* Checks what only the whole description shows, and sets what follows from other keys. */
static bool complete(const Reader *r) {
    Machine *m = r->m;
    for (int i = 0; i < N_KEYS; i++)
        if (keys[i].needed && !r->seen[i])
            return err(r->e, "%s is missing: %s", keys[i].name, quantity_example(keys[i].as));
    if (m->n_levels == 0)
        return err(r->e, "no level: level = network ranks=all latency=15us rank_rate=1Gb/s");
    if (!factors_valid(m, r->e)) return false;
    int64_t made = (int64_t)m->nodes * m->ranks_per_node;
    if (made > MAX_COUNT) return err(r->e, "%lld ranks, at most %d", (long long)made, MAX_COUNT);
    if (m->ranks && m->ranks != made)
        return err(r->e, "ranks = %d, but %d nodes of %d ranks are %d", m->ranks, m->nodes,
                   m->ranks_per_node, (int)made);
    m->ranks = (int)made;
    for (int l = 0; l < m->n_levels; l++)
        if (m->level[l].ranks == 0) m->level[l].ranks = m->ranks;
    if (m->flops[1] == 0) m->flops[1] = m->flops[0];
    return levels_nest(m, r->e);
}

bool machine_parse(Machine *m, const char *text, size_t n, Err *e) {
    Reader r = {.m = m, .e = e};
    OptFile f;
    Err why;
    *m = (Machine){.name = "cluster", .threads = 1, .capability = 90, .slowdown = 1, .slowest = 1};
    if (!opt_file_parse(text, n, &f, &why)) return err(e, "line %.400s", why.text);
    bool ok = true;
    for (int i = 0; ok && i < f.n; i++) {
        r.line = f.pair[i].line;
        ok = read_pair(&r, f.pair[i].name, f.pair[i].value);
    }
    opt_file_free(&f);
    return ok && complete(&r);
}

/* ---- one number ---- */

/* The key of machine_number's i-th number: those of the machine, then those of each level. */
static const Key *key_at(int i) {
    return i < N_KEYS ? &keys[i] : &level_keys[(i - N_KEYS) % N_LEVEL_KEYS];
}

bool machine_number(const Machine *m, int i, MachineNumber *out) {
    int level = (i - N_KEYS) / N_LEVEL_KEYS;
    if (i >= N_KEYS && level >= m->n_levels) return false;
    snprintf(out->name, sizeof out->name, "%s%s%s", i < N_KEYS ? "" : m->level[level].name,
             i < N_KEYS ? "" : ".", key_at(i)->name);
    out->as = key_at(i)->as;
    return true;
}

/* Changes the numbers of nodes and of ranks per node. Units of whole nodes keep their number of
 * nodes; the unit of the last level holds all ranks. */
static bool resize(Machine *m, double nodes, double per_node, Err *e) {
    double ranks = nodes * per_node;
    if (ranks > MAX_COUNT)
        return err(e, "%.0f nodes of %.0f ranks: more than %d ranks", nodes, per_node, MAX_COUNT);
    for (int l = 0; l < m->n_levels; l++) {
        int *unit = &m->level[l].ranks;
        if (*unit % m->ranks_per_node == 0) *unit = (int)(*unit / m->ranks_per_node * per_node);
        if (*unit > ranks || l == m->n_levels - 1) *unit = (int)ranks;
    }
    m->nodes = (int)nodes, m->ranks_per_node = (int)per_node, m->ranks = (int)ranks;
    return true;
}

bool machine_set(Machine *m, int i, double x, Err *e) {
    Level *level = &m->level[i < N_KEYS ? 0 : (i - N_KEYS) / N_LEVEL_KEYS];
    const char *name = key_at(i)->name;
    bool nodes = strcmp(name, "nodes") == 0;
    if (i >= N_KEYS)
        set_number(key_at(i), level, x);
    else if (strcmp(name, "ranks") == 0)
        return err(e, "ranks are nodes times ranks_per_node: one of these");
    else if (!nodes && strcmp(name, "ranks_per_node") != 0)
        set_number(key_at(i), m, x);
    else if (!resize(m, nodes ? x : m->nodes, nodes ? m->ranks_per_node : x, e))
        return false;
    return factors_valid(m, e) && levels_nest(m, e);
}
