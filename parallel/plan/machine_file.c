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
    bool needed, zero;                            // the key must be given; its number may be 0
    bool (*read)(Machine *m, char *text, Err *e); // of a key of the machine that is no number
} Key;

static const Key level_keys[] = {
    {"ranks", AS_COUNT, offsetof(Level, ranks), IN_INT, true, false, NULL},
    {"latency", AS_SECONDS, offsetof(Level, latency), IN_DOUBLE, true, true, NULL},
    {"rank_rate", AS_LINK, offsetof(Level, rank_rate), IN_DOUBLE, true, false, NULL},
    {"port_rate", AS_LINK, offsetof(Level, port_rate), IN_DOUBLE, false, false, NULL},
};
enum { N_LEVEL_KEYS = sizeof level_keys / sizeof *level_keys, MOST_KEYS = 20 };

/* The index of word among the names of n keys. Unknown: n, and a message with the nearest name.
 * what: "key". */
static int find(const char *what, const char *word, const Key *key, int n, Err *e) {
    const char *names[MOST_KEYS];
    for (int k = 0; k < n; k++) {
        names[k] = key[k].name;
        if (strcmp(word, names[k]) == 0) return k;
    }
    const char *near = opt_nearest(word, names, n);
    err(e, "unknown %s \"%.60s\"%s%s%s", what, word, near ? ", did you mean \"" : "",
        near ? near : "", near ? "\"?" : "");
    return n;
}

static void set_number(const Key *key, void *of, double x) {
    char *at = (char *)of + key->offset;
    if (key->type == IN_DOUBLE) *(double *)(void *)at = x;
    if (key->type == IN_INT) *(int *)(void *)at = (int)x;
    if (key->type == IN_INT64) *(int64_t *)(void *)at = (int64_t)x;
}

static bool read_number(const Key *key, void *of, const char *text, Err *e) {
    double x;
    if (!quantity_read(&x, key->as, text))
        return err(e, "%s = %.60s: %s is needed", key->name, text, quantity_example(key->as));
    if (!key->zero && !(x > 0)) return err(e, "%s is 0", key->name);
    set_number(key, of, x);
    return true;
}

static bool read_name(char *to, size_t n, const char *text, Err *e) {
    size_t length = strlen(text);
    if (length >= n) return err(e, "the name \"%.60s\" has more than %d letters", text, (int)n - 1);
    if (strpbrk(text, "#\"'") || strchr(" \t", text[0]) || strchr(" \t", text[length - 1]))
        return err(e, "the name \"%.60s\" has a quote, a # or a space at an end", text);
    memcpy(to, text, length + 1);
    utf8_repair(to); // plans are printed as JSON
    return true;
}

static bool read_machine_name(Machine *m, char *text, Err *e) {
    return read_name(m->name, sizeof m->name, text, e);
}

/* One "key=value" of a level; ranks=all is 0 until all lines are read. */
static bool level_pair(Level *l, char *pair, bool seen[N_LEVEL_KEYS], Err *e) {
    char *value = strchr(pair, '=');
    if (!value) return err(e, "a level's \"%.60s\" should be like ranks=8", pair);
    *value++ = 0;
    int k = find("key of a level", pair, level_keys, N_LEVEL_KEYS, e);
    if (k == N_LEVEL_KEYS) return false;
    if (seen[k]) return err(e, "%s is there twice", pair);
    seen[k] = true;
    return (k == 0 && strcmp(value, "all") == 0) || read_number(&level_keys[k], l, value, e);
}

/* NVLink ranks=8 latency=5us rank_rate=450GB/s */
static bool read_level(Machine *m, char *text, Err *e) {
    bool seen[N_LEVEL_KEYS] = {false};
    char *rest, *word = strtok_r(text, " \t", &rest);
    if (m->n_levels == MAX_LEVELS) return err(e, "more than %d levels", MAX_LEVELS);
    Level *l = &m->level[m->n_levels++];
    if (!word || strchr(word, '='))
        return err(e, "a level begins with its name: node %.60s ...", word ? word : "");
    if (!read_name(l->name, sizeof l->name, word, e)) return false;
    while ((word = strtok_r(NULL, " \t", &rest)))
        if (!level_pair(l, word, seen, e)) return false;
    for (int k = 0; k < N_LEVEL_KEYS; k++)
        if (level_keys[k].needed && !seen[k])
            return err(e, "level %s has no %s=", l->name, level_keys[k].name);
    return true;
}

/* cpu, cuda, or sm_80: cuda on devices of compute capability 8.0. */
static bool read_kernels(Machine *m, char *value, Err *e) {
    int capability, end = 0;
    bool given = sscanf(value, "sm_%3d%n", &capability, &end) == 1 && !value[end] && capability > 0;
    if (given) m->capability = capability;
    m->gpu = given || strcmp(value, "cuda") == 0;
    return m->gpu || strcmp(value, "cpu") == 0 ||
           err(e, "kernels is cpu, cuda or like sm_80, not \"%.60s\"", value);
}

static bool read_algorithm(Machine *m, char *value, Err *e) {
    bool ring = strcmp(value, "ring") == 0;
    m->algorithm = ring ? ALGORITHM_RING : ALGORITHM_DIRECT;
    return ring || strcmp(value, "direct") == 0 ||
           err(e, "algorithm is direct or ring, not \"%.60s\"", value);
}

