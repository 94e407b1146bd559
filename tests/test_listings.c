/* The listings and diffs of parallel/README.md: operations of a program that the passes make, one a
 * line, as `train_gpt --listing` prints them, with names of operands in place of numbers of lines
 * (and types, where the last tensor of that name is of another type).
 * The first line of a block says what it shows:
 *
 *     ```text listing --layout x2+sp --show up,down
 *     ```diff listing --layout x2+sp --show up against --overlap bulk
 *
 * A diff is of two programs; options behind `against` are those of the second one that differ.
 *
 *     --layout SPEC       one rank, if there is none
 *     --pass NAME         the last pass; differentiate, if there is none
 *     --overlap FLAGS, --recompute NAME, --exact, --bf16
 *     --phase NAME,...    forward, recompute, backward, sums; all, if there is none. end: the list
 *                         of the end of a step in place of a micro-batch's
 *     --show NAME,...     what makes that value, or reads or makes a tensor of that linear layer;
 *                         all operations of the layer, if there is none
 *     --times             when each begins and how many milliseconds it takes, on the cluster
 *                         that the page describes, of TIMED_MODEL
 */
#include "parallel/plan/cost.h"
#include "parallel/step/passes.h"
#include "tests/page.h"
#include "tests/parsed.h"
#include "tests/test.h"

#define PAGE        "parallel/README.md"
#define MODEL       "layers=1,heads=4,channels=64,seq=32,vocab=256"
#define TIMED_MODEL "layers=4,heads=8,channels=512,seq=256,vocab=4096"

enum { LINE = 160, MOST = 400, WORD = 64 };

typedef struct Request {
    Grid grid;
    ModelShape shape;
    Pass last;
    bool times;
    char phase[LINE], show[LINE];
} Request;

typedef struct Lines {
    char line[MOST][LINE];
    int n;
} Lines;

/* ---- the request ---- */

static int word_of(const char *word, const char *const *words, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(word, words[i]) == 0) return i;
    return -1;
}

static bool option(Request *r, const char *name, const char *value) {
    static const char *const passes[] = {"build",  "differentiate", "recompute", "panels",
                                         "head",   "exact",         "fuse",      "split",
                                         "halves", "sums",          "schedule"};
    static const char *const kept[] = {"none", "selective", "full"};
    if (strcmp(name, "--layout") == 0) return layout_parse(&r->grid.layout, value, 0, NULL);
    if (strcmp(name, "--overlap") == 0) return overlap_parse(&r->shape.overlap, value, NULL);
    if (strcmp(name, "--show") == 0) return snprintf(r->show, LINE, "%s", value) < LINE;
    if (strcmp(name, "--phase") == 0) return snprintf(r->phase, LINE, "%s", value) < LINE;
    bool pass = strcmp(name, "--pass") == 0;
    if (!pass && strcmp(name, "--recompute") != 0) return false;
    int i = pass ? word_of(value, passes, N_PASSES) : word_of(value, kept, 3);
    if (i >= 0 && pass) r->last = (Pass)i;
    if (i >= 0 && !pass) r->shape.recompute = (Recompute)i;
    return i >= 0;
}

/* Options of a line until `against` or its end; *rest is behind them. */
static bool options(Request *r, const char *line, const char **rest) {
    char name[WORD], value[WORD];
    int n;
    for (; sscanf(line, " %63s%n", name, &n) == 1 && strcmp(name, "against") != 0; line += n) {
        bool *set = strcmp(name, "--exact") == 0   ? &r->grid.layout.exact
                    : strcmp(name, "--bf16") == 0  ? &r->shape.bf16
                    : strcmp(name, "--times") == 0 ? &r->times
                                                   : NULL;
        if (set) {
            *set = true;
            continue;
        }
        line += n;
        if (sscanf(line, " %63s%n", value, &n) != 1 || !option(r, name, value)) return false;
    }
    *rest = *line ? line + strlen(" against") : line;
    return true;
}

/* ---- lines ---- */

/* "up.weight", "dup.bias": a parameter of `word`, or its gradient. */
static bool is_parameter(const char *name, const char *word) {
    size_t n = strlen(word);
    if (*name == 'd' && strncmp(name + 1, word, n) == 0 && name[n + 1] == '.') return true;
    return strncmp(name, word, n) == 0 && name[n] == '.';
}

