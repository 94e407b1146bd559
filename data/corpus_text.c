#include "data/corpus_text.h"

#include <assert.h>
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

/* ---- the world ------------------------------------------------------------------------------- */

typedef struct Person {
    const char *name, *job, *home;
    bool she;
} Person;

static const Person people[] = {
    {"Anna", "baker", "by the mill", true},
    {"Ben", "fisherman", "at the harbour", false},
    {"Clara", "teacher", "beside the school", true},
    {"David", "farmer", "behind the hill", false},
    {"Emma", "doctor", "on Market Street", true},
    {"Felix", "carpenter", "near the forest", false},
    {"Grace", "gardener", "next to the old church", true},
    {"Henry", "smith", "at the crossroads", false},
    {"Ida", "weaver", "above the shop", true},
    {"Jonas", "miller", "by the river", false},
    {"Kate", "postwoman", "near the station", true},
    {"Leo", "shepherd", "in the valley", false},
    {"Mary", "innkeeper", "on the square", true},
    {"Nathan", "clockmaker", "under the tower", false},
    {"Olive", "artist", "in the attic", true},
    {"Peter", "ferryman", "across the lake", false},
};

typedef struct Noun {
    const char *one, *many;
} Noun;

static const Noun goods[] = {
    {"apple", "apples"},   {"egg", "eggs"},     {"candle", "candles"}, {"nail", "nails"},
    {"loaf", "loaves"},    {"onion", "onions"}, {"book", "books"},     {"button", "buttons"},
    {"orange", "oranges"}, {"coin", "coins"},   {"berry", "berries"},  {"stone", "stones"},
};

static const char *const things[] = {"key",  "lantern", "umbrella", "hat",      "letter",
                                     "ring", "axe",     "flute",    "envelope", "map",
                                     "iron", "kettle",  "coat",     "inkwell"};
static const char *const colours[] = {"red",    "blue",   "old",   "green",
                                      "orange", "yellow", "ivory", "black"};
static const char *const places[] = {"under the bridge",  "in the kitchen",   "behind the barn",
                                     "on the table",      "beside the well",  "in the cellar",
                                     "on the roof",       "under the bed",    "at the market",
                                     "near the oak tree", "in the garden",    "at the inn",
                                     "behind the stove",  "on the windowsill"};
static const char *const days[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                   "Friday", "Saturday", "Sunday"};

const char *corpus_number(int i) {
    static const char *const words[] = {
        "zero",        "one",        "two",          "three",        "four",
        "five",        "six",        "seven",        "eight",        "nine",
        "ten",         "eleven",     "twelve",       "thirteen",     "fourteen",
        "fifteen",     "sixteen",    "seventeen",    "eighteen",     "nineteen",
        "twenty",      "twenty-one", "twenty-two",   "twenty-three", "twenty-four",
        "twenty-five", "twenty-six", "twenty-seven", "twenty-eight", "twenty-nine",
        "thirty",      "thirty-one", "thirty-two",   "thirty-three", "thirty-four",
        "thirty-five", "thirty-six", "thirty-seven", "thirty-eight", "thirty-nine",
        "forty"};
    return i >= 0 && i <= 40 ? words[i] : NULL;
}

/* ---- the grammar ----------------------------------------------------------------------------- */

/* In a rule:
 *   [name] one of that rule's alternatives   ^ capital letter   @ a or an, as the next word asks
 *   %A %B names of two people    %1 %2 %3 he him his of A      %4 %5 %6 of B
 *   %J %K their trades           %H %I their homes             %O a thing   %C its colour
 *   %P its place   %Q another    %D a day   %E the next day    %n %m numbers   %s their sum
 *   %f %g %t the goods: as n asks, many, as s asks             %v is/are %w was/were as n asks
 *   %b is/are as m asks        %! draws new numbers */
typedef struct Rule {
    const char *name;
    const char *options[12];
} Rule;

