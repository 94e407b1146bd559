#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "data/llmc.h"
#include "data/tokenizer_parts.h"

/* The text of a key; `otherwise` where the key has none. */
static const char *text_of(const json_t *x, const char *key, const char *otherwise) {
    const char *text = json_string_value(json_object_get(x, key));
    return text ? text : otherwise;
}

/* Tokens while they are read, in any order of ids. */
typedef struct Vocab {
    size_t n;
    struct Named {
        const char *text; // NULL: not yet seen
        bool is_bytes;    // text holds the token's bytes; else it is in GPT-2's characters
    } * at;               // [n]
} Vocab;

static bool vocab_set(Vocab *v, const json_t *id, const char *text, bool is_bytes, Err *e) {
    json_int_t i = json_integer_value(id);
    if (!json_is_integer(id)) return err(e, "the id of token \"%.99s\" is no whole number", text);
    if (i < 0 || (uint64_t)i >= v->n)
        return err(
            e, "id %" JSON_INTEGER_FORMAT " among %zu tokens: ids must be 0 to %zu without gaps", i,
            v->n, v->n - 1);
    if (v->at[i].text) return err(e, "id %" JSON_INTEGER_FORMAT " is given twice", i);
    v->at[i] = (struct Named){text, is_bytes};
    return true;
}

/* Appends the tokens to s by id. All ids are set: vocab_set has taken n distinct ids below n. */
static bool vocab_strings(const Vocab *v, Strings *s, Err *e) {
    for (size_t i = 0; i < v->n; i++) {
        const char *text = v->at[i].text;
        size_t len = strlen(text);
        uint8_t *bytes = mem_alloc(len);
        int64_t n = v->at[i].is_bytes ? -1 : bytes_of_chars(text, len, bytes);
        bool ok = n >= 0 || v->at[i].is_bytes;
        if (ok) strings_add(s, n < 0 ? (const uint8_t *)text : bytes, n < 0 ? len : (size_t)n);
        mem_free(bytes);
        if (!ok)
            return err(e,
                       "token \"%.99s\" has a character that stands for no byte: only GPT-2's "
                       "byte-level vocabularies are read",
                       text);
    }
    return true;
}

/* Is a field of tokenizer.json absent or empty? Fields that would change ids must be, or have the
 * one value that is implemented. */
static bool is_nothing(const json_t *x) {
    return !x || json_is_null(x) || json_is_false(x) ||
           (json_is_string(x) && !json_string_value(x)[0]) ||
           (json_is_number(x) && json_number_value(x) == 0);
}

/* Checks that none of these fields is set. */
static bool absent(const json_t *object, const char *where, const char *const *names, int n,
                   Err *e) {
    for (int i = 0; i < n; i++)
        if (!is_nothing(json_object_get(object, names[i])))
            return err(e, "%s\"%s\" is set: it changes ids in a way that is not implemented", where,
                       names[i]);
    return true;
}

static bool is_true(const json_t *x, const char *key, bool otherwise) {
    const json_t *is = json_object_get(x, key);
    return is ? json_is_true(is) : otherwise;
}

/* Special tokens are text like any other in a text. The others (<think>) are cut out of it: exactly
 * their bytes, wherever they stand. With a blank or the end of a line in it a token could stand
 * where a text is cut for threads (presplit_safe). */
static bool check_cut_out(const json_t *token, const char *text, Err *e) {
    static const char *const names[] = {"single_word", "lstrip", "rstrip", "normalized"};
    if (!*text || strpbrk(text, " \n"))
        return err(e,
                   "added token \"%.99s\" is not special, and it is empty or has a blank or the "
                   "end of a line: this is not implemented",
                   text);
    char *where = mem_printf("added token \"%.99s\", which is not special: ", text);
    bool ok = absent(token, where, names, 4, e);
    mem_free(where);
    return ok;
}

/* Adds the added tokens that are not in the vocabulary. */
static bool read_added(Vocab *v, const json_t *added, const json_t *vocab, Err *e) {
    size_t i;
    json_t *token;
    json_array_foreach(added, i, token) {
        const json_t *id = json_object_get(token, "id"),
                     *content = json_object_get(token, "content");
        if (!json_is_string(content)) return err(e, "added token %zu has no content", i);
        const char *text = json_string_value(content);
        if (!is_true(token, "special", false) && !check_cut_out(token, text, e)) return false;
        const json_t *same = json_object_get(vocab, text);
        if (same && json_integer_value(same) != json_integer_value(id))
            return err(e, "added token \"%.99s\" has another id in the vocabulary", text);
        if (same) continue;
        if (!vocab_set(v, id, text, true, e)) return false;
    }
    return true;
}

