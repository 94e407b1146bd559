/* plan -- the startup search as a run sees it: what to measure, the choice, and why.
 *
 *   detect (detect.h) -> plan_list: what matters -> calibrate (calibrate.h) -> plan_search -> plan_print
 *
 * All of it is local and a pure function of what was detected and measured, which is alike on all ranks: so is the plan.
 */
#ifndef PARALLEL_PLAN_H
#define PARALLEL_PLAN_H

#include "parallel/calibrate.h"
#include "parallel/detect.h"
#include "parallel/search.h"

enum { PLAN_TOP = 12, PLAN_PRESETS = 16, PLAN_MEASURE_S = 10 };

typedef struct Plan {
    Space space;
    Machine machine;
    Choice best[PLAN_TOP]; // the chosen one first
    int n_best;
    SearchCount count;
    Choice preset[PLAN_PRESETS];
    const char *preset_name[PLAN_PRESETS];
    int n_presets;
    const char *absent[PLAN_PRESETS]; // named schemes that these ranks do not allow
    int n_absent;
    double error; // of predictions, as a share: half of them are nearer to what was measured
} Plan;

/* Local. The works and groups of the space's candidates, those that weigh most on a machine as described first:
 * of all candidates when there are few, else of the best by that description and of the named schemes. */
void plan_list(const Space *s, const Machine *described, CalibrateList *list);
void plan_list_free(CalibrateList *list);

/* Collective over the world. p->machine becomes what was detected, at the costs that are measured here for what p->space's
 * candidates do: PLAN_MEASURE_S at most, and only what the user's cache does not know. NULL without `measure`: the machine as
 * described. Alike on all ranks; freed by calibration_free, when the plan is no longer needed. */
typedef struct PlanWhere {
    World *world;
    const Kernels *kernels;
    Team **team; // of this rank; made anew where other numbers of threads are measured, too
    bool measure;
    CalibrateTalk talk;
} PlanWhere;
Calibration *plan_measure(Plan *p, const PlanWhere *w, const Detected *d);
/* Collective over the world. Seconds of a step that is recorded on each rank, by what the user's cache knows of this machine,
 * or, where it lacks a part, by the machine as described: nothing is measured. *kept: the table, or NULL; as plan_measure's. */
double plan_foretell(const PlanWhere *w, const Detected *d, Tape *t, Calibration **kept);

/* Local. What one recorded step does, listed as plan_list has it for all candidates. */
void plan_list_tape(const Machine *m, const Tape *t, CalibrateList *list);
/* Local, pure. False where plan_search will find nothing, whatever works and collectives cost: the machine as described is
 * enough to know. */
bool plan_may_fit(const Plan *p);
/* Local. Searches; false when nothing fits, with what comes nearest and how much memory it takes. */
bool plan_search(Plan *p, Err *e);
/* Local, pure. How many of the best are within the prediction's own error of the first: candidates for real
 * steps. */
int plan_close(const Plan *p);

/* ---- parallel/plan_print.c */

/* Local. The chosen plan, three runners-up and every named scheme: predicted milliseconds of a step, split, and memory;
 * then the reasons. */
void plan_print(const Plan *p, FILE *f);
/* Local. Some sentences. */
void plan_reasons(const Plan *p, FILE *f);
/* Local. One line: {"plan":{"layout":...,"overlap":...,"micro":...,"predicted_ms":...,"candidates":[...],"presets":[...],
 * "absent":{NAME:WHY}}} */
void plan_json(const Plan *p, FILE *f);
/* Local, pure. "x4.y2+sp, bulk+halves, micro 4, recompute none" */
const char *choice_print(const Choice *c, char text[128]);

#endif
