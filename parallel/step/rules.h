/* rules -- the derivative of each kind of operation, for the table of ops.c. A rule gets an
 * operation of the forward pass, the gradient of its result, and grads[tensor], the gradients found
 * so far (-1: none); it appends operations and adds to grads. differentiate.c */
#ifndef PARALLEL_STEP_RULES_H
#define PARALLEL_STEP_RULES_H

#include "parallel/step/program.h"

Rule embedding_rule, position_rule, norm_rule, matmul_rule, matmul_bt_rule, bias_rule, rope_rule,
    attention_rule, act_rule, swiglu_rule, add_rule, loss_rule;
/* A gradient passes a collective as it is: it is redistributed where it is read. */
Rule collective_rule;

#endif
