#include "data/token_shard.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/path.h"
#include "data/io.h"
#include "data/llmc.h"
#include "data/output.h"

enum {
    VERSION_16 = 1, // of LLMC_TOKENS_16
    VERSION_32 = 7,
    IDX_HEADER_BYTES = 34 // Megatron: magic 9, version 8, type 1, sequences 8, documents 8
};
static const char idx_magic[9] = "MMIDIDX\0";

static int32_t get_i32(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static int64_t get_i64(const uint8_t *p) {
    int64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- files that hold no tokens --------------------------------------------------------------- */

/* Is it ASCII or UTF-8 text, without control characters other than white space? 256 tokens as
 * uint16 contain a control character almost surely. */
static bool is_text(const uint8_t *p, size_t n) {
    if (n < 32) return false;
    for (size_t i = 0; i < n && i < 512; i++)
        if ((p[i] < 0x20 && !(p[i] >= '\t' && p[i] <= '\r')) || p[i] == 0x7f) return false;
    return true;
}

/* Names the kind of a file that is known to hold no tokens, else NULL. Raw uint16 accepts any
 * bytes, so this check keeps a wrong file name from training a model on noise. */
static const char *known_foreign(const uint8_t *p, size_t n) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *what;
    } starts[] = {
        {"MMIDIDX\0", 8, "a Megatron index; name the .bin beside it"},
        {"BIN.TOK\n", 8, "an llm.q token file, which is not supported"},
        {"\x1f\x8b\x08\x00", 4, "gzip data; unpack it first"},
        {"\x1f\x8b\x08\x08", 4, "gzip data; unpack it first"},
        {"\x28\xb5\x2f\xfd", 4, "zstd data; unpack it first"},
        {"PK\x03\x04", 4, "a zip file; unpack it first"},
        {"PAR1", 4, "a parquet file; encode its text to tokens first"},
        {"\x93NUMPY", 6, "a numpy file; write it with tofile() as uint16 instead"},
        {"GGUF", 4, "a GGUF model"},
    };
    static const struct {
        int32_t magic;
        const char *what;
    } magics[] = {
        {LLMC_MODEL, "an llm.c GPT-2 model"},         {LLMC_DEBUG_STATE, "an llm.c debug state"},
        {LLMC_TOKENIZER, "an llm.c tokenizer"},       {LLMC_EVALUATION, "an llm.c evaluation file"},
        {LLMC_OPTIMIZER, "an llm.c optimizer state"}, {LLMC_LLAMA, "an llm.c Llama model"},
    };
    // torch.save: before PyTorch 1.6 a pickle, since then a zip file that begins with NAME/data.pkl
    static const char pickle[] = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";
    if ((n >= 64 && memcmp(p, "PK\x03\x04", 4) == 0 && memmem(p, 64, "/data.pkl", 9)) ||
        (n >= 64 && memcmp(p, pickle, sizeof pickle - 1) == 0))
        return "a PyTorch file; save its weights as safetensors instead";
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (n >= starts[i].n && memcmp(p, starts[i].bytes, starts[i].n) == 0) return starts[i].what;
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (llmc_word(p, n, 0) == magics[i].magic) return magics[i].what;
    if (n >= 10 && p[8] == '{' && p[9] == '"' && get_i64(p) > 1 && (uint64_t)get_i64(p) <= n - 8)
        return "a safetensors file";
    return is_text(p, n) ? "text: gpt-tokenize encode makes tokens of it" : NULL;
}

/* ---- llm.c and nanoGPT ----------------------------------------------------------------------- */

static bool is_llmc(const uint8_t *p, size_t n) {
    return llmc_word(p, n, 0) == LLMC_TOKENS_16 || llmc_word(p, n, 0) == LLMC_TOKENS_32;
}

/* Reads an llm.c file, whose magic is known to be right: the header's size of the data must be that
 * of the file. */
