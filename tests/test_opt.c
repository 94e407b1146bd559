#include "base/opt.h"

#include "base/opt_file.h"
#include "data/io.h"
#include "tests/test.h"

static int64_t steps;
static double lr;
static const char *out;
static bool resume, tied;
static int schedule;
static const char *config;

static const Opt table[] = {
    {NULL, OPT_GROUP, NULL, "", 0, 0, "", "Training:"},
    {"config", OPT_CONFIG, &config, "", 0, 0, "FILE", "options from a file"},
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
    char text[MAX_ARGS + 1][256] = {"prog"}, *argv[MAX_ARGS + 1] = {text[0]};
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
    static const struct {
        const char *text;
        int64_t is;
    } prefixes[] = {{"512Ki", 512 << 10},
                    {"512k", 512000},
                    {"1.5K", 1500},
                    {"64Mi", 64 << 20},
                    {"1M", 1000000}};
    for (EACH(p, prefixes)) {
        parse(&(Line){{"--steps", p->text}});
        CHECK(steps == p->is);
    }
}

TEST(opt_the_last_one_wins) {
    parse(&(Line){{"--steps", "5", "--tied", "--steps=6", "--no_tied"}});
    CHECK(steps == 6 && !tied && opt_given(opt_find(table, "steps")));
}

TEST(opt_files_are_what_belongs_to_no_option) {
    char a[] = "p", b[] = "one", c[] = "--steps", d[] = "5", e[] = "-", f[] = "--tied", g[] = "two";
    char *argv[] = {a, b, c, d, e, f, g};
    CHECK(opt_parse_files(table, 7, argv, "") == 3 && steps == 5 && tied);
    CHECK_STR(argv[1], "one");
    CHECK_STR(argv[2], "-");
    CHECK_STR(argv[3], "two");
}

TEST(opt_two_dashes_end_the_options) {
    char a[] = "p", b[] = "one", c[] = "--steps", d[] = "5", e[] = "--", f[] = "-x", g[] = "--",
         h[] = "--help";
    char *argv[] = {a, b, c, d, e, f, g, h};
    CHECK(opt_parse_files(table, 8, argv, "") == 4 && steps == 5);
    CHECK_STR(argv[1], "one");
    CHECK_STR(argv[2], "-x");
    CHECK_STR(argv[3], "--");
    CHECK_STR(argv[4], "--help");
}

static const OptForeign names_elsewhere[] = {{"max-iters -x training.steps", "steps", NULL},
                                             {"bf16", "schedule linear", "of both"},
                                             {"layers tp", "out xN", "of two"},
                                             {"wandb", NULL, "files are written"},
                                             {0}};

TEST(opt_names_of_other_programs) {
    static const struct {
        Line line;
        const char *says;
    } rows[] = {
        {{{"--max_iters", "7"}}, "unknown option --max_iters: here it is --steps 7\n"},
        {{{"--max-iters=7"}}, "unknown option --max-iters: here it is --steps 7\n"},
        {{{"--max-iters=0"}}, "here it is --steps N\n"}, // not a value here
        {{{"-x", "9", "--tied"}}, "unknown option -x: here it is --steps 9\n"},
        {{{"--training.steps", "--tied"}}, "here it is --steps N\n"},
        {{{"--bf16"}}, "here it is --schedule linear (of both)\n"},
        {{{"--tp", "12"}}, "here it is --out x12 (of two)\n"},
        {{{"--tp=1.5"}}, "here it is --out xN (of two)\n"},
        {{{"--layers"}}, "here it is --out xN (of two)\n"},
        {{{"--wandb"}}, "unknown option --wandb: not supported: files are written\n"},
        {{{"-y", "1"}}, "\"-y\" is no option"},
    };
    opt_set_foreign(names_elsewhere);
    for (EACH(r, rows)) {
        Line line = r->line;
        CHECK_CHILD(2, parse, &line, r->says);
    }
    opt_set_foreign(NULL);
}

/* ---- files of options */

static const struct {
    const char *text;
    const char *pairs; // name=value@line, ';' after each
} files[] = {
    {"", ""},
    {"\n  # nothing\n", ""},
    {"lr = 6e-4\n\nsteps: 5 # five\n--out a/b\r\nresume",
     "lr=6e-4@1;steps=5@3;--out=a/b@4;resume@5;"},
    {"\357\273\277steps 5", "steps=5@1;"}, // as Windows marks UTF-8
    {"model layers=2,heads=2\nn_layer=12", "model=layers=2,heads=2@1;n_layer=12@2;"},
    {"prompt = 'a # b'  # c\nout=\"\"\nx =", "prompt=a # b@1;out=@2;x=@3;"},
    {"{\"lr\": 6e-4,\n \"resume\": true,\n\"steps\":5, \"out\":\"lr\"}",
     "lr=0.0006@1;resume=true@2;steps=5@3;out=lr@3;"},
    {"\357\273\277{\"steps\": 5}", "steps=5@1;"},
    {"{\"run\":{\"ranks\":2,\"options\":{\"steps\":9,\"out\":\"\"}}}\n{\"step\":1}\nrubbish",
     "steps=9@1;out=@1;"},
    {"{\"step\": 3,\n \"options\": {\n  \"steps\": \"9\"}}", "steps=9@3;"},
};

