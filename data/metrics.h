/* metrics -- the records of a run: one stream of numbers, written in up to three formats.
 *
 *     --json FILE         one JSON object per line, full precision (17 digits): the format that the
 *                         other tools read
 *                           {"run":{"model":...,"options":{...}}}   first, and after each resume
 *                           {"step":1,"loss":...,"norm":...,"lr":...,"ms":...,"tokens":...,...}
 *                           {"step":10,"val_loss":...}   {"step":10,"sample":"..."}
 *                         NaN and infinity are null
 *     --csv FILE          a header line, then a row per step or evaluation; what a row does not
 *                         have stays empty
 *     --tensorboard DIR   events.out.tfevents.*: scalars train/loss, val/loss, ...; samples as text
 *
 * A step counts from 1 and names the update that it made; an evaluation at step n is of the
 * parameters after update n (0: before the first). Each record is one write: a killed run leaves
 * whole lines.
 *
 * New run: an existing file is kept as FILE.old. Resume at step n: everything up to n stays,
 * records of later steps (made by the run that was lost) and a torn last line are cut off, and the
 * file continues. A session record makes TensorBoard forget the later steps; its older
 * files stay as they are.
 *
 * A file that cannot be opened ends the program (nothing has been trained yet). Afterwards a write
 * that fails, for instance on a full disk, must not cost the run: the record is dropped whole, one
 * warning names the file, and the next records are tried again.
 */
#ifndef DATA_METRICS_H
#define DATA_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/opt.h"

/* Paths of the files; NULL or "" writes none. */
typedef struct MetricsFiles {
    const char *json, *csv, *tensorboard;
} MetricsFiles;

/* What is known of a run at its start. Unknown values: digest NULL, steps and peak_flops 0. Host,
 * processor, commit and time are added by metrics_run. */
typedef struct RunRecord {
    const Opt *options;  // the table, with the values of this run
    const char *model;   // config_print's text
    const char *kernels; // instruction set in use, or "cuda"
    const char *device;  // the GPU's name; NULL: none is used
    int64_t parameters, tokens_per_step, steps;
    int cores;           // that the ranks on this host use together
    int threads, ranks;  // threads of a rank
    const char *layout;  // SPEC of the mesh
    const char *overlap; // flags of --overlap
    const char *digest;  // weights_digest before the first step, as text
    double flops_per_token, peak_flops;
} RunRecord;

/* One optimizer step. NaN in a z-score, and 0 in `peak`, mean "not known" and are left out. */
typedef struct StepRecord {
    int64_t step; // from 1
    double loss, loss_z, norm, norm_z, lr;
    double ms;           // wall time of the step
    double tokens_per_s; // of this step
    double peak;         // share of the machine's peak, 0.61 is 61 %
    int64_t tokens;      // trained on so far
    int64_t received;    // bytes that rank 0 received from other ranks in this step; 0: left out
    bool skipped;        // the update was left out (z-score limits)
} StepRecord;

typedef struct Metrics Metrics;

/* Local. Opens the files; resume_step > 0 continues them after that step, 0 begins them. Dies when
 * a file cannot be opened. */
Metrics *metrics_open(const MetricsFiles *files, int64_t resume_step);
/* Local. The line about the run; call it once, first. */
void metrics_run(Metrics *m, const RunRecord *run);
void metrics_step(Metrics *m, const StepRecord *s);
/* Local. name: "val_loss" or "hellaswag" (accuracy, 0 .. 1). */
void metrics_eval(Metrics *m, int64_t step, const char *name, double value);
/* Local. Text that the model wrote; bytes that are not UTF-8 become U+FFFD. */
void metrics_sample(Metrics *m, int64_t step, const char *text);
/* Local. Syncs the files to the disk. Called before a checkpoint is renamed into place, so that the
 * log holds every step that a checkpoint holds. */
void metrics_sync(Metrics *m);
/* Local. Closes; one warning per file from which records were lost. NULL is fine. */
void metrics_close(Metrics *m);

/* Pure. The number of bytes of an older file, n bytes, that stay when a run resumes at `step`; -1
 * when the file holds something else. */
int64_t metrics_keep_json(const char *p, size_t n, int64_t step);
int64_t metrics_keep_csv(const char *p, size_t n, int64_t step);

#endif
