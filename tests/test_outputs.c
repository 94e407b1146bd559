/* What the programs write: no input, no foreign file, no device and no link is destroyed by it. */
#include "tests/shell.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/claim.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/output.h"

#define TRAIN                                                                                      \
    "$BUILD/train_gpt --train train.bin --model layers=1,heads=1,channels=8,seq=8,vocab=61 "       \
    "--threads 1 --micro 2 --eval-every 0 "

TEST(outputs_follow_links_and_keep_them) {
    const char *dir = shell_directory(2000);
    SHELL(0, "",
          "mkdir there; for i in json csv trace export-llmc ledger; do "
          "ln -s there/$i.file $i; done; ln -s there dir; " TRAIN
          "--steps 6 --json json --csv csv --trace trace --export-llmc "
          "export-llmc --export-hf dir --ledger ledger");
    SHELL(0, "5 links, 5 files", // and what is behind a link that exists already
          "for i in model.safetensors config.json; do mv there/$i $i.real; ln -s ../$i.real "
          "there/$i; done; " TRAIN "--steps 4 --trace trace --json json --export-hf dir "
          "--export-llmc export-llmc && test -L there/config.json -a -s config.json.real && "
          "test -f there/json.file.old && "
          "echo $(find . -maxdepth 1 -type l ! -name dir | wc -l) links, $(find there -type f ! "
          "-name '*.old' | wc -l) "
          "files");
}

TEST(outputs_keep_what_is_no_regular_file) {
    const char *dir = shell_directory(2000);
    SHELL(0, "still a pipe",
          "mkfifo alone; $BUILD/corpus --bytes 9 --out alone 2>refused & " TRAIN
          "--steps 6 --trace trace.json && mkfifo pipe; for c in "
          "'train_gpt --train train.bin --model layers=1,heads=1,channels=8,seq=8,vocab=61 "
          "--steps 4 --trace pipe' "
          "'corpus --bytes 300000 --out pipe' 'whatif --cluster cpu:2 --vary nodes=1..2 --model "
          "layers=1,heads=1,channels=8,seq=8,vocab=61 --json pipe'; "
          "do timeout 60 sh -c 'sleep 0.2; cat' <pipe >copy & timeout 60 $BUILD/$c && wait && "
          "test -p pipe -a -s copy || exit 9; done; "
          "test -p pipe && grep -q 'no process reads this pipe' refused && "
          "echo still a pipe");
    SHELL(1, "no regular file", "mkfifo other; " TRAIN "--steps 2 --export-llmc other");
    SHELL(1, "a is a directory: name a file", "mkdir a; " TRAIN "--steps 2 --trace a");
    SHELL(1, "hf/model.safetensors is a directory: name a file", // before the first step
          "mkdir -p hf/model.safetensors; " TRAIN "--steps 2 --export-hf hf >out; s=$?; "
          "grep ^step out && exit 9; exit $s");
    SHELL(1, "write b: Too many levels of symbolic links",
          "ln -s b c; ln -s c b; " TRAIN "--steps 2 --json b");
    SHELL(0, "not replaced", // a file that others write to
          "(echo first; $BUILD/corpus --bytes 9 --out /dev/stdout; echo last) >d 2>err; "
          "grep first d && grep last d && test ! -e d.tmp* && echo not replaced");
    for (int i = 0; i < 4; i++) // from the beginning, and after records of another run
        SHELL(0, "kept",
              "echo '%s' >d; (echo first; " TRAIN
              "--steps 2 --%s /dev/stdout 2>err; echo last) %s d "
              "&& grep -c -e first -e last -e 'tok/s' -e '^{\"step\":[12],' -e '^[12],[0-9]*,' d "
              ">n; test $(cat n) = 6 && { test %d = 1 || grep -q old d; } && echo kept",
              i / 2 ? "step,old" : "{\"step\":9,\"old\":1}", i / 2 ? "csv" : "json",
              i % 2 ? ">>" : ">", i % 2 == 0);
    if (geteuid() != 0) return;
    SHELL(0, "still a device",
          "mknod null c 1 3 && " TRAIN "--steps 6 --trace null --json null --csv null && "
          "test -c null && echo still a device");
}

/* The process that made the pipe may have made it non-blocking. */
static void write_to_a_pipe_that_does_not_wait(void *unused) {
    enum { N = 1 << 20 };
    static uint8_t zeros[N];
    int ends[2], status;
    IoFile f;
    Err e;
    (void)unused;
    if (pipe(ends)) abort();
    pid_t reader = fork();
    if (reader == 0) {
        ssize_t got, left = N;
        close(ends[1]), usleep(50000);
        while (left > 0 && (got = read(ends[0], zeros, N)) > 0) left -= got;
        _exit(left != 0);
    }
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    dup2(ends[1], STDOUT_FILENO);
    if (!io_create(&f, "-", &e) || !io_put(&f, 0, zeros, N, &e) || !io_finish(&f, NULL, &e))
        die_user("%s", e.text);
    waitpid(reader, &status, 0);
    if (status) die("the reader got less");
}

TEST(outputs_wait_for_the_reader_of_a_full_pipe) {
    CHECK_CHILD(0, write_to_a_pipe_that_does_not_wait, NULL, "");
}

