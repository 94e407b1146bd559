/* A machine that turns hostile during a run: its disk becomes read-only or full, renames fail, its
 * clock jumps; and data that drive numbers to zero. */
#include "tests/shell.h"

#include <unistd.h>

#define MODEL "--model layers=1,heads=1,channels=8,seq=8,vocab=61 "
/* Without a ledger a run does not measure this machine, which takes a sanitizer a second. */
#define TRAIN                                                                                      \
    "$BUILD/train_gpt --train train.bin " MODEL "--micro 2 --eval-every 0 --ranks 2 --layout d2 "  \
    "--threads 1 --ledger none "
/* After it runs hold a whole checkpoint, nothing half-written, and --resume continues them. */
#define CONTINUES                                                                                  \
    "test -z \"$(find run -name .step*)\" && " TRAIN "--steps 20 --save run --resume >out && "     \
    "grep resuming out && ls run"
/* A namespace of mounts of its own: nothing of it reaches the machine or outlives the command. */
#define ALONE "unshare $(test $(id -u) = 0 && echo -m || echo -rm) env BUILD=$BUILD sh -c '"

/* May this user mount? Not in every container: then the test is skipped. */
static bool can_mount(const char *dir) {
    bool can = test_shell(dir, said, sizeof said,
                          ALONE "mkdir -p m && mount -t tmpfs -o size=1m none m && "
                                "mount --bind m m && mount -o remount,bind,ro m'") == 0;
    if (!can) test_skip("mount is not permitted here");
    return can;
}

/* The library of tests/hostile.c in `dir`, as hostile.so. Where it cannot be built or loaded the
 * test is skipped. */
static bool has_hostile(const char *dir) {
    char here[512];
    bool has =
        getcwd(here, sizeof here) &&
        test_shell(dir, said, sizeof said, "${CC:-cc} -shared -fPIC -o hostile.so '%s/%s' -ldl",
                   here, TEST_DATA("hostile.c")) == 0 &&
        test_shell(dir, said, sizeof said,
                   "HOSTILE=hello ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=./hostile.so "
                   "$BUILD/train_gpt --version >out") == 0 &&
        strstr(said, "hostile\n") && !strstr(said, "cannot be preloaded"); // an emulated program
    if (!has) test_skip("no library can be loaded before the program's own");
    return has;
}
#define HOSTILE                                                                                    \
    "env XDG_CACHE_HOME=$PWD ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=./hostile.so "

TEST(hostile_disk_that_turns_read_only_ends_a_run_that_can_go_on) {
    const char *dir = shell_directory(4000);
    if (!can_mount(dir)) return;
    // a mount over the directory of a run that holds it open: from then on it cannot be written
    SHELL(1, "Read-only file system",
          ALONE "mkdir run; (timeout --foreground 120 " TRAIN
                "--steps 100000000 --save run --save-every 100 >out; echo $? >code) & "
                "until ls run | grep -q ^step_ || test -e code; do sleep 0.02; done; "
                "mount --bind run run && until mount -o remount,bind,ro run 2>busy; do :; done; "
                "wait; exit $(cat code)'");
    // what a save had begun cannot be removed from a disk that is read-only: the next run does
    SHELL(0, "resuming from run/step_",
          "test -n \"$(ls run)\" && " TRAIN
          "--steps $(ls run | tail -1 | tr -dc 0-9 | sed 's/^0*//') --save run --resume && "
          "test -z \"$(find run -name '.step*')\"");
    SHELL(0, "step_", TRAIN "--steps 1 --save other >out && ls other");
}

TEST(hostile_full_disk_keeps_the_checkpoint_before) {
    const char *dir = shell_directory(4000);
    if (!can_mount(dir)) return;
    // a second checkpoint does not fit beside the first one
    SHELL(0, "step_00000010\nstep_00000020",
          ALONE
          "mkdir run && mount -t tmpfs -o size=1m none run && head -c 952K /dev/zero >run/more || "
          "exit 9; " TRAIN
          "--steps 20 --save run --save-every 10 >out 2>err; test $? = 1 || exit 8; "
          "grep -q \"cannot write run/.*: No space left on device; free some space.*; --resume "
          "continues from step 10\" err && test $(grep -vc warning: err) = 1 || exit 7; "
          "rm run/more; " CONTINUES "'");
}

TEST(hostile_small_disk_is_named_before_the_first_step) {
    const char *dir = shell_directory(4000);
    if (!can_mount(dir)) return;
    SHELL(0, "warning: --save run: a checkpoint takes 16.9 KiB, and ",
          ALONE "mkdir run && mount -t tmpfs -o size=12k none run || exit 9; " TRAIN
                "--steps 2 --save run >out 2>err; test $? = 1 && cat err'");
    SHELL(0, "", TRAIN "--steps 2 --save other >out 2>err && test $(grep -c takes err) = 0");
}

