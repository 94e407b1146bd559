#include "data/hellaswag.h"

#include <unistd.h>

#include "data/io.h"
#include "tests/shell.h"

/* ---- a file written as the format says ------------------------------------------------------- */

enum { HEADER = 512, WORDS = 1024 }; // in uint16 words

typedef struct File {
    union {
        int32_t header[256];
        uint16_t words[HEADER + WORDS];
    };
    size_t n; // words
} File;

static void word(File *f, int w) {
    f->words[f->n++] = (uint16_t)w;
}

/* Tokens are first, first+1, ... */
static void tokens(File *f, int first, int n) {
    word(f, n);
    for (int i = 0; i < n; i++) word(f, first + i);
}

static void example(File *f, int label, int context, const int completions[4]) {
    size_t start = f->n;
    word(f, 65535);
    word(f, 0);
    word(f, f->header[2]);
    word(f, label);
    word(f, 4);
    tokens(f, 100, context);
    for (int c = 0; c < 4; c++) tokens(f, 1000 * (c + 1), completions[c]);
    int bytes = (int)(2 * (f->n - start));
    f->words[start + 1] = (uint16_t)bytes;
    f->header[2]++;
    if (bytes > f->header[3]) f->header[3] = bytes;
}

/* Two examples: 3 + (2 1 4 2) tokens with label 2; 1 + (1 1 1 6) tokens with label 0. */
static File two(void) {
    static const int a[4] = {2, 1, 4, 2}, b[4] = {1, 1, 1, 6};
    File f = {.header = {20240522, 1}, .n = HEADER};
    example(&f, 2, 3, a);
    example(&f, 0, 1, b);
    return f;
}

static bool parse(const File *f, HellaSwag *h, Err *e) {
    return hellaswag_parse((const uint8_t *)f->words, 2 * f->n, h, e);
}

static void all_rows(const HellaSwag *h, int64_t example, int64_t S, int32_t *in, int32_t *to) {
    for (int c = 0; c < HELLASWAG_CHOICES; c++)
        hellaswag_row(h, example, c, S, in + c * S, to + c * S);
}

TEST(hellaswag_rows_and_masks) {
    File f = two();
    OWNED(hellaswag_close) HellaSwag h = {0};
    CHECK(parse(&f, &h, NULL));
    CHECK(h.n == 2 && h.longest_row == 7 && h.max_id == 4005);
    CHECK(hellaswag_label(&h, 0) == 2 && hellaswag_label(&h, 1) == 0);
    enum { S = 8 };
    int32_t in[4 * S], to[4 * S];
    all_rows(&h, 0, S, in, to);
    const int32_t want_in[4 * S] = {100,  101, 102, 1000, 1001, 0,    0,    0,   100,  101,  102,
                                    2000, 0,   0,   0,    0,    100,  101,  102, 3000, 3001, 3002,
                                    3003, 0,   100, 101,  102,  4000, 4001, 0,   0,    0};
    const int32_t want_to[4 * S] = {-1, -1, 1000, 1001, -1,   -1,   -1, -1,   -1,   -1,   2000,
                                    -1, -1, -1,   -1,   -1,   -1,   -1, 3000, 3001, 3002, 3003,
                                    -1, -1, -1,   -1,   4000, 4001, -1, -1,   -1,   -1};
    CHECK(memcmp(in, want_in, sizeof in) == 0);
    CHECK(memcmp(to, want_to, sizeof to) == 0);
}

TEST(hellaswag_rows_at_the_limit) {
    File f = two();
    OWNED(hellaswag_close) HellaSwag h = {0};
    CHECK(parse(&f, &h, NULL));
    int32_t in[4 * 6], to[4 * 6];
    // 7 tokens need 6 positions: the last token is only a target
    CHECK(hellaswag_length(&h, 0) == 7 && hellaswag_length(&h, 1) == 7);
    all_rows(&h, 0, 6, in, to);
    CHECK(in[12 + 5] == 3002 && to[12 + 5] == 3003);
    all_rows(&h, 1, 6, in, to);
    CHECK(in[0] == 100 && to[0] == 1000 && in[1] == 1000 && to[1] == -1);
    CHECK(in[18 + 5] == 4004 && to[18 + 5] == 4005);
}

TEST(hellaswag_picks_the_lowest_mean) {
    enum { S = 8 };
    File f = two();
    OWNED(hellaswag_close) HellaSwag h = {0};
    CHECK(parse(&f, &h, NULL));
    // example 0: completions of 2, 1, 4 and 2 tokens from place 2 on. Means 2, 3, 1.5, 4; sums 4,
    // 3, 6, 8: the mean decides. What is masked is far lower and must not count.
    float loss[4 * S];
    for (int i = 0; i < 4 * S; i++) loss[i] = -99;
    float *row[4] = {loss + 2, loss + S + 2, loss + 2 * S + 2, loss + 3 * S + 2};
    row[0][0] = 1, row[0][1] = 3, row[1][0] = 3, row[3][0] = 4, row[3][1] = 4;
    row[2][0] = row[2][2] = 1, row[2][1] = row[2][3] = 2;
    CHECK(hellaswag_pick(&h, 0, loss, S) == 2);
    row[2][3] = 100;
    CHECK(hellaswag_pick(&h, 0, loss, S) == 0);
    row[1][0] = 2; // equal to row 0
    CHECK(hellaswag_pick(&h, 0, loss, S) == 0);
    row[0][0] = NAN;
    CHECK(hellaswag_pick(&h, 0, loss, S) == 1);
    row[1][0] = row[2][0] = row[3][1] = NAN;
    CHECK(hellaswag_pick(&h, 0, loss, S) == -1);
}

