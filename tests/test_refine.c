#include "parallel/plan/refine.h"

#include "parallel/comm/ranks.h"
#include "tests/test.h"

/* A run that only notes what it is asked: a letter for each step, a capital for a move. */
typedef struct Fake {
    char text[128];
    const double *seconds; // of a step of each candidate
    int at, left,
        refused; // candidate; steps until training ends; candidate to which it cannot move, or -1
    int first;   // steps since the move
    int lucky;   // of those, one that takes a tenth; 0: none
} Fake;

static void write(Fake *f, char letter) {
    f->text[strlen(f->text)] = letter;
}
static bool move(void *ctx, int candidate) {
    Fake *f = ctx;
    if (candidate == f->refused) return false;
    write(f, (char)('A' + candidate));
    f->at = candidate, f->first = 1;
    return true;
}
static bool step(void *ctx, double *seconds) {
    Fake *f = ctx;
    if (f->left-- == 0) return false;
    write(f, (char)('a' + f->at));
    // the first step after a move tells nothing, and one of the others was disturbed
    *seconds = f->seconds[f->at] * (f->first == 1 ? 0.01 : f->first == 2 ? 3 : 1);
    if (f->first == f->lucky) *seconds /= 10;
    f->first++;
    return true;
}
static Fake fake(const double *seconds) {
    return (Fake){.seconds = seconds, .left = 100, .refused = -1, .first = 1};
}

static int run(Fake *f, int n, double *seconds) {
    return refine_run(&group_alone, &(Refine){n, REFINE_LEAST, f, move, step}, seconds);
}

TEST(refine_trains_on_each_and_stays_on_the_fastest) {
    double s[3];
    Fake f = fake((double[]){3, 1, 2});
    CHECK(run(&f, 3, s) == 1 && s[0] == 3 && s[1] == 1 && s[2] == 2);
    CHECK_STR(f.text, "aaaBbbbCcccB");
    f = fake((double[]){3, 2, 1}); // the last one: it need not move again
    CHECK(run(&f, 3, s) == 2);
    CHECK_STR(f.text, "aaaBbbbCccc");
    f = fake((double[]){1, 2, 1}); // as fast: the likelier one
    CHECK(run(&f, 3, s) == 0);
    CHECK_STR(f.text, "aaaBbbbCcccA");
}

TEST(refine_ends_where_training_ends) {
    double s[3];
    Fake f = fake((double[]){1, 2, 3});
    f.left = 4;
    CHECK(run(&f, 3, s) == 1 && s[0] == 1 && s[1] == 0 && s[2] == 0);
    CHECK_STR(f.text, "aaaBb"); // and it is not moved back for nothing
}

TEST(refine_passes_over_what_cannot_be_laid_out) {
    double s[3];
    Fake f = fake((double[]){3, 1, 2});
    f.refused = 1;
    CHECK(run(&f, 3, s) == 2 && s[1] == 0);
    CHECK_STR(f.text, "aaaCccc");
}

/* Ranks measure different times; all go where rank 0 does. */
static int ranks_main(World *w, void *ctx) {
    int *chosen = ctx, rank = world_rank(w);
    double s[2];
    Fake f = fake(rank ? (double[]){1, 2} : (double[]){2, 1});
    Group g = comm_group(world_comm(w));
    chosen[rank] = refine_run(&g, &(Refine){2, REFINE_LEAST, &f, move, step}, s);
    return 0;
}
TEST(refine_leads_all_ranks_to_the_same_layout) {
    int chosen[3] = {7, 7, 7};
    ranks_run(3, ranks_main, chosen);
    for (int i = 0; i < 3; i++) CHECK(chosen[i] == 1);
}

TEST(refine_makes_more_of_short_steps_and_takes_their_lower_quartile) {
    CHECK(refine_steps(3, 1, 1000) == 3 && refine_steps(3, 30, 1e6) == 3);
    CHECK(refine_steps(3, 0.25, 1000) == 5);
    CHECK(refine_steps(3, 0.05, 1000) == 20 && refine_steps(3, 1e-3, 1e6) == 20);
    CHECK(refine_steps(3, 0.05, 300) == 10); // a tenth of the run
    CHECK(refine_steps(3, 0.05, 20) == 3);
    double s[2];
    Fake f = fake((double[]){2, 3}); // a first step, a disturbed one, two of 2 seconds: 2
    CHECK(refine_run(&group_alone, &(Refine){2, 4, &f, move, step}, s) == 0 && s[0] == 2 &&
          s[1] == 3);
    CHECK_STR(f.text, "aaaaBbbbbA");
    for (int i = 0; i < 2; i++) { // one lucky step of ten does not make a layout the fastest
        f = fake((double[]){2, 3}), f.lucky = 5;
        CHECK(refine_run(&group_alone, &(Refine){2, i ? 11 : 3, &f, move, step}, s) == 0);
        CHECK(s[1] == 3);
    }
}

TEST(refine_pays_where_the_steps_that_are_left_earn_the_moves) {
    CHECK(refine_pays(2, 0.1, 1, 1000, 5));     // 99 s of 994 against 10
    CHECK(!refine_pays(2, 0.1, 1, 100, 5));     // 9.4 against 10
    CHECK(!refine_pays(2, 0.001, 1, 1000, 5));  // predictions are that good
    CHECK(!refine_pays(1, 0.5, 1, 1000000, 0)); // nothing to try
    CHECK(!refine_pays(3, 1, 1, 8, 0));         // over before they have been tried
}
