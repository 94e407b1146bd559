/* matmuls -- how this rank's matmuls are done on its device.
 *
 * A matmul of the table (layers/matmul.h) goes to cuBLASLt by a plan: what is to be done, of one
 * shape, with the algorithms that the library proposes for it, the likely best first. A plan is
 * made by the first matmul of its shape, which is the only one that allocates: before the first
 * step (parallel/step/replay.h), where matmul_prepare may choose, too.
 *
 * In this order: what the library does whole, epilogue included; what it does without the epilogue,
 * which a pass over y, or for the gradient of a bias one over b, then does (an activation in rows
 * that are no multiple of 8, a bias beside DGELU); what it does not take at all (K = 0; operands of
 * fp32 that are to be rounded to bf16, which no step on a device has). The own kernel for the
 * device's tensor cores (layers/matmul_sm90.h, matmul_sm80.h) takes a shape where matmul_prepare
 * found it faster, and where the library takes it not or is not there.
 *
 * The gradient of a bias comes with dw = x' dy where the library sums the columns of dy on the way
 * (BGRADA: its first matrix is dy, as it lies in memory), or the own kernel does. That saves
 * bias_backward (activation.cu) its reading of dy, 18 C bytes for a token of a GPT-2 layer in bf16
 * (qkv 3 C elements, both projections C, up 4 C): of 32 x 1,024 tokens of GPT-2 124M 5.4 GB, 1.3 ms
 * of memory at 4.2 TB/s, in a micro-batch of some 50 ms. The library writes these sums and does not
 * add them, so they go to scratch, and a kernel adds N floats. Not taken:
 *     - where the matmul's dy is not what the rank stores. With sequence parallelism (sp) the two
 *       row-parallel layers gather dy along x, and the sums over x would count it X times; with
 *       stay=y a dy serves all of the panels (parallel/step/panels.c);
 *     - DGELU_BGRAD of dx, which would give the gradient of up's bias: its sums are bf16, 8 bits of
 *       a sum over all tokens. DGELU alone is used; the gradient of up's bias comes with up's dw.
 *
 * Beside kernels to which multiprocessors are left (device_leave) a matmul has another plan, for
 * those that remain: the first algorithm that the library proposes for so many. Its reference says
 * that the number is for such neighbours and moves its choice; on Hopper the grids of some
 * algorithms follow, on Blackwell perhaps none (pytorch/pytorch, pull request 183330).
 *
 * Everything here is of the calling thread, that is, of a rank. device_close forgets it.
 */
#ifndef LAYERS_CUDA_MATMULS_H
#define LAYERS_CUDA_MATMULS_H

#include "layers/matmul.h"

typedef enum MatmulBackend {
    BACKEND_LIBRARY, // where it takes the shape
    BACKEND_SM90,    // kernels of this program: tensor cores of Hopper (layers/matmul_sm90.h)
    BACKEND_SM80,    // those of Ampere and later (layers/matmul_sm80.h)
    BACKEND_TILED,   // tiles in shared memory
    BACKEND_PLAIN,   // a thread for each element
} MatmulBackend;

/* Local. The first backend that matmuls try from the next one on: for tests of own kernels. */
void matmul_set_backend(MatmulBackend backend);
MatmulBackend matmul_backend(void);

/* Local. Makes the plan of p with elements of 4 or 2 bytes, which from now on takes the fastest of
 * its algorithms or the own kernel: the one that a run before, or another rank, has found
 * (matmul_choices.h), or else by time. The library's own order decides where times differ by less
 * than 2 %, and an epilogue is taken where the sum alone with a pass of its own is not faster by as
 * much; the own kernel, where it is faster by as much. Overwrites y, aux and bias_grad. Waits; not
 * inside a step. */
void matmul_prepare(const Matmul *p, size_t elem_bytes);

/* Matmuls so far, by who did them, and the plans there are. */
typedef struct MatmulCounts {
    int64_t fused, bare;              // by the library whole, without its epilogue
    int64_t sm90, sm80, tiled, plain; // by own kernels
    int64_t bias_grads;               // of those whole: with the gradient of a bias
    int64_t plans, heuristics;        // times that the library was asked for algorithms
} MatmulCounts;
MatmulCounts matmul_counts(void);

#endif
