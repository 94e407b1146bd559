/* Prints what the search found, and the reasons. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "parallel/plan/gpu_matmul.h"
#include "parallel/plan/plan.h"
#include "parallel/plan/quantity.h"
#include "parallel/plan/search_parts.h"

const char *choice_print(const Choice *c, char text[128]) {
    char spec[64], flags[OVERLAP_TEXT];
    bool none = overlap_equal(&c->overlap, &(Overlap){0});
    snprintf(text, 128, "%s, %s%s, micro %" PRId64 ", recompute %s", layout_print(&c->layout, spec),
             none ? "overlap " : "", overlap_print(&c->overlap, flags), c->micro,
             recompute_name(c->recompute));
    return text;
}

/* ---- the table */

enum { RUNNERS = 3 }; // runners-up in the table

static double ms(double seconds) {
    return 1e3 * seconds;
}

static const char *size_text(int64_t bytes, char buf[64]) {
    return quantity_short((double)bytes, AS_BYTES, "GiB", buf);
}

static void print_row(FILE *f, const Plan *p, const char *name, const Choice *c) {
    const Choice *chosen = &p->best[0];
    char spec[64], flags[OVERLAP_TEXT], more[64] = "";
    if (c != chosen) quantity_more(c->price.seconds / chosen->price.seconds, 0, more);
    fprintf(f,
            "%-12s %-26s %-13s %5" PRId64
            " %-9s %10.2f %7s %9.2f %8.2f %8.2f %8.2f %10.1f %9.1f%s\n",
            name, layout_print(&c->layout, spec), overlap_print(&c->overlap, flags), c->micro,
            recompute_name(c->recompute), ms(c->price.seconds), more, ms(c->price.compute),
            ms(c->price.exposed), ms(c->price.hidden), ms(c->price.waiting),
            (double)c->price.received / 1048576.0, (double)c->price.memory / 1048576.0,
            c->fits ? "" : "  does not fit");
}

static bool same_layout(const Choice *a, const Choice *b) {
    char x[64], y[64];
    return strcmp(layout_print(&a->layout, x), layout_print(&b->layout, y)) == 0;
}

/* Runners-up: first other layouts than those above, then layouts above with another micro-batch or
 * overlap. */
static void print_runners(const Plan *p, FILE *f) {
    bool shown[PLAN_TOP] = {true};
    int n = 0;
    for (int again = 0; again < 2; again++)
        for (int i = 1; i < p->n_best && n < RUNNERS; i++) {
            bool above = false;
            for (int k = 0; k < i; k++) above |= same_layout(&p->best[k], &p->best[i]);
            if (shown[i] || (above && !again)) continue;
            shown[i] = true, n++;
        }
    for (int i = 1, first = 1; i < p->n_best; i++) {
        if (!shown[i]) continue;
        print_row(f, p, first ? "runners-up" : "", &p->best[i]);
        first = 0;
    }
}

void plan_print(const Plan *p, FILE *f) {
    const SearchCount *n = &p->count;
    char memory[64], tiles[80];
    fprintf(f, "plan     %d rank%s on %s: %" PRId64 " candidates, ", p->space.p,
            p->space.p == 1 ? "" : "s", p->machine.name, n->candidates);
    if (p->machine.memory > 0)
        fprintf(f, "%" PRId64 " too large for %s a rank, ", n->too_large,
                size_text(p->machine.memory, memory));
    fprintf(f, "%" PRId64 " priced, %.0f ms\n", n->priced, ms(n->seconds));
    if (p->machine.gpu && p->machine.sms > 0 && gpu_matmul_tiles(&p->machine, tiles))
        fprintf(f, "         matmuls are priced by %s\n", tiles);
    fprintf(f, "%-12s %-26s %-13s %5s %-9s %10s %7s %9s %8s %8s %8s %10s %9s\n", "a step", "layout",
            "overlap", "micro", "recompute", "ms", "", "compute", "exposed", "hidden", "waiting",
            "MiB recv", "MiB rank");
    print_row(f, p, "chosen", &p->best[0]);
    print_runners(p, f);
    for (int i = 0; i < p->n_presets; i++) print_row(f, p, p->preset_name[i], &p->preset[i]);
    plan_reasons(p, f);
}

/* ---- the reasons */

