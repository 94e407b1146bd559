#include "data/timeline_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

/* Two ranks, two steps of 8 and 6 ms. */
static const char small[] =
    "{\"traceEvents\":["
    "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":\"rank 0 on here\"}},"
    "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"rank 1 on there\"}},"
    "{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"serial\",\"pid\":0,\"tid\":0,\"ts\":0,\"dur\":8000,"
    "\"args\":{\"step\":4}},"
    "{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"serial\",\"pid\":1,\"tid\":0,\"ts\":1000,\"dur\":"
    "7000},"
    "{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"overlap\",\"pid\":0,\"tid\":0,\"ts\":9000,\"dur\":"
    "6000,"
    "\"args\":{\"step\":5}},"
    "{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"overlap\",\"pid\":1,\"tid\":0,\"ts\":9000,\"dur\":"
    "6000},"
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":0,\"dur\":4000,\"args\":{\"part\":\"products\"}},"
    "{\"cat\":\"collective\",\"pid\":0,\"ts\":4000,\"dur\":3000},"
    "{\"cat\":\"exposed\",\"pid\":0,\"ts\":4000,\"dur\":3000},"
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":7000,\"dur\":500,\"args\":{\"part\":\"update\"}},"
    "{\"cat\":\"kernel\",\"pid\":1,\"ts\":1000,\"dur\":4000,\"args\":{\"part\":\"norms\"}},"
    "{\"cat\":\"exposed\",\"pid\":1,\"ts\":5000,\"dur\":3000},"
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":9000,\"dur\":5000,\"args\":{\"part\":\"products\"}},"
    "{\"cat\":\"collective\",\"pid\":0,\"ts\":10000,\"dur\":5000},"
    "{\"cat\":\"exposed\",\"pid\":0,\"ts\":14000,\"dur\":1000},"
    "{\"cat\":\"kernel\",\"pid\":1,\"ts\":9000,\"dur\":6000,\"args\":{\"part\":\"products\"}},"
    "{\"cat\":\"collective\",\"pid\":1,\"ts\":10000,\"dur\":2000},"
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":20000,\"dur\":1}" // between steps, of nobody's picture
    "],\"otherData\":{\"layout\":\"d2 & <x>\",\"overlap\":\"bulk\",\"model\":\"d12\\u001b[31m\","
    "\"backend\":\"mpi\",\"ranks\":2,\"layers\":["
    "{\"layer\":\"qkv\",\"collectives\":1,\"bytes\":8,\"serial_ms\":3,\"exposed_ms\":0.5}]}}";

static const char drawn[] =
    "step 4, every collective waited for where it starts: 8.00 ms\n"
    "          0 ms      2         4         6\n"
    "rank 0    ████████████████████               ██▄\n"
    "                              ███████████████\n"
    "rank 1         ████████████████████\n"
    "                                   ███████████████\n"
    "\n"
    "step 5, --overlap bulk: 6.00 ms\n"
    "          0 ms      2         4         6\n"
    "rank 0    █████████████████████████\n"
    "               ░░░░░░░░░░░░░░░░░░░░█████\n"
    "rank 1    ██████████████████████████████\n"
    "               ░░░░░░░░░░\n"
    "\n"
    "█ computes   █ below it: exposed, blocked on others   ░ hidden: under way meanwhile\n";

static bool parse(Timeline *t, const char *text, Err *e) {
    return timeline_parse(t, text, strlen(text), e);
}

/* What is drawn (mem_free). */
static char *draw(const Timeline *t, int only, int width, bool colours) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) abort();
    timeline_text(f, t, only, width, colours);
    fclose(f);
    return text;
}

TEST(timeline_draws_every_rank_in_the_terminal) {
    Timeline t;
    Err e;
    CHECK(parse(&t, small, &e));
    CHECK(t.step[0].n == 2 && t.step[1].n == 2);
    CHECK(t.step[0].ms == 8 && t.step[1].ms == 6 && timeline_axis(&t, -1) == 8);
    CHECK(timeline_axis(&t, TIMELINE_OVERLAP) == 6 && t.n_layers == 1);
    char *text = draw(&t, -1, 50, false);
    CHECK_STR(text, drawn);
    mem_free(text);
    text = draw(&t, TIMELINE_OVERLAP, 50, true); // one of them, in colours that are put back
    CHECK(!strstr(text, "step 4") && strstr(text, "\033[38;5;160m█"));
    char *last = text;
    for (char *at = text; (at = strstr(at, "\033[")); at++) last = at;
    CHECK(strncmp(last, "\033[0m", 4) == 0);
    mem_free(text);
    timeline_free(&t);
}

TEST(timeline_has_no_character_that_a_terminal_obeys) {
    Timeline t;
    CHECK(parse(&t, small, NULL));
    CHECK_STR(t.model, "d12?[31m");
    timeline_free(&t);
}

