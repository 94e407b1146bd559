/* A run that is resumed with another value of an option: what the table of docs/training.md says
 * happens, for every option of train_gpt. */
#include "tests/shell.h"

#include "parallel/train/options.h"

/* The rows of the table, by what they begin with. */
typedef enum { REFUSED, IGNORED, OTHER, ROUNDED, SAME, INSTEAD, N_ROWS } Row;
static const char *const row_text[N_ROWS] = {"| refused |",
                                             "| ignored |",
                                             "| other losses from there on |",
                                             "| the same losses but for rounding |",
                                             "| the same losses |",
                                             "| no step is trained |"};

/* Another value of an option; `with`: what the option needs beside it, of the run that it is
 * compared with, too. `unseen`: these few steps do not show what it changes. */
typedef struct Case {
    const char *name, *value, *with;
    bool unseen;
} Case;

#define SMALL  "layers=1,heads=2,channels=16,seq=32,vocab=300"
#define RANKS  "--ranks 2 --layout x2"
#define APART  "--ranks 2 --layout d2"
#define OUTER  APART " --sync-every 2"
#define SAMPLE "--sample-every 1 --sample-tokens 4"
static const Case cases[] = {
    {"config", "empty.conf", "", false},
    {"train", "other.bin", "", false},
    {"val", "other.bin", "", false},
    {"hellaswag", "h.bin", "", false},
    {"tokenizer", "bytes", "", false},
    {"model", "layers=2,heads=1,channels=8,seq=32,vocab=300", "", false},
    {"init", "nowhere", "", false},
    {"backend", "cpu", "", false},
    {"graphs", "none", "", false},
    {"tune", "0", "", false},
    {"dtype", "bf16", "", false},
    {"recompute", "full", "", false},
    {"memory", "1", "", false},
    {"listing", "build", "", false},
    {"explain-matmul", "256,256,256", "--cluster h100:1 --json ''", false},
    {"steps", "12", "", false},
    {"batch", "64", "", false},
    {"micro", "1", "", false},
    {"seq", "16", "", false},
    {"lr", "1e-2", "", false},
    {"min-lr", "1e-3", "", false},
    {"warmup", "7", "", false},
    {"schedule", "linear", "", false},
    {"wsd-decay", "0.5", "--schedule wsd", false},
    {"weight-decay", "3", "", false},
    {"beta1", "0.5", "", false},
    {"beta2", "0.5", "", false},
    {"eps", "1e-2", "", false},
    {"clip", "0.01", "", false},
    {"skip-loss-z", "3", "", true}, // needs a window of losses
    {"skip-norm-z", "3", "", true},
    {"seed", "7", "", false},
    {"threads", "2", "", false},
    {"ranks", "2", "--layout dp", false},
    {"layout", "x2", APART, false},
    {"overlap", "none", RANKS, false},
    {"plan", "1", "", false},
    {"cluster", "cpu:2", "", false},
    {"calibrate", "none", "", false},
    {"refine", "0", "", false},
    {"sync-every", "2", APART, false},
    {"outer-lr", "0.5", OUTER, false},
    {"outer-momentum", "0.9", OUTER, false},
    {"fragments", "2", OUTER, false},
    {"timeout", "50", "", false},
    {"check-tp", "1", "", false},
    {"audit-every", "1", APART, false},
    {"exact", "1", "", false},
    {"count", "1", "", false},
    {"kernels", "portable", "", false},
    {"libraries", "none", "", false},
    {"eval-every", "1", "--val train.bin --eval-batches 1", false},
    {"eval-batches", "2", "--val train.bin", false},
    {"sample-every", "1", "--sample-tokens 4", false},
    {"sample-tokens", "5", SAMPLE, false},
    {"samples", "2", SAMPLE, false},
    {"prompt", "a", SAMPLE " --tokenizer bytes", false},
    {"temperature", "0", SAMPLE, false},
    {"top-k", "2", SAMPLE, false},
    {"top-p", "0.5", SAMPLE, false},
    {"save", "elsewhere", "--model " SMALL, false},
    {"save-every", "1", "", false},
    {"save-best", "1", "--val train.bin", false},
    {"keep", "1", "", false},
    {"keep-every", "1", "", false},
    {"resume", "0", "", false},
    {"export-hf", "hf", "", false},
    {"export-llmc", "m.bin", "", true}, // refuses a model whose vocabulary it cannot hold
    {"log-every", "2", "", false},
    {"progress", "none", "", false},
    {"json", "other.jsonl", "", false},
    {"csv", "other.csv", "", false},
    {"profile", "1", "", false},
    {"trace", "t.json", "--no-profile", false}, // excludes --profile, with which it would be tried
    {"tensorboard", "tb", "", false},
    {"ledger", "ledger", "", false},
    {"version", "1", "", false},
};
enum { N_CASES = N_OF(cases) };

/* The row that has the option, -1: none, -2: several. */
static int row_of(const char *document, const char *name) {
    OWNED(test_mem_end) char *quoted = mem_printf("`--%s`", name);
    int found = -1;
    for (int row = 0; row < N_ROWS; row++) {
        const char *at = strstr(document, row_text[row]);
        const char *here = at ? strstr(at, quoted) : NULL;
        if (here && here < at + strcspn(at, "\n")) found = found == -1 ? row : -2;
    }
    return found;
}

