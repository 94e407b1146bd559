/* What layers/cuda/cublaslt.h says, against the toolkit's own header: compiled by make cuda-check,
 * never run. */
#include <cstddef>
#include <cublasLt.h>

extern "C" {
#include "layers/cuda/cublaslt.h"
}

#define SAME(ours, theirs)                                                                         \
    static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #ours " is " #theirs)
SAME(LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(LT_ARCH_MISMATCH, CUBLAS_STATUS_ARCH_MISMATCH);
SAME(LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(LT_R_32F, CUDA_R_32F);
SAME(LT_R_16BF, CUDA_R_16BF);
SAME(LT_32F, CUBLAS_COMPUTE_32F);
SAME(LT_OP_N, CUBLAS_OP_N);
SAME(LT_OP_T, CUBLAS_OP_T);
SAME(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(LT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(LT_DESC_AUX_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
SAME(LT_DESC_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
SAME(LT_DESC_SM_COUNT_TARGET, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET);
SAME(LT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(LT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU);
SAME(LT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS);
SAME(LT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX);
SAME(LT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
SAME(LT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU);
SAME(LT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADA);
SAME(LT_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(LT_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(LT_REDUCTION_INPLACE, CUBLASLT_REDUCTION_SCHEME_INPLACE);
SAME(LT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(LT_REDUCTION_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
SAME(LT_PREF_MIN_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(LT_PREF_MIN_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(LT_PREF_MIN_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(LT_PREF_MIN_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(sizeof(LtAlgorithm), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(LtHeuristic), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(LtHeuristic, workspace_bytes),
     offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(LtHeuristic, status), offsetof(cublasLtMatmulHeuristicResult_t, state));

/* The functions take what we hand over, in that order: a call by the library's own types. */
template <class... P> constexpr int parameters(int (*)(P...)) {
    return sizeof...(P);
}
template <class R, class... P> constexpr int parameters(R (*)(P...)) {
    return sizeof...(P);
}
SAME(parameters(CublasLt().matmul), parameters(cublasLtMatmul));
SAME(parameters(CublasLt().heuristic), parameters(cublasLtMatmulAlgoGetHeuristic));
SAME(parameters(CublasLt().algorithm_check), parameters(cublasLtMatmulAlgoCheck));
SAME(parameters(CublasLt().layout_create), parameters(cublasLtMatrixLayoutCreate));
SAME(parameters(CublasLt().desc_create), parameters(cublasLtMatmulDescCreate));
SAME(parameters(CublasLt().desc_set), parameters(cublasLtMatmulDescSetAttribute));
SAME(parameters(CublasLt().preference_set), parameters(cublasLtMatmulPreferenceSetAttribute));
