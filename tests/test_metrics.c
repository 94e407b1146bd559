#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/version.h"
#include "data/io.h"
#include "data/logfile.h"
#include "data/metrics.h"
#include "data/stamp.h"
#include "data/tfevents.h"

/* Line i of the text as JSON. */
static json_t *line_of(const char *text, int i) {
    for (; i > 0 && text; i--) {
        text = strchr(text, '\n');
        text = text ? text + 1 : NULL;
    }
    if (!text) return NULL;
    return json_loadb(text, strcspn(text, "\n"), 0, NULL);
}

static double number(const json_t *o, const char *key) {
    const json_t *x = json_object_get(o, key);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

static StepRecord record(int64_t step) {
    double x = (double)step;
    return (StepRecord){.step = step,
                        .loss = 1 / (x + 2),
                        .loss_z = step % 2 ? NAN : 0.3 * x,
                        .norm = sqrt(x),
                        .norm_z = -0.1 * x,
                        .lr = 1e-5 / 3,
                        .ms = 220.1,
                        .tokens_per_s = 1.0 / 3,
                        .peak = step % 2 ? 0.5 : 0,
                        .received = step % 2 ? INT64_C(9007199254740993) : 0, // 2^53 + 1
                        .tokens = step * 64,
                        .skipped = step == 3};
}

static MetricsFiles files_in(const char *dir) {
    return (MetricsFiles){test_path("%s/log.jsonl", dir), test_path("%s/log.csv", dir),
                          test_path("%s/board", dir)};
}

/* A run of `steps` steps after resume_step with an evaluation and a sample at each tenth. */
static void run(MetricsFiles f, int64_t resume_step, int64_t steps) {
    Metrics *m = metrics_open(&f, resume_step);
    metrics_run(m, &(RunRecord){.model = "layers=2",
                                .layout = "x2",
                                .overlap = "none",
                                .kernels = "avx2",
                                .cores = 1,
                                .threads = 2,
                                .ranks = 3,
                                .parameters = 4,
                                .tokens_per_step = 5,
                                .steps = 6,
                                .flops_per_token = 7,
                                .peak_flops = 8});
    for (int64_t i = resume_step + 1; i <= steps; i++) {
        StepRecord s = record(i);
        metrics_step(m, &s);
        if (i % 10 == 0) metrics_eval(m, i, "val_loss", 2.5 / (double)i);
        if (i % 10 == 0) metrics_sample(m, i, "say \"so\"\n\xff</script>\xc3\xa9");
    }
    metrics_close(m);
}

TEST(metrics_json_keeps_every_bit) {
    MetricsFiles f = files_in(test_tmpdir());
    run(f, 0, 10);
    OWNED(test_mem_end) char *text = test_read(f.json, NULL);
    CHECK(text);
    OWNED(test_json_end)
    json_t *head = line_of(text, 0), *val = line_of(text, 11), *sample = line_of(text, 12);
    const json_t *about = json_object_get(head, "run");
    CHECK_STR(json_string_value(json_object_get(about, "commit")), version_commit());
    CHECK(strstr(text,
                 "\"cores\":1,\"threads\":2,\"ranks\":3,\"layout\":\"x2\",\"overlap\":\"none\","
                 "\"kernels\":\"avx2\",\"model\":\"layers=2\",\"parameters\":4,"
                 "\"tokens_per_step\":5,\"steps\":6,\"flops_per_token\":7.0,"
                 "\"peak_flops\":8.0}"));
    CHECK(number(val, "val_loss") == 0.25 && number(val, "step") == 10);
    CHECK(number(sample, "step") == 10);
    CHECK_STR(json_string_value(json_object_get(sample, "sample")),
              "say \"so\"\n\xef\xbf\xbd</script>\xc3\xa9");
    for (int i = 1; i <= 10; i++) {
        StepRecord s = record(i);
        OWNED(test_json_end) json_t *o = line_of(text, i);
        CHECK(o && json_integer_value(json_object_get(o, "step")) == i);
        CHECK(number(o, "loss") == s.loss && number(o, "norm") == s.norm &&
              number(o, "lr") == s.lr);
        CHECK(number(o, "ms") == s.ms && number(o, "tokens_per_s") == s.tokens_per_s);
        CHECK(number(o, "tokens") == (double)s.tokens && number(o, "norm_z") == s.norm_z);
        CHECK(i % 2 ? !json_object_get(o, "loss_z") : number(o, "loss_z") == s.loss_z);
        CHECK(json_integer_value(json_object_get(o, "received")) == s.received);
        CHECK((json_object_get(o, "received") != NULL) == (i % 2 == 1));
        CHECK(i % 2 ? number(o, "peak") == 0.5 : !json_object_get(o, "peak"));
        CHECK(json_is_true(json_object_get(o, "skipped")) == (i == 3));
    }
}

TEST(metrics_csv_has_each_value_in_its_column) {
    MetricsFiles f = files_in(test_tmpdir());
    Metrics *m = metrics_open(&f, 0);
    metrics_step(m,
                 &(StepRecord){1, .tokens = 64, .loss = 4, .loss_z = 0.5, .norm = 2, .norm_z = NAN,
                               .lr = 0.25, .ms = 8, .tokens_per_s = 16, .skipped = true});
    metrics_step(m,
                 &(StepRecord){2, .tokens = 65, .loss = 3, .loss_z = NAN, .norm = 1, .norm_z = -1,
                               .lr = 0.5, .ms = 9, .tokens_per_s = 17, .peak = 0.75});
    metrics_eval(m, 2, "val_loss", 2.5);
    metrics_eval(m, 2, "hellaswag", 0.25);
    metrics_close(m);
    OWNED(test_mem_end) char *text = test_read(f.csv, NULL);
    CHECK_STR(text, "step,tokens,loss,loss_z,norm,norm_z,lr,ms,tokens_per_s,peak,skipped,val_loss,"
                    "hellaswag\n1,64,4,0.5,2,,0.25,8,16,,1,,\n2,65,3,,1,-1,0.5,9,17,0.75,0,,\n"
                    "2,,,,,,,,,,,2.5,\n2,,,,,,,,,,,,0.25\n");
}

TEST(metrics_json_has_null_for_what_is_not_finite) {
    MetricsFiles f = files_in(test_tmpdir());
    Metrics *m = metrics_open(&f, 0);
    metrics_eval(m, 1, "hellaswag", NAN);
    metrics_close(m);
    OWNED(test_mem_end) char *text = test_read(f.json, NULL);
    CHECK_STR(text, "{\"step\":1,\"hellaswag\":null}\n");
}

/* What a run that stopped at 27 and was resumed after 20 leaves equals what an uninterrupted one
 * leaves. */
TEST(metrics_files_continue_after_the_resumed_step) {
    MetricsFiles whole = files_in(test_tmpdir()), cut = files_in(test_tmpdir());
    run(whole, 0, 30);
    run(cut, 0, 27);
    FILE *torn = fopen(cut.json, "a");
    CHECK(torn && fputs("{\"step\":28,\"lo", torn) >= 0 && fclose(torn) == 0);
    run(cut, 20, 30);
    CHECK(test_same_files(whole.csv, cut.csv));
    OWNED(test_mem_end) char *b = test_read(cut.json, NULL);
    int64_t next = 1, runs = 0;
    for (int i = 0; i < 38; i++) { // 30 steps, 3 evaluations, 3 samples, 2 run lines
        OWNED(test_json_end) json_t *o = line_of(b, i);
        CHECK(o);
        runs += json_object_get(o, "run") != NULL;
        if (json_object_get(o, "loss"))
            CHECK(json_integer_value(json_object_get(o, "step")) == next++);
    }
    CHECK(runs == 2 && next == 31 && !line_of(b, 38));
    OWNED(test_json_end)
    json_t *o = line_of(b, 25); // the second run line: 1 + 20 + 2 + 2 lines are before it
    CHECK(json_integer_value(json_object_get(json_object_get(o, "run"), "resumed_step")) == 20);
}

TEST(metrics_resume_never_loses_older_records) {
    static const char json[] = "{\"run\":{}}\nnot json\n{\"step\":5,\"loss\":1}\n{\"step\":5,\"val_"
                               "loss\":1}\n{\"step\":6}\n{\"step\":4}\n";
    CHECK(metrics_keep_json(json, sizeof json - 1, 9) == (int64_t)sizeof json - 1);
    CHECK(metrics_keep_json(json, sizeof json - 1, 5) ==
          (int64_t)(strstr(json, "{\"step\":6") - json));
    CHECK(metrics_keep_json(json, sizeof json - 2, 9) ==
          (int64_t)(strstr(json, "{\"step\":4") - json));
    CHECK(metrics_keep_json(json, 0, 9) == 0);
    static const char csv[] = "step,loss\n1,2\n10,3\n99999999999999999999999,1\n";
    CHECK(metrics_keep_csv(csv, sizeof csv - 1, 10) == (int64_t)strlen("step,loss\n1,2\n10,3\n"));
    CHECK(metrics_keep_csv(csv, sizeof csv - 1, 9) == (int64_t)strlen("step,loss\n1,2\n"));
}

/* A run that was killed in its first line is continued, too. */
TEST(metrics_resume_goes_on_in_a_file_without_a_whole_line) {
    MetricsFiles f = files_in(test_tmpdir());
    CHECK(io_write_file(f.json, "{\"run\":{\"prog", 13, NULL, NULL));
    run(f, 1, 2);
    OWNED(test_mem_end) char *text = test_read(f.json, NULL);
    OWNED(test_json_end) json_t *head = line_of(text, 0), *step = line_of(text, 1);
    CHECK(json_object_get(head, "run") && number(step, "step") == 2);
}

TEST(metrics_new_run_keeps_the_old_file) {
    MetricsFiles f = files_in(test_tmpdir());
    CHECK(io_write_file(f.json, "{\"step\":1}\n", 11, NULL, NULL));
    Metrics *m = metrics_open(&f, 0);
    metrics_close(m);
    OWNED(test_mem_end) char *text = test_read(test_path("%s.old", f.json), NULL);
    CHECK(text);
    CHECK_STR(text, "{\"step\":1}\n");
    struct stat st;
    CHECK(stat(f.json, &st) == 0 && st.st_size == 0);
}

/* --- tfevents --- */

static uint64_t little(const uint8_t *p, int n) {
    uint64_t x = 0;
    for (int i = 0; i < n; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static uint32_t unmask(uint64_t m) {
    uint32_t r = (uint32_t)m - 0xa282ead8u;
    return r << 15 | r >> 17;
}

/* Number of records whose lengths and checksums hold; -1 when something is left over. */
static int count_records(const uint8_t *p, size_t n) {
    int count = 0;
    for (; n >= 16; count++) {
        uint64_t len = little(p, 8);
        if (len > n - 16 || unmask(little(p + 8, 4)) != crc32c(0, p, 8)) return -1;
        if (unmask(little(p + 12 + len, 4)) != crc32c(0, p + 12, len)) return -1;
        p += 16 + len, n -= 16 + (size_t)len;
    }
    return n == 0 ? count : -1;
}

TEST(tfevents_first_record_is_the_known_one) {
    // as TensorBoard's own writer makes it, with wall time 1.0
    static const uint8_t want[] = {24,  0,   0,   0,   0,   0,   0,   0,    0xa3, 0x7f, 0x4b, 0x22,
                                   9,   0,   0,   0,   0,   0,   0,   0xf0, 0x3f, 0x1a, 13,   'b',
                                   'r', 'a', 'i', 'n', '.', 'E', 'v', 'e',  'n',  't',  ':',  '2'};
    TfRecord r = tfevents_version(1.0);
    CHECK(r.n == sizeof want + 4);
    CHECK(memcmp(r.p, want, sizeof want) == 0);
    CHECK(count_records(r.p, r.n) == 1);
    mem_free(r.p);
    // step 300 = 0x2c + 2 * 128, summary { value { tag "a", simple_value 1 } }
    r = tfevents_scalars(1.0, 300, &(TfScalar){"a", 1}, 1);
    CHECK(memmem(r.p, r.n, "\x10\xac\2\x2a\n\n\b\n\1a\x15\0\0\x80\x3f", 15));
    CHECK(count_records(r.p, r.n) == 1);
    mem_free(r.p);
    // the tensor of one string "x", for the plugin "text"
    r = tfevents_text(1.0, 5, "a", "x");
    CHECK(memmem(r.p, r.n,
                 "\x10\5\x2a\x1c\n\x1a\n\1a\x42\v\b\a\x12\4\x12\2\b\1\x42\1xJ\b\n\6\n\4text", 32));
    mem_free(r.p);
}

TEST(metrics_event_file_is_whole) {
    MetricsFiles f = files_in(test_tmpdir());
    run(f, 7, 20);
    DIR *d = opendir(f.tensorboard);
    CHECK(d);
    int found = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, "events.out.tfevents.", 20) != 0) continue;
        size_t n = 0;
        char *p = test_read(test_path("%s/%s", f.tensorboard, e->d_name), &n);
        // version, start at step 8, 13 steps, 2 evaluations, 2 samples
        CHECK(count_records((uint8_t *)p, n) == 19 && memmem(p, n, "val/loss", 8));
        CHECK(memmem(p, n, "\x10\x08\x3a\x02\x08\x01", 6));
        mem_free(p), found++;
    }
    closedir(d);
    CHECK(found == 1);
}

