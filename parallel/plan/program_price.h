/* program_price -- what a micro-batch costs, from the list of operations that a rank runs.
 *
 *   operations -> cost of each (cost.h) -> order and clocks (step/schedule.h) -> Price
 *
 * A model of many layers is priced by the lists of two layers and of three, of four and five
 * where collectives overlap kernels: each further layer adds their difference. So the time to
 * price does not depend on depth.
 *
 * The bound is of the list without an order: its kernels take so long one after the other, the
 * links of each level are in use so long. No order is faster than the longest of these, whatever
 * runs under what.
 */
#ifndef PARALLEL_PLAN_PROGRAM_PRICE_H
#define PARALLEL_PLAN_PROGRAM_PRICE_H

#include "parallel/plan/cost.h"

/* Local, pure. The seconds, bytes and calls of a list in this order. */
Played program_played(const Program *p, const Schedule *s);
/* Local. Of one micro-batch, all layers, on rank 0 of shape->grid, scheduled as shape->overlap
 * says. threads: of a rank's team. */
void program_price(const ModelShape *shape, const Machine *m, int threads, Price *out);

/* Local. Seconds that no order of a micro-batch's operations undercuts. */
double program_bound(const ModelShape *shape, const Machine *m, int threads);
/* Local, pure. The same of one list. */
double list_bound(const Program *p, const OpCost *costs);

/* Local. The program of a model of that many layers and the costs of its operations (mem_free). few
 * is its shape and lives as long as the program. */
Program program_of_layers(const ModelShape *shape, int64_t layers, const Machine *m, int threads,
                          ModelShape *few, OpCost **costs);

#endif
