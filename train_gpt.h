/* train_gpt -- a run of the trainer as one rank has it, shared by the train_*.c: the only files that know
 * data/ and parallel/.
 */
#ifndef TRAIN_GPT_H
#define TRAIN_GPT_H

#include "base/group.h"
#include "base/sha256.h"
#include "data/batch.h"
#include "data/hellaswag.h"
#include "data/metrics.h"
#include "data/progress.h"
#include "data/runstate.h"
#include "data/tokenizer.h"
#include "parallel/ledger.h"
#include "parallel/mirror.h"
#include "parallel/model.h"
#include "parallel/options.h"
#include "parallel/outer.h"
#include "parallel/plan.h"
#include "parallel/trace.h"
#include "train_backend.h"

/* The last steps, on rank 0: for the ledger. */
typedef struct Measured {
    int64_t n;      // steps so far
    double last_ms; // of the last one
    double ms[50];
    int64_t received[50];
} Measured;

/* Everything that lives as long as the run, as one rank has it. */
typedef struct Run {
    World *world;
    Group group; // all ranks, for data/
    bool lead;   // rank 0: prints and writes the records
    Grid grid;
    Outer outer; // what replicas along d do with one another
    int cores;   // of this node, for all ranks on it
    int nodes;
    Team *team;
    const Kernels *kernels;
    Device device;
    Config config;
    Model m;
    char *init;             // --init, or its newest checkpoint
    const char *vocabulary; // folder or file of the tokenizer, or ""
    const Tokenizer
        *tokenizer;     // shared by the ranks of a process; NULL: samples are printed as ids
    int64_t seq, batch; // positions; tokens of a step
    int64_t micro;      // sequences of a micro-step at each coordinate of d x z
    int64_t places;     // coordinates of d x z
    ShardSet train_set, val_set;
    Batches train, val;
    HellaSwag hellaswag;
    RunState state;
    Metrics *metrics; // of rank 0, as is progress
    Progress *progress;
    double peak_flops;                 // of all ranks
    const char *peak_how;              // is it known: "measured"
    char digest[2 * SHA256_BYTES + 1]; // of the weights before the first step, with --count
    int64_t saved_step;                // of the newest checkpoint, -1 when there is none
    Measured measured;
    Calibration *calibration;  // of the plan; NULL: none
    Layout fixed;              // --layout, where the plan must keep it
    Plan *plan;                // of --layout auto, alike on all ranks; NULL: the layout was given
    double predicted_ms;       // of a step; 0: nobody has predicted it
    Trace *trace;              // of --trace, until its file is written; or NULL
    int64_t trace_after;       // its first step follows this one
    bool trace_cold;           // too few steps come before it
    bool stopping;             // a signal came, and all ranks know
    Arena tokens;              // of a step on this rank
    int32_t *inputs, *targets; // [micro-steps, micro, S]
} Run;

extern Options o;          // of the process
extern const Opt *options; // the table of o

/* Rank 0 speaks. */
#define note(r, ...)                                                                               \
    do {                                                                                           \
        if ((r)->lead) progress_note((r)->progress, __VA_ARGS__);                                  \
    } while (0)

/* Local. Micro-steps of a step; room for its tokens, instead of what there was. */
int64_t micro_steps(const Run *r);
void make_room_for_tokens(Run *r);
/* Collective. From options to a model with weights and data; false when --memory ended it after the table. */
bool prepare(Run *r);
/* Collective. --matrix: what the ranks run on, and what they can send one another. */
void show_machine(Run *r);
/* Local, of rank 0. What the run is, for its reader and for the records, which are opened. */
void print_header(const Run *r);
void start_records(Run *r);
bool file_in(const char *dir, const char *name);

/* Collective. Has a signal come to any rank? So that all leave together. Local: the one that has come here, or 0. */
bool stopping(void *run);
int signal_here(void);
/* Collective. The next step, and what follows it. False where there is none: the last one is made, or a signal came. */
bool train_on(Run *r);
/* Collective, before the first step on a model: what it would meet for the first time it meets here. */
void rehearse(Run *r);
/* Collective. The startup search, where --layout auto or --plan asks for it: r->plan. False when --plan has printed it. */
bool plan_run(Run *r);
/* Local. Another team, of n threads: one at a time, for a team ties its rank's threads to cores. */
void use_threads(Run *r, int n);
/* Local. Writes down a step of this run as it is laid out (--exact: as it would be without). */
void record_step(const Run *r, Tape *t);
PriceShape shape_of_step(const Run *r);
/* Local. Refuse a batch that is no multiple of --micro; halves of an odd number of sequences. */
void check_batch(int64_t batch, int64_t seq);
void check_halves(int64_t micro);
/* Local. Warn of a --micro that is more than a rank's share; of words of --overlap that do nothing. */
void warn_micro(int64_t batch, int64_t seq, int64_t places);
void warn_overlap(const Overlap *words, const Layout *l);
/* Local. --overlap, but "auto": the plan's choice, or bulk. */
Overlap run_overlap(const Run *r);
void plan_say(const Run *r); // local, of rank 0: a line of the header
void foretell(Run *r);       // collective: r->predicted_ms of a run without a plan
void plan_free(Run *r);
/* Collective. The first steps, on each of the layouts that the plan cannot tell apart; the run stays on the fastest. */
void refine(Run *r);

/* --trace (train_trace.c). Collective, each: before the first step, before and after every step; rank 0 writes the file
 * and prints the table after the second one that is traced. */
void trace_prepare(Run *r);
void trace_before(Run *r);
void trace_after(Run *r);
/* Collective. r->calibration: what the plan asks for, of this machine; rank 0 says what it does meanwhile. */
void measure_machine(Run *r, Plan *p, const Detected *d);
/* Local. The newest lines of the ledger, oldest first; returns how many. */
int last_lines(LedgerLine lines[], int max);
/* Local, of rank 0. Notes a step for the ledger; writes its line at the end of training. */
void measure_step(Run *r, const StepRecord *s);
void write_ledger(const Run *r);
/* Local. Which computer: "2 x AMD EPYC 9575F 64-Core Processor, 8 cores". */
void machine_words(const Run *r, char *buf, size_t n);

/* Collective. Validation loss and HellaSwag, printed and recorded; a signal, whose sender may not wait, ends it without. */
void evaluate_all(Run *r);
/* Collective. --check-tp: do this mesh and one rank train the same? Rank 0 prints. */
bool check(Run *r);
/* Local. What the options say of the update after `step` steps, but for --clip. */
AdamW update_rule(int64_t step);
/* Collective. One sample: prompt and continuation (mem_free), live: token by token; one between steps, recorded. */
char *sample(Run *r, bool live);
void show_sample(Run *r);

#endif
