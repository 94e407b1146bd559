#include "parallel/mesh/layout.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/opt.h"

enum { MAX_RANKS = 1 << 20 };

static const char letters[N_AXES + 1] = "dzxy";
static const char *const flags[] = {"sp", "heads", "stay=y", "zero1", "zero2", "zero3"};
enum { FLAG_SP, FLAG_HEADS, FLAG_STAY, FLAG_ZERO1, N_FLAGS = sizeof flags / sizeof flags[0] };

const NamedScheme named_schemes[N_SCHEMES] = {
    {"dp", "d", 1, {.sp = false}},           {"fsdp", "z", 1, {.sp = false}},
    {"megatron", "x", 1, {.sp = false}},     {"megatron-sp", "x", 1, {.sp = true}},
    {"atp", "xy", 2, {.heads = true}},       {"tensor3d", "dxy", 3, {.heads = true}},
    {"axonn", "dzxy", 4, {.heads = true}},   {"optimus", "xy", 2, {.stay = true}},
    {"tesseract", "dxy", 3, {.stay = true}}, {"cube", "zxy", 1, {.sp = true, .heads = true}},
};

/* --- reading a SPEC -------------------------------------------------------------------------- */

typedef struct Reader {
    const char *text; // the whole text
    Layout *l;
    Err *e;
} Reader;

/* Returns false with the error text: the layout, the column of the mistake, the reason. */
__attribute__((format(printf, 3, 4))) static bool wrong(const Reader *r, const char *at,
                                                        const char *fmt, ...) {
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err(r->e, "layout \"%.80s\", column %d: %s", r->text, (int)(at - r->text) + 1, why);
}

/* Writes `, did you mean "near"?` to buf, or "" if near is NULL. Returns buf. */
static const char *did_you_mean(const char *near, char buf[64]) {
    buf[0] = 0;
    if (near) snprintf(buf, 64, ", did you mean \"%s\"?", near);
    return buf;
}

/* Appends a factor of an axis as the innermost; false: MAX_FACTORS reached. */
static bool add_factor(Layout *l, int axis, int size) {
    if (!factors_add(&l->factors, axis, size)) return false;
    l->size[axis] *= size;
    return true;
}

static bool read_size(const Reader *r, const char **p, int *size) {
    int64_t n = 0;
    const char *at = *p;
    for (; isdigit((unsigned char)**p); (*p)++)
        if (n <= MAX_RANKS) n = 10 * n + (**p - '0');
    if (*p == at) return wrong(r, at, "expected a size such as 2");
    if (n < 1 || n > MAX_RANKS) return wrong(r, at, "sizes are from 1 to %d", MAX_RANKS);
    *size = (int)n;
    return true;
}

static bool add_axis(Reader *r, const char *at, char letter, int size) {
    const char *found = strchr(letters, letter);
    if (!letter || !found)
        return wrong(r, at, "expected an axis, d, z, x or y, with its size: d2.x4");
    if ((int64_t)layout_ranks(r->l) * size > MAX_RANKS)
        return err(r->e, "layout: %.80s has more than %d ranks", r->text, MAX_RANKS);
    if (!add_factor(r->l, (int)(found - letters), size))
        return wrong(r, at, "an order of ranks has at most %d factors", MAX_FACTORS);
    return true;
}

/* Reads the axes of a SPEC: d2.z1.x4.y2 */
static bool read_axes(Reader *r, const char **p) {
    for (;; (*p)++) {
        const char *at = *p;
        int size = 1;
        if (!*at || !strchr(letters, *at)) return add_axis(r, at, 0, 1);
        ++*p;
        if (!read_size(r, p, &size) || !add_axis(r, at, *at, size)) return false;
        if (**p != '.') break;
    }
    return !**p || **p == '+' ? true : wrong(r, *p, "expected . or +");
}

