/* parallel/mesh/dist: the notation as a type. */
#include "parallel/mesh/dist.h"
#include "tests/test.h"

/* Of ChangeKind. */
static const char *const change_names[] = {"all_gather", "reduce_scatter", "all_reduce"};

/* "x[T/d.z, K/y] +x" as a type. */
static Dist dist_of(const char *text) {
    Dist d = {.n_dims = 0};
    int n = 0;
    char axes[2 * N_AXES + 1];
    if (sscanf(text, "%23[^[][%n", d.name, &n) != 1 || n == 0) die("%s: no name", text);
    do {
        int i = d.n_dims++, more = 0;
        text += n, n = 0;
        if (i == DIST_DIMS || sscanf(text, " %15[^],/ ]%n", d.dim[i], &more) != 1)
            die("%s: no dimension", text);
        text += more;
        if (*text == '/' && sscanf(text, "/%8[dzxy.]%n", axes, &n) == 1)
            d.shard[i] = axes_of(axes), text += n;
        n = 1;
    } while (*text == ',');
    n = 0;
    if (sscanf(text, "] +%8[dzxy.]%n", axes, &n) == 1)
        d.partial = axes_of(axes), text += n;
    else if (*text == ']')
        text++;
    if (*text) die("%s: expected the end of a type", text);
    return d;
}

TEST(dist_prints_types_as_they_are_written) {
    static const char *const texts[] = {"x[T]",
                                        "x[T, C]",
                                        "x[T/d.z, C/y]",
                                        "y[T/d.z, N/x] +y",
                                        "dw[K/y, N/x] +d.z",
                                        "w'[4C/x.y, C]",
                                        "stats[T/d.z.x, 2]",
                                        "h_1[T/d.z.x.y, C]",
                                        "x[T, C] +d.z.x.y"};
    for (EACH(t, texts)) {
        char text[DIST_TEXT];
        Dist d = dist_of(*t);
        CHECK_STR(dist_print(&d, text), *t);
    }
}

TEST(dist_equal_looks_at_all_but_the_name) {
    Dist a = dist_of("x[T/d, C/y] +x"), same = dist_of("h[T/d, C/y] +x");
    static const char *const other[] = {"x[T/d, C/y]", "x[T/d, C] +x",     "x[T/d, K/y] +x",
                                        "x[T/d] +x",   "x[T/d.z, C/y] +x", "x[C/y, T/d] +x"};
    CHECK(dist_equal(&a, &same));
    for (EACH(o, other)) {
        Dist b = dist_of(*o);
        CHECK(!dist_equal(&a, &b));
    }
}

/* What dist_matmul derives: layout_linear_derives_the_matmuls_of_every_layer. */
TEST(dist_matmul_refuses_wrong_ones) {
    static const struct {
        const char *x, *w, *says;
    } bad[] = {
        {"x[T, K/y]", "w[K/x, N]", "must shard K alike"},
        {"x[T, K]", "w[K/x, N]", "must shard K alike"},
        {"x[T, K/x.y]", "w[K/y.x, N]", "must shard K alike"},
        {"x[T, K] +x", "w[K, N]", "is partial; reduce"},
        {"x[T, K]", "w[K, N] +d", "is partial; reduce"},
        {"x[T/x, K]", "w[K, N/x]", "axis x given twice"},
        {"x[T, K]", "w[C, N]", "contracts equal dimensions, not K and C"},
        {"x[K]", "w[K, N]", "two matrices"},
    };
    for (EACH(b, bad)) {
        Dist x = dist_of(b->x), w = dist_of(b->w), y;
        Err e = {""};
        CHECK_REFUSED(dist_matmul(&y, "y", &x, &w, &e), e, b->says);
    }
}

TEST(dist_transposed_twice_is_the_same) {
    char text[DIST_TEXT];
    Dist w = dist_of("w[K/y, N/x]"), t = dist_transposed(&w), back = dist_transposed(&t);
    CHECK_STR(dist_print(&t, text), "w'[N/x, K/y]");
    CHECK_STR(dist_print(&back, text), "w[K/y, N/x]");
}

