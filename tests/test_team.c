#include "base/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/test.h"

typedef struct Roll {
    Team *team;
    _Atomic int calls[16];
    _Atomic int wrong, arrived;
} Roll;

static void roll_end(Roll *r) {
    team_destroy(r->team);
}

static void roll_call(void *ctx, int member, int size) {
    Roll *r = ctx;
    if (size != team_size(r->team)) r->wrong++;
    r->calls[member]++;
}

TEST(team_run_calls_every_member_once) {
    for (int n = 1; n <= 8; n += 2) {
        OWNED(roll_end) Roll r = {.team = team_create(n)};
        CHECK(team_size(r.team) == n);
        for (int i = 0; i < 40; i++) team_run(r.team, roll_call, &r);
        CHECK(r.wrong == 0);
        for (int m = 0; m < 16; m++) CHECK(r.calls[m] == (m < n ? 40 : 0));
    }
}

TEST(team_wakes_members_that_sleep) {
    OWNED(roll_end) Roll r = {.team = team_create(3)};
    for (int i = 0; i < 5; i++) {
        usleep(20000); // far longer than they spin
        team_run(r.team, roll_call, &r);
    }
    for (int m = 0; m < 3; m++) CHECK(r.calls[m] == 5);
}

TEST(team_of_zero_takes_every_core) {
    Team *t = team_create(0);
    CHECK(team_size(t) >= 1 && team_size(t) <= sysconf(_SC_NPROCESSORS_ONLN));
    team_destroy(t);
    team_destroy(NULL);
}

TEST(team_of_all_cores_ties_its_caller_to_one_until_told_otherwise) {
    int cores = team_cores();
    Team *t = team_create(cores);
    CHECK(team_cores() == 1);
    team_unpin_caller(t);
    CHECK(team_cores() == cores);
    team_destroy(t);
    CHECK(team_cores() == cores);
}

TEST(team_shares_follow_how_fast_members_are) {
    static const double speed[] = {1, 1, 0.5}, want[] = {0, 0.4, 0.8, 1};
    OWNED(test_team_end) Team *t = team_create(3);
    const double *share = team_shares(t);
    for (int i = 0; i <= 3; i++) CHECK_NEAR(share[i], i / 3.0, 1e-12);
    for (int turn = 0; turn < 100; turn++, share = team_shares(t))
        for (int i = 0; i < 3; i++) {
            double work = share[i + 1] - share[i];
            team_report(t, i, work, work / speed[i]);
        }
    for (int i = 0; i <= 3; i++) CHECK_NEAR(share[i], want[i], 1e-3);
    team_report(t, 0, 1, 1), team_report(t, 1, 1, 1), team_report(t, 2, 0, 1); // had nothing to do
    share = team_shares(t);
    CHECK_NEAR(share[2], 0.8, 1e-3);
    for (int turn = 0; turn < 100; turn++, share = team_shares(t)) // the last one stands still
        team_report(t, 0, 1, 1), team_report(t, 1, 1, 1), team_report(t, 2, 1, 1e9);
    CHECK(share[2] < 0.99); // its share is large enough to be measured again
}

/* Between two barriers all members see the same count of arrivals. */
static void meet(void *ctx, UNUSED int member, int size) {
    Roll *r = ctx;
    for (int round = 1; round <= 30; round++) {
        r->arrived++;
        team_barrier(r->team);
        if (r->arrived != round * size) r->wrong++;
        team_barrier(r->team);
    }
}

TEST(team_barrier_holds_all_back) {
    for (int n = 1; n <= 5; n++) {
        OWNED(roll_end) Roll r = {.team = team_create(n)};
        team_run(r.team, meet, &r);
        team_run(r.team, roll_call, &r); // and the team is still whole
        CHECK(r.wrong == 0 && r.arrived == 30 * n && r.calls[n - 1] == 1);
    }
}

typedef struct Pieces {
    int64_t grain;
    _Atomic int hits[300];
    _Atomic int wrong;
    bool whole; // a team of one gets everything in one piece
} Pieces;

static void mark(void *ctx, int64_t begin, int64_t end) {
    Pieces *p = ctx;
    if (begin >= end || (!p->whole && (begin % p->grain != 0 || end - begin > p->grain)))
        p->wrong++;
    for (int64_t i = begin; i < end; i++) p->hits[i]++;
}

TEST(team_for_cuts_at_multiples_of_the_grain) {
    static const int64_t grains[] = {1, 7, 299, 300, 301, 1 << 20};
    for (int n = 1; n <= 4; n++) {
        OWNED(test_team_end) Team *t = team_create(n);
        for (EACH(one, grains))
            for (int64_t items = 0; items <= 300; items += 50) {
                Pieces p = {.grain = *one, .whole = n == 1};
                team_for(t, items, p.grain, mark, &p);
                CHECK(p.wrong == 0);
                for (int64_t i = 0; i < 300; i++) CHECK(p.hits[i] == (i < items));
            }
    }
}

/* ---- polls */

typedef struct Polls {
    pthread_t caller;
    int wanted, calls, wrong;
} Polls;

static void count_poll(void *ctx) {
    Polls *p = ctx;
    p->calls++;
    p->wrong += !pthread_equal(pthread_self(), p->caller) || !p->wanted;
}

static void sleep_ms(UNUSED void *ctx, int64_t begin, int64_t end) {
    usleep((unsigned)(end - begin) * 1000);
}

TEST(team_polls_between_pieces_while_it_is_wanted) {
    for (int n = 1; n <= 3; n++) {
        OWNED(test_team_end) Team *t = team_create(n);
        Polls p = {.caller = pthread_self()};
        team_set_poll(t, &p.wanted, count_poll, &p);
        team_for(t, 12, 1, sleep_ms, NULL);
        CHECK(p.calls == 0);
        p.wanted = 1;
        team_for(t, 12, 1, sleep_ms, NULL);
        // of twelve pieces of more than half a millisecond the caller takes all, or its share; a
        // busy machine may give it less, but never none
        CHECK(p.calls == 12 || (n > 1 && p.calls >= 1 && p.calls < 12));
        p.calls = 0;
        team_for(t, 3, 100, sleep_ms, NULL);
        CHECK(p.calls == 1 && p.wrong == 0); // one piece
        p.calls = 0;
        for (int i = 0; i < 1000; i++) team_poll(t);
        CHECK(
            p.calls <
            100); // not as often as it could, even if something else has the processor now and then
    }
    team_poll(NULL);
}