static size_t count_added(const json_t *added, const json_t *vocab) {
    size_t i, n = 0;
    json_t *token;
    json_array_foreach(added, i, token) {
        const char *text = text_of(token, "content", NULL);
        n += text && !json_object_get(vocab, text);
    }
    return n;
}

/* Makes a tokenizer without merges from the entries {"token": id} of a vocabulary, and the added
 * tokens that the vocabulary lacks: {"id": 50256, "content": "<|endoftext|>", "special": true}.
 * NULL and the reason on error. */
static Tokenizer *read_tokens(json_t *vocab, const json_t *added, const char *format, Err *e) {
    Vocab v = {.n = json_object_size(vocab) + count_added(added, vocab)};
    v.at = mem_calloc(v.n, sizeof *v.at);
    const char *key;
    json_t *value;
    Strings s = {0};
    bool ok = true;
    json_object_foreach(vocab, key, value) ok = ok && vocab_set(&v, value, key, false, e);
    ok = ok && read_added(&v, added, vocab, e) && vocab_strings(&v, &s, e);
    mem_free(v.at);
    if (!ok) return strings_free(&s), NULL;
    Tokenizer *t = tokenizer_make(format, s);
    tokenizer_choose_eot(t);
    return t;
}

/* The id of the token whose text, n bytes at s, is in GPT-2's characters; -1: none. */
static int32_t find_chars(const Tokenizer *t, const char *s, size_t n) {
    uint8_t *bytes = mem_alloc(n);
    int64_t n_bytes = bytes_of_chars(s, n, bytes);
    int32_t id = n_bytes > 0 ? tokenizer_find(t, bytes, (size_t)n_bytes) : -1;
    mem_free(bytes);
    return id;
}

static bool add_merge(Tokenizer *t, const char *a, size_t n_a, const char *b, size_t n_b,
                      size_t line, Err *e) {
    Err why = {""};
    int32_t left = find_chars(t, a, n_a), right = find_chars(t, b, n_b);
    bool ok = left >= 0 && right >= 0 ? tokenizer_add_merge(t, left, right, &why)
                                      : err(&why, "it is not two tokens of the vocabulary");
    if (!ok)
        err(e, "merge %zu (\"%.*s %.*s\"): %.200s", line, (int)(n_a < 60 ? n_a : 60), a,
            (int)(n_b < 60 ? n_b : 60), b, why.text);
    return ok;
}

/* Adds the merge of a line "left right" of n bytes, which must have exactly one blank. */
static bool add_merge_text(Tokenizer *t, const char *p, size_t n, size_t line, Err *e) {
    const char *blank = n ? memchr(p, ' ', n) : NULL;
    if (!blank || memchr(blank + 1, ' ', n - (size_t)(blank + 1 - p)))
        return err(e, "merge %zu is not two tokens with one blank between them", line);
    size_t n_a = (size_t)(blank - p);
    return add_merge(t, p, n_a, blank + 1, n - n_a - 1, line, e);
}

static bool read_merges(Tokenizer *t, const char *p, size_t n, Err *e) {
    size_t number = 0;
    for (size_t i = 0, end; i < n; i = end + 1) {
        const char *newline = memchr(p + i, '\n', n - i);
        end = newline ? (size_t)(newline - p) : n;
        size_t len = end - i;
        if (len && p[i + len - 1] == '\r') len--;
        if (len == 0 || (len >= 8 && memcmp(p + i, "#version", 8) == 0)) continue;
        if (!add_merge_text(t, p + i, len, ++number, e)) return false;
    }
    return true;
}

