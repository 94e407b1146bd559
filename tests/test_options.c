/* The options of train_gpt, and the names that other programs have for them. */
#include "parallel/train/options.h"
#include "tests/shell.h"

/* The next of the names in a list joined by spaces; false: there is none left. */
static bool next_name(const char **list, char name[64]) {
    size_t n = strcspn(*list += strspn(*list, " "), " ");
    snprintf(name, 64, "%.*s", (int)n, *list);
    *list += n;
    return n > 0;
}

static int times_known(const char *name) {
    char other[64];
    int times = 0;
    for (const OptForeign *r = options_foreign; r->names; r++)
        for (const char *list = r->names; next_name(&list, other);)
            times += strcmp(other, name) == 0;
    return times;
}

TEST(options_of_other_programs_lead_to_options_that_exist) {
    static Options o;
    const Opt *table = options_table(&o);
    char why[512], name[64];
    for (const OptForeign *r = options_foreign; r->names; r++) {
        CHECK(r->option || r->note);
        if (!r->option) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(r->option, " "), r->option);
        const Opt *row = opt_find(table, name);
        const char *value = strchr(r->option, ' ');
        if (!row) test_fail("%s: no option %s", r->names, name);
        if (!row || !value || (row->type != OPT_CHOICE && row->type != OPT_BOOL)) continue;
        if (!opt_set(row, value + 1, why, sizeof why)) test_fail("%s: %s", r->names, why);
    }
}

/* Variables of a launcher are enough: no process starts MPI for its help. */
TEST(options_help_and_version_are_printed_by_the_first_process) {
    static const char *const answers[] = {"--help", "-h", "--version", "--help=man",
                                          "--help=words"};
    for (EACH(a, answers))
        for (int rank = 0; rank < 2; rank++) {
            SHELL_IN(test_tmpdir(), 0, "",
                     "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=%d $BUILD/train_gpt %s | wc -l",
                     rank, *a);
            int lines = atoi(said);
            if ((lines > 0) != (rank == 0)) test_fail("%s of rank %d: %d lines", *a, rank, lines);
        }
}

TEST(options_that_notes_of_other_programs_name_exist) {
    static Options o;
    const Opt *table = options_table(&o);
    char name[64];
    for (const OptForeign *r = options_foreign; r->names; r++)
        for (const char *p = r->note ? strstr(r->note, "--") : NULL; p; p = strstr(p, "--")) {
            size_t n = strspn(p += 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
            snprintf(name, sizeof name, "%.*s", (int)n, p);
            const char *known =
                strncmp(name, "no-", 3) == 0 ? name + 3 : name; // a switch of theirs
            if (!opt_find(table, known) && !times_known(known))
                test_fail("%s: no option --%s", r->names, name);
        }
}

/* A value is copied into the answer only where it means the same here. */
TEST(options_of_other_programs_have_the_value_of_here) {
    static const char *const cases[][2] = {
        {"--always_save_checkpoint=False", "here it is --save DIR ("},
        {"--overwrite_output_dir=1", "here it is --save DIR ("},
        {"--do_train=1", "here it is --train GLOB\n"},
        {"--per_device_eval_batch_size=2", "here it is --micro 2 ("},
        {"--eval_strategy=steps", "here it is --eval-every N\n"},
        {"--num_train_epochs=3", "here it is --steps STEPS (an epoch"},
        {"--train-samples=3", "here it is --steps STEPS (samples"},
        {"--dry-run", "here it is --memory (--plan"},
        {"--print_config", "not supported: the first line of --json"},
        {"--flash_attn=1", "attention never stores"},
    };
    for (int i = 0; i < N_OF(cases); i++)
        SHELL_IN(test_tmpdir(), 2, cases[i][1], "$BUILD/train_gpt %s 2>&1", cases[i][0]);
}

TEST(options_of_other_programs_are_named_once_and_are_none_of_ours) {
    static Options o;
    const Opt *table = options_table(&o);
    char name[64];
    int n = 0;
    for (const OptForeign *r = options_foreign; r->names; r++)
        for (const char *list = r->names; next_name(&list, name); n++)
            if (opt_find(table, name) || strchr(name, '_') || times_known(name) != 1)
                test_fail("%s", name);
    CHECK(n > 300);
}

/* Every option of llm.c's train_gpt2 but -h; those of nanoGPT that have other names here. */
TEST(options_of_llmc_and_nanogpt_are_all_known) {
    static const char *const all =
        "-i -j -e -o -lg -n -nk -nm -y -b -t -d -k -l -u -q -c -sl -sg -v -m -s -g -a -x -f -w -ge "
        "-z -r -pn -pr -pg -pi -pf -ps -pm -pp "
        "out-dir eval-interval log-interval eval-iters eval-only always-save-checkpoint init-from "
        "wandb-log wandb-project wandb-run-name dataset gradient-accumulation-steps batch-size "
        "block-size n-layer n-head n-embd dropout bias learning-rate max-iters grad-clip decay-lr "
        "warmup-iters lr-decay-iters device compile start num-samples max-new-tokens";
    char name[64];
    for (const char *list = all; next_name(&list, name);)
        if (times_known(name) != 1) test_fail("%s", name);
}