static bool parse_llmc(const uint8_t *p, size_t n, Shard *out, Err *e) {
    bool wide = llmc_word(p, n, 0) == LLMC_TOKENS_32;
    int want = wide ? VERSION_32 : VERSION_16, version = llmc_word(p, n, 1);
    out->format = wide ? SHARD_LLMC32 : SHARD_LLMC16;
    out->width = wide ? 4 : 2;
    if (n < LLMC_HEADER)
        return err(e,
                   "an llm.c token file of %zu bytes, shorter than its header of %d: it was cut; "
                   "copy or encode it again",
                   n, LLMC_HEADER);
    if (version != want)
        return err(e,
                   "llm.c token file of version %d, but version %d is read here; encode it again",
                   version, want);
    int64_t said = llmc_word(p, n, 2);
    uint64_t have = n - LLMC_HEADER;
    if (said < 0) return err(e, "its header says %" PRId64 " tokens: damaged; copy it again", said);
    if ((uint64_t)said * (uint64_t)out->width != have)
        return err(e,
                   "its header says %" PRId64 " tokens (%" PRId64 " bytes) but %" PRIu64
                   " bytes follow: %s; copy or encode it again",
                   said, said * out->width, have,
                   have < (uint64_t)said * (uint64_t)out->width ? "it was cut"
                                                                : "too long or damaged");
    if (said == 0) return err(e, "holds no tokens; encode it again");
    out->tokens = p + LLMC_HEADER;
    out->n_tokens = said;
    return true;
}

bool shard_parse(const uint8_t *p, size_t n, bool raw, Shard *out, Err *e) {
    *out = (Shard){0};
    if (n == 0) return err(e, "is empty");
    if (is_llmc(p, n)) return parse_llmc(p, n, out, e);
    const char *what = known_foreign(p, n);
    if (what) return err(e, "is no token file but %s", what);
    if (!raw)
        return err(e, "is no token file: it has no llm.c magic, and raw uint16 tokens (nanoGPT) "
                      "are read only from a name that ends in .bin");
    if (n % 2)
        return err(e,
                   "read as raw uint16 tokens (it has no llm.c magic), but its %zu bytes are an "
                   "odd number: cut, or no token file",
                   n);
    out->format = SHARD_NANOGPT;
    out->width = 2;
    out->tokens = p;
    out->n_tokens = (int64_t)(n / 2);
    return true;
}

/* ---- Megatron -------------------------------------------------------------------------------- */

static bool idx_type(int code, Shard *out, Err *e) {
    static const struct {
        int width;
        bool is_signed;
    } types[] = {{0, 0}, {1, 0}, {1, 1}, {2, 1}, {4, 1}, {8, 1}, {0, 0}, {0, 0}, {2, 0}};
    if (code == 6 || code == 7)
        return err(e,
                   "its index says that tokens are floating-point numbers (type %d); "
                   "it is no token file",
                   code);
    if (code < 1 || code > 8) return err(e, "its index has an unknown token type %d", code);
    out->width = types[code].width;
    out->is_signed = types[code].is_signed;
    return true;
}

/* Checks that sequences follow one another without gaps and fill the .bin: then the file is one
 * stream of tokens. */
static bool idx_sequences(const uint8_t *lengths, const uint8_t *offsets, uint64_t n, Shard *out,
                          uint64_t n_bin, Err *e) {
    // at: bytes of the sequences so far, never above n_bin
    uint64_t at = 0, width = (uint64_t)out->width;
    for (uint64_t i = 0; i < n; i++) {
        int32_t len = get_i32(lengths + 4 * i);
        int64_t offset = get_i64(offsets + 8 * i);
        if (len < 0)
            return err(e, "its index says that sequence %" PRIu64 " has %d tokens: damaged", i,
                       len);
        if (offset < 0 || (uint64_t)offset != at)
            return err(e,
                       "its index puts sequence %" PRIu64 " at byte %" PRId64 ", not at %" PRIu64
                       " where the one before ends: damaged, or not written in order",
                       i, offset, at);
        if ((uint64_t)len * width > n_bin - at)
            return err(e,
                       "its index says that sequence %" PRIu64 " ends at byte %" PRIu64
                       ", but the .bin has %" PRIu64
                       ": the .bin was cut, or the .idx belongs to another file",
                       i, at + (uint64_t)len * width, n_bin);
        at += (uint64_t)len * width;
    }
    if (at != n_bin)
        return err(e,
                   "its index describes %" PRIu64 " bytes of tokens, but the .bin has %" PRIu64
                   ": the .idx was cut, or belongs to another file",
                   at, n_bin);
    out->n_tokens = (int64_t)(at / width);
    return true;
}

