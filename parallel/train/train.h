/* train -- a training run on one rank, from options to the last checkpoint. train_gpt.c has the
 * loop over steps; the run_*.c of this folder do what comes before, between and after steps. Only
 * these files use both data/ and parallel/.
 */
#ifndef PARALLEL_TRAIN_TRAIN_H
#define PARALLEL_TRAIN_TRAIN_H

#include "base/group.h"
#include "data/batch.h"
#include "data/hellaswag.h"
#include "data/metrics.h"
#include "data/progress.h"
#include "data/runstate.h"
#include "data/tokenizer.h"
#include "layers/cuda/device.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/detect.h"
#include "parallel/plan/gpu.h"
#include "parallel/plan/plan.h"
#include "parallel/plan/trace.h"
#include "parallel/step/mirror.h"
#include "parallel/step/model.h"
#include "parallel/step/outer.h"
#include "parallel/train/options.h"

/* Of the kernels of a rank: --backend. */
typedef struct Device {
    bool used; // false: kernels run on the CPU
    int index; // number on the node
    int ranks; // ranks that share it
    int all;   // number of devices of all ranks
    DeviceFacts facts;
    Err unused;   // why a present GPU is not used; "": none present, or it is used
    Err unshared; // why ranks do not use each other's memory, where --overlap fused asks for it
} Device;

/* Times and bytes of the last steps, on rank 0, for the ledger. */
typedef struct Measured {
    int64_t n;      // steps so far
    double last_ms; // of the last one
    double ms[50];
    int64_t received[50];
} Measured;

/* The state of a run on one rank. */
typedef struct Run {
    Options *o;         // shared by the ranks of a process; read-only once training has begun
    const Opt *options; // the table of o
    World *world;
    Group group;       // all ranks, for data/
    bool lead;         // rank 0: prints and writes the records
    Machine described; // --cluster of --listing, whose ranks are not here
    Grid grid;
    Outer outer; // outer steps of the replicas along d
    NodeShare node;
    int nodes;
    Team *team;
    const char *set; // of CPU kernels: --kernels, or what auto found the fastest
    const Kernels *kernels;
    Device device;
    Config config;
    Model m;
    char *init;       // --init, or its newest checkpoint
    char *vocabulary; // folder or file of the tokenizer, or ""
    bool carried;     // vocabulary is the newest checkpoint
    // shared by the ranks of a process; NULL: samples are printed as ids
    const Tokenizer *tokenizer;
    int64_t seq, batch; // positions; tokens of a step
    int64_t micro;      // sequences of a micro-batch per coordinate of d x z
    int64_t data_size;  // data-parallel size: coordinates of d x z
    ShardSet train_set, val_set;
    Batches train, val;
    HellaSwag hellaswag;
    RunState state;
    Metrics *metrics; // rank 0 only, as is progress
    Progress *progress;
    double peak_flops, peak_rank; // FLOP/s of all ranks, of this rank
    const char *peak_how;         // source of the peak: "measured"
    char digest[17];              // of the weights before the first step, with --count
    int64_t saved_step;           // step of the newest checkpoint; -1: none
    Measured measured;
    Calibration *calibration;  // cost table of the plan; NULL: none
    Layout fixed;              // --layout, if the plan must keep it
    Plan *plan;                // of --layout auto, equal on all ranks; NULL: the layout was given
    double predicted_ms;       // per step; 0: no prediction
    Trace *trace;              // --trace, until the file is written; NULL: none
    int64_t trace_after;       // the first traced step follows this one
    bool stopping;             // a signal has arrived, and all ranks know
    Arena tokens;              // of a step on this rank
    int32_t *inputs, *targets; // [micro-batches, micro, S]
} Run;

/* Prints a line on rank 0. */
#define run_note(r, ...)                                                                           \
    do {                                                                                           \
        if ((r)->lead) progress_note((r)->progress, __VA_ARGS__);                                  \
    } while (0)

/* Local. Micro-batches of a step; and the buffer of its tokens, allocated anew. */
int64_t run_micro_batches(const Run *r);
void run_allocate_tokens(Run *r);
/* Collective. From options to a model with weights and data. False: --memory or --listing has
 * printed its output. */
bool run_prepare(Run *r);
/* Local. Does --listing print the step of a described cluster? Then no rank of the mesh is here,
 * r->grid has no communicators, and of the model only r->m.shape is set. */
bool run_lists_cluster(const Run *r);
/* Collective. --listing: prints the program of a micro-batch; with --json as JSON. */
void run_print_listing(const Run *r);
/* Local, rank 0. Prints the header of the run; opens the records and writes theirs. */
void run_print_header(const Run *r);
void run_open_records(Run *r);
bool file_in(const char *dir, const char *name);
/* Local, before ranks start. Ends the program (usage) for contradictory options, and for outputs
 * that are inputs or given twice. Returns the settings of the outer loop; rounds save_every up to
 * whole outer steps. */
Outer run_check_options(Options *o, const Opt *table);
/* Local. Does the run sample, and is one sample all that it was started for? An empty --prompt asks
 * for a sample, too: it begins as a document does. */
bool run_samples(const Options *o, const Opt *table);
bool run_only_samples(const Options *o, const Opt *table);
/* Local. Prints what --explain-matmul asks for; the exit status. */
int run_explain_matmul(const Options *o);
/* Collective. Frees the run. */
void run_end(Run *r);
/* Local. Reads the tokens of this rank for this step, all micro-batches; prefetches the next
 * step. */
