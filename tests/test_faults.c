/* What goes wrong while a run goes on: files that shrink, readers and terminals that leave,
 * signals. */
#include "tests/shell.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/die.h"
#include "data/io_map.h"

#define MODEL "--model layers=1,heads=1,channels=8,seq=8,vocab=61 "
/* Without a ledger a run does not measure this machine, which takes a sanitizer a second. */
#define TRAIN "$BUILD/train_gpt --train train.bin " MODEL "--micro 2 --eval-every 0 --ledger none "
#define LONG  TRAIN "--steps 100000000 --ranks 2 --layout d2 --threads 1 "
/* Until the records of a run name a step. */
#define UNTIL(what)  "for i in $(seq 3000); do " what " && break; sleep 0.02; done; "
#define UNTIL_A_STEP UNTIL("grep -qs '\"step\":3,' log")

TEST(faults_changed_shard_ends_with_a_line_and_a_checkpoint) {
    const char *dir = shell_directory(40000);
    static const char *const changes[] = {
        "truncate -s 0 train.bin",
        "truncate -s 70000 train.bin", // ends in the midst of a page
        "head -c 80000 /dev/zero | tr '\\0' '\\377' | dd of=train.bin conv=notrunc seek=2"};
    for (EACH(change, changes)) {
        SHELL(1, "train.bin changed while it was in use",
              "rm -rf log run; cp train.bin whole; timeout --foreground 60 " LONG
              "--json log --save run >out & p=$!; " UNTIL_A_STEP
              "%s; wait $p; s=$?; cp whole train.bin; exit $s",
              *change);
        SHELL(0, "\"step\"",
              "last=$(tail -1 log | grep -o '\"step\":[0-9]*' | tr -dc 0-9); test -d "
              "run/$(printf step_%%08d $last) && " TRAIN
              "--steps $((last + 2)) --ranks 2 --layout d2 --threads 1 --save run --resume --json "
              "log && tail -1 log");
    }
}

static void read_what_is_gone(void *arg) {
    Err e;
    IoMap m;
    volatile uint64_t sum = 0;
    if (!io_map(&m, arg, &e) || truncate(arg, 100)) return;
    for (size_t i = 0; i < m.n; i++) sum = sum + m.p[i];
    if (sum) return;
}

static void survive_what_is_gone(void *arg) {
    Err e;
    IoMap m;
    io_map_fill_truncated();
    if (!io_map(&m, arg, &e) || truncate(arg, 100)) return;
    if (m.p[m.n - 1] == 0 && io_map_truncated(&e)) die_user("survived: %s", e.text);
}

static void lose_a_byte(void *arg) { // of the last page, which raises no signal
    Err e;
    IoMap m;
    if (!io_map(&m, arg, &e) || truncate(arg, (off_t)m.n - 1)) return;
    io_map_check(&m);
    if (io_map_truncated(&e)) die_user("noted: %s", e.text);
}

TEST(faults_truncated_file_is_named) {
    const char *dir = shell_directory(40000);
    char *path = test_path("%s/train.bin", dir);
    CHECK_CHILD(1, lose_a_byte, path, "noted: ", "train.bin changed");
    CHECK_CHILD(1, read_what_is_gone, path, "train.bin became shorter while it was read\n");
    dir = shell_directory(40000);
    path = test_path("%s/train.bin", dir);
    CHECK_CHILD(1, survive_what_is_gone, path, "survived: ", "train.bin changed");
}

/* The process that made the pipe may have made it non-blocking. */
static void read_a_pipe_that_does_not_wait(void *unused) {
    int ends[2];
    (void)unused;
    if (pipe(ends)) abort();
    if (fork() == 0) {
        for (int i = 0; i < 3; i++) usleep(20000), dprintf(ends[1], "part %d\n", i);
        _exit(0);
    }
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    IoMap m = io_read(fdopen(ends[0], "r"), "a pipe");
    die_user("read: %.*s", (int)m.n, m.p);
}

TEST(faults_a_pipe_is_read_to_its_end) {
    CHECK_CHILD(1, read_a_pipe_that_does_not_wait, NULL, "read: part 0?part 1?part 2?\n");
}

