/* tokenizer_folder -- the files of a tokenizer in a folder, which are copied beside a model. */
#ifndef DATA_TOKENIZER_FOLDER_H
#define DATA_TOKENIZER_FOLDER_H

#include <stdbool.h>

#include "base/die.h"

enum { TOKENIZER_FILES = 4 };
typedef struct TokenizerFolder {
    char *file[TOKENIZER_FILES + 1]; // paths; NULL after the last
    // text of the tokenizer_config.json that vocab.json and merges.txt alone need; NULL: none
    const char *config;
} TokenizerFolder;

/* Local. The files that the folder holds; none where `folder` is empty. */
TokenizerFolder tokenizer_folder(const char *folder);
void tokenizer_folder_free(TokenizerFolder *f);
/* Local. Does the folder hold a tokenizer? */
bool tokenizer_folder_is(const char *folder);
/* Local. Copies the tokenizer of folder `from` to folder `to`, or nothing where there is none. A
 * file that is there with the same bytes is left alone: this process may have mapped it. */
bool tokenizer_folder_copy(const char *from, const char *to, Err *e);

#endif
