/* train -- a training run on one rank, from options to the last checkpoint. train_gpt.c has the
 * loop over steps; the run_*.c of this folder do what comes before, between and after steps.
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
#include "data/tokenizer_folder.h"
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

/* The GPU that runs the kernels of this rank (--backend). */
typedef struct Device {
    bool used; // false: kernels run on the CPU
    int index; // number on the node
    int ranks; // ranks that share the device
    int all;   // number of devices of all ranks
    DeviceFacts facts;
    Err unused;   // why a present GPU is not used; "": the GPU is used, or no GPU is present
    Err unshared; // why ranks cannot use each other's memory, as --overlap fused needs
} Device;

/* Times and received bytes of the newest 50 steps, on rank 0, for the ledger. The first steps are
 * left out (run_ledger.c). */
typedef struct Measured {
    int64_t n;            // steps since the run began on this layout
    bool on_trial;        // this layout is one of those that --refine tries
    bool compared;        // with the prediction
    double last_ms;       // time of the last step
    double ms[50];        // ring buffer
    int64_t received[50]; // ring buffer: bytes
} Measured;

/* The state of a run on one rank. */
typedef struct Run {
    Options *o;         // shared by the ranks of a process; read-only once training has begun
    const Opt *options; // the table of o
    World *world;
    Group group;       // all ranks, for data/
    bool lead;         // rank 0: prints and writes the records
    Machine described; // machine of --listing --cluster, whose ranks do not exist
    Grid grid;
    Outer outer; // outer steps of the replicas along d
    NodeShare node;
    int nodes;
    Team *team;
    const char *set; // set of CPU kernels: --kernels, or the fastest that auto found
    const Kernels *kernels;
    Device device;
    Config config;
    Model m;
    char *init;       // path of --init, or of the newest checkpoint in that folder; "": none
    char *vocabulary; // path of the tokenizer: a folder or file; "": none
    bool carried;     // vocabulary is the folder of the checkpoint to resume from
    // rank 0 only. Checkpoints and exports get these files also where their folder is gone by then:
    // --keep removes that of the checkpoint to resume from
    TokenizerFolder tokenizer_files;
    // shared by the ranks of a process; NULL: samples are printed as ids
    const Tokenizer *tokenizer;
    int64_t seq, batch; // positions of a sequence; tokens of a step
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
    char digest[17];              // --count: hash of the weights before the first step; else ""
    int64_t saved_step;           // step of the newest checkpoint; -1: none
    Measured measured;
    Calibration *calibration;  // cost table of the plan; NULL: none
    Layout fixed;              // --layout, if the plan must keep it
    Plan *plan;                // --layout auto or --plan, equal on all ranks; NULL: no search
    double predicted_ms;       // per step; 0: no prediction
    Trace *trace;              // --trace, until the file is written; NULL: none
    int64_t trace_after;       // number of the step before the first traced one
    bool stopping;             // a signal has arrived, and all ranks know
    Arena tokens;              // memory of inputs and targets
    int32_t *inputs, *targets; // token ids of this rank in a step: [micro-batches, micro, S]
} Run;

/* Prints a line on rank 0. */
#define run_note(r, ...)                                                                           \
    do {                                                                                           \
        if ((r)->lead) progress_note((r)->progress, __VA_ARGS__);                                  \
    } while (0)

/* Local. run_micro_batches: the number of micro-batches of a step. run_allocate_tokens: allocates
 * inputs and targets, and frees those of another micro-batch size. */
int64_t run_micro_batches(const Run *r);
void run_allocate_tokens(Run *r);
/* Collective. From options to a model with weights and data. False: --memory, --plan or --listing
 * has printed its output. */
bool run_prepare(Run *r);
/* Local. Does --listing print the step of a described cluster? Then the ranks of the mesh do not
 * exist: r->grid has no communicators, and in r->m only the shape is set. */
bool run_lists_cluster(const Run *r);
/* Collective. --listing: prints the lists of a micro-batch and of the end of a step, --json too. */
void run_print_listing(const Run *r);
/* Local, rank 0. Prints the header of the run; opens the records and writes theirs. */
void run_print_header(const Run *r);
void run_open_records(Run *r);
/* Local, before ranks start. Ends the program (usage) for contradictory options, and for outputs
 * that are inputs or given twice. Sets the settings of the outer loop, and rounds save_every up to
 * a multiple of sync_every. */
void run_check_options(Run *r);
/* Local. run_given: was the option given? run_samples: does the run print samples?
 * run_only_samples: does the run print samples and end? An empty --prompt asks for samples that
 * begin like a document. */