TEST(opt_file_reads_lines_and_json_and_records) {
    for (int i = 0; i < N_OF(files); i++) {
        char got[512] = "";
        OWNED(opt_file_free) OptFile f = {0};
        CHECK(opt_file_parse(files[i].text, strlen(files[i].text), &f, NULL));
        for (int k = 0; k < f.n; k++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s%s@%d;", f.pair[k].name,
                     f.pair[k].value ? "=" : "", f.pair[k].value ? f.pair[k].value : "",
                     f.pair[k].line);
        CHECK_STR(got, files[i].pairs);
        CHECK(f.record == (i >= 8));
    }
}

static const struct {
    const char *text, *says;
} bad_files[] = {
    {"steps 5\n[training]\n", "2: no option"},
    {"= 5", "1: no option"},
    {"out = \"a", "1: the quote"},
    {"\nout = 'a' b", "2: text after the quoted value"},
    {"{\"steps\": 5,\n}", "2: not JSON"},
    {"{\"steps\": 5}\nlr = 1", "2: text after the JSON object"},
    {"{\"steps\": 5,\n\"lr\": [1]}", "2: \"lr\" takes text"},
    {"{\"options\": {\n\"lr\": null}}", "2: \"lr\" takes text"},
};

/* A vocab.json, for instance: finding the line of each key would take minutes. */
TEST(opt_file_of_too_many_keys_is_refused_at_once) {
    char text[20000], *end = text;
    OptFile f;
    Err e;
    for (int i = 0; i < 1001; i++) end += sprintf(end, "%s\"k%d\": %d", i ? ", " : "{", i, i);
    strcpy(end, "}");
    CHECK_REFUSED(opt_file_parse(text, strlen(text), &f, &e), e, "1: 1001 keys: ");
}

TEST(opt_file_names_the_line_that_is_wrong) {
    for (EACH(b, bad_files)) {
        OptFile f;
        Err e = {{0}};
        CHECK_REFUSED(opt_file_parse(b->text, strlen(b->text), &f, &e), e, b->says);
    }
}

/* A file with this text; its name. */
static const char *config_file(const char *text) {
    char *path = test_path("%s/opt.conf", test_tmpdir());
    if (!io_write_file(path, text, strlen(text), NULL, NULL)) abort();
    return path;
}

TEST(opt_config_is_read_and_the_command_line_wins) {
    const char *path =
        config_file("steps = 7\nlearning_rate = 2\nresume\nno_tied\nschedule: linear\n");
    parse(&(Line){{"--steps", "5", "--config", path, "--no-resume"}});
    CHECK(steps == 5 && lr == 2 && !resume && !tied && schedule == 1);
    CHECK(opt_given(opt_find(table, "schedule")) && !opt_given(opt_find(table, "out")));
    // of a record only what differs from the defaults counts as given
    path = config_file(
        "{\"options\":{\"steps\":\"1000\",\"out\":\"x\",\"tied\":\"1\",\"config\":\"y\"}}");
    parse(&(Line){{"--config", path}});
    CHECK(steps == 1000 && !opt_given(opt_find(table, "steps")) &&
          opt_given(opt_find(table, "out")));
    CHECK_STR(out, "x");
}

