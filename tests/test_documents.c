/* What the documents tell a reader to type does what they say: blocks are cut out of them and run
 * in an empty folder. */
#include <dirent.h>

#include "data/batch.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/slice.h"
#include "data/token_shard.h"
#include "parallel/mesh/layout.h"
#include "parallel/step/learning_rate.h"
#include "tests/page.h"
#include "tests/shell.h"

/* The first fenced block after the line `after` of a document, freed by mem_free; NULL: there is
 * none. */
static char *document_block(const char *file, const char *after) {
    IoMap m;
    if (!io_map(&m, file, NULL)) return NULL;
    OWNED(test_mem_end) char *text = mem_printf("\n%.*s", (int)m.n, (const char *)m.p);
    OWNED(test_mem_end) char *line = mem_printf("\n%s\n", after);
    char *block = NULL, *at = strstr(text, line), *begin = at ? strstr(at, "\n```") : NULL;
    char *first = begin ? strchr(begin + 1, '\n') : NULL,
         *end = first ? strstr(first, "\n```") : NULL;
    if (end) block = mem_printf("%.*s\n", (int)(end - first - 1), first + 1);
    io_unmap(&m);
    return block;
}

static bool write_text(const char *dir, const char *name, const char *text) {
    return io_write_file(test_path("%s/%s", dir, name), text, strlen(text), NULL, NULL);
}

/* A small run: "documents" of letters, a tokenizer that knows where they end. */
#define SMALL_RUN                                                                                  \
    "XDG_CACHE_HOME=$PWD; export XDG_CACHE_HOME; seq 2000 >t.txt && $BUILD/tokenize train --text " \
    "t.txt --vocab 260 --out tok && $BUILD/tokenize encode --tokenizer tok --text t.txt --out t "  \
    "&& run() { $BUILD/train_gpt --threads 1 --micro 2 --eval-every 0 \"$@\"; } && "               \
    "run --train t_train.bin --tokenizer tok --model layers=2,heads=2,channels=16,seq=16 "         \
    "--steps 1 --save out && "

TEST(init_keeps_where_texts_end_through_checkpoint_and_export) {
    const char *dir = test_tmpdir();
    SHELL(0, "",
          SMALL_RUN "run --init out --train t_train.bin --steps 1 --export-hf hf && "
                    "run --init hf --train t_train.bin --steps 1 --save again && run --resume "
                    "--train t_train.bin --steps 2 --save again && for f in out/step_00000001 hf "
                    "again/step_00000001 again/step_00000002; do grep '_token_id\": 259' "
                    "$f/config.json $f/generation_config.json || exit 9; done");
    CHECK_SAYS(test_count(said, "_token_id\": 259") == 16, "%s", said);
    // the model's own id goes before the tokenizer's
    SHELL(0, "\"eos_token_id\": 7",
          "sed -i 's/\"eos_token_id\": 259/\"eos_token_id\": 7/' hf/*config.json && "
          "$BUILD/train_gpt --threads 1 --micro 2 --ledger none --init hf --train t_train.bin "
          "--steps 1 --export-hf own && grep eos_token_id own/generation_config.json");
}

TEST(init_that_is_contradicted_or_missing_is_named) {
    static const struct {
        const char *args, *says;
    } wrong[] = {
        {"--init nowhere --prompt hi", "--init nowhere: there is no such file or folder"},
        {"--init empty --prompt hi", "--init empty holds no model: no config.json"},
        {"--init my.txt --prompt hi", "--init my.txt is no model: neither FILE.safetensors nor"},
        {"--init out --train t_train.bin --model layers=3",
         "--model says layers=3, but --init out has layers=2: leave --model out"},
        {"--init out --train t_train.bin --model d12", "--model says layers=12"},
        {"--init out --train t_train.bin --model heads=1",
         "--model: kv_heads=2 do not divide heads=1, and --init out has layers=2,heads=2"},
        {"--init out --train t_train.bin --model seq=32",
         "--model says seq=32, but --init out has seq=16"},
    };
    const char *dir = test_tmpdir();
    SHELL(0, "",
          SMALL_RUN
          "mkdir empty && echo hi >my.txt && run --init out --prompt 12 --model "
          "layers=2,eps=1e-4 --sample-tokens 2 && ! run --init out --prompt 1 --model a=1");
    for (EACH(w, wrong)) {
        int status = test_shell(dir, said, sizeof said,
                                "XDG_CACHE_HOME=$PWD $BUILD/train_gpt --threads 1 "
                                "--micro 2 --steps 1 %s",
                                w->args);
        if (status < 1 || status > 2 || test_count(said, "\n") != 1 || !strstr(said, w->says))
            test_fail("%s: status %d: %s", w->args, status, said);
    }
}

