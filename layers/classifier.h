/* classifier -- softmax and cross-entropy of logits[T,V], and their gradient in place of the
 * logits.
 *
 *   loss[t] = log(sum_v exp(logits[t,v])) - logits[t, target[t]]
 *   dlogits[t,v] = (softmax(logits[t])[v] - (v == target[t])) * scale
 *
 * A target of -1 is not counted: loss 0 and gradient 0.
 */
#ifndef LAYERS_CLASSIFIER_H
#define LAYERS_CLASSIFIER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/team.h"
#include "layers/act.h"

typedef struct Classifier {
    int64_t T, V, ld;       // rows of ld >= V elements
    const int32_t *targets; // [T]
    float scale;            // 1 / number of targets in the whole batch
    bool backward;          // false: loss only; logits are not changed
    int64_t first;          // vocabulary index of column 0; classifier(): 0
    int64_t part;           // --exact: columns of a part (see below), the same on every mesh; 0: V
} Classifier;

/* Does this rank have the column of token t's target? */
static inline bool classifier_has_target(const Classifier *c, int64_t t) {
    int64_t v = (int64_t)c->targets[t] - c->first;
    return c->targets[t] >= 0 && v >= 0 && v < c->V;
}

void classifier(Team *t, const Classifier *c, float *loss, Act *logits);

/* The same in two steps for a vocabulary sharded over ranks: these V columns are the tokens first
 * .. first+V-1, possibly none. Between the steps the caller gathers the statistics of all parts. A
 * part is these V columns; or, for --exact, `part` columns, the same number on every mesh: then the
 * bits of a row do not depend on how the row is sharded. The last part of a row may be shorter. No
 * part has padding.
 *
 *   statistics[parts,T,3]   the largest logit m, sum_v exp(logit - m), and the target's logit (0 if
 *                           not in the part); without columns, of one part: m <= -FLT_MAX / 2, 0,
 *                           0. With backward exp(logit - m) replaces the logits (not on CUDA)
 *   merge                   those of all n_parts of the row, in order -> loss[T], log_sum[T] (of
 *                           all exponentials)
 *   gradient                dlogits = (exp(m - log_sum) e - (v == target)) scale, in place
 *
 * Columns from V to ld are set to 0 by the gradient. */
void classifier_statistics(Team *t, const Classifier *c, float *stats, Act *logits);
void classifier_merge(Team *t, const Classifier *c, float *loss, float *log_sum, const float *stats,
                      int64_t n_parts);
void classifier_gradient(Team *t, const Classifier *c, const float *stats, const float *log_sum,
                         Act *logits);

#endif
