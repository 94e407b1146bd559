/* tokenize -- trains a byte-pair vocabulary, encodes text into token shards and decodes them.
 * `tokenize --help` lists the commands. */
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/path.h"
#include "base/team.h"
#include "data/bpe_train.h"
#include "data/hellaswag.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/output.h"
#include "data/progress.h"
#include "data/token_shard.h"
#include "data/tokenizer.h"

static const char usage[] =
    "gpt-tokenize: text to token shards and back\n\n"
    "  gpt-tokenize train   --text FILE --vocab N --out DIR            learn a byte-pair "
    "vocabulary\n"
    "  gpt-tokenize encode  --tokenizer X --text FILE --out PREFIX     write PREFIX_train.bin and "
    "PREFIX_val.bin\n"
    "  gpt-tokenize hellaswag --tokenizer X --text FILE --out FILE     hellaswag_val.jsonl for "
    "train_gpt --hellaswag\n"
    "  gpt-tokenize decode  --tokenizer X --shard FILE                 print the text of a shard\n"
    "  gpt-tokenize info    --tokenizer X                              say what a tokenizer is\n"
    "  gpt-tokenize convert --tokenizer X --out DIR                    write vocab.json, "
    "merges.txt, tokenizer_config.json and gpt2_tokenizer.bin\n\n"
    "X is \"bytes\", a folder with vocab.json and merges.txt or with tokenizer.json, "
    "NAMEvocab.json (NAMEmerges.txt beside it),\n"
    "a Hugging Face tokenizer.json, or llm.c's gpt2_tokenizer.bin (which can only decode). In a "
    "text, lines of only\n"
    "<|endoftext|> separate documents. `gpt-tokenize COMMAND --help` lists the options of a "
    "command.\n";

/* A part of the work with its own progress line on stderr. */
typedef struct Part {
    const char *what;
    Progress *progress;
    double begin; // seconds
} Part;

static Part part_begin(const char *what) {
    return (Part){what, progress_open(stderr, 0), now_s()};
}

static void part_show(const Part *p, double done) {
    progress_part(p->progress, p->what, done, now_s() - p->begin);
}

/* Ends a part. Returns the seconds that it took. */
static double part_end(Part *p) {
    progress_close(p->progress);
    return now_s() - p->begin;
}

/* The files that --text names, mapped into memory. */
typedef struct Texts {
    int n;
    char **names;
    IoMap *maps;
    size_t n_bytes;
} Texts;

/* Maps the files that match the pattern; dies if there are none, or they are empty. */
static Texts open_texts(const char *pattern) {
    Texts x = {0};
    glob_t found = {0};
    if (!pattern[0])
        die_usage("--text FILE is missing: name the text, a pattern, or - for the standard input");
    bool standard = strcmp(pattern, "-") == 0;
    bool one = standard || io_exists(pattern); // also when its name has brackets or stars
    if (!one && glob(pattern, 0, NULL, &found) != 0)
        die_user("no file matches --text %s: check the name", pattern);
    x.n = one ? 1 : (int)found.gl_pathc;
    x.names = mem_calloc((size_t)x.n, sizeof *x.names);
    x.maps = mem_calloc((size_t)x.n, sizeof *x.maps);
    for (int i = 0; i < x.n; i++) {
        x.names[i] = mem_strdup(standard ? "the standard input"
                                : one    ? pattern
                                         : found.gl_pathv[i]);
        x.maps[i] = standard ? io_read(stdin, x.names[i]) : io_open(x.names[i]);
        x.n_bytes += x.maps[i].n;
    }
    globfree(&found);
    if (x.n_bytes == 0) die_user("--text %s holds no bytes", pattern);
    return x;
}

static void close_texts(Texts *x) {
    for (int i = 0; i < x->n; i++) {
        io_unmap(&x->maps[i]);
        mem_free(x->names[i]);
    }
    mem_free(x->names);
    mem_free(x->maps);
}

/* Dies unless `file` can be written in folder `path`: checked before hours of work. */
static void prepare_folder(const char *path, const char *file) {
    Err e;
    char *name = mem_printf("%s/%s", path, file);
    if (!output_possible(name, false, &group_alone, &e)) die_user("--out: %s", e.text);
    mem_free(name);
}

static void show_training(void *ctx, int32_t done, int32_t wanted) {
    part_show(ctx, (double)(done - 257) / (wanted - 257));
}