/* Is an operation of the linear layer, norm or value of that name? */
static bool concerns(const Program *p, const Op *op, const char *word) {
    const StepTensor *out = &p->tensor[op->out];
    const char *of = strstr(out->what, " of "), *name = out->dist.name;
    if (of && strcmp(of + 4, word) == 0) return true;
    if (strcmp(name, word) == 0 || is_parameter(name, word)) return true;
    for (int k = 0; k < op->n_in; k++)
        if (is_parameter(p->tensor[op->in[k]].dist.name, word)) return true;
    return false;
}

static bool of_phase(const Op *op, const char *word) {
    static const char *const phases[N_PHASES] = {"forward", "recompute", "backward", "sums", "end"};
    return word_of(word, phases, N_PHASES) == (int)op->phase;
}

/* One layer's, and of one of the phases and names that the request lists. */
static bool shown(const Program *p, const Op *op, const Request *r) {
    bool phase = !*r->phase, name = !*r->show;
    char words[LINE], *rest = words;
    snprintf(words, sizeof words, "%s", r->phase);
    for (char *word; (word = strsep(&rest, ","));) phase |= of_phase(op, word);
    rest = words;
    snprintf(words, sizeof words, "%s", r->show);
    for (char *word; (word = strsep(&rest, ","));) name |= concerns(p, op, word);
    return op->layer == 0 && phase && name;
}

/* " @32": the first row of a tensor in its parent, or of the second half; " @0,16": the first row
 * and column. */
static void put_place(Text *t, const StepTensor *x) {
    if (x->parent < 0 && x->row == 0) return;
    text_put(t, " @%lld", (long long)x->row);
    if (x->column || x->stride) text_put(t, ",%lld", (long long)x->column);
}

/* An activation is called by its function. */
static void put_kind(Text *t, const Program *p, const Op *op) {
    char name[16];
    const char *act = config_act_name(p->shape->config.act, name);
    bool backward = op->kind == OP_ACT_BACKWARD;
    if (backward || op->kind == OP_ACT)
        text_put(t, "%s%s", act, backward ? "_backward" : "");
    else
        text_put(t, "%s", op_info(op->kind)->name);
}

/* Tensors may have one name: a gathered one has that of its blocks. An operand is the last one that
 * was made, or else its type tells which; not of a wait, nor of a panel, whose results tell. */
static void put_operand(Text *t, const Program *p, const Op *op, const StepTensor *x) {
    char type[DIST_TEXT];
    bool told = op->kind == OP_WAIT || op->kind == OP_BROADCAST;
    while (op > p->op && strcmp(p->tensor[op[-1].out].dist.name, x->dist.name) != 0) op--;
    bool is_last = told || op == p->op || dist_equal(&p->tensor[op[-1].out].dist, &x->dist);
    text_put(t, "%s", is_last ? x->dist.name : dist_print(&x->dist, type));
}

static void put_operation(Lines *l, const Program *p, const Op *op) {
    static const char *const phases[N_PHASES] = {"forw", "reco", "back", "sums", "end "};
    static Text t;
    char type[DIST_TEXT], axes[2 * N_AXES + 1];
    const StepTensor *out = &p->tensor[op->out];
    bool collective = op_info(op->kind)->collective;
    t.n = 0;
    bool inside = op_in_kernel(p, (int)(op - p->op));
    text_put(&t, "%s %c ", phases[op->phase],
             inside       ? '&'
             : collective ? '~'
             : op->fused  ? '+'
                          : ' ');
    size_t at = t.n;
    text_put(&t, "%s%s", dist_print(&out->dist, type),
             out->dtype == p->dtype   ? ""
             : out->dtype == COLL_I64 ? " i64"
                                      : " f32");
    put_place(&t, out);
    text_put(&t, "%*s = ", t.n < at + 21 ? (int)(at + 21 - t.n) : 0, "");
    at = t.n;
    put_kind(&t, p, op);
    if (op->axes.n) text_put(&t, " %s", axes_print(op->axes, axes));
    if (op->root >= 0) text_put(&t, "[%d]", op->root);
    text_put(&t, "%*s", t.n < at + 16 ? (int)(at + 16 - t.n) : 0, "");
    for (int k = 0; k < (op->kind == OP_WAIT ? 1 : op->n_in); k++) {
        const StepTensor *x = &p->tensor[op->in[k]];
        text_put(&t, "%s", k ? ", " : " ");
        put_operand(&t, p, op, x);
        if (x->storage != STORAGE_TEMPORARY || op->kind == OP_SHIFT) put_place(&t, x);
    }
    if (l->n < MOST) snprintf(l->line[l->n++], LINE, "%.*s", LINE - 1, t.s);
}