TEST(faults_lost_readers_and_terminals_do_not_lose_the_run) {
    const char *dir = shell_directory(40000);
    SHELL(0, "status 0",
          "( " TRAIN "--steps 400 --json - 2>err; echo status $? >code ) | head -1 >out; cat code "
          "&& grep -q 'Broken pipe; training goes on' err");
    SHELL(129, "stopped by signal 1 after step",
          "timeout --foreground 60 " LONG "--json log --save hup >out & p=$!; " UNTIL_A_STEP
          "kill -HUP $p; wait $p");
    SHELL(0, "step_", "ls hup");
    SHELL(
        143, "stopped by signal 15", // under nohup, which ignores the signal
        "trap '' HUP; " LONG "--json kept >out & p=$!; "
        "(trap 'kill $!' TERM; sleep 60 & wait $! && kill -KILL $p) >/dev/null 2>&1 & w=$!; " UNTIL(
            "grep -qs '\"step\":3,' kept") "kill -HUP $p; sleep 0.1; kill -TERM $p; "
                                           "wait $p; s=$?; kill $w; exit $s");
    SHELL(0, "finished",
          "mkfifo fifo; timeout --foreground 60 " TRAIN
          "--steps 2000 --json fifo && echo finished");
    SHELL(143, "stopped by signal 15",
          "timeout --foreground 60 " LONG
          "--json fifo --csv log >out & p=$!; " UNTIL("grep -qs ^3, log") "kill -TERM $p; wait $p");
    SHELL(0, "\"step\":300,",
          "( cat fifo >read ) & timeout --foreground 60 " TRAIN
          "--steps 300 --json fifo >out && wait && tail -1 read");
}

/* The readers stop, and keep their pipes open, until the run has ended. */
TEST(faults_stopped_readers_do_not_keep_a_run_that_expired) {
    const char *dir = shell_directory(40000);
    static const char *const err[] = {"err", "&1"};
    for (EACH(e, err))
        SHELL(0, "status 75",
              "rm -f code; ( timeout --foreground 60 " LONG
              "--timeout 1 2>%s; echo status $? >code ) | ( " UNTIL("test -s code") "cat code )",
              *e);
    SHELL(0, "rank 1: waited ", "cat err");
}

TEST(faults_signals_are_heard_before_the_first_step) {
    const char *dir = shell_directory(40000);
    // the search for a layout of a deep model takes longer than this test
    SHELL(143, "before anything was computed",
          "timeout --foreground 60 $BUILD/train_gpt --train train.bin --ranks 12 --steps 2 "
          "--calibrate none "
          "--model "
          "layers=64,heads=48,channels=768,seq=8,vocab=61 >out & " // once it listens to the signal
          UNTIL("p=/proc/$(pgrep -P $!) && grep -qs train_gpt $p/comm && "
                "grep -qs 'SigCgt:.*[4-7c-f]...$' $p/status") "kill -TERM ${p#/proc/}; wait $!");
}

TEST(faults_models_that_cannot_fit_are_refused_at_once) {
    static const struct {
        int status;
        const char *options, *word;
    } cases[] = {
        {2, "--model layers=1000000", "layers=1000000: at most"},
        {2, "--model layers=900,heads=1,channels=16777216,ffn=16777216,vocab=100",
         "parameters: at most"},
        {1, "--model layers=300,heads=1,channels=65536,vocab=100", "only a smaller model"},
        {1, "--memory --model layers=300,heads=1,channels=65536,vocab=100", "only a smaller model"},
        {1, "--ranks 4 --layout x4 --model layers=300,heads=1,channels=65536,vocab=100",
         "only a smaller model, a shorter --seq or more ranks: even --micro 1"},
        {1, "--ranks 4 --model layers=300,heads=1,channels=65536,vocab=100", "no layout"},
        {2, "--micro 100000000 --model layers=2,heads=4,channels=256,vocab=100", "at most"},
        {1, "--model layers=300,heads=4,channels=64,seq=65536,vocab=100", "what would"},
        {1, "--model d12 --micro 2000", "what would:\n  --micro "},
        {2, "--micro 1000000000 --model layers=2,heads=1,channels=8,seq=16000000,vocab=16000000",
         "a micro-batch has at most 2097152 tokens"}};
    const char *dir = shell_directory(40000);
    for (EACH(c, cases))
        SHELL(c->status, c->word,
              "ulimit -v 3000000; timeout 30 $BUILD/train_gpt --train train.bin --steps 2 %s",
              c->options);
}

/* Whoever holds the lock of a --save directory is the only one who saves there: the temporaries of
 * others go, even when their process ids are in use. */
TEST(faults_left_over_directories_of_saves_are_removed) {
    const char *dir = shell_directory(40000);
    SHELL(0, "0 left",
          "for p in 1 $$ 99999999; do mkdir -p run/.step_00000009.tmp-$(hostname)-$p; done; mkdir "
          "run/.step_00000009.tmp-elsewhere-7; " TRAIN
          "--steps 2 --save run >out; echo $(find run -name '.step*' | wc -l) left");
}