static bool idx_documents(const uint8_t *docs, uint64_t n, uint64_t n_sequences, Err *e) {
    uint64_t before = 0;
    for (uint64_t i = 0; i < n; i++) {
        int64_t d = get_i64(docs + 8 * i);
        if (d < 0 || (uint64_t)d > n_sequences || (uint64_t)d < before)
            return err(e,
                       "its index starts document %" PRIu64 " at sequence %" PRId64
                       ", not in %" PRIu64 "..%" PRIu64 ": damaged",
                       i, d, before, n_sequences);
        before = (uint64_t)d;
    }
    return true;
}

bool shard_parse_megatron(const uint8_t *idx, size_t n_idx, const uint8_t *bin, size_t n_bin,
                          Shard *out, Err *e) {
    *out = (Shard){.format = SHARD_MEGATRON};
    if (n_idx < IDX_HEADER_BYTES || memcmp(idx, idx_magic, sizeof idx_magic) != 0)
        return err(e, "the .idx beside it is no Megatron index (it does not start with MMIDIDX); "
                      "move it away if the .bin is raw uint16");
    int64_t version = get_i64(idx + 9);
    uint64_t n_seq = (uint64_t)get_i64(idx + 18), n_doc = (uint64_t)get_i64(idx + 26);
    if (version != 1)
        return err(e, "its index has version %" PRId64 ", but 1 is read here", version);
    if (!idx_type(idx[17], out, e)) return false;
    uint64_t left = n_idx - IDX_HEADER_BYTES;
    if (n_seq > left / 12 || n_doc > (left - 12 * n_seq) / 8)
        return err(e,
                   "its index says %" PRIu64 " sequences and %" PRIu64
                   " documents, more than its %zu bytes can hold: the .idx was cut",
                   n_seq, n_doc, n_idx);
    uint64_t over = left - 12 * n_seq - 8 * n_doc;
    if (over != 0 && over != n_seq) // a byte per sequence (its mode) may follow
        return err(e, "its index has %" PRIu64 " bytes too many: damaged", over);
    const uint8_t *lengths = idx + IDX_HEADER_BYTES, *offsets = lengths + 4 * n_seq;
    if (!idx_sequences(lengths, offsets, n_seq, out, n_bin, e)) return false;
    if (!idx_documents(offsets + 8 * n_seq, n_doc, n_seq, e)) return false;
    if (out->n_tokens == 0) return err(e, "holds no tokens");
    out->tokens = bin;
    out->n_documents = n_doc ? (int64_t)n_doc - 1 : 0; // the list has n_seq as one more entry
    return true;
}

/* ---- the ids --------------------------------------------------------------------------------- */

/* largest_N: the largest of n little-endian unsigned integers of N bits. widen_N: converts n of
 * them to int32_t. One function per width, so that the compiler makes vector code of each. */
#define WIDTH(bits)                                                                                \
    __attribute__((no_sanitize("thread"))) static uint64_t largest_##bits(const uint8_t *p,        \
                                                                          int64_t n) {             \
        uint##bits##_t most = 0;                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            uint##bits##_t id;                                                                     \
            memcpy(&id, p + i * (int64_t)sizeof id, sizeof id);                                    \
            most = id > most ? id : most;                                                          \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    static void widen_##bits(const uint8_t *p, int64_t n, int32_t *out) {                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            uint##bits##_t id;                                                                     \
            memcpy(&id, p + i * (int64_t)sizeof id, sizeof id);                                    \
            out[i] = (int32_t)id;                                                                  \
        }                                                                                          \
    }
