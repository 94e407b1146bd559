/* machine_file -- descriptions of clusters.
 *
 *     # two racks of eight nodes
 *     name           = lab
 *     nodes          = 16
 *     ranks_per_node = 2
 *     threads        = 4                  of a rank's team
 *     flops_fp32     = 400G               that large matmuls reach, a rank
 *     flops_bf16     = 800G
 *     flops_half     = 16                 smallest dimension of a product that reaches half of it
 *     memory         = 32GiB              a rank may take
 *     memory_rate    = 20GB/s             a rank
 *     call           = 2us
 *     slowdown       = 1.1                of kernels while a collective is in flight
 *     slowest        = 1.05               rank, by the others
 *     travel         = direct             or ring
 *     kernels        = cpu                or cuda, where activations in bf16 are two bytes
 *     level          = node    ranks=2   latency=2us  rank_rate=10GB/s
 *     level          = rack    ranks=16  latency=15us rank_rate=1Gb/s port_rate=1Gb/s
 *     level          = trunk   ranks=all latency=20us rank_rate=1Gb/s port_rate=10Gb/s
 *
 * Numbers take k M G T (Ki Mi Gi Ti are powers of 1024) and the unit of what they are; B/s are
 * bytes and b/s bits, and the rates of a level must say which. A level's ranks are those of one of
 * its units.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"
#include "base/utf8.h"
#include "parallel/plan/machine.h"
#include "parallel/plan/quantity.h"

enum { MAX_LINE = 256 };

typedef enum { IN_DOUBLE, IN_INT, IN_INT64 } NumberType;
typedef struct Key {
    const char *name;
    Quantity as;
    size_t offset;
    NumberType type;
    bool needed, zero; // must be there; may be 0
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
    FIELD("memory", memory, AS_BYTES, IN_INT64, false, true),
    FIELD("memory_rate", memory_rate, AS_RATE, IN_DOUBLE, true, false),
    FIELD("call", call, AS_SECONDS, IN_DOUBLE, false, true),
    FIELD("slowdown", slowdown, AS_FACTOR, IN_DOUBLE, false, false),
    FIELD("slowest", slowest, AS_FACTOR, IN_DOUBLE, false, false),
};
#undef FIELD
enum {
    N_KEYS = sizeof keys / sizeof *keys,
    KEY_NAME = N_KEYS,
    KEY_TRAVEL,
    KEY_KERNELS,
    KEY_LEVEL,
    N_NAMES
};

/* What a description is made of, its place for messages, and what was there already. */
typedef struct Reader {
    Machine *m;
    Err *e;
    int line, seen[N_NAMES]; // lines
} Reader;

__attribute__((format(printf, 2, 3))) static bool wrong(const Reader *r, const char *fmt, ...) {
    char why[384];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err(r->e, "line %d: %s", r->line, why);
}

static bool unknown(const Reader *r, const char *what, const char *word, const char *const *names,
                    int n) {
    const char *near = opt_nearest(word, names, n);
    return near ? wrong(r, "unknown %s \"%.60s\", did you mean \"%s\"?", what, word, near)
                : wrong(r, "unknown %s \"%.60s\"", what, word);
}

static bool read_value(const Reader *r, const char *name, double *x, Quantity as, bool zero,
                       const char *text) {
    if (!quantity_read(x, as, text))
        return wrong(r, "%s = %.60s: %s is needed", name, text, quantity_example(as));
    return zero || *x > 0 || wrong(r, "%s is 0", name);
}

static bool read_name(const Reader *r, char *to, size_t n, const char *text) {
    if (strlen(text) >= n)
        return wrong(r, "the name \"%.60s\" has more than %d letters", text, (int)n - 1);
    memcpy(to, text, strlen(text) + 1);
    utf8_mend(to); // plans are JSON
    return true;
}

enum { LEVEL_RANKS, LEVEL_LATENCY, LEVEL_RANK_RATE, LEVEL_PORT_RATE, N_LEVEL_KEYS };
static const char *const level_keys[] = {"ranks", "latency", "rank_rate", "port_rate"};
static const Quantity level_as[] = {AS_COUNT, AS_SECONDS, AS_LINK, AS_LINK};

