/* checkpoint_parts -- what the files of a checkpoint's code show one another (data/checkpoint.h).
 *
 *   checkpoint.c            all ranks save, all ranks load
 *   checkpoint_manifest.c   checkpoint.json: the list of files with their checksums
 *   checkpoint_folder.c     SAVE_DIR: names, steps, left-overs, rotation
 */
#ifndef DATA_CHECKPOINT_PARTS_H
#define DATA_CHECKPOINT_PARTS_H

#include <jansson.h>

#include "data/checkpoint.h"

#define CHECKPOINT_MANIFEST "checkpoint.json"

/* Local. The manifest of a folder, NULL and the reason when it is not sound. Sizes of files are
 * checked, contents are not. */
json_t *manifest_read(const char *path, Err *e);
/* Collective. The same, as rank 0 finds it. */
json_t *manifest_share(const char *path, const Group *g, Err *e);
/* Local. Text of a new one, freed by mem_free; files: {NAME: {"bytes", "crc32c"}}. */
char *manifest_print(int64_t step, const Config *c, json_t *files);
bool manifest_config(const char *path, const json_t *m, Config *c, Err *e);
/* Collective. Checks every file against its checksum. */
bool manifest_verify(const char *path, const json_t *m, const Group *g, Err *e);

/* Local. The folder of a step; and where it is built: a name of this process. Freed by mem_free. */
char *step_path(const char *save_dir, int64_t step);
char *step_build_path(const char *save_dir, int64_t step);
/* Local. Removes old checkpoints as the options say, by way of the name `aside`. */
void steps_rotate(const char *save_dir, int64_t newest, const CheckpointOptions *o,
                  const char *aside);

#endif