WIDTH(8)
WIDTH(16)
WIDTH(32)
WIDTH(64)
static const struct {
    uint64_t (*largest)(const uint8_t *p, int64_t n);
    void (*widen)(const uint8_t *p, int64_t n, int32_t *out);
} of_width[9] = {[1] = {largest_8, widen_8},
                 [2] = {largest_16, widen_16},
                 [4] = {largest_32, widen_32},
                 [8] = {largest_64, widen_64}};

/* Token i, read as an unsigned number. */
static uint64_t get_token(const Shard *s, int64_t i) {
    uint64_t v = 0;
    memcpy(&v, s->tokens + i * s->width, (size_t)s->width);
    return v;
}

typedef struct CheckJob {
    const Shard *s;
    uint64_t limit;              // ids read as unsigned numbers must be below it
    _Atomic int64_t first_wrong; // n_tokens: none
} CheckJob;

/* Lowers first_wrong to the first wrong id in [begin, end), if there is one; stops early after a
 * wrong id before the range. */
static void check_range(void *ctx, int64_t begin, int64_t end) {
    CheckJob *j = ctx;
    enum { BLOCK = 1 << 20 };
    int width = j->s->width;
    for (int64_t b = begin; b < end; b += BLOCK) {
        int64_t n = end - b < BLOCK ? end - b : BLOCK;
        if (b >= atomic_load_explicit(&j->first_wrong, memory_order_relaxed)) return;
        int64_t ahead = j->s->n_tokens - b < 3 * BLOCK ? j->s->n_tokens - b : 3 * BLOCK;
        if (j->s->file.p) io_prefetch(j->s->tokens + b * width, (size_t)(ahead * width));
        if (of_width[width].largest(j->s->tokens + b * width, n) < j->limit) continue;
        while (get_token(j->s, b) < j->limit) b++;
        int64_t seen = atomic_load(&j->first_wrong);
        while (b < seen && !atomic_compare_exchange_weak(&j->first_wrong, &seen, b)) {
        }
        return;
    }
}

/* The limit that ids are compared with as unsigned numbers. A negative id is a large unsigned
 * number, so one comparison finds both kinds of wrong ids. */
static uint64_t id_limit(const Shard *s, int64_t vocab) {
    int bits = 8 * s->width - (s->is_signed ? 1 : 0);
    return bits < 64 && (uint64_t)vocab > 1ull << bits ? 1ull << bits : (uint64_t)vocab;
}

bool shard_check(const Shard *s, int64_t vocab, Team *team, Err *e) {
    CheckJob j = {.s = s, .limit = id_limit(s, vocab)};
    int bits = 8 * s->width;
    if (bits < 64 && j.limit == 1ull << bits) return true; // the type has no other values
    atomic_init(&j.first_wrong, s->n_tokens);
    if (team)
        team_for(team, s->n_tokens, 1 << 21, check_range, &j);
    else
        check_range(&j, 0, s->n_tokens);
    int64_t at = atomic_load(&j.first_wrong);
    if (at == s->n_tokens) return true;
    uint64_t id = get_token(s, at);
    if (s->is_signed && bits < 64 && id >> (bits - 1)) id -= 1ull << bits;
    return err(e,
               "token %" PRId64 " of %" PRId64 " has id %" PRId64
               ", but the vocabulary has ids 0..%" PRId64
               " (%s): encode the text with the model's tokenizer, or give the model this "
               "file's vocabulary",
               at, s->n_tokens, (int64_t)id, vocab - 1, shard_format_name(s));
}

void shard_read(const Shard *s, int64_t first, int64_t n, int32_t *out) {
    if (first < 0 || n < 0 || first > s->n_tokens - n)
        die("%s: tokens %" PRId64 "..%" PRId64 " asked of %" PRId64, s->path, first, first + n - 1,
            s->n_tokens);
    of_width[s->width].widen(s->tokens + first * s->width, n, out);
}