/* The loss of step 8 of a copy of the run that is resumed with more options; NAN: it has none. */
static double resumed(const char *dir, const char *more, const char *option, int *status) {
    *status = test_shell(
        dir, said, sizeof said,
        "rm -rf r elsewhere log && cp -r run r && XDG_CACHE_HOME=$PWD $BUILD/train_gpt --train "
        "train.bin --micro 2 --eval-every 0 --threads 1 --steps 8 --save r --resume --json log "
        "--ledger none %s %s >out 2>&1; s=$?; tail -3 out; cat log other.jsonl 2>/dev/null | sed "
        "-n 's/^{\"step\":8,.*\"loss\":\\([^,]*\\).*/LOSS \\1/p'; rm -f other.jsonl; exit $s",
        more, option);
    const char *at = strstr(said, "LOSS ");
    return at ? strtod(at + 5, NULL) : (double)NAN;
}

static bool as_said(Row row, int status, double loss, double before) {
    bool done = status == 0 && isfinite(loss);
    switch (row) {
    case REFUSED:
        return (status == 1 || status == 2) && isnan(loss);
    case INSTEAD:
        return status == 0 && isnan(loss);
    case OTHER:
        return done && loss != before;
    case ROUNDED: // losses near 5.7 in fp32, of sums in another order
        return done && fabs(loss - before) < 1e-4;
    case IGNORED:
    case SAME:
        return done && loss == before;
    default:
        return false;
    }
}

static const Case *case_of(const char *name) {
    for (EACH(c, cases))
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

/* The first case that needs the same beside its option. */
static int first_with(int i) {
    int first = 0;
    while (strcmp(cases[first].with, cases[i].with) != 0) first++;
    return first;
}

/* Options that change no loss change none together: one run for all that need the same. */
static bool same_together(const char *dir, const char *document, int first, double before) {
    char all[1024] = "";
    int status;
    size_t n = 0;
    for (int i = first; i < N_CASES; i++)
        if (first_with(i) == first && row_of(document, cases[i].name) == SAME && !cases[i].unseen)
            n += (size_t)snprintf(all + n, sizeof all - n, "--%s=%s ", cases[i].name,
                                  cases[i].value);
    if (n == 0 || n >= sizeof all) return false;
    double loss = resumed(dir, cases[first].with, all, &status);
    bool same = as_said(SAME, status, loss, before);
    if (!same) printf("    together: %s: status %d: %s\n", all, status, said);
    return same;
}

TEST(resume_with_another_value_of_each_option_does_what_the_table_says) {
    static Options options;
    double before[N_CASES];
    bool fine[N_CASES]; // where it is the first of its kind: those of the same losses
    int status;
    const char *dir = shell_directory(4000);
    OWNED(test_mem_end) char *document = test_read("docs/training.md", NULL);
    CHECK(document);
    SHELL(0, "step_00000004",
          "tail -c 6000 train.bin >other.bin; echo '# nothing' >empty.conf; "
          "echo '{\"ctx\":\"A\",\"label\":1,\"endings\":[\"b\",\"c\",\"d\",\"e\"]}' >h.jsonl; "
          "$BUILD/tokenize hellaswag --text h.jsonl --out h.bin && XDG_CACHE_HOME=$PWD "
          "$BUILD/train_gpt --train train.bin --model " SMALL " "
          "--batch 128 --micro 2 --eval-every 0 --threads 1 --steps 4 --save run --ledger none "
          ">out && ls run");
    // the checkpoint's model and batch are taken where the command line has none
    double same = resumed(dir, "", "", &status);
    CHECK(status == 0 && isfinite(same));
    double named = resumed(dir, "", "--model " SMALL " --batch 128", &status);
    CHECK(status == 0 && named == same);
    for (int i = 0; i < N_CASES; i++) {
        int first = first_with(i);
        before[i] = first < i ? before[first] : resumed(dir, cases[i].with, "", &status);
        fine[i] = first < i ? fine[first] : same_together(dir, document, i, before[i]);
    }
    for (const Opt *o = options_table(&options); o->name || o->type == OPT_GROUP; o++) {
        if (o->type == OPT_GROUP) continue;
        const Case *c = case_of(o->name);
        int row = row_of(document, o->name);
        if (!c || row < 0) {
            test_fail("--%s has %s", o->name,
                      !c          ? "no case in this test"
                      : row == -1 ? "no row in docs/training.md"
                                  : "several rows in docs/training.md");
            continue;
        }
        int i = (int)(c - cases);
        if (row == SAME && fine[i] && !c->unseen) continue;
        const char *option = test_path("--%s=%s", o->name, c->value);
        double loss = resumed(dir, c->with, option, &status);
        if (!c->unseen && !as_said((Row)row, status, loss, before[i]))
            test_fail("%s: not \"%s\": status %d, loss %.17g, before %.17g: %s", option,
                      row_text[row], status, loss, before[i], said);
    }
}
