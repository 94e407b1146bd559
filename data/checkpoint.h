/* checkpoint -- a training run on disk, from which it continues as if it had never stopped.
 *
 *   SAVE_DIR/step_00001000/
 *       config.json             the model; with model.safetensors what `transformers` loads
 *       generation_config.json  where its generate() stops, if the ids of ends of text are known
 *       model.safetensors       fp32 parameters under their Hugging Face names (data/weights.h)
 *       optimizer.safetensors   fp32 moments, "m.NAME" and "v.NAME", laid out as the table of
 *                               tensors; of an outer loop with momentum also "velocity.NAME"
 *       train_state.json        what the trainer handed over: step, tokens, options, statistics
 *       ...                     copies of further files (a tokenizer)
 *       checkpoint.json         written last: step, model, bytes and CRC-32C of every other file
 *
 * All ranks write together, each what it is the first to hold, and any number of ranks reads: the
 * files are those of the logical model, byte for byte the same whatever the mesh. Rank 0 makes
 * names and texts; a failure on one rank is a failure on all, with its reason.
 *
 * All of it is written to SAVE_DIR/.step_00001000.tmp-HOST-PID, synced, and renamed; so a folder
 * named step_* is whole. A folder without a sound checkpoint.json, or with a file missing or of
 * another size, is passed over with a warning. Left-overs of writers that died are removed by the
 * next save. A failed save leaves no trace and touches no other checkpoint. One run at a time
 * saves into a folder: it holds the lock of SAVE_DIR/.lock, a file that says who it is.
 */
#ifndef DATA_CHECKPOINT_H
#define DATA_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "base/group.h"
#include "base/tensor.h"

typedef struct CheckpointOptions {
    int keep_last;      // complete checkpoints that stay, the new one counted; 0: all
    int64_t keep_every; // steps that are a multiple of it always stay and are not counted; 0: none
    const char *const *files; // further files to copy in, ended by NULL; NULL: none
} CheckpointOptions;

/* Collective. Saves params, and m, v and velocity where the table has them. state_json, of rank 0,
 * is a JSON object, stored as it is; options, too, are those of rank 0. An existing checkpoint of
 * the same step is replaced. Then removes old checkpoints as the options say: only of earlier
 * steps, only once the new one is durable; if that fails it warns. False: nothing is left
 * behind. */
bool checkpoint_save(const char *save_dir, int64_t step, const TensorTable *t,
                     const char *state_json, const CheckpointOptions *o, const Group *g, Err *e);

/* Collective. Takes the folder, made where it is missing, for this run, until the descriptor *lock
 * is closed: at the end of rank 0's process, however that comes. Refuses, naming the process and
 * its host, when another run has it. Where the file system knows no locks, it warns. */
bool checkpoint_lock(const char *save_dir, const Group *g, int *lock, Err *e);

/* Local. Path (freed by mem_free) of the checkpoint of a step. */
char *checkpoint_path(const char *save_dir, int64_t step);

/* Collective. Path (freed by mem_free) and step of the newest complete checkpoint, as rank 0 sees
 * it; NULL when there is none. `step` may be NULL. */
char *checkpoint_latest(const char *save_dir, int64_t *step, const Group *g);

/* Local. Checks every file against its checksum, naming the first that differs. */
bool checkpoint_verify(const char *path, Err *e);
/* Local. The model of a checkpoint: read it before the table of tensors is made. */
bool checkpoint_config(const char *path, Config *c, Err *e);
/* Local. The text of its train_state.json (mem_free), not verified yet; NULL and a reason when it
 * cannot be read. */
char *checkpoint_state(const char *path, Err *e);
/* Collective. Verifies, each rank a part of the bytes, then fills what this rank holds of params,
 * and of m and v where the table has them, and velocity where the file has it too. A table of
 * another model is refused with the first key that differs. state_json (may be NULL): the text of
 * train_state.json, freed by mem_free. After a failure the values are undefined. */
bool checkpoint_load(const char *path, const TensorTable *t, char **state_json, const Group *g,
                     Err *e);

#endif