/* ---- defects --------------------------------------------------------------------------------- */

static void check_refused(const File *f, size_t n_bytes, const char *words) {
    OWNED(hellaswag_close) HellaSwag h;
    Err e = {""};
    // exactly n_bytes of heap, so that an address sanitizer sees a step beyond
    OWNED(test_mem_end) uint8_t *p = memcpy(mem_alloc(n_bytes), f->words, n_bytes);
    CHECK_REFUSED(hellaswag_parse(p, n_bytes, &h, &e), e, words);
}

static void check_changed(size_t at, int value, const char *words) {
    File f = two();
    f.words[at] = (uint16_t)value;
    check_refused(&f, 2 * f.n, words);
}

TEST(hellaswag_defects) {
    enum { MAGIC = 0, VERSION = 2, COUNT = 4, LONGEST = 6 };
    enum { SECOND = HEADER + 5 + 4 + 3 + 2 + 5 + 3 }; // first word of example 1
    File f = two();
    CHECK(f.words[SECOND] == 65535);
    check_changed(MAGIC, 1, "no llm.c evaluation file");
    check_changed(VERSION, 2, "version 2");
    check_changed(COUNT, 0, "says 0 examples");
    check_changed(COUNT + 1, 1, "says 65538 examples");
    check_changed(COUNT + 1, 0xffff, "says -65534 examples");
    check_changed(COUNT, 1, "bytes follow the last of 1 examples");
    check_changed(COUNT, 3, "ends inside example 2 of 3");
    check_changed(LONGEST, 20, "not an even number in 12..20");
    check_changed(LONGEST + 1, 0xffff, "not an even number in 12..-");
    check_changed(HEADER, 1, "starts with 1, not 65535");
    check_changed(SECOND, 7, "example 1 at byte 1068 starts with 7");
    check_changed(HEADER + 1, 0, "says it has 0 bytes");
    check_changed(HEADER + 1, 43, "says it has 43 bytes");
    check_changed(HEADER + 1, 42, "completion 3 is longer");
    check_changed(SECOND + 1, 42, "ends inside example 1");
    check_changed(SECOND + 2, 0, "example 1 says that it is number 0");
    check_changed(HEADER + 3, 4, "label 4 is not in 0..3");
    check_changed(HEADER + 4, 3, "has 3 completions");
    check_changed(HEADER + 5, 0, "empty context");
    check_changed(HEADER + 5, 65535, "context is longer");
    check_changed(HEADER + 9, 0, "empty completion 0");
    check_changed(HEADER + 9, 1, "example 0");
    check_changed(HEADER + 9, 65535, "completion 0 is longer");
    check_changed(HEADER + 19, 1, "2 bytes are left after completion 3");
    check_changed(SECOND + 11, 8, "completion 3 is longer"); // its length would follow the file
    for (size_t n = 0; n < 2 * f.n; n++)                     // every way to cut it
        check_refused(&f, n,
                      n < 4      ? "no llm.c"
                      : n < 1024 ? "fewer than its header"
                                 : "ends inside");
    f.words[f.n++] = 0;
    check_refused(&f, 2 * f.n, "2 bytes follow");
    check_refused(&f, 2 * f.n - 1, "1 bytes follow");
}

typedef struct Call {
    const char *path;
    int64_t vocab;
} Call;

static void open_file(void *arg) {
    const Call *c = arg;
    OWNED(hellaswag_close) HellaSwag h = hellaswag_open(c->path, c->vocab);
}

TEST(hellaswag_files) {
    File f = two();
    char *path = test_path("%s/eval.bin", test_tmpdir());
    CHECK(io_write_file(path, f.words, 2 * f.n, NULL, NULL));
    OWNED(hellaswag_close) HellaSwag h = hellaswag_open(path, 4006);
    CHECK(h.n == 2 && hellaswag_label(&h, 0) == 2);
    Call small = {path, 4005}, none = {"no/such.bin", 4006}, folder = {test_tmpdir(), 4006};
    CHECK_CHILD(1, open_file, &small,
                "eval.bin: holds token id 4005, but the vocabulary has ids 0..4004");
    CHECK_CHILD(1, open_file, &none, "cannot open no/such.bin: No such file");
    CHECK_CHILD(1, open_file, &folder, "is a folder");
    CHECK(truncate(path, 1030) == 0);
    CHECK_CHILD(1, open_file, &small, "eval.bin: ends inside example 0");
}

