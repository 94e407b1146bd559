/* --listing: the step of a micro-batch as a list of operations, after one of the passes that make
 * it. */
#include "base/mem.h"
#include "data/replace.h"
#include "parallel/plan/cost.h"
#include "parallel/plan/detect.h"
#include "parallel/step/listing.h"
#include "parallel/step/passes.h"
#include "parallel/train/run.h"

/* --listing's words: none, the passes, the order. */
enum {
    LIST_NONE,
    LIST_BUILD,
    LIST_FUSE = LIST_BUILD + PASS_FUSE,
    LIST_SCHEDULE = LIST_BUILD + PASS_SCHEDULE
};

/* Of --cluster, or of the machine at hand as described: nothing is measured. */
static Machine machine_of(const Run *r) {
    Machine m;
    Detected d;
    Err e;
    if (*r->o->cluster) {
        if (!machine_open(&m, r->o->cluster, &e)) die_usage("--cluster: %s", e.text);
        if (m.ranks < r->group.size)
            die_usage("--cluster %s has %d rank%s, not %d", r->o->cluster, m.ranks,
                      m.ranks > 1 ? "s" : "", r->group.size);
        return m;
    }
    detect(&d, r->world, kernels_cpu(r->o->kernels), r->team, r->o->dtype == 1);
    detect_machine(&d, &m);
    detect_free(&d);
    return m;
}

static void print(const Run *r, const Program *p, const OpCost *costs, const Schedule *order) {
    ReplaceText text;
    listing_print(stdout, p, costs, order);
    if (!*r->o->json) return;
    replace_text_begin(&text);
    listing_json(text.f, p, costs, order);
    replace_text_end(&text, "--json", r->o->json);
}

void run_print_listing(const Run *r) {
    ModelShape shape = r->m.shape;
    Machine m = machine_of(r);
    bool described = *r->o->cluster, ordered = r->o->listing == LIST_SCHEDULE;
    int last =
        ordered ? PASS_HALVES : r->o->listing - LIST_BUILD; // the order is printed beside its list
    int threads = described ? m.threads : team_size(r->team);
    if (!r->lead) return;
    if (last == PASS_HALVES && shape.overlap.halves) shape.B /= 2;
    const Kernels *k = described ? machine_kernels(&m, shape.bf16) : r->m.k;
    Program p = program_passes(&shape, (Pass)last, k);
    OpCost *costs = NULL;
    Schedule order = {0};
    if (last >= PASS_FUSE) costs = program_costs(&p, &m, threads);
    if (ordered) {
        order = schedule_nominal(&p);
        schedule_time(&order, &p, costs);
    }
    print(r, &p, costs, ordered ? &order : NULL);
    schedule_free(&order);
    mem_free(costs);
    program_free(&p);
}
