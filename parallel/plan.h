/* plan -- the startup search as a run sees it: detect, calibrate, search, say why.
 *
 * The plan is the same on all ranks. */
#ifndef PARALLEL_PLAN_H
#define PARALLEL_PLAN_H

#include "parallel/detect.h"
#include "parallel/search.h"

enum { PLAN_TOP = 8 };

typedef struct Plan {
    Space space;
    Machine machine;
    Choice best[PLAN_TOP]; // the chosen one first
    int n_best;
    SearchCount count;
    Choice preset[16];
    const char *preset_name[16];
    int n_presets;
    double
        error; // of predictions in the ledger for this machine, as a share: 0.1 where there is none
} Plan;

/* Local, but for what --plan with the detected machine needs: see train_start.c. Searches; dies when nothing fits, with
 * what comes nearest and how much memory it takes. */
void plan_search(Plan *p);
/* Local. Table of the chosen plan, three runners-up and every preset; the reasons; one line per JSON object. */
void plan_print(const Plan *p, FILE *f);
void plan_reasons(const Plan *p, FILE *f);
void plan_json(const Plan *p, FILE *f);
/* Local, pure. How many of the best are within the prediction's own error of the first: candidates for real steps. */
int plan_close(const Plan *p);

#endif