static json_t *load_json(const uint8_t *p, size_t n, Err *e) {
    json_error_t why;
    json_t *root = json_loadb((const char *)p, n, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        err(e, "no JSON: line %d: %.300s", why.line, why.text);
    else if (!json_is_object(root))
        err(e, "no JSON object");
    if (json_is_object(root)) return root;
    json_decref(root);
    return NULL;
}

static bool finish(Tokenizer *t, Err *e) {
    t->can_encode = true;
    return tokenizer_check_bytes(t, e);
}

bool tokenizer_parse_gpt2(const uint8_t *vocab, size_t n_vocab, const uint8_t *merges,
                          size_t n_merges, Tokenizer **out, Err *e) {
    json_t *root = load_json(vocab, n_vocab, e);
    if (!root) return false;
    Tokenizer *t = read_tokens(root, NULL, "GPT-2 vocab.json and merges.txt", e);
    json_decref(root);
    if (!t) return false;
    if (!read_merges(t, (const char *)merges, n_merges, e) || !finish(t, e)) {
        tokenizer_free(t);
        return false;
    }
    *out = t;
    return true;
}

static bool type_is(const json_t *x, const char *type) {
    return strcmp(text_of(x, "type", ""), type) == 0;
}

/* How a pre_tokenizer cuts text: ByteLevel alone as GPT-2; with Digits or with the expression of
 * LLaMA 3 or Qwen before it. False: in another way. */
static bool read_split(const json_t *stage, Tokenizer *t) {
    const json_t *stages = json_object_get(stage, "pretokenizers"),
                 *first = json_array_get(stages, 0), *level = stage;
    if (type_is(stage, "Sequence") && json_array_size(stages) == 2)
        level = json_array_get(stages, 1);
    if (!type_is(level, "ByteLevel")) return false;
    bool regex = is_true(level, "use_regex", true); // absent in old files
    t->add_prefix_space = is_true(level, "add_prefix_space", false);
    t->split = regex ? SPLIT_GPT2 : SPLIT_NONE;
    if (level == stage) return true;
    const char *pattern = text_of(json_object_get(first, "pattern"), "Regex", "");
    bool qwen = strcmp(pattern, presplit_qwen) == 0;
    if (type_is(first, "Digits") && is_true(first, "individual_digits", false) && regex)
        t->split = SPLIT_DIGITS;
    else if (type_is(first, "Split") && (qwen || strcmp(pattern, presplit_llama3) == 0) &&
             strcmp(text_of(first, "behavior", ""), "Isolated") == 0 &&
             !is_true(first, "invert", false) && !regex)
        t->split = qwen ? SPLIT_QWEN : SPLIT_LLAMA3;
    else
        return false;
    return !t->add_prefix_space; // it would put a space before every piece
}

/* Reads a post_processor: ByteLevel, which changes no id, and a template of the text alone
 * (transformers 5 saves one with every tokenizer) or of the text behind a special token. */
static bool read_template(const json_t *stage, Tokenizer *t) {
    const json_t *several = json_object_get(stage, "processors"),
                 *single = json_object_get(stage, "single"), *text = json_array_get(single, 0);
    if (is_nothing(stage) || type_is(stage, "ByteLevel")) return true;
    if (type_is(stage, "Sequence")) {
        size_t i;
        json_t *part;
        json_array_foreach(several, i, part) if (!read_template(part, t)) return false;
        return true;
    }
    if (!type_is(stage, "TemplateProcessing") || t->bos >= 0) return false;
    if (json_array_size(single) == 2) {
        const char *name = text_of(json_object_get(text, "SpecialToken"), "id", NULL);
        if (name) t->bos = tokenizer_find(t, (const uint8_t *)name, strlen(name));
        if (t->bos < 0) return false;
        text = json_array_get(single, 1);
    } else if (json_array_size(single) != 1) {
        return false;
    }
    return json_object_get(text, "Sequence");
}

/* Refuses a tokenizer.json whose model has a field that would change ids. */
static bool check_model(const json_t *root, const json_t *model, Err *e) {
    static const char *const outer[] = {"truncation", "padding"};
    static const char *const inner[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix"};
    if (!json_is_object(model)) return err(e, "no \"model\": is this a tokenizer.json?");
    if (!type_is(model, "BPE") && json_object_get(model, "type"))
        return err(e, "model type \"%.60s\": only BPE is implemented", text_of(model, "type", "?"));
    return absent(root, "", outer, 2, e) && absent(model, "model.", inner, 3, e);
}

/* Reads the stages around the model; refuses those that would change ids in another way. */
static bool read_stages(const json_t *root, Tokenizer *t, Err *e) {
    const json_t *form = json_object_get(root, "normalizer"),
                 *before = json_object_get(root, "pre_tokenizer"),
                 *after = json_object_get(root, "post_processor"),
                 *decoder = json_object_get(root, "decoder");
    t->nfc = type_is(form, "NFC");
    if (!t->nfc && !is_nothing(form))
        return err(e, "normalizer \"%.60s\": only NFC is implemented", text_of(form, "type", "?"));
    if (!read_split(before, t))
        return err(e,
                   "pre_tokenizer \"%.60s\": only ByteLevel is implemented, alone or behind "
                   "Digits or the Split of LLaMA 3 or Qwen",
                   text_of(before, "type", "none"));
    if (t->add_prefix_space && t->n_added)
        return err(e, "add_prefix_space is not implemented with added tokens that are not special");
    if (!read_template(after, t))
        return err(e,
                   "post_processor \"%.60s\": only ByteLevel is implemented, and a "
                   "TemplateProcessing of the text, or of a special token and the text",
                   text_of(after, "type", "none"));
    if (!is_nothing(decoder) && !type_is(decoder, "ByteLevel"))
        return err(e, "decoder \"%.60s\": only ByteLevel is implemented",
                   text_of(decoder, "type", "none"));
    return true;
}

static bool read_json_merges(Tokenizer *t, const json_t *merges, Err *e) {
    size_t i;
    json_t *m;
    if (!json_is_array(merges)) return err(e, "no model.merges");
    json_array_foreach(merges, i, m) {
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        bool ok;
        if (json_is_string(m)) {
            ok = add_merge_text(t, json_string_value(m), json_string_length(m), i + 1, e);
        } else if (json_is_string(a) && json_is_string(b) && json_array_size(m) == 2) {
            ok = add_merge(t, json_string_value(a), json_string_length(a), json_string_value(b),
                           json_string_length(b), i + 1, e);
        } else {
            ok = err(e, "merge %zu is neither \"a b\" nor [\"a\", \"b\"]", i + 1);
        }
        if (!ok) return false;
    }
    return true;
}

static void read_cut_out(Tokenizer *t, const json_t *added) {
    size_t i;
    json_t *token;
    t->added = mem_alloc(json_array_size(added) * sizeof *t->added);
    json_array_foreach(added, i, token) {
        if (is_true(token, "special", false)) continue;
        t->added[t->n_added++] = (int32_t)json_integer_value(json_object_get(token, "id"));
        t->added_begins[(uint8_t)*text_of(token, "content", "")] = true;
    }
}

static Tokenizer *read_json(const json_t *root, Err *e) {
    const json_t *model = json_object_get(root, "model"),
                 *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    if (!check_model(root, model, e)) return NULL;
    if (!json_object_size(vocab)) return err(e, "no model.vocab"), NULL;
    Tokenizer *t = read_tokens(vocab, added, "Hugging Face tokenizer.json", e);
    if (!t) return NULL;
    t->ignore_merges = is_true(model, "ignore_merges", false);
    read_cut_out(t, added);
    if (read_stages(root, t, e) && read_json_merges(t, json_object_get(model, "merges"), e) &&
        finish(t, e))
        return t;
    return tokenizer_free(t), NULL;
}

bool tokenizer_parse_json(const uint8_t *p, size_t n, Tokenizer **out, Err *e) {
    json_t *root = load_json(p, n, e);
    if (!root) return false;
    Tokenizer *t = read_json(root, e);
    json_decref(root);
    if (t) *out = t;
    return t != NULL;
}

bool tokenizer_parse_bin(const uint8_t *p, size_t n, Tokenizer **out, Err *e) {
    uint32_t h[4] = {0};
    if (n >= LLMC_HEADER) memcpy(h, p, sizeof h); // little-endian, as everywhere in llm.c
    if (h[0] != LLMC_TOKENIZER)
        return err(
            e, "no llm.c tokenizer: its first number is not %d, or it is shorter than its header",
            LLMC_TOKENIZER);
    if (h[1] != 1 && h[1] != 2) return err(e, "version %u: versions 1 and 2 are read", h[1]);
    size_t vocab = h[2];
    uint32_t eot = h[1] == 2 ? h[3] : 50256;
    if (eot >= vocab) return err(e, "the end of text is token %u of %zu", eot, vocab);
    Strings s = {0};
    size_t at = LLMC_HEADER;
    for (size_t i = 0; i < vocab; i++) {
        size_t len = at < n ? p[at] : 0;
        if (at >= n || len > n - at - 1)
            return strings_free(&s), err(e, "the file ends inside token %zu of %zu", i, vocab);
        strings_add(&s, p + at + 1, len);
        at += 1 + len;
    }
    if (at != n) return strings_free(&s), err(e, "%zu bytes follow the last token", n - at);
    *out = tokenizer_make("gpt2_tokenizer.bin", s);
    (*out)->eot = (int32_t)eot;
    return true;
}