static int train(int argc, char **argv) {
    static const char *text, *out;
    static int64_t vocab, min_count;
    static const Opt options[] = {
        {"text", OPT_STR, &text, "", 0, 0, "FILE",
         "text to learn from: a file, a pattern, or - for the standard input"},
        {"vocab", OPT_INT, &vocab, "4096", 257, 1 << 24, "N",
         "tokens, the 256 bytes and <|endoftext|> included"},
        {"out", OPT_STR, &out, "", 0, 0, "DIR",
         "folder for vocab.json, merges.txt, tokenizer_config.json and gpt2_tokenizer.bin"},
        {"min-count", OPT_INT, &min_count, "2", 1, 1e15, "N",
         "merge no pair that occurs fewer times"},
        {0}};
    opt_parse(options, argc, argv, "gpt-tokenize train: learn a byte-pair vocabulary\n\n");
    if (!out[0]) die_usage("--out DIR is missing: the folder for the vocabulary");
    Texts x = open_texts(text);
    prepare_folder(out, "vocab.json");
    BpeTrain *b = bpe_train_open();
    Part count = part_begin("counting");
    for (size_t i = 0, done = 0; i < (size_t)x.n; i++) {
        bpe_train_count(b, x.maps[i].p, x.maps[i].n);
        part_show(&count, (double)(done += x.maps[i].n) / (double)x.n_bytes);
    }
    double counted = part_end(&count);
    Part merge = part_begin("merging");
    Tokenizer *t = bpe_train_finish(b, (int32_t)vocab, min_count, show_training, &merge);
    double merged = part_end(&merge);
    tokenizer_save(t, out);
    printf("%s: %d tokens, %lld merges from %.1f MB of text; counted in %.2f s, merged in %.2f s\n",
           out, (int)tokenizer_vocab(t), (long long)tokenizer_merges(t), (double)x.n_bytes / 1e6,
           counted, merged);
    if (tokenizer_vocab(t) < vocab)
        warn("the text has pairs for %d tokens only: no other pair of neighbours occurs %lld times",
             (int)tokenizer_vocab(t), (long long)min_count);
    tokenizer_free(t);
    close_texts(&x);
    return 0;
}

enum { FORMAT_AUTO, FORMAT_LLMC16, FORMAT_LLMC32, FORMAT_NANOGPT };
static struct {
    const char *tokenizer, *text, *out, *shard;
    double val_fraction;
    int64_t val_tokens, shard_tokens, threads, from, count;
    int format;
    bool eot;
} o;

/* One run of encode. */
typedef struct Encoding {
    const Tokenizer *t;
    Team *team;
    ShardWriter *train, *val;
    Part part;
    size_t done, all; // bytes
    int64_t val_left; // tokens of --val-tokens that are not written yet
} Encoding;

static void interrupted(int number) {
    replace_abandon_all(0);
    signal(number, SIG_DFL);
    raise(number);
}

/* Encodes a text to one writer; to NULL: prints the ids. */
static void encode_text(Encoding *e, const uint8_t *p, size_t n, ShardWriter *to) {
    enum { BLOCK = 16 << 20 };
    Documents d = documents_of(p, n);
    while (d.at < n) {
        int32_t *ids;
        size_t before = d.at;
        int64_t n_ids = documents_encode(&d, e->t, e->team, o.eot, BLOCK, &ids);
        int64_t val = to == e->train && n_ids > e->val_left ? e->val_left
                      : to == e->train                      ? n_ids
                                                            : 0;
        for (int64_t i = 0; !to && i < n_ids; i++) printf("%d\n", (int)ids[i]);
        if (to && val) shard_writer_put(e->val, ids, val);
        if (to) shard_writer_put(to, ids + val, n_ids - val);
        e->val_left -= val;
        e->done += d.at - before;
        mem_free(ids);
        part_show(&e->part, (double)e->done / (double)e->all);
    }
}

/* Is the line around `at`, which is the last one, a separator of documents? */
static bool ends_in_separator(const uint8_t *p, size_t n, size_t at) {
    const uint8_t *before = memrchr(p, '\n', at), *line = before ? before + 1 : p, *document;
    size_t left = n - (size_t)(line - p);
    Documents d = documents_of(line, left);
    return !documents_next(&d, &document, &left);
}

/* Offset at which the last `fraction` of the text begins, moved on to the start of a line, or of a
 * character where no line starts; then to the start of the next document if at least half of the
 * part is left. */