static const Rule rules[] = {
    {"story", {"[lost]", "[count]", "[school]"}},

    // a thing is lost and found where it was put
    {"lost", {"[put][ask][find]", "[put][search][ask][find]", "[who][put][search][find]"}},
    {"who",
     {"^%A was the %J of the town and lived %H. [mood]\n",
      "^there was once @ %J called %A, who lived %H. [mood]\n",
      "^everyone knew %A, the %J. ^%1 lived %H. [mood]\n"}},
    {"mood",
     {"^%1 was always cheerful, and %3 friend %B was always busy.",
      "^%3 best friend was %B, the %K, who lived %I.",
      "^in the evening %1 liked to sit with %B, the %K.",
      "^nobody worked harder than %2, except perhaps %B, the %K."}},
    {"put",
     {"^on %D %A had @ %C %O. ^%1 put the %O %P and went home. [weather]\n",
      "^one [time] %A, the %J, left %3 %C %O %P. [weather] ^then %1 forgot all about it.\n",
      "^%A bought @ %C %O from %B, the %K. ^%1 hid it %P, because it was worth a great deal.\n"}},
    {"search",
     {"^on %E %A wanted the %C %O. ^%1 looked %Q, but the %O was not there. ^%1 looked everywhere "
      "else. \"^where can it be?\" %1 thought.\n",
      "^%1 searched %Q all [time], and found nothing but @ [small].\n",
      "^the next day was %E. ^%A could not find the %O. ^it was not %Q. ^%1 was very [sad].\n"}},
    {"ask",
     {"\"^have you seen my %O?\" asked %A.\n\"^what does it look like?\" asked %B.\n\"^it is %C,\" "
      "said %A.\n\"^then it is %P,\" said %B. \"^i saw it there on %D.\"\n",
      "%A asked %B, the %K, for help. \"^where is my %C %O?\" asked %A. \"^it is %P,\" said %B, "
      "and %4 was right.\n",
      "\"^why are you so [sad]?\" asked %B.\n\"^because my %O is gone,\" said %A.\n\"^look %P,\" "
      "said %B. \"^that is where you put it.\"\n"}},
    {"find",
     {"^so %A went to look, and there, %P, was the %C %O. ^%1 thanked %B and gave %5 @ [small].\n",
      "^and indeed the %O was %P. \"^thank you, %B!\" cried %A. \"^you are a good friend.\"\n",
      "^at last %A found the %O %P. ^it was as %C as before. ^%1 took it home, and after that %1 "
      "never lost it again.\n"}},

    // goods are counted
    {"count", {"[gather][more]", "[gather][more][weather]\n"}},
    {"gather",
     {"^on %D %A had %n %f. ", "^%A, the %J, found %n %f %P. ",
      "^there %w %n %f in the basket of %A, the %J. "}},
    {"more",
     {"^%B gave %2 %m more. ^now %1 had %s %t, because %n and %m are %s.\n",
      "^then %1 bought %m more from %B, the %K, and so %1 had %s %t.\n",
      "\"^here %b %m more,\" said %B. \"^how many %g do you have now?\"\n\"^i have %s %t,\" said "
      "%A, \"for %n and %m are %s.\"\n"}},
    // sums
    {"school",
     {"^%A asked the children a question. [sum][sum]\n",
      "^in the school there was a lesson on %D. [sum][sum][sum]\n",
      "[sum][sum]^the children wrote it down. ^the next lesson was on %E.\n"}},
    {"sum",
     {"\"^how many are %n and %m?\" asked %A. \"^%n and %m are %s,\" said %B. %!",
      "^%n and %m are %s. %!", "^%s less %m is %n. %!",
      "^%m and %n are %s, and %n and %m are %s too. %!"}},

    {"weather",
     {"^the sun was shining.", "^it rained all [time].", "^a cold wind blew from the north.",
      "^the sky was grey, but it did not rain.", "^snow lay on the roofs.",
      "^it was warm and still."}},
    {"time", {"morning", "day", "afternoon", "evening", "night"}},
    {"small", {"apple", "egg", "old shoe", "pear", "cup of tea", "onion", "smile", "empty box"}},
    {"sad", {"sad", "angry", "unhappy", "worried", "upset"}},
};

/* ---- from rules to text ---------------------------------------------------------------------- */

typedef struct Writer {
    uint64_t seed, story, drawn;
    const Person *a, *b;
    const Noun *noun;
    int n, m, day;
    const char *thing, *colour, *place, *other_place;
    char *text;
    size_t length, cap;
    bool capital, article; // pending: a capital letter, or "a " or "an " before the next word
} Writer;