/* --- what must not stop a run, and what must --- */

static void fill_the_disk(void *arg) {
    MetricsFiles f = {.json = "/dev/full", .csv = arg};
    Metrics *m = metrics_open(&f, 0);
    for (int i = 1; i <= 3; i++) {
        StepRecord s = record(i);
        metrics_step(m, &s);
    }
    metrics_close(m);
}

TEST(metrics_full_disk_warns_once_and_goes_on) {
    char text[1024], *csv = test_path("%s/log.csv", test_tmpdir());
    CHECK(test_in_child(fill_the_disk, csv, text, sizeof text) == 0);
    const char *warning = strstr(text, "cannot write to /dev/full: No space left on device");
    CHECK(warning && !strstr(warning + 1, "cannot write"));
    CHECK(strstr(text, "/dev/full lacks 3 records") && !strstr(text, "may be lost"));
    OWNED(test_mem_end) char *rows = test_read(csv, NULL); // the other file has everything
    CHECK(rows && strstr(rows, "\n3,192,"));
}

static void open_nowhere(void *arg) {
    MetricsFiles f = {.json = arg};
    metrics_open(&f, 0);
}

TEST(metrics_file_that_cannot_be_opened_ends_the_program) {
    CHECK_CHILD(1, open_nowhere, "/dev/null/x.jsonl", "/dev/null is not a folder");
}