TEST(documents_use_block_of_the_readme_runs_in_an_empty_folder) {
    char *block = document_block("README.md", "## Use");
    const char *dir = test_tmpdir();
    CHECK(block && write_text(dir, "use.sh", block));
    mem_free(block);
    SHELL(0, "",
          "mkdir use && cd use && PATH=$BUILD/bin:$PATH XDG_CACHE_HOME=$PWD/../cache "
          "bash -eu ../use.sh && ls data && wc -c <data/my_val.bin && test -s report.html");
}

/* ---- README.md: layouts, files to read ---- */

/* Code in the second column of the table below "| known as". */
TEST(documents_layouts_of_the_readme_are_layouts) {
    char row[1024], spec[64];
    Layout l;
    int i = 0, n = 0;
    while (page_line("README.md", "| ", i, row, sizeof row) && strncmp(row, "| known as", 10) != 0)
        i++;
    for (; page_line("README.md", "| ", ++i, row, sizeof row) && strstr(row, " | `");) {
        char *column = strstr(row, " | `") + 3, *end = strstr(column, " | ");
        CHECK(end);
        *end = 0;
        for (; (column = strchr(column, '`')) && sscanf(column, "`%63[^`]`", spec) == 1; n++) {
            if (!layout_parse(&l, spec, 0, NULL)) test_fail("%s is no layout", spec);
            column += strlen(spec) + 2;
        }
    }
    CHECK(n >= 14);
}

static int lines_of(const char *file) {
    IoMap m;
    int n = 0;
    if (!io_map(&m, file, NULL)) return -1;
    for (size_t i = 0; i < m.n; i++) n += ((const char *)m.p)[i] == '\n';
    io_unmap(&m);
    return n;
}

/* "| [name](path) | 133 | ...", true to a fourth; "some 1,700 lines" of all, to a tenth. */
TEST(documents_files_of_the_readme_have_as_many_lines_as_it_says) {
    char row[512], path[128];
    int lines, thousands, rows = 0, all = 0;
    for (int i = 0; page_line("README.md", "| [", i, row, sizeof row); i++) {
        if (sscanf(row, "| [%*[^]]](%127[^)]) | %d |", path, &lines) != 2) continue;
        rows++;
        int true_lines = lines_of(path);
        all += true_lines;
        if (abs(true_lines - lines) > lines / 4 + 5)
            test_fail("%s has %d lines, not %d", path, true_lines, lines);
    }
    CHECK(rows == 12);
    CHECK(page_line("README.md", "These twelve files, some ", 0, row, sizeof row) &&
          sscanf(row, "These twelve files, some %d,%d lines", &thousands, &lines) == 2);
    CHECK_NEAR(1000 * thousands + lines, all, all / 10);
}

/* ---- the map of files, tables of measurements ---- */

/* What a header says of itself behind "name -- ": the first sentence; of a long one, what is in
 * front of a colon or semicolon. */
static void put_purpose(Text *t, const char *path) {
    enum { ENOUGH = 40 };
    static Text page;
    FILE *f = fopen(path, "r");
    if (!f) return;
    page.s[page.n = fread(page.s, 1, 2000, f)] = 0;
    fclose(f);
    char *at = strstr(page.s, " -- ");
    size_t begin = t->n;
    if (!at) return;
    for (at += 4; *at; at++) {
        char marks[] = ".:;";
        if (t->n < begin + ENOUGH) marks[1] = 0;
        bool space = at[1] == ' ' || at[1] == '\n';
        if (space && strchr(marks, *at)) return;
        if (strncmp(at, " */", 3) == 0 || strncmp(at, "\n *\n", 4) == 0) return;
        bool margin = strncmp(at, "\n * ", 4) == 0;
        text_put(t, "%c", margin ? ' ' : *at);
        if (margin) at += 3;
    }
}

static int is_header(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 2 && strcmp(e->d_name + n - 2, ".h") == 0;
}