/* "all_gather y 1, reduce_scatter x 0", or the reason why there is no path. */
static const char *path_text(const char *from, const char *to, char text[512]) {
    Dist a = dist_of(from), b = dist_of(to);
    Change path[MAX_CHANGES];
    Err e = {""};
    int n = dist_path(&a, &b, path, &e), at = 0;
    if (n < 0) {
        snprintf(text, 512, "%s", e.text);
        return text;
    }
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        char axis[2 * N_AXES + 1];
        Axes one = {1, {(uint8_t)path[i].axis}};
        at += snprintf(text + at, (size_t)(512 - at), "%s%s %s", i ? ", " : "",
                       change_names[path[i].kind], axes_print(one, axis));
        if (path[i].dim >= 0)
            at += snprintf(text + at, (size_t)(512 - at), " %s", b.dim[path[i].dim]);
    }
    return text;
}

/* The schemes of the literature and the collectives of each of their tensors, in the letters of
 * this mesh. r is d or z, and x for the token axis of SUMMA. */
TEST(dist_path_gives_the_collectives_of_every_scheme) {
    static const struct {
        const char *scheme, *x_stored, *w_stored, *y_stored; // tensors as they are stored
        const char *x, *w;                                   // as the local matmul wants them
        const char *gather_x, *gather_w, *pay_y, *gather_dy, *pay_dx, *pay_dw;
    } rows[] = {
        {"one rank", "x[T, K]", "w[K, N]", "y[T, N]", "x[T, K]", "w[K, N]", "", "", "", "", "", ""},
        {"data parallel", "x[T/d, K]", "w[K, N]", "y[T/d, N]", "x[T/d, K]", "w[K, N]", "", "", "",
         "", "", "all_reduce d"},
        {"ZeRO-3", "x[T/z, K]", "w[K/z, N]", "y[T/z, N]", "x[T/z, K]", "w[K, N]", "",
         "all_gather z K", "", "", "", "reduce_scatter z K"},
        {"Megatron column", "x[T, K]", "w[K, N/x]", "y[T, N/x]", "x[T, K]", "w[K, N/x]", "", "", "",
         "", "all_reduce x", ""},
        {"Megatron row", "x[T, K/x]", "w[K/x, N]", "y[T, N]", "x[T, K/x]", "w[K/x, N]", "", "",
         "all_reduce x", "", "", ""},
        {"column + sequence parallel", "x[T/x, K]", "w[K, N/x]", "y[T, N/x]", "x[T, K]",
         "w[K, N/x]", "all_gather x T", "", "", "", "reduce_scatter x T", ""},
        {"row + sequence parallel", "x[T, K/x]", "w[K/x, N]", "y[T/x, N]", "x[T, K/x]", "w[K/x, N]",
         "", "", "reduce_scatter x T", "all_gather x T", "", ""},
        {"ATP", "x[T, K/y]", "w[K/y, N/x]", "y[T, N/x]", "x[T, K/y]", "w[K/y, N/x]", "", "",
         "all_reduce y", "", "all_reduce x", ""},
        {"ATP, tokens over the idle axis", "x[T/x, K/y]", "w[K/y, N/x]", "y[T/y, N/x]", "x[T, K/y]",
         "w[K/y, N/x]", "all_gather x T", "", "reduce_scatter y T", "all_gather y T",
         "reduce_scatter x T", ""},
        {"ATP, heads", "x[T, K/y]", "w[K/y, N/x]", "y[T, N/x.y]", "x[T, K/y]", "w[K/y, N/x]", "",
         "", "reduce_scatter y N", "all_gather y N", "all_reduce x", ""},
        {"Tensor3D", "x[T/d, K/y]", "w[K/y, N/x]", "y[T/d, N/x]", "x[T/d, K/y]", "w[K/y, N/x]", "",
         "", "all_reduce y", "", "all_reduce x", "all_reduce d"},
        {"AxoNN", "x[T/z, K/y]", "w[K/y.z, N/x]", "y[T/z, N/x]", "x[T/z, K/y]", "w[K/y, N/x]", "",
         "all_gather z K", "all_reduce y", "", "all_reduce x", "reduce_scatter z K"},
        {"Optimus", "x[T/x, K/y]", "w[K/x, N/y]", "y[T/x, N/y]", "x[T/x, K]", "w[K, N/y]",
         "all_gather y K", "all_gather x K", "", "", "reduce_scatter y K", "reduce_scatter x K"},
        {"Tesseract", "x[T/d.x, K/y]", "w[K/x, N/y]", "y[T/d.x, N/y]", "x[T/d.x, K]", "w[K, N/y]",
         "all_gather y K", "all_gather x K", "", "", "reduce_scatter y K",
         "reduce_scatter x K, all_reduce d"},
        {"cube", "x[T/z.x, K/y]", "w[K/y.z, N/x]", "y[T/z.y, N/x]", "x[T/z, K/y]", "w[K/y, N/x]",
         "all_gather x T", "all_gather z K", "reduce_scatter y T", "all_gather y T",
         "reduce_scatter x T", "reduce_scatter z K"},
    };
    for (EACH(r, rows)) {
        char text[512], y[DIST_TEXT], dy[DIST_TEXT], dx[DIST_TEXT], dw[DIST_TEXT];
        Dist X = dist_of(r->x), W = dist_of(r->w), Y, dY, dX, dW;
        Dist wt = dist_transposed(&W), xt = dist_transposed(&X);
        CHECK(dist_matmul(&Y, "y", &X, &W, NULL));
        dY = Y;
        dY.partial = axes_none();
        CHECK(dist_matmul(&dX, "dx", &dY, &wt, NULL) && dist_matmul(&dW, "dw", &xt, &dY, NULL));
        dist_print(&Y, y), dist_print(&dY, dy), dist_print(&dX, dx), dist_print(&dW, dw);
        CHECK_STR(path_text(r->x_stored, r->x, text), r->gather_x);
        CHECK_STR(path_text(r->w_stored, r->w, text), r->gather_w);
        CHECK_STR(path_text(y, r->y_stored, text), r->pay_y);
        CHECK_STR(path_text(r->y_stored, dy, text), r->gather_dy);
        CHECK_STR(path_text(dx, r->x_stored, text), r->pay_dx);
        CHECK_STR(path_text(dw, r->w_stored, text), r->pay_dw);
    }
}

