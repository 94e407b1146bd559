/* hellaswag_write -- llm.c's evaluation file (data/hellaswag.h) from HellaSwag's own JSON lines.
 *
 *     {"ctx": "A man is", "label": 3, "endings": ["sitting.", "up a tree.", "a fish.", "a."], ...}
 *
 * The label may be a text ("3"), as in the copy of the data set that Hugging Face hosts. As in
 * llm.c a completion is encoded with a blank before it, the context as it is, and no token of an
 * end of text is added.
 */
#ifndef DATA_HELLASWAG_WRITE_H
#define DATA_HELLASWAG_WRITE_H

#include "base/die.h"
#include "data/tokenizer.h"

/* Local. The bytes of the file, freed by mem_free; NULL and a reason that names the line. */
uint8_t *hellaswag_encode(const uint8_t *text, size_t n, const Tokenizer *t, size_t *n_out, Err *e);

#endif
