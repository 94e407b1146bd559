/* act -- addresses of activations (the tensors; functions like GELU are in pointwise.h), whose
 * element size depends on the table of kernels (layers/kernels.h: elem_bytes).
 *
 * Activations, their gradients and the operands of matmuls are fp32, or bf16 where a table says so.
 * Sizes, strides and leading dimensions count elements. The training step never dereferences these
 * addresses, and C has no arithmetic on void *: every offset goes through act_at, which takes the
 * element size. Parameters, their gradients, statistics and losses are always fp32: float *.
 */
#ifndef LAYERS_ACT_H
#define LAYERS_ACT_H

#include <stddef.h>
#include <stdint.h>

typedef void Act;

/* Local. The address n elements of `elem_bytes` bytes after x. */
static inline Act *act_at(const Act *x, int64_t n, size_t elem_bytes) {
    // integers: pointer arithmetic would be undefined for an address without memory
    return (Act *)((uintptr_t)x + (uintptr_t)(n * (int64_t)elem_bytes));
}

#endif
