/* The one name that each instruction set exports; the build renames it to kernels_cpu_<set>. */
#include "layers/table.h"

const Kernels kernels_table = {
    .product = product,
    .product_workspace = product_workspace,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .rope = rope,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .attention_decode = attention_decode,
    .attention_workspace = attention_workspace,
    .norm_workspace = norm_workspace,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .bias_backward = bias_backward,
    .classifier = classifier,
    .sum_of_squares = sum_of_squares,
    .peak = peak,
    .adamw = adamw,
};