bool run_given(const Run *r, const char *option);
/* Local. Is --json the record that --config names, of a run that resumes? */
bool run_continues_record(const Options *o);
bool run_samples(const Run *r);
bool run_only_samples(const Run *r);
/* Local. --explain-matmul: prints the schedules of a matmul; returns the exit status. */
int run_explain_matmul(const Options *o);
/* Collective. Frees the run. */
void run_end(Run *r);
/* Local. Reads the tokens of this rank for this step, all micro-batches; prefetches the next
 * step. */
void run_read_step(Run *r);
/* Local. Factor that turns a sum over tokens into a mean: 1 / (tokens of a step); with local steps
 * 1 / (a replica's tokens of a step). */
float run_loss_scale(const Run *r);
/* Local. Bytes that this rank has received since the newest step began. */
int64_t run_received(const Run *r);
/* Local; only rank 0 prints. --count: the collectives of the last step, beside the prediction. */
void run_print_counts(Run *r);
/* Local. Sets the longest wait of a collective: --timeout seconds, or with `storage` ten times as
 * long. storage: files are read or written, at the start and in a save. */
void run_set_limit(const Run *r, bool storage);
/* Collective. Saves a checkpoint after this step. run_export: exports at the end of a run. */
void run_save(Run *r);
void run_export(Run *r);
/* Collective. --audit-every: ends the run if replicas differ. */
void run_audit(Run *r);

/* Collective. Has any rank received a signal, or found a file truncated while reading it? All ranks
 * then stop together. */
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
/* Local. The programs of a step on the current layout, for pricing. Freed by price_free. */
void run_step_lists(const Run *r, StepLists *s);
/* Collective. run_detect: detects the hardware of these ranks (detect_free). run_machine: describes
 * their machine for the planner, the GPUs if they are used, else the processors. */
void run_detect(const Run *r, Detected *d);
void run_machine(const Run *r, const Detected *d, Machine *m);
/* Local. Ends the run if the batch is not of whole sequences. */
void run_check_batch(const Run *r, int64_t batch);
/* Local. run_warn_micro: warns if --micro is more than a rank's share of a step, or does not divide
 * it. run_warn_overlap: warns of flags of --overlap without effect. */
void run_warn_micro(const Run *r, int64_t batch, int64_t data_size);
void run_warn_overlap(const Run *r, const Overlap *flags, const Layout *l);
/* Local. Does --overlap ask for matmuls that are fused with their collectives? */
bool run_asks_for_fused(const Run *r);
/* Local. The flags of --overlap. For auto: the plan's choice. Without a plan: bulk, or no flag if
 * there is one rank. */
Overlap run_overlap(const Run *r, int ranks);
void run_print_plan(const Run *r); // local, of rank 0: a line of the header
/* Local. Names what this rank is doing ("step" 12) for the message of a wait that took longer than
 * --timeout. */
void run_set_phase(Run *r, const char *what, int64_t step);
void run_predict(Run *r); // collective: r->predicted_ms of a run without a plan
void run_plan_free(Run *r);
/* Collective. --refine: runs the first steps on each near-optimal layout, then keeps the
 * fastest. */
void run_refine(Run *r);

/* Collective. --trace (run_trace.c). run_trace_prepare is called before the first step, the other
 * two before and after every step. After the second traced step rank 0 writes the file and prints
 * the table. */
void run_trace_prepare(Run *r);
void run_trace_before(Run *r);
void run_trace_after(Run *r);
/* Local. Median relative error of predictions for this machine in the ledger; NAN: no entry. */
double run_known_error(const Run *r);
/* Local, rank 0. run_note_step: records the time and bytes of a step for the ledger.
 * run_write_ledger: appends the line of the run at the end of training. */
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
/* Local. The name of the kernels in use: "avx512_bf16", "cuda". */
const char *run_kernels_name(const Run *r);
/* Collective. Looks up or measures r->peak_flops and r->peak_rank. */
void run_find_peak(Run *r);
/* Local, rank 0. A rate of all ranks (FLOP/s) as a fraction of the peak (MFU), at most 1: a rate
 * above the peak shows that the peak was measured too low, and becomes the peak. */
double run_share_of_peak(Run *r, double flops);
/* Local, rank 0. Prints the header's lines about kernels and devices. */
void run_print_machine(const Run *r);

/* ---- evaluation, samples and checks (run_eval.c) */

/* Collective. Prints and records validation loss and HellaSwag. A signal ends the evaluation early,
 * without results. */
void run_evaluate(Run *r);
/* Collective. --check-tp: trains the same steps on this mesh and on one rank, and compares all
 * tensors. Rank 0 prints the result. False: tensors differ. */
bool run_check_tp(Run *r);
/* Collective. Samples a continuation of the prompt, prints and records it. live: prints each token
 * when it is sampled, and no lines around the text. */
void run_sample(Run *r, bool live);
/* Collective. Ends the run because a loss, norm or logit is not finite at this step; names the
 * first tensor that is not finite. */
_Noreturn void run_stop_not_finite(Run *r, const char *what, double value, int64_t step);

#endif
