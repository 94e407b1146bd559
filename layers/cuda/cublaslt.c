#include "layers/cuda/cublaslt.h"

#include <pthread.h>

#include "base/library.h"

static const char *const names[] = {
    "cublasLtGetVersion",
    "cublasLtGetStatusString",
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulAlgoCheck",
    "cublasLtMatmul",
};
enum { NAMES = sizeof names / sizeof *names };
_Static_assert(sizeof(CublasLt) == NAMES * sizeof(void *), "a name for each function");

bool cublaslt_load(const char *library, CublasLt *lt, Err *e) {
    return library_open(library, names, NAMES, lt, e) != NULL;
}

static CublasLt loaded;
static const CublasLt *found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Loads the library: of version 13 or 12, or the link without a version, which only the toolkit
 * has. Without a library the program ends unless the user asked for it: the own kernels are slower
 * in fp32, which a run would show too late. */
static void find(void) {
    static const char *const library[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                          "libcublasLt.so"};
    Err e[3];
    if (found || library_unwanted()) return; // found: cublaslt_override has set it
    for (int i = 0; i < 3; i++)
        if (cublaslt_load(library[i], &loaded, &e[i])) {
            found = &loaded;
            return;
        }
    die_user(
        "cannot load cuBLASLt (%s): --libraries FOLDER names the folder of libcublasLt.so.13; "
        "--libraries none uses this program's own matmuls, which are slower, above all in fp32",
        e[0].text);
}

const CublasLt *cublaslt(void) {
    pthread_once(&once, find);
    return found;
}

void cublaslt_override(const CublasLt *lt) {
    found = lt;
}
