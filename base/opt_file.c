#include "base/opt_file.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/claim.h"
#include "base/mem.h"
#include "base/opt.h"

enum {
    LONGEST = 4 << 20, // most bytes that are read; of a run's log only the first line matters
    MOST_KEYS = 1000   // of a JSON object; there are fewer options
};

static void add(OptFile *f, char *name, char *value, int line) {
    if (f->n % 32 == 0) f->pair = mem_realloc(f->pair, (size_t)f->n + 32, sizeof *f->pair);
    f->pair[f->n++] = (OptPair){name, value, line};
}

void opt_file_free(OptFile *f) {
    for (int i = 0; i < f->n; i++) mem_free(f->pair[i].name), mem_free(f->pair[i].value);
    mem_free(f->pair), mem_free(f->path);
    *f = (OptFile){0};
}

/* ---- lines */

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

static const char *skip_space(const char *p, const char *end) {
    while (p < end && isspace((unsigned char)*p)) p++;
    return p;
}

/* The end of the value that begins at p: before a comment or the end of the line, and before the
 * spaces in front of them. */
static const char *value_end(const char *p, const char *end) {
    const char *q = p;
    while (q < end && !(*q == '#' && (q == p || isspace((unsigned char)q[-1])))) q++;
    while (q > p && isspace((unsigned char)q[-1])) q--;
    return q;
}

/* Adds the pair of a line "NAME = VALUE", "NAME: VALUE", "NAME VALUE" or "NAME". */
static bool parse_line(const char *p, const char *end, int line, OptFile *f, Err *e) {
    p = skip_space(p, end);
    if (p == end || *p == '#') return true;
    const char *name = p, *value, *value_ends, *after;
    while (p < end && is_name(*p)) p++;
    size_t n_name = (size_t)(p - name);
    value = skip_space(p, end);
    bool sign = value < end && (*value == '=' || *value == ':');
    if (n_name == 0 || (value == p && value < end && !sign && *value != '#'))
        return err(e, "%d: no option: NAME = VALUE is expected (# begins a comment)", line);
    if (sign) value = skip_space(value + 1, end);
    if (value < end && (*value == '"' || *value == '\'')) {
        value_ends = memchr(value + 1, *value, (size_t)(end - value - 1));
        if (!value_ends) return err(e, "%d: the quote of the value is not closed", line);
        after = skip_space(value_ends + 1, end);
        if (after < end && *after != '#') return err(e, "%d: text after the quoted value", line);
        value++;
    } else {
        value_ends = value_end(value, end);
    }
    bool none = !sign && value == value_ends;
    add(f, mem_printf("%.*s", (int)n_name, name),
        none ? NULL : mem_printf("%.*s", (int)(value_ends - value), value), line);
    return true;
}

static bool parse_lines(const char *text, size_t n, OptFile *f, Err *e) {
    const char *end = text + n;
    if (memchr(text, 0, n))
        return err(e, "1: not a text file: a file of options has lines NAME = VALUE, or is JSON");
    for (int line = 1; text < end; line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        if (!parse_line(text, stop, line, f, e)) return false;
        text = stop < end ? stop + 1 : end;
    }
    return true;
}

/* ---- JSON */

/* The line number of a key in the text, which jansson does not keep. */
static int line_of(const char *text, size_t n, const char *key) {
    size_t len = strlen(key);
    int line = 1;
    for (size_t i = 0; i + len + 2 < n; i++) {
        if (text[i] == '\n') line++;
        if (text[i] == '"' && text[i + len + 1] == '"' && memcmp(text + i + 1, key, len) == 0 &&
            *skip_space(text + i + len + 2, text + n - 1) == ':')
            return line;
    }
    return 1;
}

static char *json_text(const json_t *v) {
    char number[32];
    if (json_is_string(v)) return mem_strdup(json_string_value(v));
    if (json_is_integer(v)) return mem_printf("%lld", (long long)json_integer_value(v));
    if (json_is_real(v)) return mem_strdup(opt_number(json_real_value(v), number, sizeof number));
    if (json_is_boolean(v)) return mem_strdup(json_is_true(v) ? "true" : "false");
    return NULL;
}

/* The options of a record: those of {"run": {"options": ...}} or {"options": ...}; or NULL. */
static json_t *options_of(json_t *root) {
    json_t *run = json_object_get(root, "run");
    json_t *o = json_object_get(json_is_object(run) ? run : root, "options");
    return json_is_object(o) ? o : NULL;
}

/* Adds the pairs of a JSON object: all its keys, or the options of a record. */
static bool parse_json(const char *text, size_t n, OptFile *f, Err *e) {
    json_error_t at;
    const char *key;
    json_t *v, *root = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, &at);
    if (!root) return err(e, "%d: not JSON: %s", at.line, at.text);
    json_t *record = options_of(root);
    f->record = record != NULL;
    const char *rest = skip_space(text + at.position, text + n);
    int ends = 1; // line of rest
    for (const char *p = text; p < rest; p++) ends += *p == '\n';
    bool ok = f->record || rest == text + n || err(e, "%d: text after the JSON object", ends);
    json_t *from = record ? record : root;
    if (ok && json_object_size(from) > MOST_KEYS)
        ok = err(e, "1: %zu keys: this is no file of options", json_object_size(from));
    json_object_foreach(from, key, v) {
        int line = ok ? line_of(text, n, key) : 0;
        char *value = ok ? json_text(v) : NULL;
        if (ok && !value) ok = err(e, "%d: \"%s\" takes text, a number, true or false", line, key);
        if (ok) add(f, mem_strdup(key), value, line);
    }
    json_decref(root);
    return ok;
}

bool opt_file_parse(const char *text, size_t n, OptFile *out, Err *e) {
    static const char mark[] = "\xef\xbb\xbf"; // editors of Windows put it before UTF-8
    *out = (OptFile){0};
    if (n >= 3 && memcmp(text, mark, 3) == 0) text += 3, n -= 3;
    const char *first = skip_space(text, text + n);
    bool json = first < text + n && *first == '{';
    bool ok = (json ? parse_json : parse_lines)(text, n, out, e);
    if (!ok) opt_file_free(out);
    return ok;
}

bool opt_file_read(const char *path, OptFile *out, Err *e) {
    struct stat st;
    Err why;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    char *name = folder ? mem_printf("%s/train_state.json", path) : mem_strdup(path);
    char *text = mem_alloc(LONGEST);
    FILE *f = fopen(name, "re");
    *out = (OptFile){0};
    size_t n = f ? fread(text, 1, LONGEST, f) : 0;
    bool ok = f && !ferror(f);
    if (!ok)
        err(e, "cannot read %s: %s%s", name, strerror(errno),
            folder ? "; the folder of a checkpoint is needed (NAME/step_...)" : "");
    // a record's options name its own log as an output: the run must not overwrite it (but
    // continues it with --resume: run_continues_record)
    if (ok) ok = claim_input_path(name, e);
    if (ok && !opt_file_parse(text, n, out, &why)) ok = err(e, "%s:%s", name, why.text);
    if (ok && n == LONGEST && !out->record) ok = err(e, "%s: too long for a file of options", name);
    if (f) fclose(f);
    mem_free(text);
    if (ok)
        out->path = name;
    else
        mem_free(name), opt_file_free(out);
    return ok;
}
