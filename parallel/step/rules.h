/* rules -- the derivative of each kind of operation, for the table of ops.c. A rule gets an
 * operation of the forward pass, the gradient of its result, and grads[tensor], the gradients found
 * so far (-1: none); it appends operations and adds to grads. differentiate.c */
#ifndef PARALLEL_STEP_RULES_H
#define PARALLEL_STEP_RULES_H

#include "parallel/step/program.h"

void embedding_rule(Program *p, const Op *op, int g, int *grads);
void position_rule(Program *p, const Op *op, int g, int *grads);
void norm_rule(Program *p, const Op *op, int g, int *grads);
void matmul_rule(Program *p, const Op *op, int g, int *grads);
void matmul_bt_rule(Program *p, const Op *op, int g, int *grads);
void bias_rule(Program *p, const Op *op, int g, int *grads);
void rope_rule(Program *p, const Op *op, int g, int *grads);
void attention_rule(Program *p, const Op *op, int g, int *grads);
void act_rule(Program *p, const Op *op, int g, int *grads);
void swiglu_rule(Program *p, const Op *op, int g, int *grads);
void add_rule(Program *p, const Op *op, int g, int *grads);
void loss_rule(Program *p, const Op *op, int g, int *grads);
/* A gradient passes a collective as it is: it is redistributed where it is read. */
void collective_rule(Program *p, const Op *op, int g, int *grads);

#endif