static void outgrow_the_limit(void *arg) {
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){10, 10}); // the third record fits by half
    LogFile f;
    logfile_open(&f, arg, 0, NULL);
    logfile_write(&f, "one\n", 4);
    logfile_write(&f, "two\n", 4);
    logfile_write(&f, "three\n", 6);
    logfile_write(&f, "4\n", 2);
    logfile_close(&f);
}

TEST(logfile_cuts_off_a_record_that_did_not_fit) {
    char *path = test_path("%s/x", test_tmpdir());
    CHECK_CHILD(0, outgrow_the_limit, path, "File too large", "lacks 1 records");
    OWNED(test_mem_end) char *got = test_read(path, NULL);
    CHECK(got);
    CHECK_STR(got, "one\ntwo\n4\n");
}

/* The system reports once, in fdatasync, what it could not write since the last call. */
static void sync_what_fails(void *path) {
    LogFile f;
    logfile_open(&f, path, 0, NULL);
    int fd = f.fd;
    f.fd = open("/proc/self/mem", O_RDONLY); // cannot be synced
    logfile_sync(&f);
    close(f.fd), f.fd = fd;
    logfile_close(&f);
}

TEST(logfile_says_that_its_records_may_not_be_on_the_disk) {
    char *path = test_path("%s/x", test_tmpdir());
    CHECK_CHILD(0, sync_what_fails, path, "warning: the last records of ",
                "/x may be lost: Invalid");
}