/* "at   4.154 ms +1.428", behind a line that is not fused. */
static void put_time(Lines *l, const OpTime *time) {
    char *line = l->line[l->n - 1];
    size_t n = strlen(line);
    snprintf(line + n, LINE - n, "%*s %8.3f +%.3f", n < 70 ? (int)(70 - n) : 0, "",
             1e3 * time->start, 1e3 * (time->end - time->start));
}

/* The list on the page's cluster, in the order in which it runs. */
static void list_times(Lines *l, const Request *r, const Program *p) {
    static Text t;
    text_of_readme(&t, "lab");
    Machine m = machine_described(t.s);
    OWNED(test_mem_end) OpCost *costs = program_costs(p, &m, false);
    OWNED(test_mem_end) OpTime *time = mem_alloc((size_t)p->n_ops * sizeof *time);
    program_play(p, costs, true, time);
    for (int i = 0; i < p->n_ops; i++) {
        if (p->op[i].kind == OP_WAIT || !shown(p, &p->op[i], r)) continue;
        put_operation(l, p, &p->op[i]);
        if (!p->op[i].fused) put_time(l, &time[i]);
    }
}

static bool list_of(Lines *l, Request *r) {
    Err e;
    l->n = 0;
    if (!config_parse(&r->shape.config, r->times ? TIMED_MODEL : MODEL, &e)) return false;
    r->grid.mesh = mesh_make(&r->grid.layout.factors, 0);
    r->shape.B = r->times || r->shape.overlap.halves ? 2 : 4, r->shape.S = r->shape.config.seq;
    r->shape.grid = &r->grid, r->shape.training = true;
    bool end = strcmp(r->phase, "end") == 0;
    OWNED(program_free)
    Program p = end ? program_end_passes(&r->shape, r->last, NULL, false)
                    : program_passes(&r->shape, r->last, NULL);
    if (r->times) list_times(l, r, &p);
    for (int i = 0; !r->times && i < p.n_ops; i++)
        if (shown(&p, &p.op[i], r)) put_operation(l, &p, &p.op[i]);
    return l->n > 0;
}

/* ---- diff ---- */

/* length[i][j]: of the longest common lines of a from i on and b from j on. */
static void put_diff(Text *t, const Lines *a, const Lines *b) {
    static short length[MOST + 1][MOST + 1];
    for (int i = a->n; i >= 0; i--)
        for (int j = b->n; j >= 0; j--)
            length[i][j] = i == a->n || j == b->n                ? 0
                           : strcmp(a->line[i], b->line[j]) == 0 ? (short)(length[i + 1][j + 1] + 1)
                           : length[i + 1][j] > length[i][j + 1] ? length[i + 1][j]
                                                                 : length[i][j + 1];
    for (int i = 0, j = 0; i < a->n || j < b->n;) {
        bool same = i < a->n && j < b->n && strcmp(a->line[i], b->line[j]) == 0;
        bool old = !same && i < a->n && (j == b->n || length[i + 1][j] >= length[i][j + 1]);
        text_put(t, "%c%s", same ? ' ' : old ? '-' : '+', old || same ? a->line[i] : b->line[j]);
        text_end_line(t);
        i += same || old, j += same || !old;
    }
}

static bool block_is_right(const char *fence) {
    static Text t;
    static Lines a, b;
    const char *line = strstr(fence, "listing") + strlen("listing");
    Request r = {.last = PASS_DIFFERENTIATE, .grid.layout = layout_one()}, other;
    t.s[t.n = 0] = 0;
    if (!options(&r, line, &line)) return false;
    other = r;
    if (!list_of(&a, &r)) return false;
    if (strncmp(fence, "diff", 4) == 0) {
        if (!options(&other, line, &line) || !list_of(&b, &other)) return false;
        put_diff(&t, &a, &b);
    } else {
        for (int i = 0; i < a.n; i++) text_put(&t, "%s", a.line[i]), text_end_line(&t);
    }
    return page_block_is(PAGE, fence, &t);
}

TEST(listings_of_the_readme_are_what_the_passes_make) {
    static const char *const kinds[] = {"```text listing", "```diff listing"};
    for (EACH(k, kinds)) {
        char line[256];
        int n = 0;
        for (; page_line(PAGE, *k, n, line, sizeof line); n++)
            if (!block_is_right(line + 3)) test_fail("%s", line);
        CHECK(n >= 3);
    }
}