static double share(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

/* A group of a step's collectives: its largest collectives, and the time of all. */
typedef struct GroupUse {
    CollGroup group;
    int64_t most[N_COLL_OPS]; // bytes of the largest
    double seconds;
} GroupUse;
typedef struct GroupUses {
    const Machine *m;
    GroupUse at[MAX_COMMS + 2];
    int n;
} GroupUses;

static void add_collective(void *ctx, const StepCollective *sent) {
    GroupUses *all = ctx;
    const CollGroup *g = &sent->group;
    const Collective *s = &sent->collective;
    int i = 0;
    while (i < all->n && strcmp(all->at[i].group.label, g->label) != 0) i++;
    if (i == all->n) all->at[all->n++] = (GroupUse){.group = *g};
    if (s->bytes > all->at[i].most[s->op]) all->at[i].most[s->op] = s->bytes;
    double load = machine_collective(all->m, g, s);
    all->at[i].seconds += (double)sent->times * machine_collective_in_turn(all->m, g, s, load);
}

static GroupUses group_uses(const Plan *p) {
    GroupUses all = {.m = &p->machine};
    StepLists s;
    PriceShape shape = candidate_shape(&p->space, &p->best[0]);
    shape.whole = true;
    price_lists(&s, &shape, &p->best[0].layout, 0, 0);
    price_each_collective(&s, add_collective, &all);
    price_free(&s);
    return all;
}

/* Prints the shares of computing and waiting, and the group whose collectives take most time. */
static void say_where(const Plan *p, const GroupUses *uses, FILE *f) {
    const Choice *c = &p->best[0];
    const GroupUse *most = NULL;
    double all = 0;
    for (int i = 0; i < uses->n; i++) {
        all += uses->at[i].seconds;
        if (!most || uses->at[i].seconds > most->seconds) most = &uses->at[i];
    }
    fprintf(f, "A step is %.0f %% computing and %.0f %% waiting for collectives",
            share(c->price.compute, c->price.seconds), share(c->price.exposed, c->price.seconds));
    if (most && all > 0)
        fprintf(f, ", %.0f %% of them along %s, %d ranks on %s", share(most->seconds, all),
                most->group.label, most->group.size,
                p->machine.level[machine_level(&p->machine, &most->group)].name);
    fprintf(f, ".\n");
}

/* "12 % longer"; "12 % less"; "12 x as long" */
static const char *longer(double ratio, char buf[64]) {
    quantity_more(ratio, 0, buf);
    if (ratio < 10) memmove(buf, buf + 1, strlen(buf)); // without the sign
    return strcat(buf, ratio < 1 ? " less" : ratio < 10 ? " longer" : " as long");
}

/* Prints what overlap hides, and what the same step costs without overlap. */
static void say_hidden(const Plan *p, FILE *f) {
    const Choice *c = &p->best[0];
    Choice without = *c;
    char flags[OVERLAP_TEXT], more[64];
    double all = c->price.hidden + c->price.exposed;
    without.overlap = (Overlap){0};
    if (overlap_equal(&c->overlap, &without.overlap) || all == 0) return;
    search_reprice(&p->space, &p->machine, &without, 1);
    fprintf(f,
            "Overlap %s hides %.2f ms of collectives, %.0f %% of them; without it the same step "
            "would take %.2f ms, %s.\n",
            overlap_print(&c->overlap, flags), ms(c->price.hidden), share(c->price.hidden, all),
            ms(without.price.seconds), longer(without.price.seconds / c->price.seconds, more));
}

/* Prints the best other named scheme, and where it loses time: computing or communicating. */
static void say_against(const Plan *p, FILE *f) {
    const Choice *c = &p->best[0], *other = NULL;
    const char *name = "", *own = NULL;
    for (int i = 0; i < p->n_presets; i++) {
        const Choice *o = &p->preset[i];
        if (same_layout(o, c) && !own) own = p->preset_name[i];
        if (!o->fits || o->price.seconds == c->price.seconds || same_layout(o, c)) continue;
        if (!other || o->price.seconds < other->price.seconds) other = o, name = p->preset_name[i];
    }
    if (own) fprintf(f, "Same as preset %s.\n", own);
    if (!other) return;
    char spec[64], more[64];
    double compute = other->price.compute - c->price.compute,
           exposed = other->price.exposed - c->price.exposed;
    fprintf(f,
            "The best %snamed scheme, %s (%s), takes %s: %.2f ms %s computing, %.2f ms %s "
            "communicating, for %.1f MiB received instead of %.1f.\n",
            own ? "other " : "", name, layout_print(&other->layout, spec),
            longer(other->price.seconds / c->price.seconds, more), ms(fabs(compute)),
            compute >= 0 ? "more" : "less", ms(fabs(exposed)), exposed >= 0 ? "more" : "less",
            (double)other->price.received / 1048576.0, (double)c->price.received / 1048576.0);
}

/* Prints which collectives of the chosen step were measured, up to what size, and which derived. */
static void say_sources(const Plan *p, const GroupUses *uses, FILE *f) {
    int n[2] = {0};
    if (!p->machine.measured) return;
    for (int derived = 0; derived < 2; derived++)
        for (int i = 0; i < uses->n; i++)
            for (CollOp op = 0; op < N_COLL_OPS; op++) {
                const CollGroup *g = &uses->at[i].group;
                int64_t most = uses->at[i].most[op];
                const CollCost *cost =
                    calibration_find_collective(p->machine.measured, &g->place, op);
                int64_t reach = cost ? cost->measured : 0;
                char upto[64], of[64];
                if (most == 0 || g->size < 2 || (reach == 0) != derived) continue;
                fprintf(f, "%s %s along %s",
                        n[derived] ? ","
                        : !derived ? "Measured:"
                        : n[0]     ? "; derived:"
                                   : "None of its collectives was measured; derived:",
                        coll_op_name(op), g->label);
                if (reach > 0 && reach < most)
                    fprintf(f, " up to %s of %s", size_text(reach, upto), size_text(most, of));
                n[derived]++;
            }
    if (n[0] + n[1]) fprintf(f, ".\n");
}

/* Warns of steps of more than ten minutes, in which nobody trains. */
static void say_long(const Plan *p, FILE *f) {
    const double long_step = 600;
    double s = p->best[0].price.seconds;
    if (s > long_step)
        fprintf(f, "A step takes %.1f %s: a smaller --batch or model, or more ranks, are needed.\n",
                s < 7200 ? s / 60 : s / 3600, s < 7200 ? "minutes" : "hours");
}

/* Processors without units for bf16 round the operands of matmuls and multiply in fp32. */
static void say_slow_bf16(const Plan *p, FILE *f) {
    const double *flops = p->machine.flops;
    if (p->space.shape.model.bf16 && flops[1] <= flops[0])
        fprintf(f, "Matmuls in bf16 run at %.0f %% of the rate of those in fp32 on this machine.\n",
                100 * flops[1] / flops[0]);
}

void plan_reasons(const Plan *p, FILE *f) {
    int close = plan_close(p);
    GroupUses uses = group_uses(p);
    say_where(p, &uses, f);
    say_hidden(p, f);
    say_against(p, f);
    say_sources(p, &uses, f);
    say_long(p, f);
    say_slow_bf16(p, f);
    fprintf(f,
            isnan(p->error) ? "The error of predictions here is unknown: the ledger has no run."
                            : "Half of the predictions here erred by less than %.0f %%.",
            100 * p->error);
    if (close > 1)
        fprintf(f, " %d candidates%s are within %.0f %%: only real steps can tell them apart.",
                close, plan_error(p) > p->space.close ? " or more" : "", 100 * plan_error(p));
    fprintf(f, "\n");
}

/* ---- JSON */

static json_t *json_choice(const Choice *c, const char *name) {
    char spec[64], flags[OVERLAP_TEXT];
    json_t *o = json_pack(
        "{s:s,s:s,s:I,s:s,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:b}", "layout",
        layout_print(&c->layout, spec), "overlap", overlap_print(&c->overlap, flags), "micro",
        (json_int_t)c->micro, "recompute", recompute_name(c->recompute), "predicted_ms",
        ms(c->price.seconds), "compute_ms", ms(c->price.compute), "exposed_ms",
        ms(c->price.exposed), "hidden_ms", ms(c->price.hidden), "waiting_ms", ms(c->price.waiting),
        "received_bytes", (json_int_t)c->price.received, "collectives", (json_int_t)c->price.calls,
        "memory_bytes", (json_int_t)c->price.memory, "fits", c->fits);
    if (name) json_object_set_new(o, "scheme", json_string(name));
    return o;
}

void plan_json(const Plan *p, FILE *f) {
    json_t *plan = json_choice(&p->best[0], NULL), *best = json_array(), *presets = json_array();
    for (int i = 0; i < p->n_best; i++) json_array_append_new(best, json_choice(&p->best[i], NULL));
    for (int i = 0; i < p->n_presets; i++)
        json_array_append_new(presets, json_choice(&p->preset[i], p->preset_name[i]));
    json_t *search = json_pack("{s:I,s:I,s:I,s:f}", "candidates", (json_int_t)p->count.candidates,
                               "too_large", (json_int_t)p->count.too_large, "priced",
                               (json_int_t)p->count.priced, "ms", ms(p->count.seconds));
    json_object_set_new(plan, "ranks", json_integer(p->space.p));
    json_object_set_new(plan, "machine", json_string(p->machine.name));
    json_object_set_new(plan, "error", isnan(p->error) ? json_null() : json_real(p->error));
    json_object_set_new(plan, "search", search);
    json_object_set_new(plan, "candidates", best);
    json_object_set_new(plan, "presets", presets);
    json_t *line = json_pack("{s:o}", "plan", plan);
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fprintf(f, "%s\n", text);
    mem_free(text);
    json_decref(line);
}
