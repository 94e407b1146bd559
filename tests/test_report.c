#include "tests/test.h"

#include "base/utf8.h"
#include "data/chart.h"
#include "data/report_page.h"

static const char canned[] =
    "{\"run\":{\"model\":\"layers=2\",\"cpu\":\"two & "
    "more\",\"parameters\":1234567,\"options\":{\"lr\":0.001,\"prompt\":\"</"
    "td><b>\"},\"changed\":[\"lr\"]}}\n"
    "{\"step\":1,\"tokens\":64,\"loss\":4.0,\"norm\":1.5,\"lr\":1e-4,\"ms\":6e4,\"tokens_per_s\":"
    "3200,\"peak\":0.25}\n"
    "{\"step\":2,\"tokens\":128,\"loss\":null,\"norm\":1,\"ms\":null}\n"
    "\n"
    "{\"step\":3,\"tokens\":192,\"loss\":2.0,\"norm\":0.5,\"lr\":3e-4,\"ms\":20,\"tokens_per_s\":"
    "3200}\n"
    "{\"step\":4,\"loss\":1.5,\"skipped\":true}\n"
    "{\"step\":4,\"val_loss\":2.25}\n"
    "{\"step\":4,\"hellaswag\":0.25}\n"
    "{\"step\":5,\"val_loss\":null}\n"
    "{\"step\":4,\"sample\":\"again\"}\n"
    "{\"step\":4,\"sample\":\"<script>alert('x')</script> & so on\"}\n"
    "[1,2]\n"
    "{\"step\":5,\"lo";

// the summary of this run alone, and its row beside others
static const char tiles[] =
    "<div class='tile'><span>train loss</span><b>2.5000</b><span>mean of the last 3 steps</span>"
    "</div>\n<div class='tile'><span>best validation</span><b>2.2500</b><span>at step "
    "4</span></div>"
    "\n<div class='tile'><span>tokens</span><b>192</b><span>in 4 steps</span></div>\n"
    "<div class='tile'><span>time</span><b>1:00</b><span>30.01 s a step</span></div>\n"
    "<div class='tile'><span>tokens / s</span><b>3.2k</b><span>median</span></div>\n"
    "<div class='tile'><span>share of peak</span><b>25.0 %</b><span></span></div>\n"
    "<div class='tile'><span>parameters</span><b>1.23M</b><span></span></div>\n";
static const char row[] = "<td>2.5000</td><td>2.2500</td><td>192</td><td>1:00</td><td>3.2k</td>"
                          "<td>25.0 %</td><td>1.23M</td></tr>";

static char *page_of(const ReportRun *runs, int n) {
    return PRINTED(report_write(f, "A <title>", runs, n));
}

TEST(report_reads_what_is_there) {
    OWNED(report_free) ReportRun r;
    report_read(&r, "run/a.jsonl", canned, sizeof canned - 1);
    CHECK_STR(r.name, "a");
    CHECK(r.lines == 12 && r.bad_lines == 2);
    CHECK(r.loss.n == 4 && r.loss.x[2] == 3 && r.loss.y[2] == 2.0 && isnan(r.loss.y[1]));
    CHECK(r.norm.n == 3 && r.lr.n == 2 && r.val.n == 2 && r.val.y[0] == 2.25);
    CHECK(r.hellaswag.n == 1 && r.peak.n == 1);
    CHECK(r.tokens == 192 && r.steps == 4 && r.n_samples == 1);
    CHECK(r.skipped == 1);
}

TEST(report_takes_the_later_line_of_a_step) {
    static const char twice[] =
        "{\"step\":1,\"loss\":9}\n{\"step\":2,\"loss\":8}\n{\"step\":3,\"loss\":7}\n"
        "{\"step\":2,\"loss\":5}\n";
    OWNED(report_free) ReportRun r;
    report_read(&r, "a", twice, sizeof twice - 1);
    CHECK(r.loss.n == 2 && r.loss.y[0] == 9 && r.loss.y[1] == 5);
}

