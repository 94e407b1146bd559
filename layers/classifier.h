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

typedef struct Classifier {
    int64_t T, V, ld;       // rows of ld >= V floats
    const int32_t *targets; // [T]
    float scale;            // 1 / number of targets in the whole batch
    bool backward;          // false: only the loss, logits stay as they are
} Classifier;

void classifier(Team *t, const Classifier *c, float *loss, float *logits);

#endif
