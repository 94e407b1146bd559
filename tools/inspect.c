/* inspect -- prints what a file or folder contains: token shards, models, checkpoints, tokenizers,
 * evaluation files.
 *
 *     gpt-inspect data/train.bin run/step_00001000/model.safetensors
 *     gpt-inspect run                                   its checkpoints, the newest one in detail
 *     gpt-inspect --tokenizer gpt2/ data/train.bin      shows the first tokens as text
 *
 * For a file of another kind, or a damaged one, it prints one line, and the exit status is 1.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/path.h"
#include "base/utf8.h"
#include "data/checkpoint.h"
#include "data/hellaswag.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/runstate.h"
#include "data/safetensors.h"
#include "data/token_shard.h"
#include "data/tokenizer.h"
#include "data/weights.h"

enum {
    MOST_IDS = 1 << 24, // MOST_IDS: ids that are counted; no vocabulary is larger
    SHOWN = 10
};

static const char *tokenizer_path;
static Tokenizer *tokenizer; // NULL: ids are shown as numbers

static const Opt options[] = {{"tokenizer", OPT_STR, &tokenizer_path, "", 0, 0, "FILE",
                               "tokenizer with which tokens are shown as text"},
                              {0}};

/* 1234567 as 1,234,567; n >= 0. The text is valid until the fourth call from this one. */
static const char *commas(int64_t n) {
    static char bufs[4][32];
    static int turn;
    char *b = bufs[turn++ % 4], digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRId64, n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) b[at++] = ',';
        b[at++] = digits[i];
    }
    b[at] = 0;
    return b;
}

static int32_t word(const IoMap *m, size_t i) {
    return llmc_word(m->p, m->n, i);
}

/* ---- token shards ---------------------------------------------------------------------------- */

/* Prints n bytes of text. What a terminal would act on, and parts of characters, are escaped. */
static void print_text(const uint8_t *s, size_t n) {
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t code;
        len = utf8_decode(s + i, n - i, &code);
        bool shown = len > 0 && code >= ' ' && (code < 0x7f || code >= 0xa0);
        if (len == 0) len = 1; // a part of a character: merges are of bytes
        if (s[i] == '\n')
            printf("\\n");
        else if (s[i] == '"' || s[i] == '\\')
            printf("\\%c", s[i]);
        else if (shown)
            fwrite(s + i, 1, len, stdout);
        else
            for (size_t k = 0; k < len; k++) printf("\\x%02x", s[i + k]);
    }
}

/* Prints a token as quoted text, or without a tokenizer its id. */
static void print_token(int32_t id) {
    size_t n;
    const uint8_t *s = tokenizer ? tokenizer_token(tokenizer, id, &n) : NULL;
    if (!s) {
        printf("%" PRId32, id);
        return;
    }
    putchar('"');
    print_text(s, n);
    putchar('"');
}

static void print_frequent(int64_t *count, int32_t n_ids, int64_t n_tokens) {
    printf("  frequent  ");
    for (int k = 0; k < SHOWN; k++) {
        int32_t best = 0;
        for (int32_t i = 1; i < n_ids; i++)
            if (count[i] > count[best]) best = i;
        if (count[best] == 0) break;
        printf(k ? ", " : "");
        print_token(best);
        printf(" %.1f %%", 100.0 * (double)count[best] / (double)n_tokens);
        count[best] = 0;
    }
    printf("\n");
}

