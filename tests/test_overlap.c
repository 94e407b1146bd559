/* parallel/step/overlap: the words of --overlap. */
#include "parallel/step/overlap.h"
#include "tests/parsed.h"
#include "tests/test.h"

TEST(overlap_words_go_there_and_back) {
    static const char *const texts[] = {"none",
                                        "bulk",
                                        "fused",
                                        "bulk+chunk=8",
                                        "bulk+ring",
                                        "bulk+halves",
                                        "bulk+fused",
                                        "bulk+chunk=3+halves",
                                        "bulk+ring+halves",
                                        "bulk+fused+halves"};
    for (int i = 0; i < N_OF(texts); i++) {
        Overlap o, again;
        char text[OVERLAP_TEXT];
        CHECK(overlap_parse(&o, texts[i], NULL));
        CHECK_STR(overlap_print(&o, text), texts[i]);
        CHECK(overlap_parse(&again, text, NULL) && overlap_equal(&o, &again));
        for (int k = 0; k < i; k++)
            CHECK(overlap_parse(&again, texts[k], NULL) && !overlap_equal(&o, &again));
    }
}

TEST(overlap_by_chunk_ring_or_halves_includes_bulk) {
    static const char *const rows[][2] = {{"chunk=2", "bulk+chunk=2"},
                                          {"ring", "bulk+ring"},
                                          {"halves", "bulk+halves"},
                                          {"halves+bulk", "bulk+halves"},
                                          {"fused+halves", "bulk+fused+halves"}};
    for (int i = 0; i < N_OF(rows); i++) {
        Overlap o;
        char text[OVERLAP_TEXT];
        CHECK(overlap_parse(&o, rows[i][0], NULL));
        CHECK_STR(overlap_print(&o, text), rows[i][1]);
    }
}

TEST(overlap_says_what_is_wrong) {
    static const char *const rows[][2] = {{"bulks", "did you mean bulk?"},
                                          {"", "unknown flag \"\""},
                                          {"bulk+", "unknown flag \"\""},
                                          {"none+bulk", "unknown flag \"none\""},
                                          {"chunk=1", "2 to 8"},
                                          {"chunk=9", "2 to 8"},
                                          {"chunk=", "2 to 8"},
                                          {"chunk=2x", "2 to 8"},
                                          {"chunk= 3", "2 to 8"},
                                          {"chunk=+3", "2 to 8"},
                                          {"halfs", "did you mean halves?"},
                                          {"bulk+bulk", "twice"},
                                          {"chunk=2+chunk=3", "twice"},
                                          {"ring+chunk=2", "not by both"},
                                          {"fused+ring", "not both"},
                                          {"bulk+chunk=2+fused", "not both"}};
    for (int i = 0; i < N_OF(rows); i++) {
        Overlap o;
        Err e = {""};
        CHECK_REFUSED(overlap_parse(&o, rows[i][0], &e), e, rows[i][1]);
    }
}

/* Words that hide nothing on a layout; "": they do. */
TEST(overlap_says_where_it_is_idle) {
    static const char *const rows[][3] = {{"x2", "ring", "along no axis"},
                                          {"y2+sp", "fused", "along no axis"},
                                          {"x2.y2+stay=y", "fused", "along no axis"},
                                          {"x15+sp", "ring", ""},
                                          {"x16+sp", "ring", "15 ranks"},
                                          {"x2.y2+stay=y", "chunk=2", "in panels"},
                                          {"d2", "chunk=2", "no collective"},
                                          {"y2", "chunk=2", ""},
                                          {"x256+sp", "chunk=2", ""},
                                          {"x512+sp", "chunk=2", "256 ranks"},
                                          {"d2", "bulk+halves", ""}};
    for (int i = 0; i < N_OF(rows); i++) {
        Layout l = layout_of(rows[i][0]);
        Overlap o = overlap_of(rows[i][1]);
        const char *why = overlap_idle(&o, &l);
        CHECK_SAYS((why != NULL) == (*rows[i][2] != 0) && strstr(why ? why : "", rows[i][2]),
                   "%s with %s: %s", rows[i][0], rows[i][1], why ? why : "not idle");
    }
}