/* One "key=value" of a level; ranks=all is 0 until all lines are read. */
static bool level_pair(const Reader *r, Level *l, char *pair, bool seen[N_LEVEL_KEYS]) {
    char *value = strchr(pair, '=');
    int k = 0;
    double x = 0;
    if (!value) return wrong(r, "a level's \"%.60s\" should be like ranks=8", pair);
    *value++ = 0;
    while (k < N_LEVEL_KEYS && strcmp(pair, level_keys[k]) != 0) k++;
    if (k == N_LEVEL_KEYS) return unknown(r, "key of a level", pair, level_keys, k);
    if (seen[k]) return wrong(r, "%s is there twice", pair);
    seen[k] = true;
    if (k == LEVEL_RANKS && strcmp(value, "all") == 0) return true;
    if (!read_value(r, pair, &x, level_as[k], k == LEVEL_LATENCY, value)) return false;
    if (k == LEVEL_RANKS) l->ranks = (int)x;
    if (k == LEVEL_LATENCY) l->latency = x;
    if (k == LEVEL_RANK_RATE) l->rank_rate = x;
    if (k == LEVEL_PORT_RATE) l->port_rate = x;
    return true;
}

/* NVLink ranks=8 latency=5us rank_rate=450GB/s */
static bool read_level(const Reader *r, char *text) {
    Machine *m = r->m;
    bool seen[N_LEVEL_KEYS] = {false};
    char *rest, *word = strtok_r(text, " \t", &rest);
    if (m->n_levels == MAX_LEVELS) return wrong(r, "more than %d levels", MAX_LEVELS);
    Level *l = &m->level[m->n_levels++];
    if (strchr(word, '=')) return wrong(r, "a level begins with its name: node %.60s ...", word);
    if (!read_name(r, l->name, sizeof l->name, word)) return false;
    while ((word = strtok_r(NULL, " \t", &rest)))
        if (!level_pair(r, l, word, seen)) return false;
    for (int k = 0; k < LEVEL_PORT_RATE; k++)
        if (!seen[k]) return wrong(r, "level %s has no %s=", l->name, level_keys[k]);
    return true;
}

static void set_number(void *at, NumberType type, double x) {
    if (type == IN_DOUBLE) *(double *)at = x;
    if (type == IN_INT) *(int *)at = (int)x;
    if (type == IN_INT64) *(int64_t *)at = (int64_t)x;
}

static bool read_field(const Reader *r, const Key *key, const char *value) {
    double x;
    void *at = (char *)r->m + key->offset;
    if (!read_value(r, key->name, &x, key->as, key->zero, value)) return false;
    set_number(at, key->type, x);
    return true;
}

static bool read_either(const Reader *r, const char *name, const char *value, const char *first,
                        const char *other, bool *second) {
    *second = strcmp(value, other) == 0;
    return *second || strcmp(value, first) == 0 ||
           wrong(r, "%s is %s or %s, not \"%.60s\"", name, first, other, value);
}

static bool read_pair(Reader *r, const char *name, char *value) {
    const char *names[N_NAMES] = {[KEY_NAME] = "name",
                                  [KEY_TRAVEL] = "travel",
                                  [KEY_KERNELS] = "kernels",
                                  [KEY_LEVEL] = "level"};
    int k = 0;
    for (int i = 0; i < N_KEYS; i++) names[i] = keys[i].name;
    while (k < N_NAMES && strcmp(name, names[k]) != 0) k++;
    if (k == N_NAMES) return unknown(r, "key", name, names, N_NAMES);
    if (!*value) return wrong(r, "%s has no value", name);
    if (k == KEY_LEVEL) return read_level(r, value);
    if (r->seen[k]) return wrong(r, "%s is in line %d already", name, r->seen[k]);
    r->seen[k] = r->line;
    if (k < N_KEYS) return read_field(r, &keys[k], value);
    if (k == KEY_NAME) return read_name(r, r->m->name, sizeof r->m->name, value);
    bool second;
    if (k == KEY_TRAVEL) {
        if (!read_either(r, name, value, "direct", "ring", &second)) return false;
        r->m->travel = second ? TRAVEL_RING : TRAVEL_DIRECT;
        return true;
    }
    return read_either(r, name, value, "cpu", "cuda", &r->m->gpu);
}

static char *trim(char *text) {
    text += strspn(text, " \t\r");
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r", text[n - 1])) text[--n] = 0;
    return text;
}

static bool read_line(Reader *r, const char *p, size_t n) {
    char line[MAX_LINE];
    if (n >= sizeof line) return wrong(r, "more than %d letters", MAX_LINE - 1);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] < ' ' && p[i] != '\t' && p[i] != '\r')
            return wrong(r, "byte %d is no text", p[i]);
    memcpy(line, p, n);
    line[n] = 0;
    line[strcspn(line, "#")] = 0;
    char *at = trim(line), *value = strchr(at, '=');
    if (!*at) return true;
    if (!value) return wrong(r, "\"%.60s\": key = value is needed", at);
    *value++ = 0;
    return read_pair(r, trim(at), trim(value));
}

