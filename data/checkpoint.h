/* checkpoint -- a training run on disk, from which it continues as if it had never stopped.
 *
 *   SAVE_DIR/step_00001000/
 *       config.json             the model; with model.safetensors what `transformers` loads
 *       generation_config.json  end-of-text ids, where generate() stops; absent if they are unknown
 *       model.safetensors       fp32 parameters under their Hugging Face names (data/weights.h)
 *       optimizer.safetensors   fp32 moments, "m.NAME" and "v.NAME", laid out as the table of
 *                               tensors; of an outer loop with momentum also "velocity.NAME"
 *       train_state.json        the trainer's own state: step, tokens, options, statistics
 *       ...                     copies of further files (a tokenizer)
 *       checkpoint.json         written last: step, model, bytes and CRC-32C of every other file
 *
 * All ranks write together: several ranks may hold the same element, and the first of them writes
 * it. The files hold the logical model, byte for byte the same whatever the mesh, so any number of
 * ranks can read them. Rank 0 makes names and texts. A failure on one rank is a failure on all,
 * with its reason.
 *
 * All files are written to SAVE_DIR/.step_00001000.tmp-HOST-PID and synced, then the folder is
 * renamed: a folder named step_* is complete. A folder without a sound checkpoint.json, or with a
 * file missing or of another size, is skipped with a warning. The next save removes what writers
 * that died left behind. A failed save leaves nothing behind and touches no other checkpoint. One
 * run at a time saves into a folder: it holds the lock of the file SAVE_DIR/.lock, whose text names
 * the process.
 */
#ifndef DATA_CHECKPOINT_H
#define DATA_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/die.h"
#include "base/group.h"
#include "base/tensor.h"
#include "data/io_map.h"

typedef struct CheckpointOptions {
    int keep_last; // complete checkpoints to keep, with the new one; 0: all
    // Checkpoints of steps that are a multiple of keep_every are always kept and do not count for
    // keep_last; 0: none.
    int64_t keep_every;
    int64_t keep_step;  // the checkpoint of this step is kept likewise
    const IoMap *files; // further files, `path` is the name; path NULL after the last. NULL: none
} CheckpointOptions;

/* Collective. Saves params, and m, v and velocity where the table has them. Rank 0's state_json, a
 * JSON object, is stored as it is; the options are rank 0's, too. An existing checkpoint of the
 * same step is replaced. Once the new checkpoint is durable, older ones are removed as the options
 * say; if that fails it warns. On false nothing is left behind. */
bool checkpoint_save(const char *save_dir, int64_t step, const TensorTable *t,
                     const char *state_json, const CheckpointOptions *o, const Group *g, Err *e);

/* Collective. Makes the folder where it is missing and locks it for this run. The lock lasts until
 * the descriptor *lock is closed, at the latest when rank 0's process ends, however it ends.
 * Refuses, naming the process and its host, when another run holds the lock. Warns where the file
 * system has no locks. */
bool checkpoint_lock(const char *save_dir, const Group *g, int *lock, Err *e);

/* Local. Path (freed by mem_free) of the checkpoint of a step. */
char *checkpoint_path(const char *save_dir, int64_t step);

/* Collective. Path (freed by mem_free) and step of the newest complete checkpoint, as rank 0 sees
 * the folder. If none is complete: NULL and the step of the newest one, -1 without any. `step` may
 * be NULL. A folder that cannot be listed ends the program. */
char *checkpoint_latest(const char *save_dir, int64_t *step, const Group *g);
/* Collective. Path (freed by mem_free) of the model that --init names: --init itself, also if it is
 * "", or the newest checkpoint if it is a folder of --save. NULL, with what is missing in e, if
 * there is no model. */
char *checkpoint_find_model(const char *init, const Group *g, Err *e);

/* Local. Checks every file against its checksum, naming the first that differs. */
bool checkpoint_verify(const char *path, Err *e);
/* Local. The model of a checkpoint, needed before the table of tensors is made. */
bool checkpoint_config(const char *path, Config *c, Err *e);
/* Local. The text of its train_state.json (mem_free), whose checksum is verified; NULL and a reason
 * when it cannot be read or is damaged. */
char *checkpoint_state(const char *path, Err *e);
/* Collective. Verifies all checksums, each rank over its part of the bytes. Then fills what this
 * rank holds of params, of m and v where the table has them, and of velocity where the table and
 * the file have it. A table of another model is refused with the first key that differs.
 * *state_json (state_json may be NULL) is the text of train_state.json, freed by mem_free. After a
 * failure the values are undefined. */
bool checkpoint_load(const char *path, const TensorTable *t, char **state_json, const Group *g,
                     Err *e);

#endif