TEST(hostile_quota_and_renames_keep_the_checkpoint_before) {
    const char *dir = shell_directory(4000);
    if (!has_hostile(dir)) return;
    static const char *const hostile[][2] = {
        {"HOSTILE_QUOTA=40000", "Disk quota exceeded; free some space"},
        {"HOSTILE_RENAME=2", "cannot rename to run/step_00000020: Input/output error"}};
    for (int i = 0; i < 2; i++) {
        SHELL(1, hostile[i][1],
              "rm -rf run; %s " HOSTILE TRAIN "--steps 20 --save run --save-every 10 >out",
              hostile[i][0]);
        SHELL(0, "step_00000010\nstep_00000020", CONTINUES);
    }
}

/* A folder that cannot be listed may hold a run. It does not count as empty: training would begin
 * again at step 0. */
TEST(hostile_folder_that_cannot_be_listed_is_not_started_over) {
    const char *dir = shell_directory(4000);
    if (!has_hostile(dir)) return;
    SHELL(0, "", TRAIN "--steps 2 --save run >out");
    static const char *const again[] = {"", " --resume"}, *const fails[] = {"OPEN", "READ"};
    for (int i = 0; i < 4; i++)
        SHELL(1, "cannot read the folder run: Stale file handle",
              "HOSTILE_%sDIR=run " HOSTILE TRAIN "--steps 4 --save run%s >out", fails[i / 2],
              again[i % 2]);
    SHELL(0, "resuming from run/step_00000002", TRAIN "--steps 4 --save run --resume");
}

/* A shared file system under load takes minutes, and no rank hangs: the start, saves and exports
 * are waited for longer than steps. */
TEST(hostile_slow_storage_ends_no_run) {
    const char *dir = shell_directory(4000);
    if (!has_hostile(dir)) return;
    static const char *const slow[][2] = {{"HOSTILE_FSYNC_OF=", "--save run"}, // at the start
                                          {"HOSTILE_FSYNC_OF=model.s", "--save run"},
                                          {"HOSTILE_FSYNC_OF=model.s", "--export-hf run/hf"}};
    for (int i = 0; i < 3; i++)
        SHELL(0, "model.safetensors",
              "rm -rf run; %s HOSTILE_FSYNC=4 " HOSTILE TRAIN
              "--timeout 3 --steps 1 %s >out && ls run/*",
              slow[i][0], slow[i][1]);
}

/* Times come from a clock that only counts on: no step, no wait and no limit sees the day's
 * clock. */
TEST(hostile_clock_changes_no_time_and_no_loss) {
    const char *dir = shell_directory(4000);
    if (!has_hostile(dir)) return;
    // the losses of the steps in a record
    static const char losses[] =
        "sed -n 's/^{\"step\":\\([0-9]*\\),.*\\(\"loss\":[^,]*\\).*/\\1 \\2/p'";
    SHELL(0, "the same",
          TRAIN "--steps 6 --json calm >out && HOSTILE_CLOCK=864000 " HOSTILE TRAIN
                "--steps 6 --json jumps --trace t.json --save run >out 2>&1 || exit "
                "9; %s calm >a; %s jumps >b; test $(wc -l <a) = 6 && cmp a b && echo the same",
          losses, losses);
    // no step took a day, and none less than nothing; ETA and rates are of the same clock
    SHELL(0, "6 sane",
          "echo $(grep -oE '\"ms\":[0-9.e+-]+' jumps | cut -d: -f2 | awk '$1 > 0 && $1 < 60000' | "
          "wc -l) sane");
}

/* What is measured for a layout is kept, and read again ten days before or after; on a busy machine
 * the time of one run need not suffice for all. */
TEST(kernels_are_measured_once_whatever_the_clock_says) {
    const char *dir = shell_directory(4000);
    if (!has_hostile(dir)) return;
    CHECK(test_one_processor(true));
    SHELL(0, "measured once",
          "for i in 1 2 3 4; do HOSTILE_CLOCK=864000 " HOSTILE TRAIN
          "--layout auto --steps 3 --ledger ledger >out$i || exit 9; "
          "test $i = 1 || grep -q 'measuring kernels' out$i || break; done; "
          "grep -q 'measuring kernels' out1 && ! grep -q 'measuring kernels' out$i && "
          "echo measured once");
}

/* The loss of data that say nothing goes to zero, gradients after it, and second moments below what
 * a normalised float holds. */
TEST(hostile_data_of_one_token_are_learned_without_a_nan) {
    const char *dir = shell_directory(4000);
    static const char *const layouts[] = {"--ranks 1", "--ranks 2 --layout x2",
                                          "--ranks 2 --layout d2"};
    for (EACH(layout, layouts))
        SHELL(0, "learned",
              "head -c 4000 /dev/zero >train.bin; $BUILD/train_gpt --train train.bin " MODEL
              "--micro 2 --batch 32 --eval-every 0 --threads 1 %s --steps 500 --schedule constant "
              "--lr 0.1 --weight-decay 0 --ledger none --json log >out && test $(grep -c "
              "'\"step\"' log) = 500 && tail -1 log | sed "
              "'s/.*\"loss\":\\([^,]*\\).*/\\1/' | awk '$1 >= 0 && $1 < 1e-4 { print "
              "\"learned\" }'",
              *layout);
}
