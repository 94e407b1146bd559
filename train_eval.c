/* What a run does with its model besides training: validation loss, HellaSwag, samples, checks. */
#include "train_gpt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/sample_text.h"
#include "data/weights.h"
#include "parallel/check.h"
#include "parallel/evaluate.h"
#include "parallel/generate.h"

static void fill_val(void *ctx, int64_t i, int32_t *inputs, int32_t *targets) {
    batch_fill(ctx, i, 0, 1, inputs, targets);
}

/* Mean loss over the first sequences of the validation shards: --eval-batches times --micro of them. */
static double validate(Run *r) {
    int64_t n = batch_steps(&r->val), most = o.eval_batches * o.micro;
    Sequences s = {&r->val, fill_val};
    EvalSum sum = evaluate(&r->m, &s, most && most < n ? most : n, NULL, stopping, r);
    return sum.loss / (double)sum.n;
}

/* Share of examples whose right ending has the lowest mean loss. */
static double score_hellaswag(Run *r) {
    int64_t right = 0, scored = 0;
    HellaSwagRows rows = hellaswag_rows_make(r->seq);
    float *loss = mem_alloc((size_t)(HELLASWAG_CHOICES * r->seq) * sizeof *loss);
    for (int64_t i = 0; i < r->hellaswag.n && !stopping(r); i++) {
        if (!hellaswag_rows(&r->hellaswag, i, r->seq, rows.in, rows.target)) continue;
        evaluate(&r->m, &(Sequences){&rows, hellaswag_fill}, HELLASWAG_CHOICES, loss, NULL, NULL);
        right += hellaswag_pick(loss, rows.target, r->seq) == hellaswag_label(&r->hellaswag, i);
        scored++;
    }
    hellaswag_rows_free(&rows);
    mem_free(loss);
    if (scored < r->hellaswag.n && !r->stopping)
        note(r,
             "hellaswag: %" PRId64 " of %" PRId64 " examples are longer than --seq %" PRId64
             " and were left out",
             r->hellaswag.n - scored, r->hellaswag.n, r->seq);
    return scored ? (double)right / (double)scored : NAN;
}

void evaluate_all(Run *r) {
    if (*o.val) {
        double loss = validate(r);
        if (r->stopping) return;
        note(r, "step %" PRId64 ": val loss %.6f", r->state.step, loss);
        if (r->lead) metrics_eval(r->metrics, r->state.step, "val_loss", loss);
    }
    if (*o.hellaswag) {
        double share = score_hellaswag(r);
        if (r->stopping) return;
        note(r, "step %" PRId64 ": HellaSwag %.4f", r->state.step, share);
        if (r->lead) metrics_eval(r->metrics, r->state.step, "hellaswag", share);
    }
}

/* With every token of a sample: rank 0 shows it where it is live. */
typedef struct Live {
    Run *r;
    bool shown;
} Live;

static bool show_token(void *ctx, int32_t id) {
    const Live *live = ctx;
    if (live->shown && live->r->lead) {
        char *piece = sample_text(live->r->tokenizer, &id, 1);
        printf("%s", piece);
        fflush(stdout);
        mem_free(piece);
    }
    return !stopping(live->r);
}

char *sample(Run *r, bool live) {
    Sampling s = {
        .temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .seed = (uint64_t)o.seed};
    int32_t *prompt, eot = r->tokenizer ? tokenizer_eot(r->tokenizer) : -1;
    int32_t *out = mem_alloc((size_t)o.sample_tokens * sizeof *out);
    int64_t n_prompt =
        sample_prompt(r->tokenizer, o.prompt, r->config.seq, r->config.vocab, &prompt);
    if (live && r->lead) printf("%s", o.prompt);
    int64_t n = generate(&r->m, prompt, n_prompt, &s, (uint64_t)r->state.step, eot, out,
                         o.sample_tokens, show_token, &(Live){r, live});
    if (live && r->lead) printf("\n");
    char *text = sample_text(r->tokenizer, out, n), *whole = mem_printf("%s%s", o.prompt, text);
    mem_free(text), mem_free(prompt), mem_free(out);
    return whole;
}

void show_sample(Run *r) {
    char *text = sample(r, false);
    if (!r->stopping && r->lead) {
        note(r, "---\n%s\n---", text);
        metrics_sample(r->metrics, r->state.step, text);
    }
    mem_free(text);
}

/* ---- --check-tp */

static void load_to_check(void *ctx, TensorTable *t, Team *team, const Group *g) {
    const Run *r = ctx;
    Err e;
    if (!*r->init)
        tensors_init(t, team, (uint64_t)o.seed);
    else if (!weights_load(r->init, t, g, &e))
        die_user("%s", e.text);
}

static void batch_to_check(void *ctx, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                           int32_t *targets) {
    Run *r = ctx;
    batch_fill_padded(&r->train, step, first, n, inputs, targets);
}

static AdamW rule_to_check(void *ctx, int64_t step) {
    (void)ctx;
    return update_rule(step);
}

bool check(Run *r) {
    CheckJob job = {.steps = o.check_tp,
                    .sequences = r->batch / r->seq,
                    .ctx = r,
                    .load = load_to_check,
                    .batch = batch_to_check,
                    .rule = rule_to_check,
                    .clip = o.clip,
                    .limit = (double)o.timeout};
    return check_run(&r->m, &job, stdout);
}
