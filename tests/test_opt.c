#include "base/opt.h"

#include <string.h>

#include "tests/test.h"

static int64_t steps;
static double lr;
static const char *out;
static bool resume, tied;
static int schedule;

static const Opt table[] = {
    {NULL, OPT_GROUP, NULL, "", 0, 0, "", "Training:"},
    {"steps", OPT_INT, &steps, "1000", 1, 1e9, "N", "optimizer steps"},
    {"learning-rate", OPT_FLOAT, &lr, "6e-4", 0, 10, "X", "highest learning rate"},
    {"schedule", OPT_CHOICE, &schedule, "cosine", 0, 0, "cosine|linear|constant", "of the rate"},
    {"out", OPT_STR, &out, "", 0, 0, "DIR", "where checkpoints go"},
    {"resume", OPT_BOOL, &resume, "0", 0, 0, "", "continue"},
    {"tied", OPT_BOOL, &tied, "1", 0, 0, "", "the head is the embedding"},
    {0}};

enum { MAX_ARGS = 8 };
typedef struct Line {
    const char *arg[MAX_ARGS]; // without the program's name, ended by NULL
} Line;

static void parse(void *line) {
    const Line *l = line;
    char text[MAX_ARGS + 1][64] = {"prog"}, *argv[MAX_ARGS + 1] = {text[0]};
    int argc = 1;
    for (; argc <= MAX_ARGS && l->arg[argc - 1]; argc++) {
        snprintf(text[argc], sizeof text[argc], "%s", l->arg[argc - 1]);
        argv[argc] = text[argc];
    }
    opt_parse(table, argc, argv, "usage\n");
}

TEST(opt_starts_from_the_defaults) {
    parse(&(Line){{NULL}});
    CHECK(steps == 1000 && lr == 6e-4 && schedule == 0 && !resume && tied);
    CHECK_STR(out, "");
    for (const Opt *o = table + 1; o->name; o++) CHECK(!opt_given(o) && !opt_changed(o));
}

TEST(opt_reads_every_spelling) {
    parse(&(Line){{"--steps", "5", "--learning_rate=1e-3", "--resume", "--no-tied"}});
    CHECK(steps == 5 && lr == 1e-3 && resume && !tied);
    parse(&(Line){
        {"--steps=7", "--learning-rate", "2", "--resume=0", "--tied=yes", "--schedule", "linear"}});
    CHECK(steps == 7 && lr == 2 && !resume && tied && schedule == 1);
    CHECK(opt_given(opt_find(table, "steps")) && !opt_given(opt_find(table, "out")));
    CHECK(opt_given(opt_find(table, "tied")) && !opt_changed(opt_find(table, "tied")));
    CHECK(opt_changed(opt_find(table, "steps")));
    parse(
        &(Line){{"--steps", "1e3", "--learning-rate", "0", "--no-resume"}}); // bounds are inclusive
    CHECK(steps == 1000 && lr == 0 && !resume && tied);
}

TEST(opt_a_string_may_look_like_anything) {
    opt_parse(table, 2, (char *[]){(char[]){"p"}, (char[]){"--out=--a=b"}}, "");
    CHECK_STR(out, "--a=b");
    opt_parse(table, 2, (char *[]){(char[]){"p"}, (char[]){"--out="}}, "");
    CHECK_STR(out, "");
}