/* Every header has its row in the map of files. */
TEST(the_map_of_parallel_is_complete) {
    static const char *const folders[] = {"comm", "mesh", "step", "plan", "train", NULL};
    static Text t;
    t.n = 0;
    for (const char *const *folder = folders; *folder; folder++) {
        struct dirent **e;
        int n = scandir(test_path("parallel/%s", *folder), &e, is_header, alphasort);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            size_t begin = t.n;
            text_put(&t, "%s/%s", *folder, e[i]->d_name);
            text_put(&t, "%*s ", t.n < begin + 24 ? (int)(begin + 24 - t.n) : 0, "");
            put_purpose(&t, test_path("parallel/%s/%s", *folder, e[i]->d_name));
            text_end_line(&t);
            free(e[i]);
        }
        free(e);
        if (folder[1]) text_put(&t, "\n");
    }
    CHECK(page_block_is("parallel/FILES.md", "text headers", &t));
}

TEST(tables_of_the_documents_are_those_of_the_measurements) {
    static const char *const checks[] = {
        "table.py bench/results/train_cpu_avx512_bf16.json --page README.md",
        "table.py --page docs/benchmarks.md",
        "ranks.py --page docs/layouts.md",
        "search.py --page docs/planner.md",
        "networks.py regret --page docs/planner.md",
        "networks.py networks --page docs/planner.md",
        "gpu.py --page docs/gpu.md",
        "meshes.py --page docs/benchmarks.md"};
    SKIP_IF(test_shell(".", said, sizeof said, "python3 --version"), "no python3");
    for (EACH(c, checks)) SHELL_IN(".", 0, "", "python3 -B tools/bench_%s --check", *c);
}

/* ---- docs/training.md: the same batches in Python ---- */

enum { SEQ = 5, PER_STEP = 3, STEPS = 40, TOKENS = 261, VOCAB = 60000 };
static const LrSchedule cosine = {LR_COSINE, 3e-3, 1e-4, 7, STEPS, 0};

/* Shards of 100, 100 and 61 tokens: 51 samples, so the steps go through more than two epochs. */
static void write_shards(const char *prefix) {
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 7919 + 13) % VOCAB;
    ShardWriter *w = shard_writer_open(prefix, "train", SHARD_LLMC16, VOCAB, 100);
    shard_writer_put(w, ids, TOKENS);
    shard_writer_finish(w);
    shard_writer_commit(w);
}

static void want_batches(FILE *f, const char *pattern, uint64_t seed) {
    OWNED(shards_close) ShardSet set = shards_open(pattern, VOCAB, NULL);
    OWNED(batches_free) Batches b = batches_make(&set, SEQ, PER_STEP, seed, true);
    for (int step = 0; step < STEPS; step++) {
        int32_t x[2][PER_STEP * SEQ];
        batch_fill(&b, step, 0, PER_STEP, x[0], x[1]);
        for (int i = 0; i < 2 * PER_STEP * SEQ; i++)
            fprintf(f, "%d ", x[i / (PER_STEP * SEQ)][i % (PER_STEP * SEQ)]);
        fprintf(f, "\n");
    }
}

/* For each tensor of the file its number of dimensions, as a Python list; which of them decay. */
static void want_groups(FILE *f, FILE *script, const char *model) {
    Config c;
    if (!config_parse(&c, model, NULL)) return;
    OWNED(tensors_free) TensorTable t = tensors_describe(&c);
    fprintf(script, "show([");
    for (int i = 0; i < t.n_slices; i++) {
        int64_t dims[2];
        const Tensor *of = &t.t[t.slices[i].tensor];
        fprintf(script, "%d,", slice_dims(&t.slices[i], of, dims));
        if (of->decay) fprintf(f, "%d ", i);
    }
    fprintf(script, "])\n");
    fprintf(f, "\n");
}

static const char driver[] =
    "shards = [read('d_train_00000%%d.bin' %% i) for i in range(3)]\n"
    "for seed in (1337, 2**40 + 7):\n"
    "    for step in range(%d):\n"
    "        for rows in batch(step, shards, seed, %d, %d):\n"
    "            for row in rows: print(*row, end=' ')\n"
    "        print()\n"
    "for step in range(%d): print('%%.10e' %% rate(step, 3e-3, 1e-4, 7, %d))\n"
    "class P:\n"
    "    def __init__(self, i, n): self.i, self.dim = i, lambda: n\n"
    "def show(dims):\n"
    "    g = groups((P(i, n) for i, n in enumerate(dims)), 0.1)\n"
    "    assert g[0]['weight_decay'] == 0.1 and g[1]['weight_decay'] == 0\n"
    "    assert len(g[0]['params']) + len(g[1]['params']) == len(dims)\n"
    "    print(*(p.i for p in g[0]['params']), end=' \\n')\n";

