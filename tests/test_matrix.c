/* The bandwidth between every two ranks: who meets whom, and what is printed. */
#include <stdlib.h>
#include <string.h>

#include "parallel/comm/ranks.h"
#include "parallel/plan/detect_parts.h"
#include "tests/test.h"

TEST(detect_matrix_is_a_tournament) {
    for (int p = 2; p <= 33; p++) {
        bool met[33][33] = {{0}};
        for (int round = 0; round < p - 1 + p % 2; round++)
            for (int r = 0; r < p; r++) {
                int other = matrix_partner(r, p, round);
                if (other < 0 && p % 2) continue; // rests
                CHECK(other >= 0 && other < p && other != r);
                CHECK(matrix_partner(other, p, round) == r);
                CHECK(!met[r][other]);
                met[r][other] = true;
            }
        for (int r = 0; r < p; r++)
            for (int c = 0; c < p; c++) CHECK(met[r][c] == (r != c));
    }
}

static int print_matrix(World *w, void *ctx) {
    detect_matrix(w, ctx);
    return 0;
}

/* Numbers above 0 in the rows of ranks; -1 when a row has another number of columns. */
static int cells(const char *text, int p) {
    int n = 0;
    for (int r = 0; r < p; r++) {
        char begin[16], field[16];
        int used;
        snprintf(begin, sizeof begin, "%4d ", r);
        const char *row = text;
        for (int line = 0; line < 3 + r && row; line++) row = strchr(row, '\n') + 1;
        row = strstr(row, begin) + 4;
        for (int c = 0; c < p; c++, row += used) {
            if (sscanf(row, "%15s%n", field, &used) != 1) return -1;
            if ((r == c) != (strcmp(field, ".") == 0)) return -1;
            n += r != c && atof(field) > 0;
        }
        if (*row != '\n') return -1;
    }
    return n;
}

TEST(detect_matrix_measures_every_pair) {
    for (int p = 2; p <= 5; p++) {
        char text[4096] = "", pairs[32];
        FILE *f = fmemopen(text, sizeof text, "w");
        CHECK(f);
        CHECK(ranks_run(p, print_matrix, f) == 0);
        fclose(f);
        CHECK(cells(text, p) == p * (p - 1));
        snprintf(pairs, sizeof pairs, "same node   %6d ", p * (p - 1) / 2);
        CHECK(strstr(text, pairs));
        CHECK(!strstr(text, "other node"));
    }
}

TEST(detect_matrix_of_many_ranks_is_a_sample) {
    char text[4096] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    CHECK(f);
    CHECK(ranks_run(19, print_matrix, f) == 0); // 19 rounds of 9 pairs, of which 16 are played
    fclose(f);
    CHECK(strncmp(text, "GB/s         pairs", 18) == 0);
    CHECK(strstr(text, "same node      144 "));
}