static int draw(Writer *w, int n) {
    return (int)(rng_u64(w->seed, w->story, w->drawn++) % (uint64_t)n);
}

static void put_char(Writer *w, char c) {
    if (c == '\n' && w->length && w->text[w->length - 1] == ' ')
        w->length--; // no blanks at the end
    mem_grow(w->text, w->length, w->cap);
    w->text[w->length++] = c;
}

static void put_text(Writer *w, const char *s) {
    if (w->article) { // no word of this world starts with a mute h or a "yoo"
        w->article = false;
        put_text(w, strchr("aeiou", tolower((unsigned char)*s)) ? "an " : "a ");
    }
    for (; *s; s++) {
        put_char(w, w->capital ? (char)toupper((unsigned char)*s) : *s);
        if (isalpha((unsigned char)*s)) w->capital = false;
    }
}

static void draw_numbers(Writer *w) {
    w->n = 1 + draw(w, 20);
    w->m = 1 + draw(w, 20);
}

#define PICK(w, list) (&(list)[draw((w), (int)(sizeof(list) / sizeof *(list)))])

static void draw_world(Writer *w) {
    w->a = PICK(w, people);
    do w->b = PICK(w, people);
    while (w->b == w->a);
    w->noun = PICK(w, goods);
    w->thing = *PICK(w, things);
    w->colour = *PICK(w, colours);
    w->place = *PICK(w, places);
    do w->other_place = *PICK(w, places);
    while (w->other_place == w->place);
    w->day = draw(w, 7);
    draw_numbers(w);
}

static const char *counted(const Writer *w, int n) {
    return n == 1 ? w->noun->one : w->noun->many;
}

/* Writes the word that %code stands for; %! draws new numbers instead. */
static void write_code(Writer *w, char code) {
    static const char codes[] = "ABJKHIOCPQDEnmsfgtvwb";
    static const char *const pronouns[2][3] = {{"he", "him", "his"}, {"she", "her", "her"}};
    const char *const word[] = {w->a->name,
                                w->b->name,
                                w->a->job,
                                w->b->job,
                                w->a->home,
                                w->b->home,
                                w->thing,
                                w->colour,
                                w->place,
                                w->other_place,
                                days[w->day],
                                days[(w->day + 1) % 7],
                                corpus_number(w->n),
                                corpus_number(w->m),
                                corpus_number(w->n + w->m),
                                counted(w, w->n),
                                w->noun->many,
                                counted(w, w->n + w->m),
                                w->n == 1 ? "is" : "are",
                                w->n == 1 ? "was" : "were",
                                w->m == 1 ? "is" : "are"};
    const char *at = strchr(codes, code);
    assert(at || strchr("!123456", code));
    if (code == '!')
        draw_numbers(w);
    else if (at)
        put_text(w, word[at - codes]);
    else
        put_text(w, pronouns[(code < '4' ? w->a : w->b)->she][(code - '1') % 3]);
}

/* Writes the text of a rule, in the notation above; a [name] expands to a random option of that
 * rule. */
static void expand(Writer *w, const char *s) {
    for (; *s; s++) {
        if (*s == '^') {
            w->capital = true;
        } else if (*s == '@') {
            w->article = true;
            s++; // put_text writes the space with the article
        } else if (*s == '%') {
            write_code(w, *++s);
        } else if (*s == '[') {
            size_t n = strcspn(++s, "]");
            const Rule *r = rules, *end = rules + sizeof rules / sizeof *rules;
            while (r < end && (strlen(r->name) != n || memcmp(r->name, s, n) != 0)) r++;
            assert(r < end);
            int options = 0;
            while (options < 12 && r->options[options]) options++;
            expand(w, r->options[draw(w, options)]);
            s += n;
        } else {
            char one[2] = {*s, 0};
            put_text(w, one);
        }
    }
}

char *corpus_story(uint64_t seed, uint64_t story, size_t *n) {
    Writer w = {.seed = seed, .story = story};
    draw_world(&w);
    expand(&w, "[story]\n");
    *n = w.length;
    put_char(&w, 0);
    return w.text;
}