static bool set_flag(Reader *r, const char *at, const char *flag, unsigned *seen) {
    char hint[64];
    int i = 0;
    while (i < N_FLAGS && strcmp(flag, flags[i]) != 0) i++;
    if (i == N_FLAGS)
        return wrong(r, at,
                     "unknown flag \"%.40s\"%s (flags are sp heads stay=y zero1 zero2 zero3)", flag,
                     did_you_mean(opt_nearest(flag, flags, N_FLAGS), hint));
    if (*seen & (1u << i)) return wrong(r, at, "%s given twice", flag);
    if (i >= FLAG_ZERO1 && *seen >> FLAG_ZERO1)
        return wrong(r, at, "one of zero1, zero2, zero3 is enough: each includes those before it");
    *seen |= 1u << i;
    r->l->sp |= i == FLAG_SP;
    r->l->heads |= i == FLAG_HEADS;
    r->l->stay |= i == FLAG_STAY;
    if (i >= FLAG_ZERO1) r->l->zero = i - FLAG_ZERO1 + 1;
    if (r->l->stay && r->l->heads)
        return wrong(r, at, "stay=y already shards every output over y: leave heads out");
    return true;
}

/* Reads the flags up to the end of the text: sp+heads */
static bool read_flags(Reader *r, const char *p) {
    unsigned seen = 0;
    for (;; p++) {
        char flag[64];
        size_t n = strcspn(p, "+");
        if (n == 0) return wrong(r, p, "expected a flag: sp heads stay=y zero1 zero2 zero3");
        snprintf(flag, sizeof flag, "%.*s", (int)n, p);
        if (!set_flag(r, p, flag, &seen)) return false;
        p += n;
        if (!*p) return true;
    }
}

static const NamedScheme *find_scheme(const Reader *r, const char *p) {
    char name[64], hint[64];
    const char *names[N_SCHEMES];
    size_t n = strcspn(p, ":+");
    snprintf(name, sizeof name, "%.*s", (int)n, p);
    for (int i = 0; i < N_SCHEMES; i++) {
        names[i] = named_schemes[i].name;
        if (strcmp(name, names[i]) == 0) return &named_schemes[i];
    }
    wrong(r, p, "unknown preset \"%.40s\"%s (or axes with sizes: d2.x4)", name,
          did_you_mean(opt_nearest(name, names, N_SCHEMES), hint));
    return NULL;
}

/* Reads a preset: megatron, atp:4x2, cube:2 */
static bool read_preset(Reader *r, const char **p, int ranks) {
    const NamedScheme *of = find_scheme(r, *p);
    int n = 0, size[N_AXES] = {ranks};
    if (!of) return false;
    const char *axes = of->axes, *name = of->name;
    int sizes = of->sizes;
    const char *at = *p += strlen(name);
    if (**p == ':') {
        do {
            ++*p;
            if (n == N_AXES) return wrong(r, *p, "%s takes %d sizes", name, sizes);
            if (!read_size(r, p, &size[n++])) return false;
        } while (**p == 'x');
        if (**p && **p != '+') return wrong(r, *p, "sizes are joined by x: 4x2");
        if (n != sizes)
            return wrong(r, at, "%s takes %d size%s, not %d", name, sizes, sizes > 1 ? "s" : "", n);
    } else if (axes[1]) {
        return wrong(r, at, "%s takes %d size%s: %s:%s", name, sizes, sizes > 1 ? "s" : "", name,
                     &"2x2x2x2"[8 - 2 * sizes]);
    } else if (ranks == 0) {
        return wrong(r, at, "give the number of ranks: %s:4", name);
    }
    for (int i = 0; axes[i]; i++)
        if (!add_axis(r, at, axes[i], size[sizes > 1 ? i : 0])) return false;
    r->l->sp = of->flags.sp, r->l->heads = of->flags.heads, r->l->stay = of->flags.stay;
    return true;
}

bool layout_parse(Layout *l, const char *text, int p, Err *e) {
    Reader r = {.text = text, .l = l, .e = e};
    *l = layout_one();
    const char *at = text;
    if (!*text) return err(e, "layout: empty: a layout is like d2.x4, megatron or atp:4x2");
    // An axis is one letter followed by its size; a longer name is a preset.
    bool axes = !isalpha((unsigned char)text[0]) || !isalpha((unsigned char)text[1]);
    if (!(axes ? read_axes(&r, &at) : read_preset(&r, &at, p))) return false;
    if (*at == '+' && !read_flags(&r, at + 1)) return false;
    int made = layout_ranks(l);
    if (p && made != p)
        return err(e, "layout: %.80s makes %d rank%s, there %s %d", text, made,
                   made == 1 ? "" : "s", p == 1 ? "is" : "are", p);
    if (l->stay) l->sp = false; // stay=y implies sp
    return true;
}

