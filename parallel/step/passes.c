#include "parallel/step/passes.h"

Program program_passes(const ModelShape *shape, Pass last, bool bias_with_dw) {
    Program p = program_make(shape);
    program_forward(&p);
    if (last >= PASS_DIFFERENTIATE) program_differentiate(&p);
    if (last >= PASS_RECOMPUTE) program_recompute(&p);
    if (last >= PASS_PANELS) program_panels(&p);
    if (last >= PASS_EXACT && p.layout->exact) program_exact(&p);
    if (last >= PASS_FUSE) program_fuse(&p, bias_with_dw);
    if (last >= PASS_SPLIT && shape->overlap.chunks > 1) program_split(&p, shape->overlap.chunks);
    if (last >= PASS_HALVES) program_halves(&p);
    return p;
}