TEST(timeline_refuses_what_is_no_trace_in_words) {
    static const char step[] =
        "{\"cat\":\"step\",\"name\":\"serial\",\"pid\":0,\"ts\":0,\"dur\":5}";
    static const struct {
        const char *events, *words;
    } wrong[] = {
        {"", "no step is in it: train_gpt --trace writes such files"},
        {"{\"cat\":\"step\",\"name\":\"serial\",\"pid\":0,\"ts\":0}", "takes no time"},
        {"{\"cat\":\"kernel\",\"pid\":0,\"ts\":1}", "event 1 lacks one of pid, ts and dur"},
        {"{\"cat\":\"kernel\",\"pid\":-1,\"ts\":1,\"dur\":1}", "event 1 lacks"},
        {"{\"cat\":\"kernel\",\"pid\":0,\"ts\":1,\"dur\":-2}", "ends before it begins"},
        {"{\"cat\":\"kernel\",\"pid\":0,\"ts\":1e300,\"dur\":1e300}", "event 1"},
        {"7, [], \"x\", null", NULL}};
    Timeline t;
    Err e;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bool alone = i < 2;
        char *text = mem_printf("{\"traceEvents\":[%s%s%s]}", alone ? "" : step, alone ? "" : ",",
                                wrong[i].events);
        bool ok = parse(&t, text, &e);
        CHECK(ok == !wrong[i].words);
        if (!ok) CHECK(strstr(e.text, wrong[i].words));
        timeline_free(&t);
        mem_free(text);
    }
    CHECK(!parse(&t, "step 1/8", &e) && strstr(e.text, "no JSON: line 1"));
    CHECK(!parse(&t, "{\"run\":1}", &e) && strstr(e.text, "no \"traceEvents\""));
    CHECK(!parse(&t, "[1]", &e) && strstr(e.text, "no \"traceEvents\""));
}

/* Is microsecond `at` in a span of the row? */
static bool covers(const TimelineRow *r, TimelineKind kind, int at) {
    for (size_t i = 0; i < r->n[kind]; i++)
        if (1e3 * r->span[kind][i].begin <= at && at + 1 <= 1e3 * r->span[kind][i].end + 1e-6)
            return true;
    return false;
}

TEST(timeline_hides_what_is_under_way_and_not_exposed_whatever_overlaps) {
    enum { US = 200, SPANS = 9 };
    for (uint64_t round = 0, at = 0; round < 200; round++) {
        bool under_way[US] = {false}, exposed[US] = {false};
        char text[4096];
        int n = snprintf(text, sizeof text,
                         "{\"traceEvents\":[{\"cat\":\"step\",\"name\":\"overlap\",\"pid\":0,"
                         "\"ts\":0,\"dur\":%d}",
                         US);
        for (int i = 0; i < SPANS; i++) {
            bool wait = rng_u64(5, 0, at++) % 2;
            int begin = (int)(rng_u64(5, 0, at++) % US), dur = (int)(rng_u64(5, 0, at++) % 40);
            if (begin + dur > US) dur = US - begin;
            memset((wait ? exposed : under_way) + begin, true, (size_t)dur);
            n += snprintf(text + n, sizeof text - (size_t)n,
                          ",{\"cat\":\"%s\",\"pid\":0,\"ts\":%d,\"dur\":%d}",
                          wait ? "exposed" : "collective", begin, dur);
        }
        snprintf(text + n, sizeof text - (size_t)n, "]}");
        Timeline t;
        CHECK(parse(&t, text, NULL) && t.step[TIMELINE_OVERLAP].n == 1);
        const TimelineRow *r = t.step[TIMELINE_OVERLAP].row;
        for (int i = 0; i < US; i++) {
            CHECK(covers(r, TIMELINE_EXPOSED, i) == exposed[i]);
            CHECK(covers(r, TIMELINE_HIDDEN, i) == (under_way[i] && !exposed[i]));
        }
        for (int kind = 0; kind < TIMELINE_KINDS; kind++)
            for (size_t i = 1; i < r->n[kind]; i++)
                CHECK(r->span[kind][i - 1].end <= r->span[kind][i].begin);
        timeline_free(&t);
    }
}

/* ---- the programs */

TEST(timeline_draws_what_train_gpt_traced) {
    const char *dir = test_tmpdir();
    static char text[1 << 16];
    uint16_t tokens[4000];
    char path[200];
    for (int i = 0; i < 4000; i++) tokens[i] = (uint16_t)(i * i % 61);
    snprintf(path, sizeof path, "%s/train.bin", dir);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(tokens, sizeof tokens, 1, f) == 1 && fclose(f) == 0);
    static const char train[] =
        "$BUILD/train_gpt --train train.bin --model "
        "layers=2,heads=4,channels=32,seq=16,vocab=61 --batch 384 --micro 2 "
        "--eval-every 0 --threads 1 --ledger none --ranks 4";
    // six micro-batches: the plan holds two of them
    CHECK(test_shell(dir, text, sizeof text,
                     "%s --steps 7 --layout auto --calibrate none --refine 0 --trace trace.json",
                     train) == 0);
    CHECK(strstr(text, "trace: step 4 waits where it starts") &&
          strstr(text, "step 5 is --overlap"));
    CHECK(test_shell(dir, text, sizeof text, "$BUILD/timeline trace.json --width 70") == 0);
    CHECK(strstr(text, "\nrank 0 ") && strstr(text, "\nrank 3 "));
    CHECK(strstr(text, "blocked on ") && strstr(text, "\n  all "));
    // of two steps both, of one none
    CHECK(test_shell(dir, text, sizeof text, "%s --steps 2 --layout x2.y2 --trace two.json",
                     train) == 0);
    CHECK(strstr(text, "trace: step 1 waits"));
    CHECK(test_shell(dir, text, sizeof text, "%s --steps 1 --layout x2.y2 --trace one.json",
                     train) == 0);
    CHECK(strstr(text, "needs 2 steps"));
    CHECK(test_shell(dir, text, sizeof text, "ls one.json") != 0);
}