const char *layout_print(const Layout *l, char buf[64]) {
    int n = 0;
    for (int i = 0; i < l->factors.n; i++)
        n += snprintf(buf + n, (size_t)(64 - n), "%s%c%d", n ? "." : "",
                      letters[l->factors.factor[i].axis], l->factors.factor[i].size);
    if (n == 0) n = snprintf(buf, 64, "d1");
    n += snprintf(buf + n, (size_t)(64 - n), "%s%s%s", l->sp ? "+sp" : "", l->heads ? "+heads" : "",
                  l->stay ? "+stay=y" : "");
    if (l->zero) snprintf(buf + n, (size_t)(64 - n), "+zero%d", l->zero);
    return buf;
}

int layout_ranks(const Layout *l) {
    return l->size[AXIS_D] * l->size[AXIS_Z] * l->size[AXIS_X] * l->size[AXIS_Y];
}

Layout layout_one(void) {
    return (Layout){.size = {1, 1, 1, 1}};
}

Layout layout_of_sizes(const int size[N_AXES]) {
    Layout l = layout_one();
    for (int axis = 0; axis < N_AXES; axis++) add_factor(&l, axis, size[axis]);
    return l;
}

/* --- distributions ------------------------------------------------------------------------- */

/* The named axes, without those of size 1. */
static Axes axes_here(const Layout *l, const char *text) {
    Axes all = axes_of(text), here = axes_none();
    for (int i = 0; i < all.n; i++)
        if (l->size[all.axis[i]] > 1) here.axis[here.n++] = all.axis[i];
    return here;
}

/* The type of a matrix; axes of size 1 are left out. */
static Dist matrix(const Layout *l, const char *name, const char *dim0, const char *over0,
                   const char *dim1, const char *over1) {
    return dist_make(name, dim0, axes_here(l, over0), dim1, axes_here(l, over1));
}

bool layout_tokens_over_x(const Layout *l) {
    return l->sp || l->stay;
}

Dist layout_residual(const Layout *l) {
    return matrix(l, "x", "T", layout_tokens_over_x(l) ? "d.z.x" : "d.z", "C", "y");
}

/* The stored type of a hidden tensor, which lies between a column-parallel and a row-parallel
 * layer: QKV, attention's output, the MLP's activation. */
static Dist hidden(const Layout *l, const char *name, const char *dim) {
    if (l->stay) return matrix(l, name, "T", "d.z.x", dim, "y");
    return matrix(l, name, "T", "d.z", dim, l->heads ? "x.y" : "x");
}

static LinearDist head(const Layout *l) {
    Dist w = matrix(l, "w", "V", "x.y", "C", "");
    return (LinearDist){.x = matrix(l, "x", "T", "d.z", "C", ""),
                        .w = w,
                        .x_stored = layout_residual(l),
                        .w_stored = w,
                        .y_stored = matrix(l, "y", "T", "d.z", "V", "x.y")};
}

LinearDist layout_linear(const Layout *l, LinearKind kind) {
    if (kind == LINEAR_HEAD) return head(l);
    bool column = kind == LINEAR_QKV || kind == LINEAR_UP;
    const char *K = column ? "C" : "K", *N = column ? "N" : "C";
    const char *r = l->stay ? "d.z.x" : "d.z",
               *a = l->stay  ? ""
                    : column ? "y"
                             : "x",
               *b = l->stay || !column ? "y" : "x";
    LinearDist d = {.x = matrix(l, "x", "T", r, K, a),
                    .w = matrix(l, "w", K, a, N, b),
                    .x_stored = column ? layout_residual(l) : hidden(l, "x", K),
                    .w_stored = matrix(l, "w", K, l->stay ? "x" : a, N, b),
                    .y_stored = column ? hidden(l, "y", N) : layout_residual(l)};
    dist_name(d.y_stored.name, "y");
    return d;
}

Axes layout_store(const Layout *l, StoreKind kind) {
    static const int from[] = {[STORE_PARAM] = 3, [STORE_GRAD] = 2, [STORE_MOMENTS] = 1};
    Axes a = {l->size[AXIS_Z] > 1, {AXIS_Z}};
    if (l->zero >= from[kind] && l->size[AXIS_D] > 1) a.axis[a.n++] = AXIS_D;
    return a;
}
