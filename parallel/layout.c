#include "parallel/layout.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/opt.h"

enum { MAX_RANKS = 1 << 20 };

static const char letters[N_AXES + 1] = "dzxy";
static const char *const words[] = {"sp", "heads", "stay=y", "zero1", "zero2", "zero3"};
enum { WORD_SP, WORD_HEADS, WORD_STAY, WORD_ZERO1, N_WORDS = sizeof words / sizeof words[0] };

/* A preset is a SPEC whose sizes are given behind a colon, outermost first. `sizes` of them; one for
 * several axes is the size of each. */
static const struct {
    const char *name, *axes, *words;
    int sizes;
} presets[] = {
    {"dp", "d", "", 1},
    {"fsdp", "z", "", 1},
    {"megatron", "x", "", 1},
    {"megatron-sp", "x", "sp", 1},
    {"atp", "xy", "heads", 2},
    {"tensor3d", "dxy", "heads", 3},
    {"axonn", "dzxy", "heads", 4},
    {"optimus", "xy", "stay=y", 2},
    {"tesseract", "dxy", "stay=y", 3},
    {"cube", "zxy", "sp+heads", 1},
};
enum { N_PRESETS = sizeof presets / sizeof presets[0] };

/* --- reading a SPEC -------------------------------------------------------------------------- */

typedef struct Reader {
    const char *text; // the whole
    Layout *l;
    Err *e;
} Reader;

/* The reason, behind the text and the column of the mistake. */
__attribute__((format(printf, 3, 4))) static bool wrong(const Reader *r, const char *at,
                                                        const char *fmt, ...) {
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err(r->e, "layout \"%.80s\", column %d: %s", r->text, (int)(at - r->text) + 1, why);
}

/* ", did you mean "near"?" or nothing. */
static const char *mean(const char *near, char buf[64]) {
    buf[0] = 0;
    if (near) snprintf(buf, 64, ", did you mean \"%s\"?", near);
    return buf;
}

static bool read_size(const Reader *r, const char **p, int *size) {
    int64_t n = 0;
    const char *at = *p;
    for (; isdigit((unsigned char)**p); (*p)++)
        if (n <= MAX_RANKS) n = 10 * n + (**p - '0');
    if (*p == at) return wrong(r, at, "a size is needed here, like 2");
    if (n < 1 || n > MAX_RANKS) return wrong(r, at, "a size is from 1 to %d", MAX_RANKS);
    *size = (int)n;
    return true;
}

static bool add_axis(Reader *r, const char *at, char letter, int size) {
    const char *found = strchr(letters, letter);
    if (!letter || !found)
        return wrong(r, at, "an axis is needed here, d, z, x or y, with its size: d2.x4");
    if ((int64_t)layout_ranks(r->l) * size > MAX_RANKS)
        return err(r->e, "layout: %.80s makes more than %d ranks", r->text, MAX_RANKS);
    if (!layout_add(r->l, (int)(found - letters), size))
        return wrong(r, at, "an order of ranks has at most %d factors", MAX_FACTORS);
    return true;
}

/* d2.z1.x4.y2 */
static bool read_axes(Reader *r, const char **p) {
    for (;; (*p)++) {
        const char *at = *p;
        int size = 1;
        if (!*at || !strchr(letters, *at)) return add_axis(r, at, 0, 1);
        ++*p;
        if (!read_size(r, p, &size) || !add_axis(r, at, *at, size)) return false;
        if (**p != '.') break;
    }
    return !**p || **p == '+' ? true : wrong(r, *p, "one of . and + is needed here");
}

static bool set_word(Reader *r, const char *at, const char *word, unsigned *seen) {
    char hint[64];
    int i = 0;
    while (i < N_WORDS && strcmp(word, words[i]) != 0) i++;
    if (i == N_WORDS)
        return wrong(r, at,
                     "unknown word \"%.40s\"%s (words are sp heads stay=y zero1 zero2 zero3)", word,
                     mean(opt_nearest(word, words, N_WORDS), hint));
    if (*seen & (1u << i)) return wrong(r, at, "%s is here twice", word);
    if (i >= WORD_ZERO1 && *seen >> WORD_ZERO1)
        return wrong(r, at, "one of zero1, zero2, zero3 is enough: each includes those before it");
    *seen |= 1u << i;
    r->l->sp |= i == WORD_SP;
    r->l->heads |= i == WORD_HEADS;
    r->l->stay |= i == WORD_STAY;
    if (i >= WORD_ZERO1) r->l->zero = i - WORD_ZERO1 + 1;
    if (r->l->stay && r->l->heads)
        return wrong(r, at, "stay=y cuts every output over y already: leave heads out");
    return true;
}

/* sp+heads, the end or what stands behind a '+' */
static bool read_words(Reader *r, const char *p) {
    unsigned seen = 0;
    for (;; p++) {
        char word[64];
        size_t n = strcspn(p, "+");
        if (n == 0) return wrong(r, p, "a word is needed here: sp heads stay=y zero1 zero2 zero3");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), p);
        if (!set_word(r, p, word, &seen)) return false;
        p += n;
        if (!*p) return true;
    }
}

static int find_preset(const Reader *r, const char *p) {
    char name[64], hint[64];
    const char *names[N_PRESETS];
    size_t n = strcspn(p, ":+");
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), p);
    for (int i = 0; i < N_PRESETS; i++) {
        names[i] = presets[i].name;
        if (strcmp(name, names[i]) == 0) return i;
    }
    wrong(r, p, "unknown preset \"%.40s\"%s (or axes with sizes: d2.x4)", name,
          mean(opt_nearest(name, names, N_PRESETS), hint));
    return -1;
}