TEST(opt_config_names_file_and_line) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"steps = 5\nsteps = five\n", ":2: --steps takes a whole number, not \"five\"\n"},
        {"stesp = 5", ":1: unknown option stesp: did you mean --steps?"},
        {"{\"steps\": 5,\n\"max_iters\": 6}",
         ":2: unknown option max_iters: here it is --steps 6\n"},
        {"{\"steps\": true}", ":1: --steps takes a whole number, not \"true\"\n"},
        {"config = x", ":1: a file of options names no other one"},
        {"steps", ":1: steps needs a value: N"},
        {"steps = 5\n= 6", ":2: no option: NAME = VALUE is expected"},
    };
    opt_set_foreign(names_elsewhere);
    for (EACH(r, rows)) {
        Line line = {{"--config", config_file(r->text)}};
        CHECK_CHILD(2, parse, &line, "opt.conf:", r->says);
    }
    opt_set_foreign(NULL);
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
    {{{"--zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"}},
     {"zzzzzz (", "--help"}},
    {{{"-steps", "5"}}, {"\"-steps\" is no option", "begin with --"}},
    {{{"5"}}, {"\"5\" is no option", "--help"}},
    {{{"--out", "a.bin", "b.bin"}}, // as a shell has --out *.bin
     {"\"b.bin\" is no option", "put a pattern of files in quotes"}},
    {{{"--", "-5"}}, {"\"-5\" is no option", ""}}, // of a program that takes no files
    {{{"--steps"}}, {"--steps needs a value: --steps N", ""}},
    {{{"--steps", "0"}}, {"--steps must be between 1 and 1000000000, not 0", ""}},
    {{{"--learning-rate=11"}}, {"--learning-rate must be between 0 and 10, not 11", ""}},
    {{{"--steps", "1.5"}}, {"--steps takes a whole number, not \"1.5\"", ""}},
    {{{"--steps", "5x"}}, {"--steps takes a whole number, not \"5x\"", ""}},
    {{{"--steps", "5Kib"}}, {"--steps takes a whole number, not \"5Kib\"", ""}},
    {{{"--steps", "k"}}, {"--steps takes a whole number, not \"k\"", ""}},
    {{{"--steps", "1Gi"}}, {"--steps must be between 1 and 1000000000, not 1Gi", ""}},
    {{{"--learning-rate", "1k"}}, {"--learning-rate takes a number, not \"1k\"", ""}},
    {{{"--steps", ""}}, {"--steps takes a whole number, not \"\"", ""}},
    {{{"--learning-rate", "nan"}}, {"--learning-rate takes a number, not \"nan\"", ""}},
    {{{"--learning-rate", "1e999"}}, {"--learning-rate takes a number", "1e999"}},
    {{{"--resume=maybe"}}, {"--resume is a switch: 0 or 1, not \"maybe\"", ""}},
    {{{"--schedule=cos"}}, {"--schedule takes cosine|linear|constant, not \"cos\"", ""}},
};

TEST(opt_wrong_lines_end_with_status_2_and_say_why) {
    for (EACH(w, wrong)) {
        char text[512];
        Line line = w->line;
        int status = test_in_child(parse, &line, text, sizeof text);
        if (status != 2 || !strstr(text, w->says[0]) || !strstr(text, w->says[1]))
            test_fail("%s: status %d, \"%s\"", line.arg[0], status, text);
        CHECK(strchr(text, '\n') == text + strlen(text) - 1); // one line
    }
}

TEST(opt_text_reads_back) {
    char text[64], why[256];
    const Opt *rate = opt_find(table, "learning-rate");
    static const double values[] = {0, 0.1, 6e-4, 1.0 / 3, 1e-300, 10};
    for (EACH(value, values)) {
        lr = *value;
        opt_text(rate, text, sizeof text);
        lr = -1;
        CHECK(opt_set(rate, text, why, sizeof why) && lr == *value);
    }
    lr = 0.1;
    CHECK_STR(opt_text(rate, text, sizeof text), "0.1"); // the shortest that is exact
    schedule = 2;
    CHECK_STR(opt_text(opt_find(table, "schedule"), text, sizeof text), "constant");
}

TEST(opt_prints_help_and_man) {
    parse(&(Line){{"--steps", "5"}});
    OWNED(test_mem_end) char *help = PRINTED(opt_print_help(table, "usage: prog\n", f));
    CHECK(strncmp(help, "usage: prog\n", 12) == 0);
    CHECK(strstr(help, "Training:") && strstr(help, "--learning-rate X") && strstr(help, "6e-4"));
    CHECK(strstr(help, "the head is the embedding [1]\n") && strstr(help, "  continue\n"));
    OWNED(test_mem_end)
    char *text = PRINTED(opt_print_man(table, "prog: does .it\n\n    prog --out DIR\n", f),
                         opt_print_words(table, f));
    CHECK(strstr(text, ".TH prog 1 ") == text &&
          strstr(text, "\nprog \\- does .it\n.SH SYNOPSIS\n"));
    CHECK(strstr(text, ".SS Training:\n"));
    CHECK(strstr(text,
                 ".TP\n\\fB\\-\\-learning\\-rate\\fR \\fIX\\fR\nhighest learning rate [6e\\-4]\n"));
    CHECK(strstr(text, "\n--schedule cosine linear constant\n") && strstr(text, "\n--resume\n"));
}

TEST(opt_nearest_is_near_or_nothing) {
    static const char *const words[] = {"batch", "micro", "steps", "weight-decay"};
    CHECK_STR(opt_nearest("btach", words, 4), "batch");
    CHECK_STR(opt_nearest("weight", words, 4), "weight-decay"); // an abbreviation
    CHECK_STR(opt_nearest("stesp", words, 4), "steps");
    CHECK_STR(opt_nearest("mikros", words, 4), "micro");
    CHECK(opt_nearest("qqqqq", words, 4) == NULL);
    CHECK(opt_nearest("x", words, 0) == NULL);
    static const char *const far[] = {"eps", "warmup", "keep", "val", "seq", "lr"};
    static const char *const typed[] = {"epochs", "epoch", "wandb", "workers", "lrs2", "device"};
    for (EACH(t, typed)) CHECK(opt_nearest(*t, far, 6) == NULL);
    CHECK_STR(opt_nearest("sqe", far, 6), "seq"); // two letters swapped are one mistake
}
