/* plan -- the search at the start of a run: what to measure, the choice, and the reasons.
 *
 *   detect (detect.h) -> plan_list: what to measure -> calibrate (calibrate.h) -> plan_search ->
 *   plan_print
 *
 * The plan is a pure function of the detected facts and the measured costs. In a run rank 0
 * searches and broadcasts the choices (parallel/train/run_plan.c).
 */
#ifndef PARALLEL_PLAN_PLAN_H
#define PARALLEL_PLAN_PLAN_H

#include "parallel/plan/calibrate.h"
#include "parallel/plan/detect.h"
#include "parallel/plan/search.h"

enum { PLAN_TOP = 12, PLAN_MEASURE_S = 10 };

typedef struct Plan {
    Space space;
    Machine machine;
    Choice best[PLAN_TOP]; // the choice first
    int n_best;
    SearchCount count;
    Choice preset[N_SCHEMES];
    const char *preset_name[N_SCHEMES];
    int n_presets;
    double error; // median relative error of predictions; NAN: unknown
} Plan;

/* Local. The kernels and groups of the candidates, those that cost most on the described machine
 * first: of all candidates if there are few, else of the named schemes and of the candidates that
 * are best on that machine. */
void plan_list(const Space *s, const Machine *described, CalibrateList *list);
void plan_list_free(CalibrateList *list);

/* Collective over the world. Sets p->machine to the detected machine with measured links
 * (d->links), and measures the kernels and collectives of the candidates: at most PLAN_MEASURE_S,
 * and only what is not in the user's cache. Returns the cost table, equal on all ranks
 * (calibration_free, after the plan). NULL: the sizes of the teams differ; nothing is measured, and
 * p->machine does not change. Of w the world, kernels, team, node and callbacks are read. */
Calibration *plan_measure(Plan *p, const CalibrateWhere *w, Detected *d);
/* Collective over the world. Sets *m to the detected machine with the cost table in the user's
 * cache, which it returns (calibration_free). NULL: the table has not enough entries for this step.
 * Measures nothing. */
Calibration *plan_measured(Machine *m, const CalibrateWhere *w, Detected *d, const StepLists *s);

/* Local. The kernels and groups of one step, listed as by plan_list. */
void plan_list_step(const Machine *m, const StepLists *s, CalibrateList *list);
/* Local, pure. False: no candidate fits into the described machine's memory, so nothing need be
 * measured. */
bool plan_may_fit(const Plan *p);
/* Local. Sets best, count and presets. False: no candidate fits; the reason names the smallest one
 * and its memory. */
bool plan_search(Plan *p, Err *e);
/* Local. The best choices by the prices of search_reprice. Returns their number; 0: nothing
 * fits. */
int plan_best(const Space *s, const Machine *m, Choice best[PLAN_TOP]);
/* Local, pure. Plan.error, or a default if unknown. */
double plan_error(const Plan *p);
/* Local, pure. Number of the best candidates that are slower than the first by at most that
 * error. */
int plan_close(const Plan *p);
/* Local, pure. The candidates for --refine, at most max: the best; the best of each other kind
 * (tensor parallel, data parallel, both) within three times the error; then others within the
 * error. With Space.fuses the last one is one of these with fused matmuls. Returns their number. */
int plan_trials(const Plan *p, Choice *out, int max);

/* ---- parallel/plan/plan_print.c */

/* Local. The chosen plan, three runners-up and every named scheme: predicted milliseconds of a
 * step, split, and memory; then the reasons. */
void plan_print(const Plan *p, FILE *f);
/* Local. Prints the reasons for the choice. */
void plan_reasons(const Plan *p, FILE *f);
/* Local. One line:
 * {"plan":{"layout":...,"overlap":...,"micro":...,"predicted_ms":...,
 * "candidates":[...],"presets":[...]}} */
void plan_json(const Plan *p, FILE *f);
/* Local, pure. "x4.y2+sp, bulk+halves, micro 4, recompute none" */
const char *choice_print(const Choice *c, char text[128]);

#endif