static void fill_the_pipe(void *path) {
    static char text[1 << 18];
    LogFile f;
    logfile_open(&f, path, 0, NULL);
    size_t room = (size_t)fcntl(f.fd, F_SETPIPE_SZ, 1); // a page
    double start = now_s();
    logfile_write(&f, text, room + 1);
    double waited = now_s() - start;
    logfile_write(&f, "lost\n", 5);
    if (waited < 0.9 || now_s() - start - waited > 0.9) die("waited %g s", waited);
    ssize_t n = read(f.fd, text, sizeof text);
    logfile_write(&f, "next\n", 5);
    logfile_write(&f, "last\n", 5);
    n += read(f.fd, text + n, sizeof text - (size_t)n);
    logfile_close(&f);
    if (n != (ssize_t)room + 11 || memcmp(text + room, "\nnext\nlast\n", 11) != 0)
        die("%zd bytes", n);
}

TEST(logfile_goes_on_in_a_line_of_its_own_when_a_pipe_is_read_again) {
    char *path = test_path("%s/x", test_tmpdir());
    CHECK(mkfifo(path, 0600) == 0);
    CHECK_CHILD(0, fill_the_pipe, path, "nobody reads it", "lacks 2 records");
}

/* Virtual machines call processors with other instruction sets, and of other speed, by one name. */
TEST(stamp_tells_processors_of_one_name_apart) {
    static const char *const of[][2] = {
        {"vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n"
         "stepping\t: 1\n\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: another\n",
         "AMD EPYC, family 25 model 1"},
        {"cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9575F 64-Core Processor\n",
         "AMD EPYC 9575F 64-Core Processor"},
        {"model name\t: a core\n", "a core"},
        {"processor\t: 0\nBogoMIPS\t: 50.00\n", "unchanged"}};
    for (int i = 0; i < N_OF(of); i++) {
        char text[512], name[64] = "unchanged";
        snprintf(text, sizeof text, "%s", of[i][0]);
        FILE *f = fmemopen(text, strlen(text), "r");
        CHECK(f);
        stamp_cpu_of(f, name, sizeof name);
        fclose(f);
        CHECK_STR(name, of[i][1]);
    }
}
