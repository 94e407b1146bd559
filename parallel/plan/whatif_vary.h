/* whatif_vary -- varies one number and finds the best layout at each value.
 *
 *     network=10Gb/s..1600Gb/s     rank_rate of the level of that name; its port_rate in proportion
 *     latency=1us..100us           of the outermost level; port_rate= likewise
 *     flops=                       of a rank, in fp32 and bf16 alike
 *     nodes=1..64                  the batch stays: strong scaling
 *     memory=  call=  slowdown=  network.rank_rate=  NVLink.latency=     (machine_number)
 *     batch=64Ki..4Mi              tokens of a step, in whole sequences
 *     seq=1024..16384              positions; the batch stays
 *     layers=12..96
 *     channels=768..12288          in whole heads of the model's size; the MLP grows alike
 *
 * The values double, or are `points` geometric steps. Everything else stays as it is; every value
 * is a search of its own.
 */
#ifndef PARALLEL_PLAN_WHATIF_VARY_H
#define PARALLEL_PLAN_WHATIF_VARY_H

#include "parallel/plan/quantity.h"
#include "parallel/plan/search.h"

enum { WHATIF_POINTS = 257, WHATIF_SCHEMES = 8 };

/* What varies: a number of the batch or model, or the FLOP/s of the ranks
 * (VARY_BATCH to VARY_FLOPS), the rate of a level (VARY_LEVEL), or
 * another number of the machine's description (VARY_MACHINE). */
typedef enum {
    VARY_BATCH,
    VARY_SEQ,
    VARY_LAYERS,
    VARY_CHANNELS,
    VARY_FLOPS,
    N_VARY,
    VARY_LEVEL = N_VARY,
    VARY_MACHINE
} VaryKind;

typedef struct WhatIf {
    Space space;                        // p and only are set for each value
    Machine machine;                    // before the number varies
    const char *layout;                 // "auto", or a SPEC: the only layout
    const char *scheme[WHATIF_SCHEMES]; // to compare with: a named scheme, or a SPEC
    int n_schemes;
    // whatif_vary sets these
    VaryKind kind;
    int level, number;       // VARY_LEVEL: index of the level; VARY_MACHINE: machine_number's i
    bool ranks_vary;         // with the number
    Quantity as;             // kind of the number
    char name[40], like[64]; // its name; a value as it was given, whose unit others are printed in
    double value[WHATIF_POINTS];
    int n, merged; // values; further ones that rounding made equal to one of these
} WhatIf;

typedef struct WhatIfPoint {
    Space space;
    Machine machine;
    bool found; // a layout that fits
    Choice best;
    bool has[WHATIF_SCHEMES]; // these ranks and this memory allow the scheme
    Choice scheme[WHATIF_SCHEMES];
} WhatIfPoint;

/* Local, pure. Reads NAME=LOW..HIGH; points 0: doublings. False when a value of it cannot be, or
 * with the nearest name. */
bool whatif_vary(WhatIf *w, const char *text, int points, Err *e);
/* Local. Searches at the i-th value. False: the layout or a scheme does not fit the ranks'
 * number. */
bool whatif_at(const WhatIf *w, int i, WhatIfPoint *out, Err *e);

/* Local, pure. "83.2 Gb/s". */
const char *whatif_value(const WhatIf *w, int i, char buf[64]);
/* Local, pure. The unit of which values are whole multiples: "sequences of 1024"; "": any value. */
const char *whatif_unit(const WhatIf *w, char buf[64]);
/* Local, pure. SPEC and overlap; choices with the same text are shown as the same. If the number of
 * ranks varies, without the size of the outermost axis, which follows from it: "d.x8+sp bulk". */
const char *whatif_form(const WhatIf *w, const Choice *c, char buf[96]);

#endif
