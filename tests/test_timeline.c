#include "data/timeline_text.h"

#include "base/rng.h"
#include "tests/shell.h"

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
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":0,\"dur\":4000,\"args\":{\"part\":\"matmuls\"}},"
    "{\"cat\":\"collective\",\"pid\":0,\"ts\":4000,\"dur\":3000},"
    "{\"cat\":\"exposed\",\"pid\":0,\"ts\":4000,\"dur\":3000},"
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":7000,\"dur\":500,\"args\":{\"part\":\"update\"}},"
    "{\"cat\":\"kernel\",\"pid\":1,\"ts\":1000,\"dur\":4000,\"args\":{\"part\":\"norms\"}},"
    "{\"cat\":\"exposed\",\"pid\":1,\"ts\":5000,\"dur\":3000},"
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":9000,\"dur\":5000,\"args\":{\"part\":\"matmuls\"}},"
    "{\"cat\":\"collective\",\"pid\":0,\"ts\":10000,\"dur\":5000},"
    "{\"cat\":\"exposed\",\"pid\":0,\"ts\":14000,\"dur\":1000},"
    "{\"cat\":\"kernel\",\"pid\":1,\"ts\":9000,\"dur\":6000,\"args\":{\"part\":\"matmuls\"}},"
    "{\"cat\":\"collective\",\"pid\":1,\"ts\":10000,\"dur\":2000},"
    "{\"cat\":\"kernel\",\"pid\":0,\"ts\":20000,\"dur\":1}" // between steps, of nobody's picture
    "],\"otherData\":{\"layout\":\"d2 & <x>\",\"overlap\":\"bulk\",\"model\":\"d12\\u001b[31m\","
    "\"backend\":\"mpi\",\"ranks\":2}}";

static const char drawn[] =
    "d2 & <x> on 2 ranks (mpi): d12?[31m\n\n"
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

/* What is drawn (mem_free); NULL: nothing, for e. */
static char *draw(const char *trace, int only, int width, bool colours, Err *e) {
    bool ok;
    char *text = PRINTED(ok = timeline_draw(f, trace, strlen(trace), only, width, colours, e));
    if (ok != (*text != 0)) abort();
    if (!ok) mem_free(text);
    return ok ? text : NULL;
}

TEST(timeline_draws_every_rank_in_the_terminal) {
    OWNED(test_mem_end) char *both = draw(small, -1, 50, false, NULL);
    CHECK_STR(both, drawn);
    // one of them, in colours that are put back
    OWNED(test_mem_end) char *text = draw(small, TIMELINE_OVERLAP, 50, true, NULL);
    CHECK(!strstr(text, "step 4") && strstr(text, "\033[38;5;160m█"));
    CHECK(strstr(text, "\033[0m\nrank 1"));
    CHECK(strstr(text, "█\033[0m computes") && strstr(text, "█\033[0m below it"));
    char *last = text;
    for (char *at = text; (at = strstr(at, "\033[")); at++) last = at;
    CHECK(strncmp(last, "\033[0m", 4) == 0);
    OWNED(test_mem_end) char *parts = draw(small, TIMELINE_SERIAL, 50, true, NULL);
    CHECK(test_count(parts, "\033[38;5;25m█") == 2); // matmuls, and the words below
    CHECK(!strstr(parts, "step 5"));
    CHECK(strstr(parts, "\033[38;5;97m█") && strstr(parts, "\033[38;5;110m█")); // update, norms
}

