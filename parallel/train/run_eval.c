/* Evaluation and checks of a run: validation loss, HellaSwag, samples, --check-tp. */
#include "data/tokenizer.h"
#include "parallel/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/weights.h"
#include "parallel/step/check.h"
#include "parallel/step/evaluate.h"
#include "parallel/step/generate.h"

static void fill_val(void *ctx, int64_t i, int32_t *inputs, int32_t *targets) {
    batch_fill(ctx, i, 0, 1, inputs, targets);
}

/* Mean loss over the first --eval-batches x --micro sequences of the validation shards. */
static double validate(Run *r) {
    int64_t n = batch_steps(&r->val), most = r->o->eval_batches * r->o->micro;
    Sequences s = {&r->val, fill_val};
    EvalSum sum = evaluate(&r->m, &s, most && most < n ? most : n, NULL, run_stopping, r);
    return sum.loss / (double)sum.n;
}

/* The examples of HellaSwag in one call of evaluate. Each example is HELLASWAG_CHOICES sequences of
 * S tokens, one for each ending. */
typedef struct Examples {
    const HellaSwag *h;
    int64_t *number, S; // number of each example in h; tokens of a sequence
} Examples;

static void fill_row(void *ctx, int64_t i, int32_t *inputs, int32_t *targets) {
    const Examples *x = ctx;
    hellaswag_row(x->h, x->number[i / HELLASWAG_CHOICES], (int)(i % HELLASWAG_CHOICES), x->S,
                  inputs, targets);
}

/* Fraction of examples whose correct ending has the lowest mean loss; NAN: no example fits. One
 * call of evaluate scores as many examples as fill one micro-batch on all ranks. */
static double score_hellaswag(Run *r) {
    const HellaSwag *h = &r->hellaswag;
    int64_t right = 0, scored = 0, most = r->micro * r->data_size / HELLASWAG_CHOICES, S = r->seq;
    most = most < 1 ? 1 : most < h->n ? most : h->n;
    float *loss = mem_alloc((size_t)(most * HELLASWAG_CHOICES * S) * sizeof *loss);
    Examples x = {h, mem_alloc((size_t)most * sizeof *x.number), S};
    for (int64_t i = 0, n; i < h->n && !run_stopping(r); scored += n) {
        for (n = 0; i < h->n && n < most; i++)
            if (hellaswag_length(h, i) <= S + 1) x.number[n++] = i;
        EvalSum sum =
            evaluate(&r->m, &(Sequences){&x, fill_row}, n * HELLASWAG_CHOICES, loss, NULL, NULL);
        if (!isfinite(sum.loss))
            run_stop_not_finite(r, "a loss of HellaSwag", sum.loss, r->state.step);
        for (int64_t k = 0; k < n; k++)
            right += hellaswag_pick(h, x.number[k], loss + k * HELLASWAG_CHOICES * S, S) ==
                     hellaswag_label(h, x.number[k]);
    }
    mem_free(loss), mem_free(x.number);
    if (scored < h->n && !r->stopping)
        run_note(r,
                 "hellaswag: %" PRId64 " of %" PRId64 " examples are longer than --seq %" PRId64
                 " and were left out",
                 h->n - scored, h->n, S);
    return scored ? (double)right / (double)scored : NAN;
}

void run_evaluate(Run *r) {
    run_set_phase(r, "the evaluation after step", r->state.step);
    if (*r->o->val) {
        double loss = validate(r);
        if (run_stopping(r)) return;
        if (!isfinite(loss)) run_stop_not_finite(r, "the validation loss", loss, r->state.step);
        bool best = r->o->save_best && (!r->state.best_step || loss < r->state.best_loss);
        if (best) r->state.best_step = r->state.step, r->state.best_loss = loss;
        run_note(r, "step %" PRId64 ": val loss %.6f%s", r->state.step, loss,
                 best ? ", the lowest so far" : "");
        if (r->lead) metrics_eval(r->metrics, r->state.step, "val_loss", loss);
    }
    if (*r->o->hellaswag) {
        double share = score_hellaswag(r);
        if (run_stopping(r) || isnan(share)) return; // NAN: all examples are too long
        run_note(r, "step %" PRId64 ": HellaSwag %.4f", r->state.step, share);
        if (r->lead) metrics_eval(r->metrics, r->state.step, "hellaswag", share);
    }
}

typedef struct Live {
    Run *r;
    bool shown; // rank 0 prints each token when it is sampled
} Live;

/* Called with every sampled token. False: a signal ends the sample. */
static bool show_token(void *ctx, int32_t id) {
    const Live *live = ctx;
    if (live->shown && live->r->lead) {
        char *piece = sample_text(live->r->tokenizer, &id, 1);
        printf("%s", piece);
        fflush(stdout);
        mem_free(piece);
    }
    return !run_stopping(live->r);
}

/* Collective. Samples a continuation of --prompt; numbers from 0 on have seeds from --seed on.
 * Returns both as one text (mem_free). */
static char *sample(Run *r, int64_t number, bool live) {
    Sampling s = {.temperature = r->o->temperature,
                  .top_k = r->o->top_k,
                  .top_p = r->o->top_p,
                  .seed = (uint64_t)(r->o->seed + number)};
    int32_t *prompt, eot = r->tokenizer ? tokenizer_eot(r->tokenizer) : -1;
    int32_t *out = mem_alloc((size_t)r->o->sample_tokens * sizeof *out);
    int64_t n_prompt =
        sample_prompt(r->tokenizer, r->o->prompt, r->config.seq, r->config.vocab, &prompt);
    if (live && r->lead) printf("%s", r->o->prompt);
    int64_t n = generate(&r->m, prompt, n_prompt, &s, (uint64_t)r->state.step, eot, out,
                         r->o->sample_tokens, show_token, &(Live){r, live});
    if (live && r->lead) printf("\n");
    if (n < 0) run_stop_not_finite(r, "a logit of a sample", NAN, r->state.step);
    char *text = sample_text(r->tokenizer, out, n), *whole = mem_printf("%s%s", r->o->prompt, text);
    mem_free(text), mem_free(prompt), mem_free(out);
    return whole;
}

void run_sample(Run *r, bool live) {
    for (int64_t i = 0; i < r->o->samples && !r->stopping; i++) {
        if (i && live && r->lead) printf("---\n");
        char *text = sample(r, i, live);
        if (!r->stopping && !live) run_note(r, "---\n%s\n---", text);
        if (!r->stopping && r->lead) metrics_sample(r->metrics, r->state.step, text);
        mem_free(text);
    }
}

/* ---- --check-tp: the functions that CheckJob calls */

static void load_to_check(void *ctx, TensorTable *t, Team *team, const Group *g) {
    const Run *r = ctx;
    Err e;
    if (!*r->init)
        tensors_init(t, team, (uint64_t)r->o->seed);
    else if (!weights_load(r->init, t, g, &e))
        die_user("%s", e.text);
}

static void batch_to_check(void *ctx, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                           int32_t *targets) {
    Run *r = ctx;
    batch_fill_padded(&r->train, step, first, n, inputs, targets);
}

static AdamW rule_to_check(void *ctx, int64_t step) {
    return run_update_rule(ctx, step);
}

bool run_check_tp(Run *r) {
    CheckJob job = {.steps = r->o->check_tp,
                    .sequences = r->batch / r->seq,
                    .ctx = r,
                    .load = load_to_check,
                    .batch = batch_to_check,
                    .rule = rule_to_check,
                    .clip = r->o->clip,
                    .limit = (double)r->o->timeout};
    return check_run(&r->m, &job, stdout);
}