TEST(dist_path_shrinks_first_and_gathers_last_innermost_first) {
    char text[512];
    CHECK_STR(path_text("x[T/d.z.x, C]", "x[T, C]", text),
              "all_gather x T, all_gather z T, all_gather d T");
    CHECK_STR(path_text("x[T, C] +x.y", "x[T/x, C/y]", text),
              "reduce_scatter x T, reduce_scatter y C");
    CHECK_STR(path_text("x[T/d, C] +x.y", "x[T, C/y]", text),
              "reduce_scatter y C, all_reduce x, all_gather d T");
    CHECK_STR(path_text("x[T, C] +x", "x[T, C] +x", text), ""); // may go on owing
}

TEST(dist_path_refuses_what_cannot_be) {
    static const char *const to[][2] = {{"x[T, C]", "x[T, C] +x"}, {"x[T/x, C]", "x[T/y.x, C]"},
                                        {"x[T/x]", "x[T/y]"},      {"x[T, C]", "x[T, K]"},
                                        {"x[T, C]", "x[T]"},       {"x[T, C]", "x[T/d, C]"},
                                        {"x[T/x, C]", "x[T, C/x]"}};
    char text[512];
    for (int i = 0; i < N_OF(to); i++)
        CHECK_STR(path_text(to[i][0], to[i][1], text),
                  test_path("%s -> %s: no collectives make this change", to[i][0], to[i][1]));
}

TEST(dist_path_refuses_an_axis_that_is_used_twice) {
    Dist from = dist_of("x[T/x, C]"), to = dist_of("x[T/x, C]");
    Change path[MAX_CHANGES];
    Err e;
    to.shard[1] = axes_of("x"); // no text says so
    CHECK(dist_path(&from, &to, path, &e) == -1);
    CHECK_STR(e.text,
              "x[T/x, C/x]: axis x given twice: an axis shards one dimension or is partial");
    from = to = dist_of("x[T/d]");
    to.partial = axes_of("d");
    CHECK(dist_path(&from, &to, path, &e) == -1);
    CHECK_STR(e.text, "x[T/d] +d: axis d given twice: an axis shards one dimension or is partial");
}

TEST(dist_names_are_joined_and_end_where_their_memory_does) {
    struct {
        char name[DIST_NAME], behind;
    } of = {.behind = 'b'};
    dist_beside(of.name, "ln1.mean_rstd", "sums");
    CHECK_STR(of.name, "ln1.sums");
    dist_name(of.name, "abcdefghijklmnopqrstuvwxyz");
    CHECK_STR(of.name, "abcdefghijklmnopqrstuvw");
    dist_join(of.name, "ABCDEFGHIJKLMNOP", "qrstuvwxyz");
    CHECK_STR(of.name, "ABCDEFGHIJKLMNOPqrstuvw");
    CHECK(of.behind == 'b');
}