void run_read_step(Run *r);
/* Local. Factor that makes the sum over the tokens of a model's step their mean. */
float run_loss_scale(const Run *r);
/* Local. Bytes that this rank has received in this step, or in the last one. */
int64_t run_received(const Run *r);
/* Local, rank 0. --count: prints the collectives of the last step, beside the prediction. */
void run_print_counts(Run *r);
/* Local. Others wait for this rank --timeout seconds, ten times as long at the start and
 * while weights are written. */
void run_set_limit(const Run *r, bool storage);
/* Collective. Saves a checkpoint after this step. run_export: exports at the end of a run. */
void run_save(Run *r);
void run_export(Run *r);
/* Collective. --audit-every: ends the run if replicas differ. */
void run_audit(Run *r);

/* Collective. Has any rank received a signal, or was a file that it reads truncated? All ranks then
 * stop together. */
bool run_stopping(void *run);
/* Local. Learning rate and AdamW settings of the update after `step` steps, without --clip. */
double run_learning_rate(const Run *r, int64_t step);
AdamW run_update_rule(const Run *r, int64_t step);
/* Collective. Runs the next step with evaluation, samples and checkpoints due after it. False: no
 * step is left, or a signal has arrived. */
bool run_train_on(Run *r);
/* Collective, before the first step on a model: warms up, so that one-time costs (loading kernels,
 * opening communicators) do not fall into the first step. */
void run_warm_up(Run *r);
/* Local, rank 0, before the first step: prints what the user may not have intended, with a
 * remedy. */
void run_remark(const Run *r);
/* Collective. Runs the search for --layout auto or --plan and sets r->plan. False: --plan has
 * printed it. */
bool run_choose_layout(Run *r);
/* Local. The lists of a step on the current layout, for pricing (price_free). */
void run_step_lists(const Run *r, StepLists *s);
/* Collective. The machine of these ranks: GPUs where they are used, else processors. */
void run_machine(const Run *r, const Detected *d, Machine *m);
/* Local. End the run for a batch that is no multiple of --micro; for halves of an odd
 * micro-batch. */
void run_check_batch(const Run *r, int64_t batch, int64_t seq);
void run_check_halves(const Run *r, int64_t micro);
/* Local. Warn of a --micro above a rank's share; of flags of --overlap without effect. */
void run_warn_micro(const Run *r, int64_t batch, int64_t seq, int64_t data_size);
void run_warn_overlap(const Run *r, const Overlap *flags, const Layout *l);
/* Local. Does --overlap ask for matmuls that are fused with their collectives? */
bool run_asks_for_fused(const Run *r);
/* Local. The value of --overlap; for auto the choice of the plan, or bulk. */
Overlap run_overlap(const Run *r);
void run_print_plan(const Run *r); // local, of rank 0: a line of the header
/* Local. What this rank does, for the line of a rank that waits in vain: "step" 12. */
void run_set_phase(Run *r, const char *what, int64_t step);
void run_predict(Run *r); // collective: r->predicted_ms of a run without a plan
void run_plan_free(Run *r);
/* Collective. --refine: runs the first steps on each near-optimal layout, then keeps the
 * fastest. */
void run_refine(Run *r);

/* --trace (run_trace.c). All collective. Called before the first step, and before and after every
 * step; after the second traced step rank 0 writes the file and prints the table. */
void run_trace_prepare(Run *r);
void run_trace_before(Run *r);
void run_trace_after(Run *r);
/* Local. Median relative error of predictions for this machine in the ledger; NAN: no entry. */
double run_known_error(const Run *r);
/* Local, rank 0. Notes a step for the ledger. run_write_ledger: appends the line at the end of
 * training. */
void run_note_step(Run *r, const StepRecord *s);
void run_write_ledger(const Run *r);

/* ---- --backend (run_backend.c) */

/* Local, before ranks start. Ends the program for options that --backend cuda does not support. */
void run_check_backend(const Run *r);
/* Collective. Sets r->kernels and r->device; closes the device. */
void run_open_backend(Run *r);
void run_close_backend(const Run *r);
/* Local. --version: prints what this program was built from and with; returns 0. */
int run_print_version(void);
/* Local. "avx512_bf16", "cuda". */
const char *run_kernels_name(const Run *r);
/* Collective. Finds r->peak_flops and r->peak_rank. */
void run_find_peak(Run *r);
/* Local, rank 0. A rate of all ranks (FLOP/s) as a fraction of the peak (MFU). At most 1: a rate
 * above the peak shows that the peak was measured too low, and replaces it. */
double run_share_of_peak(Run *r, double flops);
/* Local, rank 0. Prints lines of the header. */
void run_print_machine(const Run *r);

/* ---- evaluation, samples and checks (run_eval.c) */

/* Collective. Prints and records validation loss and HellaSwag. A signal ends the evaluation early,
 * without results. */
void run_evaluate(Run *r);
/* Collective. --check-tp: trains the same on this mesh and on one rank, compares all tensors; rank
 * 0 prints. False: they differ. */
bool run_check_tp(Run *r);
/* Collective. Prints and records the prompt and its continuation; live: token by token, and nothing
 * else. */
void run_sample(Run *r, bool live);
/* Collective. Ends the run because a loss, norm or logit is not finite at this step; names the
 * first tensor that is not finite. */
_Noreturn void run_stop_not_finite(Run *r, const char *what, double value, int64_t step);

#endif