static size_t validation_at(const uint8_t *p, size_t n, double fraction) {
    size_t at = n - (size_t)((double)n * fraction), n_rest;
    if (at == 0 || at == n) return at;
    const uint8_t *newline = memchr(p + at - 1, '\n', n - at), *rest;
    if (newline) at = (size_t)(newline - p) + 1;
    if (!newline && ends_in_separator(p, n, at)) return n;
    for (int i = 0; i < 3 && at < n && (p[at] & 0xc0) == 0x80; i++) at++;
    Documents d = documents_of(p + at, n - at);
    bool within = documents_next(&d, &rest, &n_rest) && rest == p + at; // a document
    return within && n_rest <= (n - at) / 2 ? at + n_rest : at;
}

/* The default of --val-fraction: a tenth of the text, as in nanoGPT's character data, but at most 4
 * MB, which give about a million tokens. */
static double default_fraction(size_t n_bytes) {
    enum { MOST = 4000000 };
    if (o.val_tokens > 0 || !o.out[0]) return 0;
    return (double)n_bytes * 0.1 > MOST ? MOST / (double)n_bytes : 0.1;
}

static ShardFormat choose_format(const Tokenizer *t) {
    if (o.format == FORMAT_NANOGPT) return SHARD_NANOGPT;
    if (o.format == FORMAT_AUTO) return tokenizer_vocab(t) > 65536 ? SHARD_LLMC32 : SHARD_LLMC16;
    return o.format == FORMAT_LLMC16 ? SHARD_LLMC16 : SHARD_LLMC32;
}

static void report(const char *split, int files, int64_t tokens) {
    if (files)
        printf("%s%s%s%s.bin: %lld tokens", o.out, o.out[strlen(o.out) - 1] == '/' ? "" : "_",
               split, o.shard_tokens ? "_*" : "", (long long)tokens);
    if (files) printf(files > 1 ? " in %d files\n" : "\n", files);
}

static int encode(int argc, char **argv) {
    static const Opt options[] = {
        {"tokenizer", OPT_STR, &o.tokenizer, "bytes", 0, 0, "X",
         "tokenizer: a folder, a file, or \"bytes\""},
        {"text", OPT_STR, &o.text, "", 0, 0, "FILE",
         "text to encode: a file, a pattern (each file is a document), or - for the standard "
         "input"},
        {"out", OPT_STR, &o.out, "", 0, 0, "PREFIX",
         "first part of the names of the shards; without it the ids are printed"},
        {"val-fraction", OPT_FLOAT, &o.val_fraction, "0.1", 0, 1, "F",
         "fraction of each file, at its end, for validation; the default takes at most 4 MB in "
         "all"},
        {"val-tokens", OPT_INT, &o.val_tokens, "0", 0, 1e15, "N",
         "instead of --val-fraction: the first N tokens are for validation"},
        {"format", OPT_CHOICE, &o.format, "auto", 0, 0, "auto|llmc16|llmc32|nanogpt",
         "format of the shards; auto: llmc16 if the vocabulary fits 16 bits, else llmc32"},
        {"shard-tokens", OPT_INT, &o.shard_tokens, "0", 0, 1e15, "N",
         "largest number of tokens of a file; 0: one file for all"},
        {"eot", OPT_BOOL, &o.eot, "1", 0, 0, "", "put the end-of-text token before each document"},
        {"threads", OPT_INT, &o.threads, "0", 0, 4096, "N", "threads; 0: one per core"},
        {0}};
    opt_parse(options, argc, argv, "gpt-tokenize encode: text to token shards\n\n");
    bool fraction_given = opt_given(opt_find(options, "val-fraction"));
    if (fraction_given && o.val_fraction > 0 && o.val_tokens > 0)
        die_usage("--val-fraction and --val-tokens exclude each other");
    if (strcmp(o.out, "-") == 0)
        die_usage("--out: - is the standard output: name a PREFIX of files; without --out the ids "
                  "are printed");
    Texts x = open_texts(o.text);
    if (!fraction_given) o.val_fraction = default_fraction(x.n_bytes);
    Tokenizer *t = tokenizer_load(o.tokenizer);
    Encoding e = {
        .t = t, .team = team_create((int)o.threads), .all = x.n_bytes, .val_left = o.val_tokens};
    if (o.eot && tokenizer_eot(t) < 0)
        die_user("the tokenizer has no end-of-text token: use --no-eot");
    ShardFormat format = choose_format(t);
    if (o.out[0]) {
        e.train = shard_writer_open(o.out, "train", format, tokenizer_vocab(t), o.shard_tokens);
        e.val = shard_writer_open(o.out, "val", format, tokenizer_vocab(t), o.shard_tokens);
    }
    die_set_hook(replace_abandon_all);
    signal(SIGINT, interrupted);
    signal(SIGTERM, interrupted);
    e.part = part_begin("encoding");
    for (int i = 0; i < x.n; i++) {
        const uint8_t *p = x.maps[i].p;
        size_t cut = validation_at(p, x.maps[i].n, o.val_fraction);
        if (cut) encode_text(&e, p, cut, e.train);
        if (cut < x.maps[i].n) encode_text(&e, p + cut, x.maps[i].n - cut, e.val);
    }
    double spent = part_end(&e.part);
    if (!o.out[0]) {
        if (fflush(stdout) != 0)
            die_user("cannot write the ids: the standard output is full or closed");
        return 0;
    }
    int64_t n_train = shard_writer_finish(e.train), n_val = shard_writer_finish(e.val);
    if (n_train + n_val == 0)
        die_user("--text %s has no text, only <|endoftext|> separators", o.text);
    if (n_train == 0 && o.val_tokens > 0)
        die_user("--val-tokens %lld leaves nothing to train on: --text %s has %lld tokens; for a "
                 "file of validation alone give --val-fraction 1",
                 (long long)o.val_tokens, o.text, (long long)n_val);
    int f_train = shard_writer_commit(e.train), f_val = shard_writer_commit(e.val);
    report("train", f_train, n_train);
    report("val", f_val, n_val);
    printf("%.1f MB of text, %.2f bytes per token, %.1f MB/s, %d threads\n",
           (double)x.n_bytes / 1e6, (double)x.n_bytes / (double)(n_train + n_val),
           (double)x.n_bytes / 1e6 / spent, team_size(e.team));
    team_destroy(e.team);
    tokenizer_free(t);
    close_texts(&x);
    return 0;
}

