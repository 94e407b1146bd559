/* head -- logits of a vocabulary are large: the head runs by chunks of tokens. */
#ifndef PARALLEL_STEP_HEAD_H
#define PARALLEL_STEP_HEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Local, pure. Elements from row to row of logits, of a head of V columns here: whole vectors. */
int64_t head_ld(int64_t V);
/* Local, pure. Tokens of a chunk, of T; on the host, or on a device. */
int64_t head_chunk(int64_t T, int64_t V, bool device);

#endif
