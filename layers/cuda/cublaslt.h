/* cublaslt -- the part of NVIDIA's cuBLASLt that this program uses, without its header and without
 * linking to it: the library has half a gigabyte, and the first matmul on a device loads it. Names
 * and numbers are those of the cuBLAS reference; `make cuda-check` checks them against the
 * toolkit's header where there is one (tests/cuda_headers.cu).
 *
 *     y = epilogue(a b + beta c + bias)          matrices lie column by column
 */
#ifndef LAYERS_CUDA_CUBLASLT_H
#define LAYERS_CUDA_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "layers/cuda/device.h"

typedef enum LtStatus {
    LT_SUCCESS = 0,
    LT_NOT_INITIALIZED = 1,
    LT_INVALID_VALUE = 7,
    LT_ARCH_MISMATCH = 8,
    LT_NOT_SUPPORTED = 15,
} LtStatus;
enum LtType { LT_R_32F = 0, LT_R_16BF = 14 };
enum LtCompute { LT_32F = 68 };
enum LtOperation { LT_OP_N = 0, LT_OP_T = 1 };
/* Attributes of a matmul; the comments begin with the bytes of each. */
enum LtDescAttribute {
    LT_DESC_TRANSA = 3,           // 4: LtOperation
    LT_DESC_TRANSB = 4,           // 4
    LT_DESC_EPILOGUE = 7,         // 4: LtEpilogue
    LT_DESC_BIAS_POINTER = 8,     // 8: [rows of y], of y's type; with BGRADA the output
    LT_DESC_AUX_POINTER = 11,     // 8: of y's type and shape
    LT_DESC_AUX_LD = 12,          // 8: a multiple of 8
    LT_DESC_SM_COUNT_TARGET = 15, // 4: 0 all
};
enum LtEpilogue {
    LT_EPILOGUE_DEFAULT = 1,
    LT_EPILOGUE_BIAS = 4,
    LT_EPILOGUE_GELU = 32,
    LT_EPILOGUE_GELU_BIAS = 36,
    LT_EPILOGUE_GELU_AUX = 160,
    LT_EPILOGUE_GELU_AUX_BIAS = 164,
    LT_EPILOGUE_DGELU = 192,
    // y = a b + beta c, and the sums over k of the rows of a, not transposed
    LT_EPILOGUE_BGRADA = 256,
};
/* How the sums of parts of K are added: in the dtype of y, in fp32 in the workspace, or in the
 * dtype of y in the workspace. */
enum LtReduction {
    LT_REDUCTION_INPLACE = 1,
    LT_REDUCTION_COMPUTE_TYPE = 2,
    LT_REDUCTION_OUTPUT_TYPE = 4
};
/* Attributes of a request for algorithms. */
enum LtPreferenceAttribute {
    LT_PREF_MAX_WORKSPACE_BYTES = 1,   // 8
    LT_PREF_REDUCTION_SCHEME_MASK = 3, // 4: LtReduction
    LT_PREF_MIN_ALIGNMENT_A = 5,       // 4 each
    LT_PREF_MIN_ALIGNMENT_B = 6,
    LT_PREF_MIN_ALIGNMENT_C = 7,
    LT_PREF_MIN_ALIGNMENT_D = 8,
};
typedef struct LtAlgorithm {
    uint64_t data[8];
} LtAlgorithm;
typedef struct LtHeuristic {
    LtAlgorithm algorithm;
    size_t workspace_bytes;
    int status; // LtStatus
    float waves;
    int reserved[4];
} LtHeuristic;

typedef struct LtHandleOf *LtHandle;
typedef struct LtDescOf *LtDesc;
typedef struct LtLayoutOf *LtLayout;
typedef struct LtPreferenceOf *LtPreference;

/* Functions of the library, in the order of their names in cublaslt.c. Functions that return int
 * return a LtStatus. */
typedef struct CublasLt {
    size_t (*version)(void);
    const char *(*status_string)(int status);
    int (*create)(LtHandle *h);
    int (*destroy)(LtHandle h);
    int (*desc_create)(LtDesc *d, int compute, int scale_type);
    int (*desc_destroy)(LtDesc d);
    int (*desc_set)(LtDesc d, int attribute, const void *value, size_t n_bytes);
    int (*layout_create)(LtLayout *l, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(LtLayout l);
    int (*preference_create)(LtPreference *p);
    int (*preference_destroy)(LtPreference p);
    int (*preference_set)(LtPreference p, int attribute, const void *value, size_t n_bytes);
    int (*heuristic)(LtHandle h, LtDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout y,
                     LtPreference p, int most, LtHeuristic *out, int *n);
    int (*algorithm_check)(LtHandle h, LtDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout y,
                           const LtAlgorithm *algorithm, LtHeuristic *out);
    int (*matmul)(LtHandle h, LtDesc d, const void *alpha, const void *a, LtLayout la,
                  const void *b, LtLayout lb, const void *beta, const void *c, LtLayout lc, void *y,
                  LtLayout ly, const LtAlgorithm *algorithm, void *workspace,
                  size_t workspace_bytes, Stream s);
} CublasLt;

/* Local. Loads a library by name or path; false when it is not found or lacks a function. */
bool cublaslt_load(const char *library, CublasLt *lt, Err *e);
/* Local. The library of this machine, loaded once per process; NULL with --libraries none.
 * Otherwise, when no library is found, ends the program. */
const CublasLt *cublaslt(void);
/* Local. Sets the library of this machine: for tests. */
void cublaslt_override(const CublasLt *lt);

#endif