TEST(report_page_is_whole_and_escaped) {
    ReportRun r[2];
    OWNED(test_mem_end) char *other = test_changed(canned, "2.25", "2.75");
    report_read(&r[0], "a<b", canned, sizeof canned - 1);
    report_read(&r[1], "b&c", other, strlen(other));
    for (int n = 1; n <= 2; n++) {
        OWNED(test_mem_end) char *page = page_of(r, n);
        CHECK(page && strncmp(page, "<!DOCTYPE html>", 15) == 0);
        CHECK(test_balanced(page));
        CHECK(!strstr(page, "<script>alert"));
        CHECK(test_count(page, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; so on") == n);
        CHECK(!strstr(page, "</td><b>") && strstr(page, "&lt;/td&gt;&lt;b&gt;"));
        CHECK(!strstr(page, "http:") && !strstr(page, "https:")); // no network
        CHECK(!strstr(page, "nan") || strstr(page, "nan") > strstr(page, "<script>\n"));
        CHECK(test_count(page, "<svg") == 5); // loss wide and narrow, speed, norm, learning rate
        CHECK(test_count(page, "'chart wide'") == 1 && test_count(page, "'chart narrow'") == 1);
        CHECK(strstr(page, "max-width:640px){.wide{display:none}.narrow{display:block}"));
        CHECK(strstr(page, n > 1 ? row : tiles));
        CHECK(n > 1 || strstr(page, "<p class='sub'>layers=2 &middot; two &amp; more</p>"));
        CHECK(n == 1 || strstr(page, "<th>run</th><th>train loss</th><th>best validation</th>"));
        CHECK(strstr(page, n > 1 ? "writes: b&amp;c</h2>" : "writes</h2>"));
        CHECK(strstr(page, "<h2>The run</h2>") && strstr(page, "<tr><td>cpu</td>"));
        CHECK(n == 1 || (strstr(page, "<td>2.7500</td>") && strstr(page, "<th>b&amp;c</th>")));
        CHECK(strstr(page, "<p class='sub'>Several runs") ? n > 1 : n == 1);
        // what the curves are, in the wide drawing of the loss, the narrow one and the others
        CHECK(test_count(page, "\"label\":\"train, smoothed\"") == (n == 1 ? 2 : 0));
        CHECK(test_count(page, n > 1 ? "\"b\\u0026c, validation\"" : "\"validation\"") == 2);
        CHECK(test_count(page, "\"label\":\"Learning rate\"") == (n == 1));
        // legends: all labels in the wide drawing, two where there is no room for more
        CHECK(test_count(page, "class='key' x=") == (n == 1 ? 3 + 2 : 4 + 2 + 3 * 2));
        // an option that was changed stands in two tables
        CHECK(test_count(page, "<tr><td>lr</td>") == 2);
        CHECK(test_count(page, "<td>prompt</td>") == 1 && strstr(page, "'same'><td>prompt</td>"));
        CHECK(strstr(page, ": 1 updates were skipped as outliers") &&
              strstr(page, "end'>0.5</text>"));
    }
    report_free(&r[0]), report_free(&r[1]);
}

TEST(report_shows_at_most_a_dozen_samples_the_newest_first) {
    char text[25 * 40] = "";
    for (int i = 1; i <= 25; i++)
        sprintf(text + strlen(text), "{\"step\":%d,\"sample\":\"s\"}\n", i);
    OWNED(report_free) ReportRun r;
    report_read(&r, "a", text, strlen(text));
    OWNED(test_mem_end) char *page = page_of(&r, 1);
    CHECK(test_balanced(page) && test_count(page, "<h3>step") == 9); // every third of 25
    const char *newest = strstr(page, "<h3>step 25</h3>"), *rest = strstr(page, "<details>");
    CHECK(newest && rest > newest && strstr(page, "<h3>step 22</h3>") > rest);
}

TEST(report_page_is_utf8_whatever_files_are_called) {
    ReportRun r[2];
    report_read(&r[0], "a\xff", canned, sizeof canned - 1);
    // the legend has room for the first 28 bytes: the last character is cut
    report_read(
        &r[1],
        "a\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9",
        canned, sizeof canned - 1);
    OWNED(test_mem_end) char *page = page_of(r, 2), *clean = utf8_clean(page);
    CHECK_STR(page, clean);
    report_free(&r[0]), report_free(&r[1]);
}

TEST(report_of_nothing_is_still_a_page) {
    static const char *const inputs[] = {"", "garbage\n", "{\"step\":1,\"loss\":2,\"ms\":1500}\n",
                                         "{\"run\":3}\n{\"step\":\"x\"}",
                                         "{\"run\":{\"options\":[]}}\n"};
    for (EACH(input, inputs)) {
        OWNED(report_free) ReportRun r;
        report_read(&r, "a", *input, strlen(*input));
        OWNED(test_mem_end) char *page = page_of(&r, 1);
        CHECK(page && test_balanced(page));
        CHECK(test_count(page, "<svg") == 0 && strstr(page, "Fewer than two steps"));
        CHECK(input != &inputs[2] || strstr(page, "<b>1.5 s</b><span>1500 ms a step</span>"));
    }
}

TEST(report_of_a_long_run_stays_small) {
    enum { STEPS = 50000 };
    static const char *const spikes[] = {"77.25", "1e+300"};
    for (int k = 0; k < 2; k++) {
        OWNED(test_mem_end) char *text = mem_calloc(STEPS, 64);
        size_t n = 0;
        for (int i = 1; i <= STEPS; i++)
            n += (size_t)sprintf(text + n, "{\"step\":%d,\"loss\":%s}\n", i,
                                 i == 30001 ? spikes[k] : "3.5");
        OWNED(report_free) ReportRun r;
        report_read(&r, "a", text, n);
        OWNED(test_mem_end) char *page = page_of(&r, 1);
        CHECK(r.loss.n == STEPS && page && strlen(page) < 300000);
        CHECK(strstr(page, k ? "30001,1e+300" : "30001,77.25")); // the one spike is not lost
        CHECK(test_count(page, ",3.5]") == 4); // nor smeared over all that follows
    }
}

/* Ticks that are closer than doubles are: of steps beyond 2^53, and of subnormal losses. */
TEST(report_ends_where_doubles_are_too_coarse_for_ticks) {
    static const char *const inputs[] = {
        "{\"step\":9000000000000000000,\"loss\":1}\n"
        "{\"step\":9000000000000001024,\"loss\":2}\n",
        "{\"step\":1,\"loss\":5e-324}\n{\"step\":2,\"loss\":1e-323}\n"};
    for (EACH(input, inputs)) {
        OWNED(report_free) ReportRun r;
        report_read(&r, "a", *input, strlen(*input));
        OWNED(test_mem_end) char *page = page_of(&r, 1);
        CHECK(test_balanced(page) && test_count(page, "class='tick'") < 100);
    }
}

TEST(chart_ticks_are_one_two_five) {
    CHECK_NEAR(chart_tick(10, 5), 2, 1e-12);
    CHECK_NEAR(chart_tick(11, 5), 5, 1e-12);
    CHECK_NEAR(chart_tick(0.03, 5), 0.01, 1e-12);
    CHECK_NEAR(chart_tick(5000, 9), 1000, 1e-9);
    char text[32];
    chart_number(text, sizeof text, 1234567);
    CHECK_STR(text, "1.23M");
    chart_number(text, sizeof text, 0.000012);
    CHECK_STR(text, "1.2e-05");
    chart_number(text, sizeof text, -2500);
    CHECK_STR(text, "-2.5k");
    chart_number(text, sizeof text, 999600);
    CHECK_STR(text, "1M");
    chart_number(text, sizeof text, 999400);
    CHECK_STR(text, "999k");
}