static int decode(int argc, char **argv) {
    static const Opt options[] = {
        {"tokenizer", OPT_STR, &o.tokenizer, "bytes", 0, 0, "X",
         "tokenizer: a folder, a file, or \"bytes\""},
        {"shard", OPT_STR, &o.shard, "", 0, 0, "FILE",
         "file of tokens: llm.c's, nanoGPT's or Megatron's"},
        {"from", OPT_INT, &o.from, "0", 0, 1e18, "N", "first token to print, counted from 0"},
        {"count", OPT_INT, &o.count, "-1", -1, 1e18, "N", "number of tokens to print; -1: all"},
        {0}};
    enum { BLOCK = 1 << 16 };
    opt_parse(options, argc, argv,
              "gpt-tokenize decode: tokens to text, on the standard output\n\n");
    if (!o.shard[0]) die_usage("--shard FILE is missing: the tokens to decode");
    Tokenizer *t = tokenizer_load(o.tokenizer);
    Shard s = shard_open(o.shard);
    Err why;
    if (!shard_check(&s, tokenizer_vocab(t), NULL, &why)) die_user("%s: %s", o.shard, why.text);
    if (o.from > s.n_tokens)
        die_user("--from %lld is beyond the %lld tokens", (long long)o.from, (long long)s.n_tokens);
    int64_t left = s.n_tokens - o.from;
    if (o.count >= 0 && o.count < left) left = o.count;
    int32_t *ids = mem_alloc(BLOCK * sizeof *ids);
    bool ok = true;
    for (int64_t at = o.from, n; ok && left > 0; at += n, left -= n) {
        uint8_t *text;
        n = left < BLOCK ? left : BLOCK;
        shard_read(&s, at, n, ids);
        size_t bytes = (size_t)tokenizer_decode(t, ids, n, &text);
        ok = fwrite(text, 1, bytes, stdout) == bytes;
        mem_free(text);
    }
    if (!ok || fflush(stdout) != 0)
        die_user("cannot write the text: the standard output is full or closed");
    shard_close(&s);
    mem_free(ids), tokenizer_free(t);
    return 0;
}