TEST(documents_python_of_the_training_page_sees_the_batches_rates_and_groups_of_a_run) {
    static const uint64_t seeds[] = {1337, (1ull << 40) + 7};
    const char *dir = test_tmpdir();
    SKIP_IF(test_shell(dir, said, sizeof said, "python3 -c 'import bisect'"),
            "python3 is not here");
    OWNED(test_mem_end)
    char *block = document_block("docs/training.md", "## The same batches in Python");
    write_shards(test_path("%s/d", dir));
    FILE *f = fopen(test_path("%s/want", dir), "w"), *py = fopen(test_path("%s/same.py", dir), "w");
    CHECK(block && f && py);
    fputs(block, py);
    fprintf(py, driver, STEPS, SEQ, PER_STEP, STEPS, STEPS);
    for (EACH(seed, seeds)) want_batches(f, test_path("%s/d_train_*.bin", dir), *seed);
    for (int step = 0; step < STEPS; step++) fprintf(f, "%.10e\n", learning_rate(&cosine, step));
    want_groups(f, py, "layers=2,heads=2,channels=8,seq=4,vocab=10");
    want_groups(f, py, "llama,layers=2,heads=2,channels=8,seq=4,vocab=10");
    fclose(f), fclose(py);
    SHELL(0, "", "python3 -B same.py >have && cmp have want");
}

/* ---- what a program prints, on machines that are described ---- */

/* "$ COMMAND" and what it prints. How long a search took is another number each time: 200 ms. */
static bool prints(const char *page, const char *fence, const char *command) {
    static Text t;
    int status = test_shell(test_tmpdir(), said, sizeof said,
                            "export XDG_CACHE_HOME=$PWD; PATH=$BUILD/bin:$PATH; %s 2>err | "
                            "sed 's/ priced, [0-9]* ms$/ priced, 200 ms/'",
                            command);
    t.n = 0;
    text_put(&t, "$ %s\n%s", command, said);
    return status == 0 && page_block_is(page, fence, &t);
}

TEST(documents_plans_of_the_planner_are_those_that_are_made) {
    CHECK(prints("docs/planner.md", "text plan",
                 "train_gpt --plan --cluster h100:16 --model layers=32,heads=32,channels=4096,"
                 "seq=2048,vocab=50257 --batch 524288 --dtype bf16"));
    CHECK(prints("docs/planner.md", "text whatif",
                 "gpt-whatif --cluster h100:1 --model d48 --batch 524288 --vary nodes=1..128 "
                 "--schemes dp,fsdp,tensor3d"));
}

/* "| `dp` | 1899 | 784 | 2683 |" of docs/layouts.md, from the table that --memory prints. Of the
 * kernels that every machine has: packed operands of others take more or less of the workspace. */
TEST(documents_memory_of_layouts_is_what_the_page_says) {
    static const struct {
        const char *layout;
        int ranks, batch;
    } rows[] = {{"dp", 4, 4096},       {"dp+zero1", 4, 4096},
                {"dp+zero3", 4, 4096}, {"fsdp", 4, 4096},
                {"megatron", 4, 4096}, {"megatron-sp", 4, 4096},
                {"atp:2x2", 4, 4096},  {"optimus:2x2", 4, 4096},
                {"cube:2", 8, 8192},   {"tesseract:2x2x2", 8, 8192}};
    for (EACH(r, rows)) {
        const char *begin = test_path("| `%s` | ", r->layout);
        char line[256] = "";
        double want[3], have[3] = {0};
        SHELL_IN(
            test_tmpdir(), 0, "",
            "$BUILD/train_gpt --memory --model d12 --micro 1 --batch %d --ranks %d --layout %s "
            "--threads 1 --kernels portable | awk '/parameters|gradients|optimizer/ { kept += $2 } "
            "/activations|workspace/ { rest += $2 } /^  all/ { print kept, rest, $2 }'",
            r->batch, r->ranks, r->layout);
        CHECK(sscanf(said, "%lf %lf %lf", &want[0], &want[1], &want[2]) == 3);
        for (int n = 0, found = 0; found < 3 && page_line("docs/layouts.md", begin, n, line, 256);)
            found = sscanf(line + strlen(begin), "%lf | %lf | %lf", &have[0], &have[1], &have[2]),
            n++;
        for (int k = 0; k < 3; k++)
            if (fabs(have[k] - want[k]) > 1)
                test_fail("%s: docs/layouts.md has %g MiB, not %g", r->layout, have[k], want[k]);
    }
}
