/* --listing: the program of a micro-batch as a list of operations, after the named pass.
 * --explain-matmul: how a matmul is scheduled on a described GPU. */
#include "base/mem.h"
#include "data/output.h"
#include "parallel/plan/cost.h"
#include "parallel/plan/detect.h"
#include "parallel/plan/explain_matmul.h"
#include "parallel/step/listing.h"
#include "parallel/step/passes.h"
#include "parallel/train/train.h"

enum { LIST_BUILD = 1 }; // values of --listing: 0 is none, then the passes in the order of Pass

bool run_lists_cluster(const Run *r) {
    return r->o->listing && *r->o->cluster;
}

/* Collective. The machine whose times are printed: --cluster, or the machine at hand. The rate of
 * one small matmul is measured on CPUs (detect); collectives and other kernels are priced by
 * formulas. */
static Machine machine_of(const Run *r) {
    Machine m;
    Detected d;
    if (run_lists_cluster(r)) return r->described;
    run_detect(r, &d);
    run_machine(r, &d, &m);
    detect_free(&d);
    return m;
}

/* A program to print: with the costs of its operations from PASS_FUSE on, and with the times at
 * which they run from PASS_SCHEDULE on. */
static Listed listed(Program p, Pass upto, const Machine *m) {
    Listed out = {.p = p, .machine = m->name};
    if (upto >= PASS_FUSE) out.costs = program_costs(&p, m, false);
    if (upto < PASS_SCHEDULE) return out;
    out.time = mem_alloc((size_t)p.n_ops * sizeof *out.time);
    out.spent = program_play(&p, out.costs, true, out.time);
    return out;
}

static void print(const Run *r, const Listed *micro_batch, const Listed *end) {
    ReplaceText text;
    listing_print(stdout, micro_batch);
    if (end->p.n_ops) listing_print(stdout, end);
    if (!*r->o->json) return;
    replace_text_begin(&text);
    listing_json(text.f, micro_batch, end);
    replace_text_end(&text, "--json", r->o->json);
}

void run_print_listing(const Run *r) {
    ModelShape shape = r->m.shape;
    Machine m = machine_of(r);
    bool described = run_lists_cluster(r);
    Pass upto = (Pass)(r->o->listing - LIST_BUILD);
    if (!r->lead) return;
    if (upto >= PASS_HALVES && shape.overlap.halves) shape.B /= 2;
    const Kernels *k = described ? machine_kernels(&m, shape.bf16) : r->m.k;
    if (!k) k = kernels_cpu("portable"); // stores what every CPU's kernels store (price_lists)
    Listed micro_batch = listed(program_passes(&shape, upto, k), upto, &m);
    Listed end = {.costs = NULL};
    if (upto > PASS_BUILD && shape.training)
        end = listed(program_end_passes(&shape, upto, k, false), upto, &m);
    print(r, &micro_batch, &end);
    listed_free(&micro_batch), listed_free(&end);
}

int run_explain_matmul(const Options *o) {
    Machine m;
    Work w;
    Err e;
    if (die_is_copy()) return 0;
    if (!explain_matmul_parse(&w, o->explain_matmul, &e)) die_usage("--explain-matmul: %s", e.text);
    if (*o->json) die_usage("--explain-matmul has no --json");
    if (!*o->cluster) die_usage("--explain-matmul requires --cluster, like --cluster h200:1");
    if (!machine_open(&m, o->cluster, &e)) die_usage("--cluster: %s", e.text);
    if (!gpu_matmul_is(&m, &w))
        die_usage("--explain-matmul: %s has no GPUs whose multiprocessors are known "
                  "(multiprocessors = 132)",
                  m.name);
    explain_matmul_print(stdout, &m, &w);
    return 0;
}
