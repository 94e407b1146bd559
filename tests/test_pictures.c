/* The pictures of parallel/README.md: every scheme's MLP, each tensor with the ranks that hold its
 * blocks, and the collective at each arrow; drawn from the distributions that the trainer uses. */
#include <dirent.h>
#include <string.h>

#include "parallel/mesh/layout.h"
#include "tests/simulated.h"
#include "tests/test.h"

enum { LABEL = 24, MOST_LINES = 10 };

/* A column of the picture: lines of text, each `width` places wide on the screen. */
typedef struct Column {
    char name[DIST_TEXT];
    char line[MOST_LINES][160];
    int width;
} Column;

/* The ranks that hold block (i, j): "0 1" where they hold copies, "0+1" where each holds a part of
 * the sum. */
static void label(const Mesh *m, const Dist *d, int i, int j, char out[LABEL]) {
    int n = 0;
    for (int r = 0; r < m->p; r++)
        if (mesh_block_of(m, d->shard[0], r) == i && mesh_block_of(m, d->shard[1], r) == j)
            n += snprintf(out + n, (size_t)(LABEL - n), "%s%d", n ? d->partial.n ? "+" : " " : "",
                          r);
}

static void append(char line[160], const char *s, int times) {
    size_t n = strlen(line);
    for (int i = 0; i < times; i++) n += (size_t)snprintf(line + n, 160 - n, "%s", s);
}

/* A line of a box between its blocks: at the top, in between or at the bottom. */
static void rule(char line[160], const char *const corner[3], int blocks, int cell) {
    line[0] = 0;
    append(line, corner[0], 1);
    for (int j = 0; j < blocks; j++) {
        append(line, "─", cell);
        append(line, corner[j + 1 < blocks ? 1 : 2], 1);
    }
}

static void draw(Column *c, const Mesh *m, const Dist *d, int lines) {
    static const char *const top[] = {"┌", "┬", "┐"}, *const mid[] = {"├", "┼", "┤"},
                             *const end[] = {"└", "┴", "┘"};
    int rows = mesh_blocks(m, d->shard[0]), cols = mesh_blocks(m, d->shard[1]);
    int inner = (lines - 1 - rows) / rows, cell = cols > 1 ? 3 : 7;
    char text[LABEL];
    label(m, d, 0, 0, text);
    if ((int)strlen(text) + 2 > cell) cell = (int)strlen(text) + 2;
    memset(c, 0, sizeof *c);
    dist_print(d, c->name);
    c->width = cols * (cell + 1) + 1;
    for (int k = 0; k < lines; k++) {
        int i = k / (inner + 1), at = k % (inner + 1);
        if (at == 0) {
            rule(c->line[k], k == 0 ? top : k == lines - 1 ? end : mid, cols, cell);
            continue;
        }
        for (int j = 0; j < cols; j++) {
            label(m, d, i, j, text);
            int n = at == (inner + 1) / 2 ? (int)strlen(text) : 0, left = (cell - n) / 2;
            append(c->line[k], "│", 1);
            append(c->line[k], " ", left);
            if (n) append(c->line[k], text, 1);
            append(c->line[k], " ", cell - n - left);
        }
        append(c->line[k], "│", 1);
    }
}

/* Words on the way: an operator, or a collective over its axis. */
static void words(Column *c, int lines, const char *a, const char *b) {
    memset(c, 0, sizeof *c);
    snprintf(c->line[lines / 2 - (*b ? 1 : 0)], sizeof *c->line, "%s", a);
    if (*b) snprintf(c->line[lines / 2], sizeof *c->line, "%s", b);
    c->width = (int)(strlen(a) > strlen(b) ? strlen(a) : strlen(b));
}

static int draw_path(Column *c, const Mesh *m, Dist from, const Dist *to, int lines) {
    static const char *const word[4][2] = {
        {"all_", "gather"}, {"reduce_", "scatter"}, {"all_", "reduce"}, {"", "slice"}};
    Change path[MAX_CHANGES];
    int n = dist_path(&from, to, path, NULL), at = 0;
    for (int i = 0; i < n; i++) {
        char axis[2 * N_AXES + 1], second[32];
        Axes one = {1, {(uint8_t)path[i].axis}};
        snprintf(second, sizeof second, "%s %s >", word[path[i].kind][1], axes_print(one, axis));
        words(&c[at++], lines, word[path[i].kind][0], second);
    }
    if (n) draw(&c[at++], m, to, lines);
    return at;
}

/* w before it is gathered: flat parts over z are rows of the block. */
static Dist flat(const Layout *l, const LinearDist *d) {
    Dist w = d->w_stored;
    w.shard[0] = axes_join(w.shard[0], layout_store(l, STORE_PARAM));
    return w;
}

static void put_columns(Text *t, const Column *c, int n, int lines) {
    for (int k = -1; k < lines; k++) {
        for (int i = 0; i < n; i++) {
            int name = (int)strlen(c[i].name), width = c[i].width > name ? c[i].width : name;
            bool empty = k >= 0 && !c[i].line[k][0];
            int used = k < 0 ? name : empty ? 0 : c[i].width;
            if (k >= 0 && c[i].line[k][0] != 0 && !c[i].name[0])
                used = (int)strlen(c[i].line[k]); // words
            text_put(t, "%s%*s", k < 0 ? c[i].name : c[i].line[k], width - used + 2, "");
        }
        text_end_line(t);
    }
}