static bool sane(const Machine *m, Err *e) {
    if (m->slowdown >= 1 && m->slowest >= 1) return true;
    return err(e, "slowdown and slowest are factors of time: 1 is none, 1.1 a tenth more");
}

/* Do the numbers of ranks fit each other? */
static bool fits(const Machine *m, Err *e) {
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

static bool finish(const Reader *r) {
    Machine *m = r->m;
    for (int i = 0; i < N_KEYS; i++)
        if (keys[i].needed && !r->seen[i])
            return err(r->e, "%s is missing: %s", keys[i].name, quantity_example(keys[i].as));
    if (m->n_levels == 0)
        return err(r->e, "no level: level = network ranks=all latency=15us rank_rate=1Gb/s");
    if (!sane(m, r->e)) return false;
    int64_t made = (int64_t)m->nodes * m->ranks_per_node;
    if (made > MAX_COUNT) return err(r->e, "%lld ranks, at most %d", (long long)made, MAX_COUNT);
    if (m->ranks && m->ranks != made)
        return err(r->e, "ranks = %d, but %d nodes of %d ranks are %d", m->ranks, m->nodes,
                   m->ranks_per_node, (int)made);
    m->ranks = (int)made;
    for (int l = 0; l < m->n_levels; l++)
        if (m->level[l].ranks == 0) m->level[l].ranks = m->ranks;
    if (m->flops[1] == 0) m->flops[1] = m->flops[0];
    return fits(m, r->e);
}

bool machine_parse(Machine *m, const char *text, size_t n, Err *e) {
    Reader r = {.m = m, .e = e};
    *m = (Machine){.name = "cluster", .threads = 1, .slowdown = 1, .slowest = 1};
    for (const char *p = text, *end = text + n; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        r.line++;
        if (!read_line(&r, p, (size_t)(stop - p))) return false;
        p = stop + 1;
    }
    return finish(&r);
}

/* ---- one number ---- */

bool machine_number(const Machine *m, int i, MachineNumber *out) {
    int level = (i - N_KEYS) / N_LEVEL_KEYS, key = (i - N_KEYS) % N_LEVEL_KEYS;
    if (i < N_KEYS) {
        snprintf(out->name, sizeof out->name, "%s", keys[i].name);
        out->as = keys[i].as;
        return true;
    }
    if (level >= m->n_levels) return false;
    snprintf(out->name, sizeof out->name, "%s.%s", m->level[level].name, level_keys[key]);
    out->as = level_as[key];
    return true;
}

/* Units of whole nodes stay so; the last one holds all. */
static bool resize(Machine *m, double nodes, double of_node, Err *e) {
    double ranks = nodes * of_node;
    if (ranks > MAX_COUNT)
        return err(e, "%.0f nodes of %.0f ranks: more than %d ranks", nodes, of_node, MAX_COUNT);
    for (int l = 0; l < m->n_levels; l++) {
        int *unit = &m->level[l].ranks;
        if (*unit % m->ranks_per_node == 0) *unit = (int)(*unit / m->ranks_per_node * of_node);
        if (*unit > ranks || l == m->n_levels - 1) *unit = (int)ranks;
    }
    m->nodes = (int)nodes, m->ranks_per_node = (int)of_node, m->ranks = (int)ranks;
    return true;
}

bool machine_set(Machine *m, int i, double x, Err *e) {
    Level *level = &m->level[i < N_KEYS ? 0 : (i - N_KEYS) / N_LEVEL_KEYS];
    double *const of_level[] = {NULL, &level->latency, &level->rank_rate, &level->port_rate};
    void *at = i < N_KEYS ? (char *)m + keys[i].offset : NULL;
    int key = i < N_KEYS ? -1 : (i - N_KEYS) % N_LEVEL_KEYS;
    if (at == &m->nodes || at == &m->ranks_per_node) {
        bool nodes = at == &m->nodes;
        if (!resize(m, nodes ? x : m->nodes, nodes ? m->ranks_per_node : x, e)) return false;
    } else if (at == &m->ranks) {
        return err(e, "ranks are nodes times ranks_per_node: one of these");
    } else if (key == LEVEL_RANKS) {
        level->ranks = (int)x;
    } else {
        set_number(at ? at : of_level[key], at ? keys[i].type : IN_DOUBLE, x);
    }
    return sane(m, e) && fits(m, e);
}