static int info(int argc, char **argv) {
    static const Opt options[] = {{"tokenizer", OPT_STR, &o.tokenizer, "bytes", 0, 0, "X",
                                   "tokenizer: a folder, a file, or \"bytes\""},
                                  {0}};
    opt_parse(options, argc, argv, "gpt-tokenize info: say what a tokenizer is\n\n");
    Tokenizer *t = tokenizer_load(o.tokenizer);
    size_t longest = 0, sum = 0, n;
    for (int32_t i = 0; i < tokenizer_vocab(t); i++) {
        tokenizer_token(t, i, &n);
        sum += n;
        if (n > longest) longest = n;
    }
    printf("format       %s\ntokens       %d\nmerges       %lld\nend of text  %d\nencodes      %s\n"
           "token bytes  %.2f on average, at most %zu\n",
           tokenizer_format(t), (int)tokenizer_vocab(t), (long long)tokenizer_merges(t),
           (int)tokenizer_eot(t), tokenizer_can_encode(t) ? "yes" : "no",
           (double)sum / tokenizer_vocab(t), longest);
    tokenizer_free(t);
    return 0;
}

static int hellaswag(int argc, char **argv) {
    static const Opt options[] = {
        {"tokenizer", OPT_STR, &o.tokenizer, "bytes", 0, 0, "X",
         "tokenizer: a folder, a file, or \"bytes\""},
        {"text", OPT_STR, &o.text, "", 0, 0, "FILE",
         "examples: HellaSwag's own hellaswag_val.jsonl"},
        {"out", OPT_STR, &o.out, "", 0, 0, "FILE", "file to write, for train_gpt --hellaswag"},
        {0}};
    Err e;
    size_t n;
    opt_parse(options, argc, argv, "gpt-tokenize hellaswag: multiple choice as llm.c's .bin\n\n");
    if (!o.out[0]) die_usage("--out FILE is missing: the file for train_gpt --hellaswag");
    Texts x = open_texts(o.text);
    if (x.n != 1) die_usage("--text %s: %d files match, one is encoded at a time", o.text, x.n);
    Tokenizer *t = tokenizer_load(o.tokenizer);
    uint8_t *bytes = hellaswag_encode(x.maps[0].p, x.maps[0].n, t, &n, &e);
    if (!bytes) die_user("%s: %s", x.names[0], e.text);
    die_set_hook(replace_abandon_all);
    replace_whole("", o.out, bytes, n);
    int32_t examples;
    memcpy(&examples, bytes + 8, sizeof examples);
    printf("%s: %d example%s\n", o.out, examples, examples > 1 ? "s" : "");
    mem_free(bytes);
    tokenizer_free(t);
    close_texts(&x);
    return 0;
}

static int convert(int argc, char **argv) {
    static const Opt options[] = {
        {"tokenizer", OPT_STR, &o.tokenizer, "bytes", 0, 0, "X",
         "tokenizer: a folder, a file, or \"bytes\""},
        {"out", OPT_STR, &o.out, "", 0, 0, "DIR",
         "folder for vocab.json, merges.txt, tokenizer_config.json and gpt2_tokenizer.bin"},
        {0}};
    opt_parse(options, argc, argv, "gpt-tokenize convert: write a tokenizer as GPT-2's files\n\n");
    if (!o.out[0]) die_usage("--out DIR is missing: the folder for the vocabulary");
    Tokenizer *t = tokenizer_load(o.tokenizer);
    tokenizer_save(t, o.out);
    tokenizer_free(t);
    return 0;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"train",  "encode", "hellaswag",
                                        "decode", "info",   "convert"};
    static int (*const commands[])(int, char **) = {train,  encode, hellaswag,
                                                    decode, info,   convert};
    enum { N = sizeof names / sizeof *names };
    die_set_program(argv[0]);
    if (argc > 1 && strcmp(argv[1], "--help=words") == 0) { // for shells: the commands
        for (int i = 0; i < N; i++) puts(names[i]);
        return 0;
    }
    if (argc > 1 && argv[1][0] == '-') opt_parse(&(Opt){0}, argc, argv, usage);
    if (argc < 2)
        die_usage(
            "name a command: train, encode, hellaswag, decode, info or convert (--help shows how)");
    for (int i = 0; i < N; i++)
        if (strcmp(argv[1], names[i]) == 0) return commands[i](argc - 1, argv + 1);
    const char *near = opt_nearest(argv[1], names, N);
    if (near) die_usage("unknown command %s: did you mean %s? (--help shows how)", argv[1], near);
    die_usage("unknown command %s (--help shows how)", argv[1]);
}
