/* --explain-matmul: how a matmul is scheduled on a described GPU. */
#include "data/output.h"
#include "parallel/plan/explain_matmul.h"
#include "parallel/train/train.h"

int run_explain_matmul(const Options *o) {
    Machine m;
    Work w;
    Err e;
    ReplaceText text;
    if (die_is_copy()) return 0;
    if (!explain_matmul_parse(&w, o->explain_matmul, &e)) die_usage("--explain-matmul: %s", e.text);
    if (!*o->cluster) die_usage("--explain-matmul requires --cluster, like --cluster h200:1");
    if (!machine_open(&m, o->cluster, &e)) die_usage("--cluster: %s", e.text);
    if (!gpu_matmul_is(&m, &w))
        die_usage("--explain-matmul: %s has no GPUs whose multiprocessors are known "
                  "(multiprocessors = 132)",
                  m.name);
    explain_matmul_print(stdout, &m, &w);
    if (!*o->json) return 0;
    replace_text_begin(&text);
    explain_matmul_json(text.f, &m, &w);
    replace_text_end(&text, "--json", o->json);
    return 0;
}
