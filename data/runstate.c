#include "data/runstate.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

static json_t *print_zscore(const ZScore *z) {
    json_t *ring = json_array();
    for (int i = 0; i < ZSCORE_WINDOW; i++) json_array_append_new(ring, json_real(z->ring[i]));
    return json_pack("{s:o, s:I}", "ring", ring, "count", (json_int_t)z->count);
}

/* The value of an option as it is recorded (mem_free), as valid UTF-8: JSON cannot hold other
 * bytes. */
static char *value_text(const Opt *o) {
    char text[64];
    return utf8_clean(opt_text(o, text, sizeof text));
}

char *runstate_print(const RunState *s, const Opt *options) {
    json_t *record = json_object();
    for (const Opt *o = options; o->help; o++) {
        if (!o->name) continue;
        char *value = value_text(o);
        json_object_set_new(record, o->name, json_string(value));
        mem_free(value);
    }
    json_t *root = json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "step", (json_int_t)s->step,
                             "tokens", (json_int_t)s->tokens, "batch", (json_int_t)s->batch, "data",
                             (json_int_t)s->data, "loss_z", print_zscore(&s->loss_z), "norm_z",
                             print_zscore(&s->norm_z), "options", record);
    if (s->best_step)
        json_object_update_new(root, json_pack("{s:I, s:f}", "best_step", (json_int_t)s->best_step,
                                               "best_loss", s->best_loss));
    char *out = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(root);
    return out;
}

/* A whole number that a run can reach. Up to 2^53 no size that follows from it overflows. */
static bool parse_whole(const json_t *from, const char *key, int64_t *x) {
    const json_t *j = json_object_get(from, key);
    *x = json_integer_value(j);
    return json_is_integer(j) && *x >= 0 && *x <= (int64_t)1 << 53;
}

static bool parse_zscore(const json_t *j, ZScore *z) {
    const json_t *ring = json_object_get(j, "ring");
    if (json_array_size(ring) != ZSCORE_WINDOW || !parse_whole(j, "count", &z->count)) return false;
    for (size_t i = 0; i < ZSCORE_WINDOW; i++) {
        if (!json_is_number(json_array_get(ring, i))) return false;
        z->ring[i] = json_number_value(json_array_get(ring, i));
    }
    return true;
}

bool runstate_parse(const char *text, RunState *s, Err *e) {
    json_error_t where;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (!root) return err(e, "not JSON: line %d: %s", where.line, where.text);
    const json_t *best = json_object_get(root, "best_loss");
    s->best_loss = json_number_value(best);
    bool ok = parse_whole(root, "step", &s->step) && parse_whole(root, "tokens", &s->tokens) &&
              // older records have neither
              (parse_whole(root, "batch", &s->batch) || !json_object_get(root, "batch")) &&
              (parse_whole(root, "data", &s->data) || !json_object_get(root, "data")) &&
              // and only runs with --save-best have these
              (!best || (json_is_number(best) && parse_whole(root, "best_step", &s->best_step))) &&
              parse_zscore(json_object_get(root, "loss_z"), &s->loss_z) &&
              parse_zscore(json_object_get(root, "norm_z"), &s->norm_z);
    json_decref(root);
    return ok || err(e, "no state of a run: step, tokens, loss_z and norm_z are needed");
}

char *runstate_option(const char *text, const char *name) {
    json_t *root = json_loads(text, 0, NULL);
    const char *value = json_string_value(json_object_get(json_object_get(root, "options"), name));
    char *copy = value ? mem_strdup(value) : NULL;
    json_decref(root);
    return copy;
}

void runstate_differences(const char *text, const Opt *options, bool kept_tokenizer, FILE *f) {
    json_t *root = json_loads(text, 0, NULL);
    const json_t *record = json_object_get(root, "options");
    for (const Opt *o = options; o->help; o++) {
        if (!o->name || strcmp(o->name, "resume") == 0) continue;
        // without --model the model is the checkpoint's
        if (strcmp(o->name, "model") == 0 && !opt_given(o)) continue;
        if (strcmp(o->name, "tokenizer") == 0 && kept_tokenizer) continue;
        const char *then = json_string_value(json_object_get(record, o->name));
        char *now = value_text(o);
        if (then && strcmp(then, now) != 0)
            fprintf(f, "  --%s was \"%s\", is \"%s\"\n", o->name, then, now);
        mem_free(now);
    }
    json_decref(root);
}