TEST(outputs_never_take_an_input_or_one_another) {
    const char *dir = shell_directory(2000);
    SHELL(0, "",
          "mkdir hf && cp train.bin before && ln train.bin hard && ln -s train.bin soft && " TRAIN
          "--steps 4 --export-hf hf --export-llmc m.bin --trace t.json --json log && cp log "
          "log.before");
    static const char *const outputs[] = {"json", "csv", "trace", "export-llmc", "ledger"};
    for (int i = 0; i < 5; i++)
        SHELL(1, "is an input", TRAIN "--steps 4 --%s %s", outputs[i], i % 2 ? "./hard" : "soft");
    SHELL(1, "is an input", TRAIN "--steps 4 --init hf --export-hf ./hf");
    SHELL(1, "is an input", TRAIN "--steps 4 --init m.bin --export-llmc m.bin");
    SHELL(2, "goes to that file", TRAIN "--steps 4 --json x --csv ./x");
    SHELL(2, "goes to that file", TRAIN "--steps 4 --trace x --export-llmc x");
    SHELL(2, "is an input", "$BUILD/report --out log log");
    SHELL(1, "is an input",
          "cp before a_train.bin; $BUILD/tokenize encode --text a_train.bin --out a");
    SHELL(0, "", "cmp train.bin before && cmp log log.before && cmp a_train.bin before");
}

TEST(outputs_continue_no_foreign_file) {
    const char *dir = shell_directory(2000);
    SHELL(0, "", TRAIN "--steps 2 --save run --json log.jsonl && echo my notes >notes");
    for (int i = 0; i < 2; i++)
        SHELL(1, "other data than the records", TRAIN "--steps 4 --save run --resume --%s notes",
              (const char *[]){"json", "csv"}[i]);
    SHELL(0, "something else than lines of a ledger", TRAIN "--steps 4 --ledger notes");
    SHELL(0, "my notes", "cat notes; ls notes*; test $(wc -l <notes) = 1");
    SHELL(0, "", TRAIN "--steps 4 --save run --resume --json log.jsonl");
}

TEST(outputs_keep_the_permissions_of_what_they_replace) {
    const char *dir = shell_directory(2000);
    SHELL(
        0, "600 600 640 604 600 ",
        "umask 022; mkdir hf; for f in json t.json m.bin hf/config.json c.csv; do echo >$f; done; "
        "chmod 600 json t.json c.csv; chmod 640 m.bin; chmod 604 hf/config.json; " TRAIN
        "--steps 5 --json json --trace t.json --export-llmc m.bin --export-hf hf --csv c.csv "
        ">out && stat -c %%a json t.json m.bin hf/config.json c.csv | tr '\\n' ' '");
}

/* As a process that was killed leaves them. */
TEST(outputs_of_killed_processes_are_removed) {
    const char *dir = shell_directory(2000);
    SHELL(0, "",
          "( exec sleep 0 ) & p=$!; wait; h=$(hostname); for f in m.bin t.json "
          "hf/model.safetensors; do "
          "mkdir -p hf; for i in $p 1 $p-1; do echo part >$f.tmp-$h-$i; done; done; " TRAIN
          "--steps 5 --export-llmc m.bin --export-hf hf --trace t.json");
    SHELL(0, "6 left", // those of process 1, and of another machine, HOST-PID
          "echo $(find . -name '*.tmp-*' | wc -l) left");
}

/* An empty file is an input like any other, until it is unmapped. */
TEST(claims_of_an_empty_input_are_its_own) {
    Err e;
    IoMap none, m;
    const char *dir = shell_directory(2000);
    char *train = test_path("%s/train.bin", dir), *empty = test_path("%s/empty", dir);
    CHECK(io_write_file(empty, "", 0, NULL, &e) && io_map(&none, empty, &e) &&
          io_map(&m, train, &e));
    bool ok = !claim_output("--a", empty, &e);
    io_unmap(&none);
    ok = ok && !claim_output("--a", train, &e) && claim_output("--a", empty, &e);
    io_unmap(&m);
    ok = ok && claim_output("--b", train, &e);
    claim_output_end("--a"), claim_output_end("--b");
    CHECK(ok);
}

TEST(claims_are_of_files_not_of_names) {
    Err e;
    IoMap m;
    const char *dir = shell_directory(2000);
    char *train = test_path("%s/train.bin", dir), *other = test_path("%s/other", dir),
         *again = test_path("%s/./other", dir), *fresh = test_path("%s/new", dir),
         *same = test_path("%s/./new", dir);
    bool ok = link(train, other) == 0 && claim_output("--a", other, &e) && !io_map(&m, train, &e) &&
              strstr(e.text, "--a would write to");
    claim_output_end("--a");
    ok = ok && io_map(&m, train, &e) && !claim_output("--a", again, &e);
    if (ok) io_unmap(&m);
    ok = ok && claim_output("--a", again, &e);
    ok = ok && claim_output("--b", fresh, &e) && !claim_output("--c", same, &e) &&
         claim_output("--d", "/dev/null", &e) && claim_output("--e", "/dev/null", &e);
    for (int i = 0; i < 5; i++)
        claim_output_end((const char *[]){"--a", "--b", "--c", "--d", "--e"}[i]);
    CHECK(ok);
}