/* Prints the range of ids, the most frequent and the first ones. */
static void print_ids(const Shard *s) {
    enum { PIECE = 1 << 16 };
    int64_t *count = mem_calloc(MOST_IDS, sizeof *count), different = 0;
    int32_t *ids = mem_alloc(PIECE * sizeof *ids), low = INT32_MAX, high = 0;
    for (int64_t at = 0; at < s->n_tokens; at += PIECE) {
        int64_t n = s->n_tokens - at < PIECE ? s->n_tokens - at : PIECE;
        shard_read(s, at, n, ids);
        for (int64_t i = 0; i < n; i++) {
            count[ids[i]]++;
            if (ids[i] < low) low = ids[i];
            if (ids[i] > high) high = ids[i];
        }
    }
    for (int32_t i = low; i <= high; i++) different += count[i] > 0;
    printf("  ids       %" PRId32 " .. %" PRId32 ", %s of them in use; needs a vocabulary of %s\n",
           low, high, commas(different), commas((int64_t)high + 1));
    print_frequent(count, high + 1, s->n_tokens);
    int64_t n = s->n_tokens < SHOWN ? s->n_tokens : SHOWN;
    shard_read(s, 0, n, ids);
    printf("  first    ");
    for (int64_t i = 0; i < n; i++) putchar(' '), print_token(ids[i]);
    printf("\n");
    mem_free(ids);
    mem_free(count);
}

static bool show_shard(const char *path, Err *e) {
    Shard s;
    if (!shard_map(path, &s, e)) return false;
    printf("%s: tokens, %s\n", s.path, shard_format_name(&s));
    printf("  tokens    %s\n", commas(s.n_tokens));
    if (s.n_documents) printf("  documents %s\n", commas(s.n_documents));
    bool ok = shard_check(&s, MOST_IDS, NULL, e) || err_in(e, path);
    if (ok) print_ids(&s);
    shard_close(&s);
    return ok;
}

/* ---- models ---------------------------------------------------------------------------------- */

static bool show_model(const IoMap *m, Err *e) {
    LlmcModel model;
    char text[512];
    if (!llmc_model_parse(m->p, m->n, &model, e)) return false;
    config_print(&model.config, text, sizeof text);
    printf("%s: GPT-2 model, llm.c version %d (%s)\n", m->path, model.version,
           model.version == LLMC_FP32 ? "fp32" : "bf16");
    printf("  shape      %s\n", text);
    printf("  parameters %s, vocabulary padded to %s\n", commas(config_parameters(&model.config)),
           commas(model.padded));
    return true;
}

static bool show_safetensors(const IoMap *m, Err *e) {
    SafeTensors list;
    bool ok = safetensors_parse(m->p, m->n, &list, e);
    if (ok) {
        int64_t elements = 0;
        for (int i = 0; i < list.n; i++) elements += list.t[i].size;
        printf("%s: safetensors\n  tensors   %d of %s elements, %s bytes in all\n", m->path, list.n,
               commas(elements), commas((int64_t)m->n));
        for (int i = 0; i < list.n && i < 2 * SHOWN; i++) {
            char shape[128];
            const char *name = list.t[i].name;
            printf("  %-5s %-16s ", list.t[i].dtype,
                   safetensors_shape(&list.t[i], shape, sizeof shape));
            print_text((const uint8_t *)name, strlen(name));
            putchar('\n');
        }
        if (list.n > 2 * SHOWN) printf("  ... and %d more\n", list.n - 2 * SHOWN);
    }
    safetensors_free(&list);
    return ok;
}

