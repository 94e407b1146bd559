/* Remarks before the first step about what the user may not have intended: hours of training, a
 * vocabulary that the data hardly use, a learning rate that rises or is never reached, saves and
 * evaluations without their files. One line each; the run continues.
 */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "parallel/step/learning_rate.h"

static const double LONG_S = 3600; // a longer training gets a remark
static const double SHARE = 0.6;   // assumed fraction of the peak if there is no prediction

static void remark_time(const Run *r) {
    int64_t left = r->o->steps - r->state.step;
    double flops = config_flops_per_token(&r->config, r->seq) * (double)r->batch;
    double step = r->predicted_ms > 0 ? 1e-3 * r->predicted_ms : flops / (r->peak_flops * SHARE);
    char time[32];
    if (!((double)left * step > LONG_S)) return;
    progress_time(time, sizeof time, (double)left * step);
    bool chosen = run_given(r, "model") || *r->o->init || r->state.step;
    run_note(r, "note     about %s for %" PRId64 " steps of %" PRId64 " tokens: %s", time, left,
             r->batch,
             chosen ? "fewer --steps, a smaller --batch or a smaller --model takes less time"
                    : "without --model this is GPT-2 124M; --model d6,seq=256 is smaller");
}

/* The largest id among the first tokens of the first shard. */
static int32_t largest_id(const Run *r, int64_t *n) {
    enum { LOOKED_AT = 1 << 20 };
    const Shard *s = &r->train_set.shards[0];
    int32_t most = 0;
    *n = s->n_tokens < LOOKED_AT ? s->n_tokens : LOOKED_AT;
    int32_t *ids = mem_alloc((size_t)*n * sizeof *ids);
    shard_read(s, 0, *n, ids);
    for (int64_t i = 0; i < *n; i++)
        if (ids[i] > most) most = ids[i];
    mem_free(ids);
    return most;
}

static void remark_vocabulary(const Run *r) {
    int64_t n, vocab = r->config.vocab;
    if (*r->o->init || r->state.step) return; // the model is given
    int64_t used = largest_id(r, &n) + 1;
    if (used * 8 > vocab) return;
    run_note(r,
             "note     the first %" PRId64 " tokens have ids up to %" PRId64
             " of a vocabulary of %" PRId64 ": %svocab=%" PRId64 " makes the model smaller",
             n, used - 1, vocab,
             r->tokenizer ? "another --tokenizer, or --model " : "--tokenizer, or --model ", used);
}

/* Such a --min-lr or --warmup is often left over from a larger --lr or --steps. */
static void remark_rate(const Run *r) {
    const Options *o = r->o;
    if (o->min_lr > o->lr && o->schedule != LR_CONSTANT)
        run_note(r, "note     --min-lr %g is more than --lr %g: the rate rises", o->min_lr, o->lr);
    if (o->warmup > o->steps)
        run_note(r,
                 "note     --warmup %" PRId64 " is more than --steps %" PRId64
                 ": no step has the whole --lr",
                 o->warmup, o->steps);
}

/* Options that have no effect without another option. */
static void remark_alone(const Run *r) {
    const Options *o = r->o;
    if (o->save_every && !*o->save && run_given(r, "save-every"))
        run_note(r, "note     --save-every %" PRId64 " saves nothing without --save DIR",
                 o->save_every);
    if (o->eval_every && !*o->val && !*o->hellaswag && run_given(r, "eval-every"))
        run_note(r,
                 "note     --eval-every %" PRId64
                 " evaluates nothing without --val GLOB or --hellaswag FILE",
                 o->eval_every);
}

void run_remark(const Run *r) {
    remark_alone(r);
    remark_vocabulary(r);
    remark_rate(r);
    remark_time(r);
}