/* One line of the way back: a gradient as it is made, and as it is stored. */
static void put_way(Text *t, const char *head, const char *name, Dist from, Dist to) {
    char a[DIST_TEXT], b[DIST_TEXT], axis[2 * N_AXES + 1];
    Change path[MAX_CHANGES];
    int n = dist_path(&from, &to, path, NULL);
    snprintf(from.name, sizeof from.name, "%s", name);
    snprintf(to.name, sizeof to.name, "%s", name);
    text_put(t, "%-10s%-20s", head, dist_print(&from, a));
    for (int i = 0; i < n; i++) {
        Axes one = {1, {(uint8_t)path[i].axis}};
        text_put(t, "%s%s %s", i ? ", " : "", change_word(path[i].kind), axes_print(one, axis));
    }
    if (n) text_put(t, "  ->  %s", dist_print(&to, b));
    text_end_line(t);
}

static void put_layer(Text *t, const Layout *l, LinearKind kind) {
    static Column c[16];
    Mesh m = mesh_make(&l->factors, 0);
    LinearDist d = layout_linear(l, kind);
    Dist w = flat(l, &d), *all[] = {&d.x, &w, &d.y, &d.x_stored, &d.y_stored};
    int n = 0, lines = 5;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (mesh_blocks(&m, all[i]->shard[0]) > 2) lines = 9;
    draw(&c[n++], &m, &d.x_stored, lines);
    n += draw_path(&c[n], &m, d.x_stored, &d.x, lines);
    words(&c[n++], lines, "*", "");
    draw(&c[n++], &m, &w, lines);
    n += draw_path(&c[n], &m, w, &d.w, lines);
    words(&c[n++], lines, "=", "");
    draw(&c[n++], &m, &d.y, lines);
    n += draw_path(&c[n], &m, d.y, &d.y_stored, lines);
    text_put(t, "%s\n", kind == LINEAR_UP ? "up" : "down");
    put_columns(t, c, n, lines);
    Dist dy = d.y;
    dy.partial = axes_none();
    put_way(t, "backward", "dy", d.y_stored, dy);
    put_way(t, "", "dx", d.dx, d.x_stored);
    put_way(t, "", "dw", d.dw, w);
}

static bool picture(const char *spec, const char *name) {
    static Text t;
    Layout l;
    char print[64];
    if (!layout_parse(&l, spec, 0, NULL)) return false;
    t.n = 0;
    layout_print(&l, print);
    text_put(&t, strcmp(spec, print) ? "%s = %s\n\n" : "%s\n\n", spec, print);
    put_layer(&t, &l, LINEAR_UP);
    text_put(&t, "\n");
    put_layer(&t, &l, LINEAR_DOWN);
    return text_stands_in_readme(&t, name);
}

TEST(pictures_of_the_readme_are_what_the_code_does) {
    static const char *const schemes[][2] = {
        {"dp:2", "dp"},
        {"fsdp:2", "fsdp"},
        {"megatron:2", "megatron"},
        {"megatron-sp:2", "megatron-sp"},
        {"x2.y2", "2d"},
        {"atp:2x2", "atp"},
        {"axonn:1x2x2x1", "axonn"},
        {"optimus:2x2", "optimus"},
        {"cube:2", "cube"},
    };
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (!picture(schemes[i][0], schemes[i][1]))
            test_fail(__FILE__, __LINE__, "the picture of %s", schemes[i][0]);
}

/* Every header has its row in the map of files. */
TEST(the_map_of_parallel_is_complete) {
    static const char *const folders[] = {"comm", "mesh", "step", "plan", "train", NULL};
    static char page[1 << 17];
    FILE *f = fopen("parallel/README.md", "r");
    CHECK(f);
    page[fread(page, 1, sizeof page - 1, f)] = 0;
    fclose(f);
    for (const char *const *folder = folders; *folder; folder++) {
        char path[64];
        snprintf(path, sizeof path, "parallel/%s", *folder);
        DIR *d = opendir(path);
        CHECK(d);
        for (struct dirent *e; (e = readdir(d));) {
            char row[600];
            size_t n = strlen(e->d_name);
            snprintf(row, sizeof row, "[%s/%s](%s/%s)", *folder, e->d_name, *folder, e->d_name);
            if (n > 2 && strcmp(e->d_name + n - 2, ".h") == 0 && !strstr(page, row))
                test_fail(__FILE__, __LINE__,
                          "%s is not in the map at the end of parallel/README.md", row);
        }
        closedir(d);
    }
}

TEST(tables_of_the_documents_are_those_of_the_measurements) {
    static const char *const checks[] = {
        "table.py bench/results/train_cpu_avx512_bf16.json --page README.md",
        "table.py --page docs/benchmarks.md",
        "ranks.py --page docs/layouts.md",
        "search.py --page docs/planner.md",
        "regret.py --page docs/planner.md",
        "networks.py --page docs/planner.md",
        "gpu.py --page docs/gpu.md",
        "meshes.py --page docs/benchmarks.md"};
    char text[512];
    if (test_shell(".", text, sizeof text, "python3 --version")) test_skip("no python3");
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (test_shell(".", text, sizeof text, "python3 -B tools/bench_%s --check", checks[i]))
            test_fail(__FILE__, __LINE__, "%s", text);
}
