/* tokenizer_folder -- the files of a tokenizer in a folder, which are copied beside a model. */
#ifndef DATA_TOKENIZER_FOLDER_H
#define DATA_TOKENIZER_FOLDER_H

#include <stdbool.h>

#include "base/die.h"
#include "data/io_map.h"

enum { TOKENIZER_FILES = 4 };
typedef struct TokenizerFolder {
    IoMap file[TOKENIZER_FILES + 1]; // in memory, `path` is the name; path NULL after the last
} TokenizerFolder;

/* Local. Reads the files that the folder holds, and adds the tokenizer_config.json that vocab.json
 * and merges.txt alone need; no file where `folder` is empty or holds no tokenizer. Dies when a
 * file cannot be read. */
TokenizerFolder tokenizer_folder(const char *folder);
void tokenizer_folder_free(TokenizerFolder *f);
/* Local. Does the folder hold a tokenizer? */
bool tokenizer_folder_is(const char *folder);
/* Local. Writes the files to folder `to`. A file that is there with the same bytes is left alone:
 * this process may have mapped it. */
bool tokenizer_folder_write(const TokenizerFolder *f, const char *to, Err *e);

#endif
