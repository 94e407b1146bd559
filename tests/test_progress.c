#include "tests/test.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "data/progress.h"

static const StepRecord step40 = {.step = 40,
                                  .loss = 6.5,
                                  .loss_z = 0.12,
                                  .norm = 1.2,
                                  .norm_z = -0.3,
                                  .lr = 1e-5,
                                  .ms = 220.1,
                                  .peak = 0.613};

TEST(progress_line_has_the_columns_of_llmc) {
    char line[512];
    progress_line(line, sizeof line, &step40, 18865, 178000, 200);
    CHECK_STR(line,
              "step   40/18865 | loss 6.500000 (+0.12z) | norm 1.2000 (-0.30z) | lr 1.00e-05 | "
              "220.10 ms | 61.3% peak | 178000 tok/s | ETA 3:20");
    StepRecord s = step40;
    s.loss_z = NAN, s.peak = 0, s.skipped = true;
    progress_line(line, sizeof line, &s, 50, 178000, -1);
    CHECK_STR(line, "step   40/50 | loss 6.500000 | norm 1.2000 (-0.30z) | lr 1.00e-05 | "
                    "220.10 ms | 178000 tok/s | skipped");
}

TEST(progress_time_reads_like_a_clock) {
    static const struct {
        double s;
        const char *text;
    } rows[] = {{0, "0:00"},       {0.6, "0:01"},     {59.4, "0:59"}, {60, "1:00"},
                {3725, "1:02:05"}, {100000, "1d 3h"}, {-5, "0:00"},   {NAN, "0:00"}};
    for (EACH(r, rows)) {
        char text[32];
        progress_time(text, sizeof text, r->s);
        CHECK_STR(text, r->text);
    }
}

TEST(progress_bar_never_exceeds_the_width) {
    char bar[512];
    for (int width = 0; width < 200; width++)
        for (int64_t step = 0; step <= 50; step += 10) {
            StepRecord s = step40;
            s.step = step;
            progress_bar(bar, sizeof bar, width, &s, 50, 178000, 3);
            CHECK((int)strlen(bar) <= width);
        }
    StepRecord s = step40;
    progress_bar(bar, sizeof bar, 100, &s, 80, 178000, 3);
    CHECK_STR(bar,
              "[====================>                   ]   50%  step 40/80  loss 6.5000  178000 "
              "tok/s  ETA 0:03");
}

TEST(progress_of_parts_is_silent_at_first_then_a_line_every_ten_seconds) {
    char line[128];
    OWNED(test_mem_end)
    char *text = PRINTED({
        Progress *p = progress_open(f, 0);
        for (double s = 0; s < 30; s += 0.25) progress_part(p, "searching", s / 60, s);
        progress_close(p);
    });
    CHECK_STR(text, "searching, 0:02, ETA 0:58\nsearching, 0:12, ETA 0:49\n"
                    "searching, 0:22, ETA 0:39\n");
    progress_part_line(line, sizeof line, "searching", 0, 3); // nobody knows
    CHECK_STR(line, "searching, 0:03");
}

TEST(progress_writes_a_line_per_step_into_a_file) {
    char text[4096] = "";
    FILE *f = tmpfile();
    CHECK(f);
    Progress *p = progress_open(f, 3);
    for (int i = 1; i <= 3; i++) {
        StepRecord s = step40;
        s.step = i, s.ms = i == 1 ? 1e6 : 1000, s.tokens_per_s = i == 1 ? 1 : 64;
        progress_step(p, &s);
        progress_part(p, "too soon", 0.5, 1);
        if (i == 2) progress_note(p, "val loss %.6f", 2.5);
    }
    progress_close(p);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    CHECK(strstr(text, "step    1/3 |") == text);
    CHECK(strstr(
        text,
        "64 tok/s | ETA 0:01\nval loss 2.500000\nstep    3/3")); // the slow first step is left out
    CHECK(!strchr(text, '\r') && !strchr(text, 033));
}

/* What a terminal of 30 columns gets of parts of something, two of them too early to be drawn, and
 * of a text that is too long. */
static void draw_on_a_terminal(char *text, size_t n_text) {
    size_t n = 0;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    FILE *f = fopen(ptsname(terminal), "w");
    CHECK(f && ioctl(fileno(f), TIOCSWINSZ, &(struct winsize){24, 30, 0, 0}) == 0);
    Progress *p = progress_open(f, 9);
    progress_part(p, "searching", 0.25, 1);
    progress_part(p, "searching", 0.5, 3);
    progress_part(p, "searching", 0.5, 3.01);
    progress_part(p, "s", 0.5, 60);
    progress_part(p, "searching for a long time", 0.5, 180);
    progress_close(p);
    fclose(f);
    for (ssize_t got; (got = read(terminal, text + n, n_text - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(terminal);
}

TEST(progress_on_a_terminal_is_a_bar_that_leaves_the_last_column_free) {
    char text[4096] = "";
    setenv("TERM", "xterm", 1);
    draw_on_a_terminal(text, sizeof text);
    CHECK_STR(text, "\r\033[Ksearching, 0:03, ETA 0:03"
                    "\r\033[K[====>   ]  s, 1:00, ETA 1:00"
                    "\r\033[Ksearching for a long time, 3:\r\033[K");
}