const char *shard_format_name(const Shard *s) {
    static const char *const megatron[2][4] = {
        {"Megatron uint8", "Megatron uint16", "Megatron uint32", "Megatron uint64"},
        {"Megatron int8", "Megatron int16", "Megatron int32", "Megatron int64"}};
    switch (s->format) {
    case SHARD_LLMC16:
        return "llm.c uint16";
    case SHARD_LLMC32:
        return "llm.c uint32";
    case SHARD_NANOGPT:
        return "nanoGPT raw uint16";
    case SHARD_MEGATRON:
        break;
    }
    return megatron[s->is_signed][s->width == 8 ? 3 : s->width / 2];
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Path of NAME.idx beside NAME.bin if that file exists (mem_free), else NULL. */
static char *idx_beside(const char *path) {
    if (!path_ends(path, ".bin")) return NULL;
    char *idx = mem_printf("%.*s.idx", (int)(strlen(path) - 4), path);
    if (io_exists(idx)) return idx;
    mem_free(idx);
    return NULL;
}

bool shard_map(const char *path, Shard *out, Err *e) {
    *out = (Shard){0};
    IoMap bin, idx = {0};
    char *bin_path = path_ends(path, ".idx") // either half names a Megatron pair
                         ? mem_printf("%.*s.bin", (int)(strlen(path) - 4), path)
                         : mem_strdup(path);
    char *idx_path = NULL;
    bool ok = io_map(&bin, bin_path, e);
    if (ok) {
        if (!is_llmc(bin.p, bin.n)) idx_path = idx_beside(bin_path);
        if (!idx_path) {
            ok = shard_parse(bin.p, bin.n, path_ends(bin_path, ".bin"), out, e) ||
                 err_in(e, bin_path);
        } else if ((ok = io_map(&idx, idx_path, e))) {
            ok = shard_parse_megatron(idx.p, idx.n, bin.p, bin.n, out, e) || err_in(e, bin_path);
            io_unmap(&idx);
        }
        out->file = bin;
        out->path = bin.path;
        if (!ok) shard_close(out);
    }
    mem_free(idx_path);
    mem_free(bin_path);
    return ok;
}

Shard shard_open(const char *path) {
    Err e;
    Shard s;
    if (!shard_map(path, &s, &e)) die_user("%s", e.text);
    return s;
}

void shard_close(Shard *s) {
    io_unmap(&s->file);
    *s = (Shard){0};
}

/* ---- sets ------------------------------------------------------------------------------------ */

static void names_add(ShardNames *names, char *path) {
    names->at = mem_realloc(names->at, (size_t)names->n + 1, sizeof *names->at);
    names->at[names->n++] = path;
}

/* Is this a NAME.idx whose NAME.bin the pattern found, too ("x*" finds both)? Then the pair counts
 * once, by its .bin. */
static bool bin_was_found(const glob_t *g, const char *path) {
    if (!path_ends(path, ".idx")) return false;
    size_t stem = strlen(path) - 4;
    for (size_t i = 0; i < g->gl_pathc; i++)
        if (strlen(g->gl_pathv[i]) == stem + 4 && strncmp(g->gl_pathv[i], path, stem) == 0 &&
            path_ends(g->gl_pathv[i], ".bin"))
            return true;
    return false;
}

/* Adds the files that one word of the list names: an existing file, a Megatron pair without ending,
 * or the files that match a pattern. */
static void names_expand(ShardNames *names, const char *word) {
    if (io_exists(word)) { // a name with brackets or stars may be a plain file name
        names_add(names, mem_strdup(word));
        return;
    }
    char *bin = mem_printf("%s.bin", word), *idx = mem_printf("%s.idx", word);
    if (io_exists(bin) && io_exists(idx)) { // a Megatron pair without ending
        mem_free(idx);
        names_add(names, bin);
        return;
    }
    mem_free(bin);
    mem_free(idx);
    glob_t g;
    if (glob(word, 0, NULL, &g)) {
        if (strpbrk(word, "*?[")) die_user("no file matches \"%s\"", word);
        die_user("cannot open %s: %s", word, strerror(ENOENT));
    }
    for (size_t i = 0; i < g.gl_pathc; i++)
        if (!bin_was_found(&g, g.gl_pathv[i])) names_add(names, mem_strdup(g.gl_pathv[i]));
    globfree(&g);
}

ShardNames shard_names(const char *text) {
    ShardNames names = {0};
    if (io_exists(text)) { // a comma may be part of a name
        names_expand(&names, text);
        return names;
    }
    char *copy = mem_strdup(text), *rest = copy;
    for (char *word; (word = strsep(&rest, ",")) != NULL;)
        if (*word) names_expand(&names, word);
    mem_free(copy);
    if (names.n == 0) die_user("no token files are named in \"%s\"", text);
    return names;
}

void shard_names_free(ShardNames *names) {
    for (int i = 0; i < names->n; i++) mem_free(names->at[i]);
    mem_free(names->at);
    *names = (ShardNames){0};
}

/* Dies when a file is listed twice, as its tokens would be seen twice per epoch. The same file
 * under two names is found by its inode. */
static void check_distinct(const ShardSet *set) {
    struct stat *st = mem_calloc((size_t)set->n, sizeof *st);
    for (int i = 0; i < set->n; i++) {
        if (stat(set->shards[i].path, &st[i]))
            die_user("cannot read %s: %s", set->shards[i].path, strerror(errno));
        for (int k = 0; k < i; k++)
            if (st[k].st_ino == st[i].st_ino && st[k].st_dev == st[i].st_dev)
                die_user("%s and %s are the same file: name it once", set->shards[k].path,
                         set->shards[i].path);
    }
    mem_free(st);
}

ShardSet shards_open(const char *text, int64_t vocab, Team *team) {
    if (vocab < 1 || vocab > INT32_MAX)
        die("a vocabulary of %" PRId64 " ids is not possible", vocab);
    ShardNames names = shard_names(text);
    ShardSet set = {.n = names.n, .vocab = vocab};
    set.shards = mem_calloc((size_t)names.n, sizeof *set.shards);
    for (int i = 0; i < names.n; i++) set.shards[i] = shard_open(names.at[i]);
    check_distinct(&set);
    // checked after all files are open: a missing file is reported before hours of reading
    for (int i = 0; i < set.n; i++) {
        Err e;
        Shard *s = &set.shards[i];
        if (!shard_check(s, vocab, team, &e)) die_user("%s: %s", s->path, e.text);
        set.n_tokens += s->n_tokens;
    }
    shard_names_free(&names);
    return set;
}

void shards_close(ShardSet *set) {
    for (int i = 0; i < set->n; i++) shard_close(&set->shards[i]);
    mem_free(set->shards);
    *set = (ShardSet){0};
}

/* ---- writing ------------------------------------------------------------------------------- */

struct ShardWriter {
    char *stem; // "PREFIX_train"
    ShardFormat format;
    // shard_tokens: tokens of a file, 0: one file. in_file: tokens in the open file. total: tokens
    // in all files.
    int64_t shard_tokens, in_file, total;
    Replace **files;
    int n_files;
    bool open; // is the last file open?
};

#define MOST_TOKENS INT32_MAX // llm.c counts tokens in an int32

ShardWriter *shard_writer_open(const char *prefix, const char *split, ShardFormat format,
                               int32_t vocab, int64_t shard_tokens) {
    size_t n = strlen(prefix);
    if (format != SHARD_LLMC32 && vocab > 65536)
        die_user("a vocabulary of %d tokens does not fit 16 bits: choose the format llmc32",
                 (int)vocab);
    ShardWriter *w = mem_calloc(1, sizeof *w);
    w->stem = mem_printf("%s%s%s", prefix, n && prefix[n - 1] != '/' ? "_" : "", split);
    w->format = format;
    w->shard_tokens = shard_tokens;
    return w;
}

static char *file_name(const ShardWriter *w, int number) {
    if (w->shard_tokens == 0) return mem_printf("%s.bin", w->stem);
    return mem_printf("%s_%06d.bin", w->stem, number);
}

static void begin_file(ShardWriter *w) {
    static const uint8_t zeros[LLMC_HEADER];
    char *path = file_name(w, w->n_files);
    w->files = mem_realloc(w->files, (size_t)w->n_files + 1, sizeof *w->files);
    // the header has the number of tokens, known at the end
    bool header = w->format != SHARD_NANOGPT;
    w->files[w->n_files++] = replace_open(path, header);
    if (header) replace_write(w->files[w->n_files - 1], zeros, LLMC_HEADER);
    w->in_file = 0;
    w->open = true;
    mem_free(path);
}

static void end_file(ShardWriter *w) {
    Replace *r = w->files[w->n_files - 1];
    bool wide = w->format == SHARD_LLMC32;
    int32_t header[3] = {wide ? LLMC_TOKENS_32 : LLMC_TOKENS_16, wide ? VERSION_32 : VERSION_16,
                         (int32_t)w->in_file};
    if (w->format != SHARD_NANOGPT) replace_patch(r, 0, header, sizeof header);
    replace_finish(r);
    w->open = false;
}

/* Writes ids that all belong to the open file. */
static void put(ShardWriter *w, const int32_t *ids, int64_t n) {
    enum { BATCH = 4096 };
    Replace *r = w->files[w->n_files - 1];
    uint16_t narrow[BATCH];
    if (w->format == SHARD_LLMC32) replace_write(r, ids, (size_t)n * 4);
    for (int64_t at = 0; w->format != SHARD_LLMC32 && at < n; at += BATCH) {
        int64_t now = n - at < BATCH ? n - at : BATCH;
        for (int64_t i = 0; i < now; i++) narrow[i] = (uint16_t)ids[at + i];
        replace_write(r, narrow, (size_t)now * 2);
    }
    w->in_file += n;
    w->total += n;
}

void shard_writer_put(ShardWriter *w, const int32_t *ids, int64_t n) {
    int64_t most = w->shard_tokens ? w->shard_tokens : INT64_MAX;
    while (n > 0) {
        if (!w->open) begin_file(w);
        int64_t room = most - w->in_file, now = n < room ? n : room;
        if (w->format != SHARD_NANOGPT && w->in_file + now > MOST_TOKENS) {
            replace_abandon_all(0);
            die_user("%s.bin would hold more than %d tokens, which llm.c's header cannot count: "
                     "use --shard-tokens",
                     w->stem, MOST_TOKENS);
        }
        put(w, ids, now);
        ids += now;
        n -= now;
        if (w->in_file == most) end_file(w);
    }
}

int64_t shard_writer_finish(ShardWriter *w) {
    if (w->open) end_file(w);
    return w->total;
}

static void warn_if_there(const ShardWriter *w, const char *path) {
    if (io_exists(path))
        warn("%s is there from an earlier run: a pattern like %s*.bin will read it, too", path,
             w->stem);
}

int shard_writer_commit(ShardWriter *w) {
    shard_writer_finish(w);
    int n = w->n_files;
    for (int i = 0; i < n; i++) replace_commit(w->files[i]);
    char *next = file_name(w, n);
    // of a run with --shard-tokens, if this one is without, and the other way round
    char *other =
        w->shard_tokens ? mem_printf("%s.bin", w->stem) : mem_printf("%s_000000.bin", w->stem);
    if (w->shard_tokens || n == 0) warn_if_there(w, next);
    warn_if_there(w, other);
    mem_free(next);
    mem_free(other);
    mem_free(w->files);
    mem_free(w->stem);
    mem_free(w);
    return n;
}