TEST(timeline_refuses_what_is_no_trace_in_words) {
    static const char step[] =
        "{\"cat\":\"step\",\"name\":\"serial\",\"pid\":0,\"ts\":0,\"dur\":5}";
    static const struct {
        const char *events, *words;
    } wrong[] = {
        {"", "the file has no steps; name a file that train_gpt --trace wrote"},
        {"{\"cat\":\"step\",\"name\":\"serial\",\"pid\":0,\"ts\":0}", "has no duration"},
        {"{\"cat\":\"kernel\",\"pid\":0,\"ts\":1}", "event 1 lacks one of pid, ts and dur"},
        {"{\"cat\":\"kernel\",\"pid\":-1,\"ts\":1,\"dur\":1}", "event 1 lacks"},
        {"{\"cat\":\"kernel\",\"pid\":0,\"ts\":1,\"dur\":-2}", "ends before it begins"},
        {"{\"cat\":\"kernel\",\"pid\":0,\"ts\":1e300,\"dur\":1e300}", "event 1"},
        {"7, [], \"x\", null", NULL}};
    Err e;
    for (int i = 0; i < N_OF(wrong); i++) {
        bool alone = i < 2;
        OWNED(test_mem_end)
        char *trace = mem_printf("{\"traceEvents\":[%s%s%s]}", alone ? "" : step, alone ? "" : ",",
                                 wrong[i].events);
        OWNED(test_mem_end) char *text = draw(trace, -1, 50, false, &e);
        CHECK(!text == (wrong[i].words != NULL));
        if (!text) CHECK(strstr(e.text, wrong[i].words));
    }
    CHECK_REFUSED(draw("step 1/8", -1, 50, false, &e), e, "no JSON: line 1");
    CHECK_REFUSED(draw("{\"run\":1}", -1, 50, false, &e), e, "no \"traceEvents\"");
    CHECK_REFUSED(draw("{\"run\":{}}\n{\"step\":1}\n", -1, 50, false, &e), e,
                  "a record of a run (--json), which gpt-report shows: name a file that train_gpt "
                  "--trace wrote");
    CHECK_REFUSED(draw("[1]", -1, 50, false, &e), e, "no \"traceEvents\"");
    OWNED(test_mem_end) char *serial = mem_printf("{\"traceEvents\":[%s]}", step);
    CHECK_REFUSED(draw(serial, TIMELINE_OVERLAP, 50, false, &e), e, "does not have this --step");
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
        char want[4 * US + 40] = "\n          ";
        OWNED(test_mem_end) char *drawing = draw(text, -1, 10 + US / 2, false, NULL);
        size_t end = 0;                   // of what is no blank
        for (int i = 0; i < US; i += 2) { // a column is two microseconds
            int e = exposed[i] + exposed[i + 1];
            int hidden = (under_way[i] && !exposed[i]) + (under_way[i + 1] && !exposed[i + 1]);
            const char *bar = e == 2 ? "█" : e == 1 ? "▄" : " ";
            strcat(want, hidden > e ? "░" : bar);
            if (hidden || e) end = strlen(want);
        }
        want[end] = 0;
        CHECK(drawing && strstr(drawing, strcat(want, "\n")));
    }
}

/* ---- the programs */

TEST(timeline_draws_what_train_gpt_traced) {
    const char *dir = shell_directory(4000);
    static const char train[] =
        "$BUILD/train_gpt --train train.bin --model "
        "layers=2,heads=4,channels=32,seq=16,vocab=61 --batch 384 --micro 2 "
        "--eval-every 0 --threads 1 --ledger none --ranks 4";
    // six micro-batches: the plan holds two of them
    SHELL(0, "", "%s --steps 7 --layout auto --calibrate none --refine 0 --trace trace.json",
          train);
    CHECK(strstr(said, "trace: step 3 waits where it starts") &&
          strstr(said, "step 4 is --overlap"));
    SHELL(0, "", "$BUILD/timeline trace.json --width 70");
    CHECK(strstr(said, "\nrank 0 ") && strstr(said, "\nrank 3 "));
    // no terminal is 100 columns wide
    SHELL(0, "differ",
          "draw() { $BUILD/timeline trace.json $*; }; draw --width 100 >100 && "
          "draw | cmp - 100 && ! draw --width 50 | cmp - 100");
    SHELL(0, "", "%s --steps 3 --layout x2.y2 --trace few.json", train);
    CHECK(strstr(said, "trace: needs 4 steps, the run has 3"));
    SHELL(1, "", "test -e few.json");
}