static const struct {
    Line line;
    const char *says[2]; // parts of the line on stderr
} wrong[] = {
    {{{"--step", "5"}}, {"--step:", "did you mean --steps?"}},
    {{{"--lerning-rate=1"}}, {"--lerning-rate:", "did you mean --learning-rate?"}},
    {{{"--no-steps"}}, {"unknown option --no-steps", ""}}, // not a switch
    {{{"--no-resume=1"}}, {"unknown option --no-resume", ""}},
    {{{"--zzzzzzzzzzzzz"}}, {"unknown option --zzzzzzzzzzzzz (", "--help"}},
    {{{"-steps", "5"}}, {"\"-steps\" is no option", "begin with --"}},
    {{{"5"}}, {"\"5\" is no option", "--help"}},
    {{{"--"}}, {"unknown option --", ""}},
    {{{"--steps", "5", "--steps=6"}}, {"--steps is given twice", ""}},
    {{{"--tied", "--no_tied"}}, {"--tied is given twice", ""}},
    {{{"--steps"}}, {"--steps needs a value: --steps N", ""}},
    {{{"--steps", "0"}}, {"--steps must be between 1 and 1000000000, not 0", ""}},
    {{{"--learning-rate=11"}}, {"--learning-rate must be between 0 and 10, not 11", ""}},
    {{{"--steps", "1.5"}}, {"--steps takes a whole number, not \"1.5\"", ""}},
    {{{"--steps", "5x"}}, {"--steps takes a whole number, not \"5x\"", ""}},
    {{{"--steps", ""}}, {"--steps takes a whole number, not \"\"", ""}},
    {{{"--learning-rate", "nan"}}, {"--learning-rate takes a number, not \"nan\"", ""}},
    {{{"--learning-rate", "1e999"}}, {"--learning-rate takes a number", "1e999"}},
    {{{"--resume=maybe"}}, {"--resume is a switch: 0 or 1, not \"maybe\"", ""}},
    {{{"--schedule=cos"}}, {"--schedule takes cosine|linear|constant, not \"cos\"", ""}},
};

TEST(opt_wrong_lines_end_with_status_2_and_say_why) {
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[512];
        Line line = wrong[i].line;
        int status = test_in_child(parse, &line, text, sizeof text);
        if (status != 2 || !strstr(text, wrong[i].says[0]) || !strstr(text, wrong[i].says[1]))
            test_fail(__FILE__, __LINE__, "%s: status %d, \"%s\"", line.arg[0], status, text);
        CHECK(strchr(text, '\n') == text + strlen(text) - 1); // one line
    }
}

TEST(opt_text_reads_back) {
    char text[64], why[256];
    const Opt *rate = opt_find(table, "learning-rate");
    static const double values[] = {0, 0.1, 6e-4, 1.0 / 3, 1e-300, 10};
    for (int i = 0; i < 6; i++) {
        lr = values[i];
        opt_text(rate, text, sizeof text);
        lr = -1;
        CHECK(opt_set(rate, text, why, sizeof why) && lr == values[i]);
    }
    lr = 0.1;
    CHECK_STR(opt_text(rate, text, sizeof text), "0.1"); // the shortest that is exact
    schedule = 2;
    CHECK_STR(opt_text(opt_find(table, "schedule"), text, sizeof text), "constant");
}

TEST(opt_prints_help_and_values) {
    char text[4096] = "";
    parse(&(Line){{"--steps", "5"}});
    FILE *f = fmemopen(text, sizeof text, "w");
    opt_print_help(table, "usage: prog\n", f);
    fclose(f);
    CHECK(strncmp(text, "usage: prog\n", 12) == 0);
    CHECK(strstr(text, "Training:") && strstr(text, "--learning-rate X") && strstr(text, "6e-4"));
    memset(text, 0, sizeof text);
    f = fmemopen(text, sizeof text, "w");
    opt_print_values(table, f);
    fclose(f);
    const char *line = strstr(text, "steps");
    CHECK(line && strcspn(line, "*") < strcspn(line, "\n")); // marked, for it is not the default
    line = strstr(text, "learning-rate");
    CHECK(line && strcspn(line, "*") > strcspn(line, "\n"));
}

TEST(opt_nearest_is_near_or_nothing) {
    static const char *const words[] = {"batch", "micro", "steps", "weight-decay"};
    CHECK_STR(opt_nearest("btach", words, 4), "batch");
    CHECK_STR(opt_nearest("weight", words, 4), "weight-decay"); // an abbreviation
    CHECK(opt_nearest("qqqqq", words, 4) == NULL);
    CHECK(opt_nearest("x", words, 0) == NULL);
}
