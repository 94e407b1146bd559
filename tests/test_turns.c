/* base/turns: two computations of one thread. */
#include <string.h>

#include "base/turns.h"
#include "tests/test.h"

typedef struct Talk {
    Turns *turns;
    char letter;
    int times;
    char *text;
} Talk;

static void say(void *ctx) {
    Talk *t = ctx;
    for (int i = 0; i < t->times; i++) {
        char deep[20000]; // a stack that holds something
        memset(deep, t->letter, sizeof deep);
        turns_yield(t->turns);
        char word[] = {deep[sizeof deep - 1], 0};
        strcat(t->text, word);
    }
}

static void talk(Turns *turns, int a, int b, char text[64]) {
    Talk one = {turns, 'a', a, text}, two = {turns, 'b', b, text};
    text[0] = 0;
    turns_run(turns, say, &one, &two);
}

TEST(turns_alternate_and_the_longer_one_ends_alone) {
    char text[64];
    Turns *t = turns_create();
    talk(t, 3, 3, text);
    CHECK_STR(text, "ababab");
    talk(t, 1, 4, text);
    CHECK_STR(text, "abbbb");
    talk(t, 5, 2, text);
    CHECK_STR(text, "ababaaa");
    talk(t, 0, 2, text);
    CHECK_STR(text, "bb");
    talk(t, 2, 0, text);
    CHECK_STR(text, "aa");
    turns_free(t);
}
