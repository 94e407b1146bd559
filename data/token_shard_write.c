#include "data/token_shard_write.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/output.h"

struct ShardWriter {
    char *stem; // "PREFIX_train"
    ShardFormat format;
    int32_t vocab;
    int64_t shard_tokens, in_file, total; // 0: one file; tokens of the open file; of all files
    Replace **files;
    int n_files;
    bool open; // is the last file open?
};

enum { HEADER_BYTES = 1024 };
#define MOST_TOKENS INT32_MAX // llm.c counts tokens in an int32

ShardWriter *shard_writer_open(const char *prefix, const char *split, ShardFormat format,
                               int32_t vocab, int64_t shard_tokens) {
    size_t n = strlen(prefix);
    if (format == SHARD_MEGATRON)
        die_user("Megatron files are read, not written: choose llmc16, llmc32 or nanogpt");
    if (format != SHARD_LLMC32 && vocab > 65536)
        die_user("a vocabulary of %d tokens does not fit 16 bits: choose the format llmc32",
                 (int)vocab);
    ShardWriter *w = mem_calloc(1, sizeof *w);
    w->stem = mem_printf("%s%s%s", prefix, n && prefix[n - 1] != '/' ? "_" : "", split);
    w->format = format;
    w->vocab = vocab;
    w->shard_tokens = shard_tokens;
    return w;
}

static char *file_name(const ShardWriter *w, int number) {
    if (w->shard_tokens == 0) return mem_printf("%s.bin", w->stem);
    return mem_printf("%s_%06d.bin", w->stem, number);
}

static void begin_file(ShardWriter *w) {
    static const uint8_t nothing[HEADER_BYTES];
    char *path = file_name(w, w->n_files);
    w->files = mem_realloc(w->files, (size_t)w->n_files + 1, sizeof *w->files);
    w->files[w->n_files++] =
        w->format == SHARD_NANOGPT ? replace_open(path) : replace_open_regular(path);
    if (w->format != SHARD_NANOGPT) replace_write(w->files[w->n_files - 1], nothing, HEADER_BYTES);
    w->in_file = 0;
    w->open = true;
    mem_free(path);
}

static void end_file(ShardWriter *w) {
    Replace *r = w->files[w->n_files - 1];
    int32_t header[3] = {20240520, 1, (int32_t)w->in_file};
    if (w->format == SHARD_LLMC32) header[0] = 20240801, header[1] = 7;
    if (w->format != SHARD_NANOGPT) replace_patch(r, 0, header, sizeof header);
    replace_finish(r);
    w->open = false;
}

/* Writes ids that all go to the open file. */
static void put(ShardWriter *w, const int32_t *ids, int64_t n) {
    enum { BATCH = 4096 };
    Replace *r = w->files[w->n_files - 1];
    uint16_t narrow[BATCH];
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->vocab)
            die_user("id %d is outside the vocabulary of %d tokens", (int)ids[i], (int)w->vocab);
    if (w->format == SHARD_LLMC32) replace_write(r, ids, (size_t)n * 4);
    for (int64_t at = 0; w->format != SHARD_LLMC32 && at < n; at += BATCH) {
        int64_t now = n - at < BATCH ? n - at : BATCH;
        for (int64_t i = 0; i < now; i++) narrow[i] = (uint16_t)ids[at + i];
        replace_write(r, narrow, (size_t)now * 2);
    }
    w->in_file += n;
    w->total += n;
}

void shard_writer_put(ShardWriter *w, const int32_t *ids, int64_t n) {
    int64_t most = w->shard_tokens ? w->shard_tokens : INT64_MAX;
    while (n > 0) {
        if (!w->open) begin_file(w);
        int64_t room = most - w->in_file, now = n < room ? n : room;
        if (w->format != SHARD_NANOGPT && w->in_file + now > MOST_TOKENS) {
            replace_abandon_all(0);
            die_user(
                "%s.bin would hold more than %d tokens, which llm.c's header cannot count: use "
                "--shard-tokens",
                w->stem, MOST_TOKENS);
        }
        put(w, ids, now);
        ids += now;
        n -= now;
        if (w->in_file == most) end_file(w);
    }
}

int64_t shard_writer_finish(ShardWriter *w) {
    if (w->open) end_file(w);
    return w->total;
}

int shard_writer_commit(ShardWriter *w) {
    shard_writer_finish(w);
    int n = w->n_files;
    for (int i = 0; i < n; i++) replace_commit(w->files[i]);
    char *next = file_name(w, n);
    if (w->shard_tokens && access(next, F_OK) == 0)
        warn("%s is there from an earlier run: a pattern like %s_*.bin will read it, too", next,
             w->stem);
    mem_free(next);
    mem_free(w->files);
    mem_free(w->stem);
    mem_free(w);
    return n;
}
