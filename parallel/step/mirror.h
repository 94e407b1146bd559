/* mirror -- a copy of weights and moments in host memory, for models whose kernels compute in
 * device memory.
 *
 *   tensors_init, weights_load, checkpoint_load  ->  host table  --- model_push -->  device arenas
 *   checkpoint_save, weights_export, audits      <-  host table  <-- model_pull ---  device arenas
 *
 * On the CPU the host table is the model's own table, and nothing is copied.
 */
#ifndef PARALLEL_STEP_MIRROR_H
#define PARALLEL_STEP_MIRROR_H

#include "parallel/step/model.h"

typedef struct Mirror Mirror;

/* Local. Allocate and free the mirror of m. Called by model_allocate, when the arenas of m are
 * committed, and by model_free. */
void mirror_make(Model *m);
void mirror_free(Model *m);

/* Local. The host table. model_host leaves its values as they are, for callers that write all of
 * them before model_push. model_pull first copies weights and moments from the device. */
TensorTable *model_host(Model *m);
TensorTable *model_pull(Model *m);
/* Collective over the mesh. Copies the host table to the device and casts the bf16 copies of the
 * weights. */
void model_push(Model *m);

/* Local. model_put copies bytes from host memory to the memory of the kernels; model_get copies
 * back. On the CPU both memories are the same, and both functions are memcpy. */
void model_put(const Model *m, void *to, const void *from, size_t n_bytes);
void model_get(const Model *m, void *to, const void *from, size_t n_bytes);

#endif
