/* matmuls -- how a rank's matmuls are done on its device: by cuBLASLt or by kernels of this
 * program.
 *
 * A matmul of the table (layers/matmul.h) goes to cuBLASLt by a plan. A plan describes matmuls of
 * one shape, and has the algorithms that the library proposes for it, the best first by the
 * library's estimate. The first matmul of a shape makes its plan, and is the only one that
 * allocates: it runs before the first step (parallel/step/replay.h), when matmul_prepare may
 * choose, too.
 *
 * The library is used in this order. (1) It does the whole matmul, epilogue included. (2) It does
 * the matmul without the epilogue, and a pass over y (for the gradient of a bias, over b) does the
 * epilogue: an activation in rows that are no multiple of 8, a bias beside DGELU. (3) An own kernel
 * does what the library does not take: K = 0, or operands of fp32 that are to be rounded to bf16,
 * which no step on a device has. The own kernel for the device's tensor cores
 * (layers/matmul_sm90.h, matmul_sm80.h) takes a shape where matmul_prepare found it faster, and
 * where the library does not take the shape or is not loaded.
 *
 * The gradient of a bias is computed with dw = x' dy where the library sums the columns of dy in
 * the same call (BGRADA: its first matrix is dy, not transposed), or where the own kernel does.
 * That saves bias_backward (activation.cu) reading dy, 18 C bytes per token of a GPT-2 layer in
 * bf16 (qkv 3 C elements, both projections C, up 4 C): for 32 x 1,024 tokens of GPT-2 124M 5.4 GB,
 * 1.3 ms of memory at 4.2 TB/s, in a micro-batch of some 50 ms. The library overwrites these sums
 * and does not add to them, so they go to scratch, and a kernel adds N floats. Not taken:
 *     - where the matmul's dy is not the dy that the rank stores. With sequence parallelism (sp)
 *       the two row-parallel layers gather dy along x, and the sums over x would count it X times;
 *       with stay=y the same dy serves all of the panels (parallel/step/panels.c);
 *     - DGELU_BGRAD of dx, which would give the gradient of up's bias: its sums are bf16, 8 bits of
 *       a sum over all tokens. DGELU alone is used; the gradient of up's bias comes with up's dw.
 *
 * While multiprocessors are left to other kernels (device_set_sm_margin) a matmul has another plan,
 * for the remaining multiprocessors: the first algorithm that the library proposes for this number.
 * The library's reference says that the number is for such neighbours and influences its choice. On
 * Hopper the grids of some algorithms follow the number, on Blackwell perhaps none
 * (pytorch/pytorch, pull request 183330).
 *
 * All state belongs to the calling thread, that is, to a rank. device_close frees it.
 */
#ifndef LAYERS_CUDA_MATMULS_H
#define LAYERS_CUDA_MATMULS_H

#include "layers/matmul.h"

typedef enum MatmulBackend {
    BACKEND_LIBRARY, // the library, where it takes the shape
    BACKEND_SM90,    // own kernel for tensor cores of Hopper (layers/matmul_sm90.h)
    BACKEND_SM80,    // own kernel for those of Ampere and later (layers/matmul_sm80.h)
    BACKEND_TILED,   // tiles in shared memory
    BACKEND_PLAIN,   // a thread for each element
} MatmulBackend;

/* Local. Sets the first backend that the next matmuls try: for tests of own kernels. */
void matmul_set_backend(MatmulBackend backend);
MatmulBackend matmul_backend(void);

/* Local. Makes the plan of p, with elements of 4 or 2 bytes, and chooses its fastest algorithm or
 * the own kernel: the choice of an earlier run or of another rank (matmul_choices.h), or else by
 * time. Where times differ by less than 2 %, the library's own order decides, an algorithm with the
 * epilogue is preferred to one with a separate pass, and the library to the own kernel. Overwrites
 * y, aux and bias_grad. Waits; may not be called inside a step. */
void matmul_prepare(const Matmul *p, size_t elem_bytes);

/* Numbers of matmuls so far, by the kernel that did them, and of plans. */
typedef struct MatmulCounts {
    int64_t fused, bare;              // by the library: with the epilogue, without it
    int64_t sm90, sm80, tiled, plain; // by own kernels
    int64_t bias_grads;               // of the fused ones: with the gradient of a bias
    int64_t plans, heuristics;        // plans; requests for algorithms to the library
} MatmulCounts;
MatmulCounts matmul_counts(void);

#endif