/* ---- from JSON lines ---- */

#define ENDINGS "\"endings\":[\"a\",\"bc\",\"d.\",\"e\"]"

TEST(hellaswag_is_made_of_json_lines) {
    static const char lines[] = "{\"ind\":24,\"ctx\":\"Hi\",\"label\":2," ENDINGS "}\r\n \r\n"
                                "{\"ctx\":\"X\",\"label\":\"0\"," ENDINGS "}";
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load("bytes");
    OWNED(hellaswag_close) HellaSwag h = {0};
    Err e;
    size_t n = 0;
    OWNED(test_mem_end)
    uint8_t *file = hellaswag_encode((const uint8_t *)lines, sizeof lines - 1, t, &n, &e);
    CHECK(file && hellaswag_parse(file, n, &h, &e));
    CHECK(h.n == 2 && hellaswag_label(&h, 0) == 2 && hellaswag_label(&h, 1) == 0);
    enum { S = 5 };
    int32_t in[4 * S], to[4 * S];
    all_rows(&h, 0, S, in, to);
    const int32_t want_in[S] = {'H', 'i', ' ', 'b', 'c'}, want_to[S] = {-1, ' ', 'b', 'c', -1};
    CHECK(memcmp(in + S, want_in, sizeof want_in) == 0); // a completion begins with a blank
    CHECK(memcmp(to + S, want_to, sizeof want_to) == 0);
}

TEST(hellaswag_json_that_is_none_is_named_by_line) {
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"{\"ctx\":\"X\",\"label\":\"0\"," ENDINGS "}\n{\"ctx\"", "line 2: no JSON"},
        {"{\"label\":0," ENDINGS "}", "line 1: the text \"ctx\" is missing"},
        {"{\"ctx\":\"X\",\"label\":\"\"," ENDINGS "}",
         "line 1: \"label\" is no number from 0 to 3"},
        {"{\"ctx\":\"X\",\"label\":4," ENDINGS "}", "\"label\" is no number"},
        {"{\"ctx\":\"\",\"label\":1," ENDINGS "}", "\"ctx\" has 0 tokens"},
        {"{\"ctx\":\"X\",\"label\":1,\"endings\":[\"a\"]}", "\"endings\" are not four texts"},
        {"{\"ctx\":\"X\",\"label\":1,\"endings\":[1,2,3,4]}", "\"endings\" are not four texts"},
        {"[]", "line 1: the text \"ctx\""},
        {"\n\n", "no example"},
    };
    OWNED(test_tokenizer_end) Tokenizer *t = tokenizer_load("bytes");
    for (EACH(w, wrong)) {
        Err e = {""};
        size_t n;
        const uint8_t *text = (const uint8_t *)w->text;
        CHECK_REFUSED(hellaswag_encode(text, strlen(w->text), t, &n, &e), e, w->says);
    }
    enum { EXAMPLES = 65536 };
    for (int k = 0; k < 2; k++) { // a long one, and many
        Err e = {""};
        size_t n;
        OWNED(test_mem_end)
        char *many = PRINTED(for (int i = 0; i < (k ? EXAMPLES : 1); i++) fprintf(
            f, "{\"ctx\":\"%0*d\",\"label\":1," ENDINGS "}\n", k ? 1 : 32760, 7));
        CHECK_REFUSED(hellaswag_encode((uint8_t *)many, strlen(many), t, &n, &e), e,
                      k ? "line 65536: more than 65535" : "has 65560 bytes");
    }
}

TEST(hellaswag_of_the_tool_is_scored_by_a_run) {
    SHELL_IN(test_tmpdir(), 0, "step 1: HellaSwag 0.2500",
             "export XDG_CACHE_HOME=$PWD; for i in 0 1 2 3; do echo '{\"ctx\": \"A man is\", "
             "\"label\": '$i', \"endings\": [\"up.\", \"in a tree.\", \"a fish.\", \"it.\"]}'; "
             "done >h.jsonl && seq 200 >t.txt && $BUILD/tokenize hellaswag --text h.jsonl --out "
             "new/h.bin && $BUILD/tokenize encode --text t.txt --out t && $BUILD/train_gpt --train "
             "t_train.bin --hellaswag new/h.bin --micro 2 --steps 1 --threads 1 --model "
             "layers=1,heads=2,channels=8,seq=32,vocab=257");
    CHECK_SAYS(strstr(said, "new/h.bin: 4 examples"), "%s", said);
    SHELL_IN(test_tmpdir(), 0, "h.bin: 1 example\n",
             "echo '{\"ctx\": \"A man is\", \"label\": 0, \"endings\": [\"up.\", \"in a tree.\", "
             "\"a fish.\", \"it.\"]}' >h.jsonl && $BUILD/tokenize hellaswag --text h.jsonl --out "
             "h.bin");
}