/* megatron, atp:4x2, cube:2 */
static bool read_preset(Reader *r, const char **p, int ranks) {
    int which = find_preset(r, *p), n = 0, size[N_AXES] = {ranks};
    if (which < 0) return false;
    const char *axes = presets[which].axes, *name = presets[which].name;
    int sizes = presets[which].sizes;
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
        return wrong(r, at, "the number of ranks is needed: %s:4", name);
    }
    for (int i = 0; axes[i]; i++)
        if (!add_axis(r, at, axes[i], size[sizes > 1 ? i : 0])) return false;
    return !*presets[which].words || read_words(r, presets[which].words);
}

bool layout_parse(Layout *l, const char *text, int p, Err *e) {
    Reader r = {.text = text, .l = l, .e = e};
    *l = layout_one();
    const char *at = text;
    if (!*text) return err(e, "layout: empty: d2.x4, megatron, atp:4x2, ...");
    // An axis is one letter with its size behind it; anything longer is the name of a preset.
    bool axes = !isalpha((unsigned char)text[0]) || !isalpha((unsigned char)text[1]);
    if (!(axes ? read_axes(&r, &at) : read_preset(&r, &at, p))) return false;
    if (*at == '+' && !read_words(&r, at + 1)) return false;
    int made = layout_ranks(l);
    if (p && made != p)
        return err(e, "layout: %.80s makes %d rank%s, there %s %d", text, made,
                   made == 1 ? "" : "s", p == 1 ? "is" : "are", p);
    if (l->stay) l->sp = false; // stay says it already
    return true;
}

const char *layout_print(const Layout *l, char buf[64]) {
    int n = 0;
    for (int i = 0; i < l->factors.n; i++)
        n += snprintf(buf + n, (size_t)(64 - n), "%s%c%d", n ? "." : "",
                      letters[l->factors.at[i].axis], l->factors.at[i].size);
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

bool layout_add(Layout *l, int axis, int size) {
    if (!factors_add(&l->factors, axis, size)) return false;
    l->size[axis] *= size;
    return true;
}

Layout layout_of_sizes(const int size[N_AXES]) {
    Layout l = layout_one();
    for (int axis = 0; axis < N_AXES; axis++) layout_add(&l, axis, size[axis]);
    return l;
}

/* --- what lies where ------------------------------------------------------------------------- */

/* The axes that text names, without those of size 1. */
static Axes axes_here(const Layout *l, const char *text) {
    Axes all = axes_of(text), here = axes_none();
    for (int i = 0; i < all.n; i++)
        if (l->size[all.axis[i]] > 1) here.axis[here.n++] = all.axis[i];
    return here;
}

static Dist matrix(const Layout *l, const char *name, const char *dim0, const char *cut0,
                   const char *dim1, const char *cut1) {
    Dist d = {.n_dims = 2, .cut = {axes_here(l, cut0), axes_here(l, cut1)}};
    dist_name(d.name, name);
    memcpy(d.dim[0], dim0, strlen(dim0) + 1); // one letter, or two
    memcpy(d.dim[1], dim1, strlen(dim1) + 1);
    return d;
}

static Dist product(const char *name, Dist a, Dist b) {
    Dist y;
    Err e;
    if (!dist_product(&y, name, &a, &b, &e)) die("%s", e.text);
    return y;
}

Dist layout_residual(const Layout *l) {
    return matrix(l, "x", "T", l->sp || l->stay ? "d.z.x" : "d.z", "C", "y");
}

/* The tensor between a layer that widens and one that narrows: QKV, attention, the MLP's hidden. */
static Dist wide(const Layout *l, const char *name, const char *dim) {
    if (l->stay) return matrix(l, name, "T", "d.z.x", dim, "y");
    return matrix(l, name, "T", "d.z", dim, l->heads ? "x.y" : "x");
}

static LinearDist head(const Layout *l) {
    LinearDist d = {.x = matrix(l, "x", "T", "d.z", "C", ""),
                    .w = matrix(l, "w", "V", "x.y", "C", ""),
                    .x_stored = layout_residual(l)};
    d.y = product("y", d.x, dist_transposed(&d.w));
    d.dx = product("dx", d.y, d.w);
    d.dw = product("dw", dist_transposed(&d.y), d.x);
    d.w_stored = d.w;
    d.y_stored = d.y;
    return d;
}

LinearDist layout_linear(const Layout *l, LinearKind kind) {
    if (kind == LINEAR_HEAD) return head(l);
    bool widens = kind == LINEAR_QKV || kind == LINEAR_UP;
    const char *K = widens ? "C" : "K", *N = widens ? "N" : "C";
    const char *r = l->stay ? "d.z.x" : "d.z",
               *a = l->stay  ? ""
                    : widens ? "y"
                             : "x",
               *b = l->stay || !widens ? "y" : "x";
    LinearDist d = {.x = matrix(l, "x", "T", r, K, a),
                    .w = matrix(l, "w", K, a, N, b),
                    .x_stored = widens ? layout_residual(l) : wide(l, "x", K),
                    .w_stored = matrix(l, "w", K, l->stay ? "x" : a, N, b),
                    .y_stored = widens ? wide(l, "y", N) : layout_residual(l)};
    d.y = product("y", d.x, d.w);
    Dist dy = d.y;
    dy.owed = axes_none(); // the gradient of y is whole
    d.dx = product("dx", dy, dist_transposed(&d.w));
    d.dw = product("dw", dist_transposed(&d.x), dy);
    dist_name(d.y_stored.name, "y");
    return d;
}

Axes layout_store(const Layout *l, StoreKind kind) {
    static const int from[] = {[STORE_PARAM] = 3, [STORE_GRAD] = 2, [STORE_MOMENTS] = 1};
    return axes_here(l, l->zero >= from[kind] ? "z.d" : "z");
}
