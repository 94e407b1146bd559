/* mirror -- weights and moments as the host sees them, where kernels compute in memory of their own
 * (a GPU's).
 *
 *   tensors_init, weights_load, checkpoint_load  ->  host table  -- model_push -->  what kernels
 *                                                read
 *   checkpoint_save, weights_export, audits      <-  host table  <-- model_pull --  what kernels
 *                                                wrote
 *
 * On the CPU both are the model's own table, and nothing is copied.
 */
#ifndef PARALLEL_STEP_MIRROR_H
#define PARALLEL_STEP_MIRROR_H

#include "parallel/step/model.h"

typedef struct Mirror Mirror;

/* Local. Room for the mirror of m, whose arenas are committed; of model_allocate and model_free. */
void mirror_make(Model *m);
void mirror_free(Model *m);

/* Local. The table for who writes all of it before model_push; the same with what kernels have
 * now. */
TensorTable *model_host(Model *m);
TensorTable *model_pull(Model *m);
/* Collective over the mesh. Copies to the device what the host wrote, and casts the bf16 copies. */
void model_push(Model *m);

/* Local. Bytes from the host to memory of the kernels, and back, where either may be the same. */
void model_put(const Model *m, void *to, const void *from, size_t n_bytes);
void model_get(const Model *m, void *to, const void *from, size_t n_bytes);

#endif
