#include "data/token_shard.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/debug.h"
#include "data/io.h"
#include "tests/test.h"

/* ---- files written as their formats say ------------------------------------------------------ */

typedef struct Bytes {
    uint8_t *p;
    size_t n;
} Bytes;

static void bytes_end(Bytes *b) {
    mem_free(b->p);
}

static void put(Bytes *b, const void *p, size_t n) {
    b->p = mem_realloc(b->p, b->n + n, 1);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_ids(Bytes *b, const int64_t *ids, int n, size_t width) {
    for (int i = 0; i < n; i++) put(b, &ids[i], width); // little-endian: the low bytes come first
}

static Bytes llmc(int32_t magic, int32_t version, int32_t n, size_t width, const int64_t *ids) {
    int32_t h[256] = {magic, version, n};
    Bytes b = {0};
    put(&b, h, sizeof h);
    put_ids(&b, ids, n, width);
    return b;
}

/* A Megatron index of n_seq sequences; the last document entry is n_seq. */
static Bytes megatron_idx(uint8_t type, size_t width, const int32_t *lengths, int64_t n_seq) {
    Bytes b = {0};
    int64_t version = 1, n_doc = n_seq + 1, at = 0;
    put(&b, "MMIDIDX\0", 9);
    put(&b, &version, 8), put(&b, &type, 1), put(&b, &n_seq, 8), put(&b, &n_doc, 8);
    put(&b, lengths, 4 * (size_t)n_seq);
    for (int64_t i = 0; i < n_seq; i++) put(&b, &at, 8), at += lengths[i] * (int64_t)width;
    for (int64_t i = 0; i <= n_seq; i++) put(&b, &i, 8);
    return b;
}

static const char *save(const char *dir, const char *name, Bytes b) {
    char *path = test_path("%s/%s", dir, name);
    if (!io_write_file(path, b.p, b.n, NULL, NULL)) abort();
    mem_free(b.p);
    return path;
}

static const int64_t ids[] = {0, 7, 300, 50256, 12, 99, 50256, 1};
enum { N = N_OF(ids) };

static bool tokens_equal(const Shard *s, const int64_t *want, int n) {
    int32_t got[64];
    if (s->n_tokens != n) return false;
    shard_read(s, 0, n, got);
    for (int i = 0; i < n; i++)
        if (got[i] != want[i]) return false;
    for (int i = 0; i < n; i++) { // and one at a time, so that positions are right too
        shard_read(s, i, 1, got);
        if (got[0] != want[i]) return false;
    }
    return true;
}

/* ---- each format is read back ---------------------------------------------------------------- */

TEST(shard_files_of_llmc_and_nanogpt) {
    const int64_t wide[] = {128000, 0, 65536, 5, 128255};
    Bytes raw = {0};
    put_ids(&raw, ids, N, 2);
    const struct {
        const char *name;
        Bytes file;
        const char *format;
        const int64_t *ids;
        int n;
    } rows[] = {{"a.bin", llmc(20240520, 1, N, 2, ids), "llm.c uint16", ids, N},
                // the magic decides, not the name
                {"b.tokens", llmc(20240520, 1, N, 2, ids), "llm.c uint16", ids, N},
                {"c.bin", llmc(20240801, 7, 5, 4, wide), "llm.c uint32", wide, 5},
                {"train.bin", raw, "nanoGPT raw uint16", ids, N}};
    const char *dir = test_tmpdir();
    for (EACH(r, rows)) {
        OWNED(shard_close) Shard s = shard_open(save(dir, r->name, r->file));
        CHECK_STR(shard_format_name(&s), r->format);
        CHECK(tokens_equal(&s, r->ids, r->n));
    }
}

TEST(shard_megatron_every_type) {
    static const struct {
        uint8_t code;
        size_t width;
        const char *name;
    } types[] = {{1, 1, "Megatron uint8"}, {2, 1, "Megatron int8"},  {3, 2, "Megatron int16"},
                 {4, 4, "Megatron int32"}, {5, 8, "Megatron int64"}, {8, 2, "Megatron uint16"}};
    const int64_t small[] = {1, 127, 0, 3, 5, 8};
    const int32_t lengths[] = {2, 0, 4};
    const char *dir = test_tmpdir();
    for (EACH(t, types)) {
        Bytes bin = {0};
        put_ids(&bin, small, 6, t->width);
        save(dir, "m.idx", megatron_idx(t->code, t->width, lengths, 3));
        const char *path = save(dir, "m.bin", bin);
        OWNED(shard_close) Shard s = shard_open(path);
        CHECK_STR(shard_format_name(&s), t->name);
        CHECK(s.n_documents == 3);
        CHECK(tokens_equal(&s, small, 6));
        CHECK(shard_check(&s, 128, NULL, NULL));
        Err e;
        CHECK_REFUSED(shard_check(&s, 127, NULL, &e), e,
                      "token 1 of 6 has id 127, but the vocabulary has ids 0..126");
    }
}

TEST(shard_megatron_with_modes) {
    const int32_t lengths[] = {2, 1};
    OWNED(bytes_end) Bytes idx = megatron_idx(8, 2, lengths, 2), bin = {0};
    put(&idx, "\0\0", 2); // multi-modal files add a byte per sequence
    put_ids(&bin, ids, 3, 2);
    Shard s;
    CHECK(shard_parse_megatron(idx.p, idx.n, bin.p, bin.n, &s, NULL));
    CHECK(tokens_equal(&s, ids, 3));
}

/* ---- each defect has its sentence ------------------------------------------------------------ */

/* The file is refused with these words. Frees b. */
static void check_refused(Bytes b, bool raw, const char *words) {
    Shard s;
    Err e = {""};
    OWNED(bytes_end) Bytes file = b;
    CHECK_REFUSED(shard_parse(file.p, file.n, raw, &s, &e), e, words);
}

static Bytes literal(const char *p, size_t n) {
    Bytes b = {0};
    put(&b, p, n);
    return b;
}

TEST(shard_defects_llmc) {
    static const struct {
        int32_t magic, version, n;
        size_t width, cut; // cut: bytes that its end lacks
        const char *text;
    } rows[] = {
        {20240520, 1, N, 2, 1, "it was cut"},
        {20240520, 1, N, 2, 2 * N, "it was cut"},
        {20240520, 1, N, 2, 2 * N + 1, "shorter than its header"},
        {20240520, 1, N, 2, 2 * N + 1020, "shorter than its header"},
        {20240520, 2, N, 2, 0, "version 2, but version 1"},
        {20240801, 1, N, 4, 0, "version 1, but version 7"},
        {20240520, 1, 0, 2, 0, "no tokens"},
        {20240801, 7, N, 2, 0, "it was cut"}, // uint16 under uint32's magic
        {20240520, 1, N, 4, 0, "too long or damaged"},
    };
    for (EACH(r, rows)) {
        Bytes b = llmc(r->magic, r->version, r->n, r->width, ids);
        b.n -= r->cut;
        check_refused(b, true, r->text);
    }
    int32_t negative[256] = {20240520, 1, -5};
    check_refused(literal((char *)negative, sizeof negative), true, "damaged");
    int32_t most[257] = {20240801, 7, INT32_MAX};
    check_refused(literal((char *)most, sizeof most), true, "8589934588 bytes) but 4 bytes follow");
}

TEST(shard_defects_foreign) {
    check_refused((Bytes){0}, true, "is empty");
    check_refused(literal("\1\0\2", 3), true, "odd");
    check_refused(literal("\1\0\2\0", 4), false, "ends in .bin");
    check_refused(literal("First Citizen:\nBefore we proceed any", 36), true,
                  "text: gpt-tokenize encode");
    check_refused(literal("K\xc3\xb6nig Drosselbart sprach: sehr sch\xc3\xb6n", 38), true,
                  "text: gpt");
    check_refused(literal("MMIDIDX\0\0\1\0\0\0\0", 14), true, "Megatron index");
    check_refused(literal("BIN.TOK\n\1\0", 10), true, "llm.q");
    check_refused(literal("\x40\0\0\0\0\0\0\0{\"a\":0                                  "
                          "                              }",
                          72),
                  true, "safetensors");
    static const int32_t magics[] = {20240326, 20240327, 20240328, 20240522, 20240527, 20240803};
    for (EACH(magic, magics)) check_refused(llmc(*magic, 1, N, 2, ids), true, "llm.c");
}

/* One field of a good Megatron index is changed (n bytes at `at`); the pair must be refused. */
static void check_pair(size_t at, int64_t value, size_t n, size_t cut_idx, size_t cut_bin,
                       const char *words) {
    const int32_t lengths[] = {2, 4};
    OWNED(bytes_end) Bytes idx = megatron_idx(8, 2, lengths, 2), bin = {0};
    put_ids(&bin, ids, 6, 2);
    memcpy(idx.p + at, &value, n);
    Shard s;
    Err e = {""};
    CHECK_REFUSED(shard_parse_megatron(idx.p, idx.n - cut_idx, bin.p, bin.n - cut_bin, &s, &e), e,
                  words);
}

TEST(shard_defects_megatron) {
    enum { VERSION = 9, TYPE = 17, SEQS = 18, DOCS = 26, LENGTHS = 34, OFFSETS = 42, DOC = 58 };
    check_pair(0, 'm', 1, 0, 0, "no Megatron index");
    check_pair(0, 'M', 1, 80, 0, "no Megatron index");
    check_pair(VERSION, 2, 8, 0, 0, "version 2");
    check_pair(TYPE, 0, 1, 0, 0, "unknown token type 0");
    check_pair(TYPE, 6, 1, 0, 0, "floating-point");
    check_pair(TYPE, 7, 1, 0, 0, "floating-point");
    check_pair(TYPE, 9, 1, 0, 0, "unknown token type 9");
    check_pair(TYPE, 4, 1, 0, 0, "index");
    check_pair(TYPE, 1, 1, 0, 0, "index");
    check_pair(SEQS, -1, 8, 0, 0, "more than its");
    check_pair(SEQS, INT64_MAX / 4, 8, 0, 0, "more than its");
    check_pair(SEQS, 0x1555555555555556, 8, 0, 0, "more than its"); // * 12 wraps to 8
    check_pair(DOCS, -1, 8, 0, 0, "more than its");
    check_pair(DOCS, 0x2000000000000001, 8, 0, 0, "more than its"); // * 8 wraps to 8
    check_pair(DOCS, 2, 8, 0, 0, "too many");
    check_pair(LENGTHS, -1, 4, 0, 0, "sequence 0 has -1 tokens");
    check_pair(LENGTHS, 3, 4, 0, 0, "sequence 1 at byte 4, not at 6");
    check_pair(LENGTHS, INT32_MAX, 4, 0, 0, "sequence 0 ends at byte 4294967294");
    check_pair(LENGTHS + 4, 5, 4, 0, 0, "sequence 1 ends at byte 14, but the .bin has 12");
    check_pair(LENGTHS + 4, 3, 4, 0, 0, "describes 10 bytes of tokens, but the .bin has 12");
    check_pair(OFFSETS, -2, 8, 0, 0, "sequence 0 at byte -2");
    check_pair(OFFSETS + 8, 6, 8, 0, 0, "sequence 1 at byte 6, not at 4");
    check_pair(DOC, 3, 8, 0, 0, "document 0 at sequence 3");
    check_pair(DOC + 8, -1, 8, 0, 0, "document 1 at sequence -1");
    check_pair(DOC + 16, 0, 8, 0, 0, "document 2 at sequence 0");
    check_pair(VERSION, 1, 8, 1, 0, "more than its");
    const int32_t none = 0;
    OWNED(bytes_end) Bytes empty = megatron_idx(8, 2, &none, 1);
    Shard s;
    Err e = {""};
    CHECK_REFUSED(shard_parse_megatron(empty.p, empty.n, empty.p, 0, &s, &e), e, "holds no tokens");
    check_pair(VERSION, 1, 8, 0, 2, "the .bin was cut");
    check_pair(VERSION, 1, 8, 0, 1, "the .bin was cut");
}

/* ---- ids against the vocabulary -------------------------------------------------------------- */

static bool wrong_at(const Shard *s, int64_t vocab, Team *team, int64_t position, int64_t id) {
    Err e;
    return !shard_check(s, vocab, team, &e) &&
           strstr(e.text, test_path("token %lld of %lld has id %lld, but", (long long)position,
                                    (long long)s->n_tokens, (long long)id));
}

TEST(shard_check_finds_the_first_wrong_id) {
    enum { MANY = 5000011 }; // several pieces per member, and a ragged end
    OWNED(test_team_end) Team *team = team_create(3);
    OWNED(test_mem_end) uint8_t *p = mem_calloc(MANY * 4 + 1, 1);
    for (int width = 1; width <= 4; width *= 2) {
        for (int odd = 0; odd < 2; odd++) { // also where tokens are not aligned
            Shard s = {.width = width, .tokens = p + odd, .n_tokens = MANY};
            CHECK(shard_check(&s, 200, team, NULL) && shard_check(&s, 200, NULL, NULL));
            static const int64_t places[] = {0, 1, 65535, 65536, 2097152, 4194303, MANY - 1};
            for (size_t k = N_OF(places); k-- > 0;) { // from the end: the first must win
                p[odd + places[k] * width] = 200;
                CHECK(wrong_at(&s, 200, team, places[k], 200));
                CHECK(wrong_at(&s, 200, NULL, places[k], 200));
                CHECK(shard_check(&s, 201, team, NULL));
            }
            memset(p, 0, MANY * 4 + 1);
        }
    }
}

TEST(shard_check_types) {
    static const uint16_t u16[] = {5, 65535};
    const struct {
        const void *tokens; // the second is wrong
        int width;
        bool is_signed;
        int64_t vocab, id;
    } rows[] = {{(const int8_t[]){5, -1}, 1, true, INT32_MAX, -1},
                {(const int16_t[]){5, -300}, 2, true, INT32_MAX, -300},
                {(const int32_t[]){5, INT32_MIN}, 4, true, INT32_MAX, INT32_MIN},
                {(const int64_t[]){5, -1}, 8, true, INT32_MAX, -1},
                // its low 32 bits are a fine id
                {(const int64_t[]){5, 1ll << 32}, 8, true, INT32_MAX, 1ll << 32},
                {(const uint32_t[]){5, 4000000000u}, 4, false, INT32_MAX, 4000000000},
                {u16, 2, false, 65535, 65535}};
    for (EACH(r, rows)) {
        Shard s = {.is_signed = r->is_signed, .width = r->width, .n_tokens = 2};
        s.tokens = r->tokens;
        CHECK(wrong_at(&s, r->vocab, NULL, 1, r->id));
    }
    Shard s = {.width = 2, .tokens = (const uint8_t *)u16, .n_tokens = 2};
    CHECK(shard_check(&s, 65536, NULL, NULL) && shard_check(&s, 65537, NULL, NULL));
}

/* ---- big files ------------------------------------------------------------------------------- */

/* A file of holes, `size` bytes, with a header and a last token. */
static bool sparse(const char *path, const void *header, size_t n, off_t size, const void *last,
                   size_t width) {
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = ftruncate(fileno(f), size) == 0 && fwrite(header, 1, n, f) == n &&
              fseeko(f, size - (off_t)width, SEEK_SET) == 0 && fwrite(last, 1, width, f) == width;
    return fclose(f) == 0 && ok;
}

static void open_one(void *path) {
    OWNED(shard_close) Shard s = shard_open(path);
}

TEST(shard_beyond_4_gib) {
    const char *dir = test_tmpdir();
    char *path = test_path("%s/big.bin", dir);
    int32_t header[256] = {20240520, 1, INT32_MAX}, got[3];
    off_t size = 1024 + 2ll * INT32_MAX; // 4 GiB + 1022
    uint16_t last = 4242;
    SKIP_IF(!sparse(path, header, sizeof header, size, &last, 2),
            "this file system holds no sparse file of 4 GiB");
    OWNED(shard_close) Shard s = shard_open(path);
    CHECK(s.n_tokens == INT32_MAX);
    shard_read(&s, s.n_tokens - 3, 3, got);
    CHECK(got[0] == 0 && got[1] == 0 && got[2] == 4242);
    // one token more than the header says, and one less
    CHECK(truncate(path, size + 2) == 0);
    CHECK_CHILD(1, open_one, path, "too long or damaged");
    CHECK(truncate(path, size - 2) == 0);
    CHECK_CHILD(1, open_one, path, "it was cut");
    // nanoGPT has no header: more than 2^31 tokens in one file
    uint16_t first = 11;
    size = 2 * (3ll << 30);
    CHECK(sparse(path, &first, 2, size, &last, 2));
    OWNED(shards_close) ShardSet set = shards_open(path, 65536, NULL);
    CHECK(set.n_tokens == 3ll << 30);
    shard_read(&set.shards[0], set.n_tokens - 1, 1, got);
    CHECK(got[0] == 4242);
    shard_read(&set.shards[0], 0, 1, got);
    CHECK(got[0] == 11);
}

TEST(shard_check_beyond_4_gib) {
    SKIP_IF(BASE_DEBUG && !test_long(), "slow, and a sanitizer sees no more than in the one above");
    size_t n = (4ull << 30) + 4096; // pages that are never written take no memory
    uint8_t *p =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    madvise(p, n, MADV_HUGEPAGE);
    OWNED(test_team_end) Team *team = team_create(0);
    Shard s = {.width = 2, .tokens = p, .n_tokens = (int64_t)(n / 2)};
    uint16_t id = 50257;
    memcpy(p + n - 2, &id, 2);
    CHECK(wrong_at(&s, 50257, team, (int64_t)(n / 2) - 1, 50257));
    munmap(p, n);
}

/* ---- sets ------------------------------------------------------------------------------------ */

TEST(shards_names) {
    const char *dir = test_tmpdir();
    save(dir, "x_02.bin", llmc(20240520, 1, 3, 2, ids));
    save(dir, "x_01.bin", llmc(20240801, 7, 2, 4, ids));
    const int32_t lengths[] = {4};
    Bytes bin = {0}, raw = {0};
    put_ids(&bin, ids, 4, 2), put_ids(&raw, ids, 5, 2);
    save(dir, "x_03.idx", megatron_idx(8, 2, lengths, 1));
    save(dir, "x_03.bin", bin);
    save(dir, "odd,[name].bin", raw);
    struct {
        const char *pattern; // @ is the folder
        int64_t tokens[4];   // of each shard, in order
    } cases[] = {
        {"@/x_*.bin", {2, 3, 4}},
        {"@/x_*", {2, 3, 4}}, // the pair counts once
        {"@/x_02.bin", {3}},
        {"@/x_02.bin,@/x_01.bin", {3, 2}},
        {"@/x_01.bin,,@/x_03", {2, 4}},
        {"@/x_03.idx", {4}},
        {"@/odd,[name].bin", {5}},
        {"@/x_0[12].bin,", {2, 3}},
        {"@/x_*.idx", {4}},
    };
    for (EACH(one, cases)) {
        char text[512] = "";
        for (const char *c = one->pattern; *c; c++) {
            size_t n = strlen(text);
            snprintf(text + n, sizeof text - n, "%.*s", *c == '@' ? (int)strlen(dir) : 1,
                     *c == '@' ? dir : c);
        }
        OWNED(shards_close) ShardSet set = shards_open(text, 50257, NULL);
        int64_t sum = 0;
        int n = 0;
        while (n < 4 && one->tokens[n]) n++;
        CHECK(set.n == n);
        for (int k = 0; k < n; k++) {
            CHECK(set.shards[k].n_tokens == one->tokens[k]);
            CHECK(tokens_equal(&set.shards[k], ids, (int)one->tokens[k]));
            sum += one->tokens[k];
        }
        CHECK(set.n_tokens == sum && set.vocab == 50257);
    }
}

typedef struct Call {
    const char *names;
    int64_t vocab;
} Call;

static void open_set(void *arg) {
    const Call *c = arg;
    OWNED(shards_close) ShardSet set = shards_open(c->names, c->vocab, NULL);
}

/* Opening must end with status 1 and one line that contains `words`. */
static void check_dies(const char *names, int64_t vocab, const char *words) {
    char line[2048];
    int status = test_in_child(open_set, &(Call){names, vocab}, line, sizeof line);
    CHECK_SAYS(status == 1 && test_count(line, "\n") == 1 && strstr(line, words),
               "status %d, \"%s\", wanted \"%s\"", status, line, words);
}

TEST(shards_failures_are_one_line) {
    const char *dir = test_tmpdir();
    const char *good = save(dir, "good.bin", llmc(20240520, 1, N, 2, ids));
    char *twice = test_path("%s,%s/../%s/good.bin", good, dir, strrchr(dir, '/') + 1);
    check_dies(test_path("%s/none.bin", dir), 50257, "none.bin: No such file");
    check_dies(test_path("%s/none*.bin", dir), 50257, "no file matches");
    check_dies(test_path("%s,%s/none.bin", good, dir), 50257, "none.bin: No such file");
    check_dies(dir, 50257, "is a folder");
    check_dies("", 50257, "no token files");
    check_dies(",", 50257, "no token files");
    check_dies(twice, 50257, "are the same file");
    check_dies(good, 50256,
               "good.bin: token 3 of 8 has id 50256, but the vocabulary has ids 0..50255");
    check_dies(good, 0, "vocabulary of 0");
    check_dies(good, 1ll << 31, "vocabulary of 2147483648");
    check_dies(save(dir, "empty.bin", (Bytes){0}), 50257, "empty.bin: is empty");
    char *pipe_path = test_path("%s/pipe.bin", dir);
    CHECK(mkfifo(pipe_path, 0600) == 0);
    check_dies(pipe_path, 50257, "not a regular file");
    Bytes b = {0};
    put_ids(&b, ids, N, 2);
    save(dir, "pair.idx", literal("nothing of the kind, but long enough to be an index", 51));
    check_dies(save(dir, "pair.bin", b), 50257,
               "pair.bin: the .idx beside it is no Megatron index");
    if (geteuid() == 0) return; // who may read everything cannot see the next one
    CHECK(chmod(good, 0) == 0);
    check_dies(good, 50257, "good.bin: Permission denied");
}
