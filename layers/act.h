/* act -- addresses of activations, in words of the table of kernels (layers/kernels.h: word).
 *
 * Activations, their gradients and the operands of products are fp32, or bf16 where a table says so; sizes, strides
 * and leading dimensions count elements either way. The training step follows none of these addresses, and C does
 * no arithmetic on void: every offset goes through act_at, which knows the word. Parameters, their gradients,
 * statistics and losses are fp32 always, and float * says so.
 */
#ifndef LAYERS_ACT_H
#define LAYERS_ACT_H

#include <stddef.h>
#include <stdint.h>

typedef void Act;

/* Local. The address n elements of so many bytes after x. */
static inline Act *act_at(const Act *x, int64_t n, size_t word) {
    return (Act *)((uintptr_t)x +
                   (uintptr_t)(n * (int64_t)word)); // also of addresses where no memory is
}

#endif