/* The keys of the machine: those of machine_number, then threads, then texts. */
#define FIELD(name, member, as, ...)                                                               \
    { name, as, offsetof(Machine, member), __VA_ARGS__, NULL }
static const Key keys[] = {
    FIELD("nodes", nodes, AS_COUNT, IN_INT, true, false),
    FIELD("ranks_per_node", ranks_per_node, AS_COUNT, IN_INT, true, false),
    FIELD("flops_fp32", flops[0], AS_FLOPS, IN_DOUBLE, true, false),
    FIELD("flops_bf16", flops[1], AS_FLOPS, IN_DOUBLE, false, false),
    FIELD("flops_half", flops_half, AS_FACTOR, IN_DOUBLE, false, true),
    FIELD("multiprocessors", sms, AS_COUNT, IN_INT, false, false),
    FIELD("memory", memory, AS_BYTES, IN_INT64, false, true),
    FIELD("memory_rate", memory_rate, AS_RATE, IN_DOUBLE, true, false),
    FIELD("call", call, AS_SECONDS, IN_DOUBLE, false, true),
    FIELD("slowdown", slowdown, AS_FACTOR, IN_DOUBLE, false, false),
    FIELD("slowest", slowest, AS_FACTOR, IN_DOUBLE, false, false),
    FIELD("threads", threads, AS_COUNT, IN_INT, false, false),
    {.name = "name", .read = read_machine_name},
    {.name = "algorithm", .read = read_algorithm},
    {.name = "kernels", .read = read_kernels},
    {.name = "level", .read = read_level},
};
#undef FIELD
enum { N_KEYS = sizeof keys / sizeof *keys, N_NUMBERS = N_KEYS - 5 };

/* seen[key]: the line that has the key, or 0. */
static bool read_pair(Machine *m, const OptPair *p, int seen[N_KEYS], Err *e) {
    int k = find("key", p->name, keys, N_KEYS, e);
    if (k == N_KEYS) return false;
    if (!p->value || !*p->value) return err(e, "%s has no value", p->name);
    for (const char *c = p->value; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\t') return err(e, "byte %d is no text", *c);
    if (seen[k] && keys[k].read != read_level)
        return err(e, "%s is in line %d already", p->name, seen[k]);
    seen[k] = p->line;
    return keys[k].read ? keys[k].read(m, p->value, e) : read_number(&keys[k], m, p->value, e);
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
static bool complete(Machine *m, const int seen[N_KEYS], Err *e) {
    for (int i = 0; i < N_KEYS; i++)
        if (keys[i].needed && !seen[i])
            return err(e, "%s is missing: %s", keys[i].name, quantity_example(keys[i].as));
    if (m->n_levels == 0)
        return err(e, "no level: level = network ranks=all latency=15us rank_rate=1Gb/s");
    if (!factors_valid(m, e)) return false;
    int64_t ranks = (int64_t)m->nodes * m->ranks_per_node;
    if (ranks > MAX_COUNT) return err(e, "%lld ranks, at most %d", (long long)ranks, MAX_COUNT);
    m->ranks = (int)ranks;
    for (int l = 0; l < m->n_levels; l++)
        if (m->level[l].ranks == 0) m->level[l].ranks = m->ranks;
    if (m->flops[1] == 0) m->flops[1] = m->flops[0];
    return levels_nest(m, e);
}

bool machine_parse(Machine *m, const char *text, size_t n, Err *e) {
    int seen[N_KEYS] = {0};
    char line[32];
    OptFile f;
    Err why;
    *m = (Machine){.name = "cluster", .threads = 1, .capability = 90, .slowdown = 1, .slowest = 1};
    if (!opt_file_parse(text, n, &f, &why)) return err(e, "line %.400s", why.text);
    bool ok = true;
    for (int i = 0; ok && i < f.n; i++) {
        snprintf(line, sizeof line, "line %d", f.pair[i].line);
        ok = read_pair(m, &f.pair[i], seen, e) || err_in(e, line);
    }
    opt_file_free(&f);
    return ok && complete(m, seen, e);
}

/* ---- one number ---- */

/* The key of machine_number's i-th number, and its level; -1: it is one of the machine. */
static const Key *key_at(int i, int *level) {
    *level = i < N_NUMBERS ? -1 : (i - N_NUMBERS) / N_LEVEL_KEYS;
    return i < N_NUMBERS ? &keys[i] : &level_keys[(i - N_NUMBERS) % N_LEVEL_KEYS];
}

bool machine_number(const Machine *m, int i, MachineNumber *out) {
    int level;
    const Key *key = key_at(i, &level);
    if (level >= m->n_levels) return false;
    snprintf(out->name, sizeof out->name, "%s%s%s", level < 0 ? "" : m->level[level].name,
             level < 0 ? "" : ".", key->name);
    out->as = key->as;
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
    int level;
    const Key *key = key_at(i, &level);
    bool nodes = strcmp(key->name, "nodes") == 0;
    if (level >= 0)
        set_number(key, &m->level[level], x);
    else if (!nodes && strcmp(key->name, "ranks_per_node") != 0)
        set_number(key, m, x);
    else if (!resize(m, nodes ? x : m->nodes, nodes ? m->ranks_per_node : x, e))
        return false;
    return factors_valid(m, e) && levels_nest(m, e);
}