/* Prints the header of llm.c's debug state or optimizer state. */
static bool show_state(const IoMap *m, Err *e) {
    if (m->n < LLMC_HEADER)
        return err(e, "%zu bytes, fewer than its header of 1024: it was cut", m->n);
    if (word(m, 0) == LLMC_DEBUG_STATE)
        printf("%s: llm.c debug state, version %d, batch of %d x %d (not read by train_gpt)\n",
               m->path, word(m, 1), word(m, 2), word(m, 3));
    else
        printf("%s: llm.c optimizer state, version %d, rank %d of %d, step %d (not read by "
               "train_gpt)\n",
               m->path, word(m, 1), word(m, 3), word(m, 2), word(m, 10));
    return true;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static bool show_evaluation(const IoMap *m, Err *e) {
    HellaSwag h;
    int64_t labels[HELLASWAG_CHOICES] = {0};
    if (!hellaswag_parse(m->p, m->n, &h, e)) return false;
    for (int64_t i = 0; i < h.n; i++) labels[hellaswag_label(&h, i)]++;
    printf("%s: llm.c evaluation file (HellaSwag)\n", m->path);
    printf("  examples  %s of 4 completions; right is %s, %s, %s", commas(h.n), commas(labels[0]),
           commas(labels[1]), commas(labels[2]));
    printf(", %s times the first to fourth\n", commas(labels[3]));
    printf("  longest   %s tokens: needs --seq of at least %s for all\n", commas(h.longest_row),
           commas(h.longest_row - 1));
    printf("  ids       up to %s\n", commas(h.max_id));
    hellaswag_close(&h);
    return true;
}

static void describe_tokenizer(const char *path, const Tokenizer *t) {
    printf("%s: tokenizer, %s\n", path, tokenizer_format(t));
    printf("  tokens    %s, end of text is %" PRId32 "\n", commas(tokenizer_vocab(t)),
           tokenizer_eot(t));
    printf("  encodes   %s\n", tokenizer_can_encode(t) ? "yes" : "no: the file holds no merges");
}

static bool show_tokenizer(const IoMap *m, bool json, Err *e) {
    Tokenizer *t;
    bool ok =
        json ? tokenizer_parse_json(m->p, m->n, &t, e) : tokenizer_parse_bin(m->p, m->n, &t, e);
    if (!ok) return false;
    describe_tokenizer(m->path, t);
    tokenizer_free(t);
    return true;
}

/* Is it a file that gpt-inspect shows as part of its folder only? */
static bool is_part(const char *path) {
    static const char *const names[] = {"config.json",     "index.json", "train_state.json",
                                        "checkpoint.json", "vocab.json", "merges.txt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (path_ends(path, names[i])) return true;
    return false;
}

/* Says what a record of train_gpt is, by its first bytes; NULL: the file is none. */
static const char *record(const IoMap *m) {
    static const char *const starts[][2] = {
        {"{\"run\":", "the record of a run: gpt-report shows it"},
        {"{\"time\": ", "a ledger: gpt-ledger shows it"},
        {"{\"displayTimeUnit\":", "a trace: gpt-timeline shows it"}};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        size_t n = strlen(starts[i][0]);
        if (m->n >= n && memcmp(m->p, starts[i][0], n) == 0) return starts[i][1];
    }
    return NULL;
}

/* Calls the reader for the file's first bytes, or for its name. Errors without a file name get
 * it. */
static bool show(const char *path, Err *e) {
    IoMap m;
    bool ok;
    if (!io_map(&m, path, e)) return false;
    int32_t magic = word(&m, 0);
    if (magic == LLMC_MODEL || magic == LLMC_LLAMA)
        ok = show_model(&m, e);
    else if (magic == LLMC_DEBUG_STATE || magic == LLMC_OPTIMIZER)
        ok = show_state(&m, e);
    else if (magic == LLMC_TOKENIZER)
        ok = show_tokenizer(&m, false, e);
    else if (magic == LLMC_EVALUATION)
        ok = show_evaluation(&m, e);
    else if (path_ends(path, ".safetensors"))
        ok = show_safetensors(&m, e);
    else if (is_part(path))
        ok = err(e, "part of a model, checkpoint or tokenizer: name its folder");
    else if (record(&m))
        ok = err(e, "%s", record(&m));
    else if (path_ends(path, ".json") && m.n)
        ok = show_tokenizer(&m, true, e);
    else {
        io_unmap(&m);
        return show_shard(path, e);
    }
    io_unmap(&m);
    return ok || err_in(e, path);
}

/* ---- folders --------------------------------------------------------------------------------- */

/* Prints a model in Hugging Face's layout. With checkpoint.json it is a checkpoint, which is
 * verified as well. */
static bool show_model_folder(const char *path, Err *e) {
    char text[512];
    Config c;
    RunState state;
    bool checkpoint = io_exists_in(path, "checkpoint.json");
    if (!weights_config(path, &c, e)) return false;
    config_print(&c, text, sizeof text);
    printf("%s: %s\n  shape      %s\n  parameters %s\n", path,
           checkpoint ? "checkpoint" : "model in Hugging Face's layout", text,
           commas(config_parameters(&c)));
    if (io_exists_in(path, "tokenizer.json") || io_exists_in(path, "vocab.json"))
        printf("  tokenizer  is here\n");
    if (!checkpoint) return true;
    char *json = checkpoint_state(path, e);
    bool ok = json && runstate_parse(json, &state, e);
    mem_free(json);
    if (!ok) return false;
    printf("  trained    %s steps, %s tokens; its options: train_gpt --config %s\n",
           commas(state.step), commas(state.tokens), path);
    if (!checkpoint_verify(path, e)) return false;
    printf("  checksums  every file is as it was written\n");
    return true;
}

static int not_hidden(const struct dirent *x) {
    return x->d_name[0] != '.';
}

/* Prints every file of a folder whose name may be one of these formats; damaged files get a line on
 * stderr. */
static bool show_files(const char *path, struct dirent **names, int n, Err *e) {
    int shown = 0, bad = 0;
    for (int i = 0; i < n; i++) {
        Err why;
        char *file = mem_printf("%s/%s", path, names[i]->d_name);
        bool known = weights_named(file, ".bin") || weights_named(file, ".safetensors") ||
                     path_ends(file, "tokenizer.json");
        if (known && show(file, &why))
            shown++;
        else if (known)
            die_line("%s", why.text), bad++;
        mem_free(file);
    }
    if (bad) return err(e, "%s: %d of its files cannot be read", path, bad);
    return shown ||
           err(e, "%s: a folder without a checkpoint, a model, a tokenizer or tokens", path);
}

/* Prints a folder: a model or checkpoint, the newest checkpoint of a run, a tokenizer, or its
 * files. */
static bool show_folder(const char *path, Err *e) {
    int checkpoints = 0;
    struct dirent **names;
    if (io_exists_in(path, "config.json")) return show_model_folder(path, e);
    int n = scandir(path, &names, not_hidden, alphasort);
    if (n < 0) return err(e, "cannot open %s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) checkpoints += strncmp(names[i]->d_name, "step_", 5) == 0;
    char *newest = checkpoints ? checkpoint_latest(path, NULL, &group_alone) : NULL;
    bool ok;
    if (newest) {
        printf("%s: %d checkpoint%s; the newest:\n", path, checkpoints, checkpoints > 1 ? "s" : "");
        ok = show_model_folder(newest, e);
    } else if (io_exists_in(path, "vocab.json") && io_exists_in(path, "merges.txt")) {
        Tokenizer *t = tokenizer_load(path);
        describe_tokenizer(path, t);
        tokenizer_free(t);
        ok = true;
    } else {
        ok = show_files(path, names, n, e);
    }
    for (int i = 0; i < n; i++) mem_free(names[i]);
    mem_free(names), mem_free(newest);
    return ok;
}

int main(int argc, char **argv) {
    int bad = 0;
    die_set_program(argv[0]);
    int n = opt_parse_files(options, argc, argv,
                            "gpt-inspect: prints what a file or folder holds\n\n"
                            "    gpt-inspect [--tokenizer FILE] FILE|FOLDER...\n\n"
                            "Tokens (llm.c, nanoGPT, Megatron), models (safetensors, llm.c), "
                            "tokenizers, evaluation files;\n"
                            "folders with checkpoints, a model, a tokenizer or tokens.\n\n");
    if (n == 0) die_usage("no file is named: gpt-inspect FILE... (--help says more)");
    if (*tokenizer_path) tokenizer = tokenizer_load(tokenizer_path);
    for (int i = 1; i <= n; i++) {
        Err e;
        if ((io_is_folder(argv[i]) ? show_folder : show)(argv[i], &e)) continue;
        die_line("%s", e.text);
        bad++;
    }
    tokenizer_free(tokenizer);
    return bad > 0;
}
